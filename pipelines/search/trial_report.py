"""What a trial says of itself after every task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrialReport:
    """A trial after a number of tasks.

    Attributes:
        tasks: tasks learned.
        seen: accuracy on the validation samples of these tasks, of every repeat.
        whole: share of all validation samples that are right, of every repeat: those of classes not
            learned yet count as wrong, so it can be compared across trials that went differently far.
        nonzero, stored: parameters of the modules so far, mean over repeats.
        seconds: this task's learning and scoring.
    """

    tasks: int
    seen: tuple[float, ...]
    whole: tuple[float, ...]
    nonzero: float
    stored: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "tasks": self.tasks,
            "seen": list(self.seen),
            "whole": list(self.whole),
            "nonzero": self.nonzero,
            "stored": self.stored,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrialReport:
        """The inverse of ``to_json``."""
        return cls(**{**data, "seen": tuple(data["seen"]), "whole": tuple(data["whole"])})
