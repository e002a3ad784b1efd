"""Counts and rounded numbers in sentences."""

from __future__ import annotations

import math

import pytest

from workers.wording import fixed, plural


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (4797, "4,797 files")]
)
def test_a_count_agrees_with_its_word(count: int, said: str) -> None:
    assert plural(count, "file") == said


def test_a_count_may_be_a_fraction() -> None:
    assert plural(0.5, "GPU") == "0.5 GPUs"
    assert plural(1.0, "CPU") == "1 CPU"


def test_an_irregular_plural_is_given() -> None:
    assert plural(1, "class", "classes") == "1 class"
    assert plural(1000, "class", "classes") == "1,000 classes"


@pytest.mark.parametrize("value", [0.0, -0.0, -1e-17, -0.049, 0.049])
def test_what_rounds_to_zero_has_no_sign(value: float) -> None:
    assert fixed(value, 1) == "0.0"


def test_other_numbers_keep_their_sign() -> None:
    assert fixed(-0.06, 1) == "-0.1"
    assert fixed(12.345, 2) in ("12.34", "12.35")
    assert fixed(math.nan, 1) == "nan"
