"""The space of a sweep: which keys of an experiment may vary, and over what.

A point of the space is a mapping from dotted keys to values, as ``-o key=value`` would set them.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping
from typing import Any

from pipelines.search.settings import Domain, Range
from workers.errors import SettingsError

Point = dict[str, Any]

SEARCHABLE = ("recipe", "luca", "learning", "whitening", "evaluation")
"""Top-level keys that a trial may vary."""

_REASONS = {
    "seed": "trials must be compared on the same stream; use search.repeats for several seeds",
    "stream": "trials must be compared on the same stream",
    "backbone": "trials learn from cached features; sweep each backbone on its own",
    "features": "trials learn from cached features as they are",
    "search": "a sweep does not search its own settings",
    "evaluation.baselines": "baselines play no part in a trial",
    "evaluation.baseline_options": "baselines play no part in a trial",
    "evaluation.statistics": "it does not change what a trial measures",
}


def default_space(*, l1_mode: str) -> dict[str, Domain]:
    """What is searched when the experiment says nothing: sparsity, both ranks, learning rate.

    Where the experiment's L1 term is the published subgradient, which never gives an exact zero, trials use the
    proximal step.
    """
    space: dict[str, Domain] = {
        "learning.l1": Range(low=1e-5, high=3e-2, log=True),
        "luca.adapter_rank": (2, 4, 8, 16, 32, 48),
        "luca.calibrator_rank": (2, 4, 8, 16, 32, 48),
        "learning.learning_rate": Range(low=5e-3, high=1e-1, log=True),
    }
    if l1_mode == "subgradient":
        space["learning.l1_mode"] = ("proximal",)
    return space


class SearchSpace:
    """Keys and their domains.

    Raises:
        SettingsError: a key that no trial may vary.
    """

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        for key in domains:
            check_searchable(key)
        self.domains = dict(domains)

    @property
    def size(self) -> float:
        """Number of points; infinite when a range is continuous."""
        total = 1.0
        for domain in self.domains.values():
            total *= len(domain) if isinstance(domain, tuple) else _count(domain)
        return total

    def extremes(self) -> list[tuple[str, Any]]:
        """Values that must be acceptable for the rest to be: ends of ranges, all listed values."""
        return [
            (key, value)
            for key, domain in self.domains.items()
            for value in (domain if isinstance(domain, tuple) else (domain.low, domain.high))
        ]

    def draw(self, generator: random.Random) -> Point:
        """A random point."""
        return {key: _draw(domain, generator) for key, domain in self.domains.items()}

    def grid(self) -> list[Point]:
        """Every combination of listed values and of ``points`` evenly spaced values of each range."""
        axes = [_axis(domain) for domain in self.domains.values()]
        return [dict(zip(self.domains, values, strict=True)) for values in itertools.product(*axes)]


def check_searchable(key: str) -> None:
    """Refuse a key that would make trials incomparable or change nothing.

    Raises:
        SettingsError: says why, and which keys there are.
    """
    for prefix, reason in _REASONS.items():
        if key == prefix or key.startswith(f"{prefix}."):
            raise SettingsError(f"search.space: {key} cannot be searched: {reason}")
    top = key.split(".", 1)[0]
    if top in ("name", "description", "storage", "bank", "tracking", "cluster", "gate"):
        raise SettingsError(
            f"search.space: {key} cannot be searched: it does not change what a trial measures; "
            f"keys below {', '.join(SEARCHABLE)} can"
        )


def _count(domain: Range) -> float:
    if domain.step is not None:
        return math.floor((domain.high - domain.low) / domain.step + 1e-9) + 1
    return domain.high - domain.low + 1 if domain.whole else math.inf


def _draw(domain: Domain, generator: random.Random) -> Any:
    if isinstance(domain, tuple):
        return generator.choice(domain)
    low, high = domain.low, domain.high
    if domain.step is not None:
        return _stepped(domain, generator.randrange(int(_count(domain))))
    if domain.log:
        # Whole numbers get the share of the axis that rounds to them, as in Optuna.
        edge = 0.5 if domain.whole else 0.0
        drawn = math.exp(generator.uniform(math.log(low - edge), math.log(high + edge)))
        return min(max(round(drawn), low), high) if domain.whole else min(max(drawn, low), high)
    return generator.randint(int(low), int(high)) if domain.whole else generator.uniform(low, high)


def _axis(domain: Domain) -> list[Any]:
    if isinstance(domain, tuple):
        return list(domain)
    low, high, last = domain.low, domain.high, domain.points - 1
    if domain.step is not None:
        return [_stepped(domain, at) for at in range(int(_count(domain)))]
    if domain.log:
        values = [low * (high / low) ** (at / last) for at in range(domain.points)]
    else:
        values = [low + (high - low) * at / last for at in range(domain.points)]
    values[0], values[-1] = low, high
    if domain.whole:
        return sorted({round(value) for value in values})
    return values


def _stepped(domain: Range, at: int) -> Any:
    assert domain.step is not None
    value = domain.low + at * domain.step
    return value if domain.whole else float(f"{value:.12g}")


def as_text(value: Any) -> str:
    """A value as one line of JSON: the same text for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def set_at(data: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of nested ``data`` with ``value`` at the dotted ``key``, whatever was there."""
    head, _, rest = key.partition(".")
    if not rest:
        return {**data, head: value}
    below = data.get(head)
    return {**data, head: set_at(below if isinstance(below, Mapping) else {}, rest, value)}


def get_at(data: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key of nested mappings.

    Raises:
        KeyError: there is none.
    """
    value: Any = data
    for part in key.split("."):
        if not isinstance(value, Mapping):
            raise KeyError(key)
        value = value[part]
    return value
