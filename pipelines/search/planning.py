"""From streams to what trial processes are told: rows of training and validation samples, and when to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.search.data import SweepStream, SweepTask
from pipelines.search.settings import SearchSettings
from workers.errors import DataError

if TYPE_CHECKING:
    from pipelines.features import FeaturePlan
    from pipelines.stream import Stream
    from workers.storage.features import PartKey


def sweep_stream(stream: Stream, plan: FeaturePlan, *, backbone: str, seed: int) -> SweepStream:
    """A stream as trials see it; its test samples stay behind.

    Raises:
        DataError: no validation samples are held out.
    """
    if not any(len(task.validation) for task in stream.tasks):
        raise DataError(
            "the sweep holds no validation sample out: every class has a single training sample, or "
            "validation_fraction is too small for them"
        )
    seen: set[int] = set()
    tasks = []
    for task in stream.tasks:
        tasks.append(
            SweepTask(
                name=task.name,
                classes=task.classes,
                new_classes=tuple(c for c in task.classes if c not in seen),
                train=plan.rows(task.train, backbone),
                validation=plan.rows(task.validation, backbone),
            )
        )
        seen.update(task.classes)
    return SweepStream(seed=seed, class_names=stream.classes, tasks=tuple(tasks))


def needed_parts(
    stream: Stream, plan: FeaturePlan, *, backbone: str, views: int
) -> list[tuple[int, PartKey]]:
    """Parts that trials read: training samples in all views, validation samples in the test view."""
    pairs: dict[PartKey, int] = {}
    for task in stream.tasks:
        for rows, wanted in ((task.train, range(views + 1)), (task.validation, range(1))):
            for part in plan.parts_of(rows) if len(rows) else []:
                for view in wanted:
                    pairs[plan.key(part, view, backbone)] = part
    return [(part, key) for key, part in pairs.items()]


def rungs(settings: SearchSettings, tasks: int) -> tuple[int, ...]:
    """Numbers of tasks at which trials may be stopped: grace * factor^k, none in the last quarter of the stream."""
    if not settings.early_stopping:
        return ()
    found = []
    rung = float(settings.grace_tasks or max(3, tasks // 6))
    while rung < 0.75 * tasks:
        found.append(-int(-rung // 1))
        rung *= settings.reduction_factor
    return tuple(dict.fromkeys(found))
