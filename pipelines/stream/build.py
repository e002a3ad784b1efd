"""From settings to a stream: list the samples, cut them into tasks, hold validation out, number the classes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.sources import open_source
from pipelines.stream.modifiers import Modifiers
from pipelines.stream.names import some
from pipelines.stream.task import Stream, Task
from workers.errors import DataError, SettingsError
from workers.storage.bank_json import is_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pipelines.sources import Listing
    from pipelines.stream.settings import ScenarioSettings, TaskPlan


def build_stream(settings: ScenarioSettings, *, seed: int, cache_dir: str | None = None) -> Stream:
    """List the source and cut it into tasks; the same samples and seed give the same stream anywhere.

    Args:
        settings: a scenario's settings.
        seed: the experiment's seed: class order, validation split, few-shot, long-tail and blurry choices.
        cache_dir: folder or URI where content digests are remembered, so that a second listing reads no image.

    Raises:
        DataError: the data are not what they must be.
        SettingsError: the settings contradict the data.
    """
    source = open_source(settings.source, cache_dir=cache_dir)
    listing = source.listing()
    planned = settings.plan(listing, seed=seed)
    _check_plans(planned)
    listing, plans = _only_claimed(listing, planned)
    classes = tuple(dict.fromkeys(name for plan in plans for name in plan.classes))
    numbers = {name: index for index, name in enumerate(classes)}
    _check_taught(listing, numbers)
    labels = np.array([numbers[name] for name in listing.samples["label"].to_pylist()], np.int64)
    modifiers = Modifiers(settings, listing, seed=seed)
    tasks = []
    for index, plan in enumerate(modifiers.apply(plans)):
        train, validation = modifiers.validation(plan.train)
        tasks.append(
            Task(
                index=index,
                name=plan.name,
                domain=plan.domain,
                classes=tuple(np.unique(labels[plan.train]).tolist()),
                train=_by_class_then_id(train, labels),
                validation=_by_class_then_id(validation, labels),
                test=_by_class_then_id(plan.test, labels),
            )
        )
    return Stream(
        scenario=settings.scenario,
        classes=classes,
        tasks=tuple(tasks),
        samples=listing.samples,
        labels=labels,
        reader=source.reader(),
        feature_width=listing.feature_width,
        warnings=(
            *listing.warnings,
            *modifiers.warnings,
            *_validation_warnings(settings, tasks, labels, classes),
            *_test_warnings(tasks, labels, classes),
        ),
        task_known=settings.task_known,
    )


def _check_plans(plans: Sequence[TaskPlan]) -> None:
    for name, count in Counter(plan.name for plan in plans).items():
        if count > 1:
            raise SettingsError(f"stream: {count} tasks are named {name!r}; names must differ")
    for plan in plans:
        if not plan.name or not is_text(plan.name):
            raise SettingsError(
                f"stream: the task name {plan.name!r} is not a line of text without control characters"
            )
        if len(plan.train) == 0:
            raise DataError(
                f"task {plan.name!r} has no training samples; its classes are {some(plan.classes)}"
            )


def _check_taught(listing: Listing, numbers: Mapping[str, int]) -> None:
    outside = [name for name in listing.classes if name not in numbers]
    if outside:
        raise DataError(
            f"labels outside the stream: no task trains {some(outside)}, but test has it"
        )


def _only_claimed(
    listing: Listing, plans: Sequence[TaskPlan]
) -> tuple[Listing, Sequence[TaskPlan]]:
    """The listing without samples that belong to no task, and the plans with rows of that listing."""
    claimed = np.zeros(listing.samples.num_rows, dtype=bool)
    for plan in plans:
        claimed[plan.train] = claimed[plan.test] = True
    if claimed.all():
        return listing, plans
    moved = np.cumsum(claimed) - 1
    samples = listing.samples.filter(pa.array(claimed)).combine_chunks()
    present = set(samples["label"].unique().to_pylist())
    return (
        replace(
            listing,
            samples=samples,
            classes=tuple(name for name in listing.classes if name in present),
        ),
        [replace(plan, train=moved[plan.train], test=moved[plan.test]) for plan in plans],
    )


def _by_class_then_id(rows: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows in order of class index, then id; samples are sorted by id, so rows are too."""
    return rows[np.lexsort((rows, labels[rows]))].astype(np.int64)


def _validation_warnings(
    settings: ScenarioSettings,
    tasks: Sequence[Task],
    labels: NDArray[np.int64],
    classes: Sequence[str],
) -> list[str]:
    if not settings.validation_fraction:
        return []
    warnings = []
    for task in tasks:
        without = np.setdiff1d(task.classes, labels[task.validation])
        if len(without):
            warnings.append(
                f"{task.name}: no validation samples of {some([classes[at] for at in without])}, "
                "which have a single training sample"
            )
    return warnings


def _test_warnings(
    tasks: Sequence[Task], labels: NDArray[np.int64], classes: Sequence[str]
) -> list[str]:
    """Classes that are never scored, and test samples of classes that no task so far has trained."""
    warnings = []
    tested = {int(label) for task in tasks for label in np.unique(labels[task.test])}
    untested = [name for index, name in enumerate(classes) if index not in tested]
    if untested:
        warnings.append(f"no test samples of {some(untested)}: these classes are never scored")
    seen: set[int] = set()
    for task in tasks:
        seen.update(task.classes)
        early = sorted({int(label) for label in np.unique(labels[task.test])} - seen)
        if early:
            warnings.append(
                f"{task.name}: test samples of {some([classes[at] for at in early])}, "
                "which are trained only in a later task"
            )
    return warnings
