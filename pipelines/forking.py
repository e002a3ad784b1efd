"""Forks: a new bank from a version of another, which may go on with other settings of learning.

Modules of different settings live in one bank as long as one way of predicting serves them all.  A fork's settings are
those of what is learned from now on; where they differ from those a task was learned with, its record keeps the old
values (``info.learned_with``), so that the bank never claims more than is true.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipelines.unlearned import carried, unlearned
from workers.errors import BankError
from workers.storage.bank_changes import Change, changes
from workers.storage.bank_copy import fork_bank
from workers.storage.bank_json import plain

if TYPE_CHECKING:
    from workers.storage.bank_manifest import TaskRecord
    from workers.storage.bank_version import BankVersion

LEARNED_WITH = "learned_with"

_FIXED = {
    "luca.flow": "all modules of a bank are run with one flow",
    "learning.objective": "a bank predicts either with one head or with a head of each task",
    "whitening": "all modules of a bank read features through one whitening, computed from its first task",
    "feature_dtype": "all modules of a bank read features rounded to one dtype",
}
"""Settings that a bank with tasks cannot change, and why."""

_RANDOM_FEATURES = "statistics.random_features"


def fork(
    source: BankVersion,
    name: str,
    *,
    settings: Mapping[str, Any] | None = None,
    code: str = "",
) -> BankVersion:
    """A new bank beside ``source`` with its content; ``settings`` are those of what is learned from now on.

    Raises:
        BankError: a bank of that name exists, or its tasks could not be predicted together with such new ones.
        CorruptionError: an object of the source is damaged; nothing was made.
    """
    after = source.settings if settings is None else plain("settings", settings)
    refuse_unfit(source, after)
    tasks = tuple(_remembering(source, task, after) for task in source.tasks)
    manifest = source.manifest.with_metrics(carried(unlearned(source)))
    return fork_bank(
        replace(source, tasks=tasks, manifest=manifest),
        name,
        settings=after,
        code=code,
    )


def refuse_unfit(source: BankVersion, after: Mapping[str, Any]) -> None:
    """Refuse settings under which the tasks of a version and new ones could not predict together.

    Raises:
        BankError: says which setting, and why; or there is no task, and so nothing to fork.
    """
    if not source.tasks:
        raise BankError(
            f"version {source.version} of bank '{source.bank.name}' holds no task, so a fork would hold nothing: "
            "start a bank of its own (`luca run ... -o bank=NAME`)"
        )
    reasons = dict(_FIXED)
    if _leaf(after, _RANDOM_FEATURES):
        reasons[_RANDOM_FEATURES] = (
            "router 'ridge' needs the same random features of every task (0 leaves them out)"
        )
        reasons["seed"] = (
            "random features are drawn from the seed, and router 'ridge' needs the same of every task"
        )
    for path, reason in reasons.items():
        before, now = _leaf(source.settings, path), _leaf(after, path)
        if before != now:
            raise BankError(
                f"a fork of bank '{source.bank.name}' cannot change {path} from {before!r} to {now!r}: {reason}; keep "
                "the old value, or start a bank of its own (`luca run ... -o bank=NAME`)"
            )


def learned_with(task: TaskRecord) -> dict[str, Any]:
    """The settings a task was learned with, by dotted name, where they differ from the version's."""
    kept = task.info.get(LEARNED_WITH)
    return dict(kept) if isinstance(kept, dict) else {}


def settings_of(version: BankVersion, task: TaskRecord) -> dict[str, Any]:
    """All settings a task was learned with."""
    whole = copy.deepcopy(version.settings)
    for path, value in learned_with(task).items():
        *parents, leaf = path.split(".")
        place = whole
        for parent in parents:
            below = place.get(parent)
            if not isinstance(below, dict):
                below = place[parent] = {}
            place = below
        place[leaf] = value
    return whole


def _remembering(source: BankVersion, task: TaskRecord, after: Mapping[str, Any]) -> TaskRecord:
    """The task's record with the settings it was learned with, as far as ``after`` differs from them."""
    differing: tuple[Change, ...] = changes(settings_of(source, task), after)
    info = {key: value for key, value in task.info.items() if key != LEARNED_WITH}
    if differing:
        info[LEARNED_WITH] = {change.path: change.before for change in differing}
    return task if info == task.info else replace(task, info=info)


def _leaf(settings: Mapping[str, Any], path: str) -> Any:
    value: Any = settings
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def numbers(value: Any) -> Iterator[int]:
    """Every whole number in plain data."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value
