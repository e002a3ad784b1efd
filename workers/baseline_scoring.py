"""Baselines on the same features: learning the tasks in order and scoring after each.

Their state is small and quick to rebuild, so it lives in the actor alone; an actor that lost it says so, and
is told the earlier tasks again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from workers.errors import StateLostError
from workers.feature_rows import open_rows
from workers.modeling.baselines import BASELINES, Baseline, BaselineContext
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings
from workers.scored import MethodPredictions, TestPart, TrainPart
from workers.storage.features import FeatureCache
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    from torch import Tensor


class BaselineScorer:
    """Runs baselines over the tasks of a stream, in order.

    Args:
        storage: where features lie.
        settings: which baselines, and their options.
        seed: seed of the run.
        luca, learning: what LuCA modules of the run look like, for ``joint_luca``.
        tasks: number of tasks in the stream; costly baselines are scored after the last only.
        task_known: the stream gives every test sample's task; decisions are made among its classes.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        settings: EvaluationSettings,
        seed: int,
        luca: LucaSettings,
        learning: LearningSettings,
        tasks: int,
        task_known: bool = False,
    ) -> None:
        self._cache = FeatureCache(storage)
        self._settings = settings
        self._seed, self._luca, self._learning, self._tasks = seed, luca, learning, tasks
        self._baselines: dict[str, Baseline] = {}
        self._observed = 0
        self._task_known = task_known
        self._task_classes: dict[int, tuple[int, ...]] = {}
        self._tests: dict[int, tuple[Tensor, Tensor]] = {}

    def score(
        self, after: int, trains: Mapping[int, TrainPart], tests: Sequence[TestPart]
    ) -> tuple[dict[str, MethodPredictions], float]:
        """Learn the tasks up to ``after`` and predict the samples of ``tests``, in their order.

        Args:
            after: index of the last task.
            trains: training samples by task index: at least those not yet observed.
            tests: test samples of the tasks seen.

        Returns:
            Predictions by baseline, and seconds.

        Raises:
            StateLostError: earlier tasks are missing from ``trains``.
            FeatureCorruptionError: a feature part has to be extracted again.
        """
        import torch

        started = time.perf_counter()
        if self._observed > after + 1:
            self._baselines, self._observed = {}, 0
        while self._observed <= after:
            train = trains.get(self._observed)
            if train is None:
                raise StateLostError(f"task {self._observed} was never observed")
            data = open_rows(self._cache, train.rows)
            features = torch.from_numpy(data.features.gather(np.arange(len(data.labels))))
            if not self._baselines:
                self._baselines = self._create(features.shape[1])
            for baseline in self._baselines.values():
                baseline.observe(features, torch.from_numpy(data.labels), train.classes)
            self._task_classes[self._observed] = train.classes
            self._observed += 1
        features, labels = self._read(tests)
        predictions: dict[str, MethodPredictions] = {}
        for name, baseline in self._baselines.items():
            if baseline.cadence == "final" and after < self._tasks - 1:
                continue
            made = baseline.predict(features)
            if self._task_known:
                made = made.among(self._own_classes(tests, made.classes))
            predictions[name] = MethodPredictions(
                predicted=made.class_index.numpy(),
                confidence=made.confidence.numpy(),
                log_prob_true=made.label_log_prob(labels).numpy(),
            )
        return predictions, time.perf_counter() - started

    def _own_classes(self, tests: Sequence[TestPart], classes: Tensor) -> Tensor:
        """Which of ``classes`` [C] are of each test sample's own task, bool [n, C]."""
        import torch

        own = []
        for test in tests:
            mine = torch.isin(classes, torch.tensor(self._task_classes[test.task]))
            own.append(mine.expand(len(self._tests[test.task][1]), -1))
        return torch.cat(own)

    def _create(self, width: int) -> dict[str, Baseline]:
        context = BaselineContext(
            width=width, seed=self._seed, luca=self._luca, learning=self._learning
        )
        options = self._settings.baseline_options
        return {
            name: BASELINES[name].create(context, getattr(options, name))
            for name in self._settings.baselines
        }

    def _read(self, tests: Sequence[TestPart]) -> tuple[Tensor, Tensor]:
        import torch

        for test in tests:
            if test.task not in self._tests:
                data = open_rows(self._cache, test.rows)
                features = data.features.gather(np.arange(len(data.labels)))
                self._tests[test.task] = torch.from_numpy(features), torch.from_numpy(data.labels)
        known = [self._tests[test.task] for test in tests]
        return torch.cat([features for features, _ in known]), torch.cat([y for _, y in known])
