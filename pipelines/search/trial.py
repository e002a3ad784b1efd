"""One setting over the tasks of a stream: learned task by task from cached features, judged on validation samples.

A plain class without Ray, backbone or test samples.  It learns what a run with the same settings learns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipelines.search.data import SweepData
from pipelines.search.trial_report import TrialReport
from pipelines.search.trial_settings import TrialSettings
from workers.modeling.bank_tensors import BankTensors, TaskModule
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.heads import UnifiedHead
from workers.modeling.jobs import LearnedTask
from workers.modeling.learner import LearnJob, learn_many
from workers.modeling.luca import nonzero_count, parameter_count
from workers.modeling.pooling import PooledStatistics
from workers.modeling.predictor import Predictor
from workers.modeling.routers import ROUTERS
from workers.modeling.scoring import module_scores
from workers.task_learning import WhitenedView

if TYPE_CHECKING:
    from torch import Tensor

SCORE_BYTES = 128 * 2**20
"""Module scores that a trial remembers between tasks; beyond, they are computed again."""


class Trial:
    """Learns the stream under one setting.

    With objective ``local`` tasks do not depend on each other: all up to the next rung are learned in one
    call, those of equal shape as one batched product.  Repeats are learned side by side in either case.

    Args:
        settings: the setting.
        data: the features.
    """

    def __init__(self, settings: TrialSettings, data: SweepData) -> None:
        self._settings = settings
        self._data = data
        self._plan = data.plan
        self._evaluation = settings.evaluation.model_copy(
            update={"routers": (settings.router,), "baselines": ()}
        )
        white = settings.whitening == "first_task"
        self._repeats = [
            _Repeat(data, number, settings, self._evaluation, whitened=white)
            for number in range(len(self._plan.streams))
        ]
        self._done = 0
        self._nonzero = self._stored = 0

    @property
    def finished(self) -> bool:
        """Whether every task is learned."""
        return self._done == self._plan.tasks

    @property
    def learned(self) -> tuple[tuple[LearnedTask, ...], ...]:
        """What was learned, by repeat and task; up to the next rung it may be ahead of the reports."""
        return tuple(tuple(repeat.learned) for repeat in self._repeats)

    def step(self) -> TrialReport:
        """Learn one more task and score all tasks seen.

        Raises:
            SettingsError: learning diverged, or the settings do not fit the features.
            FeatureCorruptionError: a feature part is gone or damaged.
            DataError: features are not finite.
        """
        started = time.perf_counter()
        index = self._done
        if index >= len(self._repeats[0].learned):
            self._learn(index)
        counts = [repeat.score(index) for repeat in self._repeats]
        self._done = index + 1
        for repeat in self._repeats:
            module = repeat.learned[index].module
            self._nonzero += nonzero_count(module)
            self._stored += parameter_count(module)
        repeats = len(self._repeats)
        return TrialReport(
            tasks=self._done,
            seen=tuple(right / seen if seen else 0.0 for right, seen, _ in counts),
            whole=tuple(right / everything for right, _, everything in counts),
            nonzero=self._nonzero / repeats,
            stored=self._stored / repeats,
            seconds=time.perf_counter() - started,
        )

    def _learn(self, first: int) -> None:
        stop = next((rung for rung in self._plan.rungs if rung > first), self._plan.tasks)
        if self._settings.learning.objective == "local":
            self._learn_jobs(range(first, stop))
        else:
            for index in range(first, stop):
                self._learn_jobs(range(index, index + 1))

    def _learn_jobs(self, indices: Sequence[int]) -> None:
        jobs = [repeat.job(index) for repeat in self._repeats for index in indices]
        learned = learn_many(jobs)
        for number, repeat in enumerate(self._repeats):
            repeat.take(learned[number * len(indices) : (number + 1) * len(indices)])


class _Repeat:
    """One stream of a trial: its modules, and which validation samples they get right."""

    def __init__(
        self,
        data: SweepData,
        number: int,
        settings: TrialSettings,
        evaluation: EvaluationSettings,
        *,
        whitened: bool,
    ) -> None:
        self._data, self._number = data, number
        self._settings, self._evaluation = settings, evaluation
        self._stream = data.plan.streams[number]
        self._whitening = data.whitening(number) if whitened else None
        self._needs_statistics = ROUTERS[settings.router].evidence == "statistics"
        self._scores: dict[tuple[int, int], Tensor] = {}
        self._pooled: tuple[int, PooledStatistics | None] = (0, None)
        self.learned: list[LearnedTask] = []

    def job(self, index: int) -> LearnJob:
        """The job of learning one task, as a run would."""
        import torch

        task = self._stream.tasks[index]

        def own_labels(labels: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.searchsorted(task.classes, labels) if local else np.array(labels)

        data = self._data.task(self._number, index)
        test_view = WhitenedView(data.train, self._whitening)
        local = self._settings.learning.objective == "local"
        previous = None
        if not local and self.learned:
            previous = UnifiedHead(self.learned[-1].head, self.learned[-1].scale)
        check = None
        if self._data.plan.check and self._settings.learning.threshold and data.held_out:
            view = WhitenedView(data.held_out, self._whitening)
            check = view, torch.from_numpy(own_labels(data.held_out.labels))
        return LearnJob(
            views=[
                test_view if view is data.train else WhitenedView(view, self._whitening)
                for view in data.views
            ],
            labels=torch.from_numpy(own_labels(data.train.labels)),
            classes=len(task.classes) if local else 0,
            new_classes=() if local else task.new_classes,
            previous=previous,
            luca=self._settings.luca,
            learning=self._settings.learning,
            seed=self._stream.seed,
            task_key=task.name,
            test_view=test_view,
            check=check,
        )

    def take(self, learned: Sequence[LearnedTask]) -> None:
        """Keep what was learned, in order of tasks."""
        self.learned.extend(learned)

    def score(self, index: int) -> tuple[int, int, int]:
        """Validation samples that are right after task ``index``, those of the tasks seen, and all there are."""
        import torch

        seen = [self._data.task(self._number, i) for i in range(index + 1)]
        everything = sum(len(task.validation) for task in self._stream.tasks)
        labels = torch.cat([task.validation_labels for task in seen])
        if not len(labels):
            return 0, 0, everything
        bank = self._bank(index)
        owner = torch.cat(
            [torch.full((len(task.validation_labels),), i) for i, task in enumerate(seen)]
        )
        made = Predictor(bank, self._evaluation, self._settings.router).predict(
            torch.cat([task.validation for task in seen]),
            task_ids=owner,
            scores=self._module_scores(bank, index),
        )
        return int((made.class_index == labels).sum()), len(labels), everything

    def _bank(self, index: int) -> BankTensors:
        local = self._settings.learning.objective == "local"
        tasks = self._stream.tasks[: index + 1]
        learned = self.learned[: index + 1]
        classes = 1 + max(c for task in tasks for c in task.classes)
        head = learned[-1]
        return BankTensors(
            width=self._data.task(self._number, 0).train.features.width,
            class_names=self._stream.class_names[:classes],
            flow=self._settings.luca.flow,
            objective=self._settings.learning.objective,
            tasks=tuple(
                TaskModule(
                    name=task.name,
                    classes=task.classes,
                    module=made.module,
                    head=made.head if local else None,
                    scale=made.scale if local else None,
                )
                for task, made in zip(tasks, learned, strict=True)
            ),
            head=None if local else head.head,
            scale=None if local else head.scale,
            whitening=self._whitening,
            pool=self._pool(index) if self._needs_statistics else None,
        )

    def _pool(self, index: int) -> PooledStatistics | None:
        """Statistics of tasks 0..index, added up; tasks are scored in order, so each is added once."""
        tasks, pool = self._pooled
        new = [
            self._data.statistics(self._number, i, self._evaluation, self._whitening)
            for i in range(tasks, index + 1)
        ]
        if new:
            pool = PooledStatistics.of(new) if pool is None else pool.plus_all(new)
        self._pooled = index + 1, pool
        return pool

    def _module_scores(self, bank: BankTensors, index: int) -> list[Tensor] | None:
        """Every module's scores on the samples of tasks 0..index; only new pairs are computed."""
        import torch

        samples = sum(len(task.validation) for task in self._stream.tasks)
        columns = sum(
            len(task.classes) if bank.objective == "local" else bank.width
            for task in self._stream.tasks
        )
        if columns * samples * 4 > SCORE_BYTES:
            return None
        for part in range(index + 1):
            features = self._data.task(self._number, part).validation
            missing = [m for m in range(index + 1) if (m, part) not in self._scores]
            if missing:
                made = module_scores(bank, missing, features)
                self._scores.update({(m, part): s for m, s in zip(missing, made, strict=True)})
        return [
            torch.cat([self._scores[module, part] for part in range(index + 1)])
            for module in range(index + 1)
        ]
