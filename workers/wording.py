"""Counts and rounded numbers in sentences for people."""

from __future__ import annotations


def plural(count: float, word: str, words: str | None = None) -> str:
    """A number with its word: 1 task, 3 tasks, 1,000 classes, 0.5 GPUs."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:,g}"
    return f"{number} {word if count == 1 else words or word + 's'}"


def fixed(value: float, digits: int) -> str:
    """A number with so many decimals; what rounds to zero has no sign."""
    return f"{round(value, digits) + 0.0:.{digits}f}"  # -0.0 + 0.0 is 0.0
