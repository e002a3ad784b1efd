"""What kind of thing each method in a table is, so that no bound is ever read as a result.

A run's summary may describe its methods itself (``methods: {name: {kind, note}}``); this is for those it does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

TASKS_GIVEN = "task_incremental"
"""The scenario that tells evaluation the task of every test sample: there the oracle is the headline."""

Kind = Literal["router", "baseline", "order", "lower bound", "upper bound"]

KIND_TITLES: dict[Kind, str] = {
    "router": "LuCA modules, chosen per sample",
    "baseline": "Baselines on the same features",
    "order": "Depends on the order of the test set (only for comparison with published figures)",
    "lower bound": "Lower bound",
    "upper bound": "Upper bounds (use what a deployed model cannot know; never a result)",
}
"""Kinds in the order in which a table lists them."""

KIND_MARKS: dict[Kind, str] = {
    "router": "",
    "baseline": "",
    "order": "test-order dependent",
    "lower bound": "lower bound",
    "upper bound": "upper bound",
}


@dataclass(frozen=True)
class Method:
    """A method's name, kind, and what it does in half a sentence."""

    name: str
    kind: Kind
    note: str

    @property
    def mark(self) -> str:
        """What must stand wherever the method's numbers stand; empty for an ordinary result."""
        return KIND_MARKS[self.kind]

    @property
    def title(self) -> str:
        """Name and mark."""
        return f"{self.name} ({self.mark})" if self.mark else self.name


_KNOWN: dict[str, tuple[Kind, str]] = {
    "lda": ("router", "module chosen by a shared-covariance Gaussian classifier"),
    "ridge": ("router", "module chosen by regularised least squares"),
    "prototype": ("router", "module chosen by the nearest class mean"),
    "entropy": ("router", "the surest module answers"),
    "batch_entropy": ("order", "the published rule: one module for a whole batch of the test set"),
    "batch_entropy_shuffled": ("order", "the published rule on a shuffled test set"),
    "oracle": ("upper bound", "told the true task of every sample"),
    "simplecil": ("baseline", "nearest class mean, no learning"),
    "slda": ("baseline", "shared-covariance Gaussian classifier, no modules"),
    "lda_baseline": ("baseline", "shared-covariance Gaussian classifier, no modules"),
    "ranpac": ("baseline", "random projection and ridge regression"),
    "fecam": ("baseline", "Mahalanobis distance, a covariance per class"),
    "sequential_linear": ("lower bound", "one linear layer, fine-tuned task after task"),
    "joint_linear": ("upper bound", "linear layer trained on all tasks' data at once"),
    "joint_luca": ("upper bound", "one LuCA module trained on all tasks' data at once"),
}


def describe(
    name: str, *, said: Mapping[str, Any] | None = None, scenario: str | None = None
) -> Method:
    """The method of that name.

    Args:
        name: as in the predictions; a variant such as ``lda_product`` is what its longest known beginning is.
        said: what the run's summary says of its methods.
        scenario: the stream's; where it gives the task, the oracle is an ordinary result.
    """
    own = (said or {}).get(name)
    if isinstance(own, Mapping) and own.get("kind") in get_args(Kind):
        return Method(name, own["kind"], str(own.get("note", "")))
    kind, note = _lookup(name)
    if kind == "upper bound" and name.startswith("oracle") and scenario == TASKS_GIVEN:
        return Method(name, "router", "the task of every sample is given by the scenario")
    return Method(name, kind, note)


def _lookup(name: str) -> tuple[Kind, str]:
    parts = re.split(r"[^A-Za-z0-9]+", name)
    for length in range(len(parts), 0, -1):
        found = _KNOWN.get("_".join(parts[:length]))
        if found:
            return found
    return "router", ""
