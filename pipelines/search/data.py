"""The features that all trials of a process read: mapped once, validation samples gathered once.

Nothing here depends on a trial's settings but what is asked for by them (statistics of random features), so the
next trial in the same process starts learning at once.  Files are mapped read-only: processes of a node share
one copy in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workers.feature_rows import FeatureRows, OpenRows, open_rows
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.statistics import TaskStatistics
from workers.modeling.whitening import Whitening
from workers.storage.features import FeatureCache
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SweepTask:
    """A task as a trial sees it: training and validation samples, and no others.

    Attributes:
        classes, new_classes: global class indices, ascending; the second ones no earlier task had.
        train, validation: where the features lie; labels are global class indices.
    """

    name: str
    classes: tuple[int, ...]
    new_classes: tuple[int, ...]
    train: FeatureRows
    validation: FeatureRows


@dataclass(frozen=True)
class SweepStream:
    """A stream under one seed; ``seed`` is that of learning."""

    seed: int
    class_names: tuple[str, ...]
    tasks: tuple[SweepTask, ...]


@dataclass(frozen=True)
class SweepPlan:
    """What every trial process is told.

    Attributes:
        storage: URI, the same on every node.
        streams: one a repeat, all with the same number of tasks.
        views: augmented views to learn from; 0 learns from the test view.
        rungs: numbers of tasks at which a trial may be stopped, ascending.
        check: whether a magnitude threshold is checked on validation samples, as in a run that holds some out.
        threads: of every trial process.
    """

    storage: str
    streams: tuple[SweepStream, ...]
    views: int
    rungs: tuple[int, ...] = ()
    check: bool = False
    threads: int = 1

    @property
    def tasks(self) -> int:
        """Tasks of a stream."""
        return len(self.streams[0].tasks)


@dataclass(frozen=True)
class TaskData:
    """A task's features, opened.

    Attributes:
        train: the test view of the training samples; class means come from it.
        views: what is learned from.
        held_out: the validation samples, None where a task has none.
        validation: their raw features, float32 [v, d].
        validation_labels: global class indices, int64 [v].
    """

    train: OpenRows
    views: tuple[OpenRows, ...]
    held_out: OpenRows | None
    validation: Tensor
    validation_labels: Tensor


class SweepData:
    """Opens what trials ask for and keeps it.

    Raises (from every method):
        FeatureCorruptionError: a part is gone or damaged.
        DataError: features are missing or not finite.
    """

    def __init__(self, plan: SweepPlan) -> None:
        self.plan = plan
        self._cache = FeatureCache(Storage.open(plan.storage))
        self._tasks: dict[tuple[int, int], TaskData] = {}
        self._whitening: dict[int, Whitening] = {}
        self._statistics: dict[tuple[int, int, str], TaskStatistics] = {}

    def task(self, repeat: int, index: int) -> TaskData:
        """Features of a task."""
        key = repeat, index
        if key not in self._tasks:
            self._tasks[key] = self._open(self.plan.streams[repeat].tasks[index])
        return self._tasks[key]

    def whitening(self, repeat: int) -> Whitening:
        """From the first task's training samples, as a run makes it."""
        if repeat not in self._whitening:
            fitted = Whitening.from_statistics(self._fit(repeat, 0, None, None))
            self._whitening[repeat] = Whitening.from_arrays(fitted.to_arrays())
        return self._whitening[repeat]

    def statistics(
        self,
        repeat: int,
        index: int,
        evaluation: EvaluationSettings,
        whitening: Whitening | None,
    ) -> TaskStatistics:
        """Router statistics of a task, one Gram matrix a task: routers pool them anyway."""
        projected = evaluation.random_features
        kind = f"{projected}/{whitening is not None}" if projected else ""
        key = repeat, index, kind
        if key not in self._statistics:
            self._statistics[key] = self._fit(repeat, index, evaluation, whitening)
        return self._statistics[key]

    def _fit(
        self,
        repeat: int,
        index: int,
        evaluation: EvaluationSettings | None,
        whitening: Whitening | None,
    ) -> TaskStatistics:
        stream = self.plan.streams[repeat]
        train = self.task(repeat, index).train
        classes = stream.tasks[index].classes
        projection = None
        if evaluation is not None:
            projection = evaluation.projection(
                width=train.features.width, seed=stream.seed, whitening=whitening
            )
        return TaskStatistics.from_features(
            train.features,
            np.searchsorted(classes, train.labels),
            classes=len(classes),
            granularity="task",
            projection=projection,
        )

    def _open(self, task: SweepTask) -> TaskData:
        import torch

        train = open_rows(self._cache, task.train)
        views = tuple(
            open_rows(self._cache, task.train, view=view) for view in range(1, self.plan.views + 1)
        )
        held = open_rows(self._cache, task.validation) if len(task.validation) else None
        if held is not None:
            features = held.features.gather(np.arange(len(held.labels)))
            labels = held.labels
        else:
            features = np.zeros((0, train.features.width), dtype=np.float32)
            labels = np.zeros(0, dtype=np.int64)
        return TaskData(
            train,
            views or (train,),
            held,
            torch.from_numpy(features),
            torch.from_numpy(np.array(labels, dtype=np.int64)),
        )
