"""Baselines on the same features: learning the tasks in order and scoring after each.

A baseline's state is small and quick to rebuild, so it lives in the actor alone; an actor that lost it says so, and is
told the earlier tasks again.  What a baseline predicted is kept (kept_predictions.py).
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workers.errors import StateLostError
from workers.feature_rows import open_rows
from workers.kept_predictions import KeptPredictions, test_digest, train_digest
from workers.modeling.baseline_settings import BaselineSettings
from workers.modeling.baselines import BASELINES, Baseline, BaselineContext
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings
from workers.scored import MethodPredictions, TestPart, TrainPart
from workers.storage.features import FeatureCache
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    from torch import Tensor

    from workers.feature_rows import FeatureRows


class BaselineScorer:
    """Runs baselines over the tasks of a stream, in order.

    Args:
        storage: where features lie, and predictions are kept.
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
        self._task_known = task_known
        self._kept = KeptPredictions(storage, {"seed": seed, "task_known": task_known})
        self._trains: list[TrainPart] = []
        self._train_digests: list[str] = []
        self._test_digests: dict[int, str] = {}
        self._baselines: dict[str, Baseline] = {}
        self._observed: Counter[str] = Counter()
        self._tests: dict[int, tuple[Tensor, Tensor]] = {}

    def score(
        self, after: int, trains: Mapping[int, TrainPart], tests: Sequence[TestPart]
    ) -> tuple[dict[str, MethodPredictions], float]:
        """Predict the samples of ``tests``, in their order, by baselines that learned the tasks up to ``after``.

        What an earlier run predicted from the same is read; the rest is learned, predicted and kept.

        Args:
            after: index of the last task.
            trains: training samples by task index: at least those not told before.
            tests: test samples of the tasks seen.

        Returns:
            Predictions by baseline, and seconds.

        Raises:
            StateLostError: earlier tasks are missing from ``trains``.
            FeatureCorruptionError: a feature part has to be extracted again.
            StorageError: predictions cannot be kept.
        """
        started = time.perf_counter()
        for task in range(len(self._trains), after + 1):
            if task not in trains:
                raise StateLostError(f"task {task} was never told")
            self._trains.append(trains[task])
        samples = self._samples_digest(after, tests)
        last = after == self._tasks - 1
        names = [n for n in self._settings.baselines if last or not self._options(n).final_only]
        keys = {name: self._kept.key(name, self._made_from(name), samples) for name in names}
        # Which samples were left out as unreadable is known to no key.
        keep = not self._trains[after].rows.tolerance
        predictions = {}
        for name in names:
            kept = self._kept.read(keys[name]) if keep else None
            if kept is not None:
                predictions[name] = kept
        missing = [name for name in names if name not in predictions]
        if missing:
            self._learn(missing, after)
            features, labels = self._gathered(tests)
        for name in missing:
            predictions[name] = self._predict(name, features, labels, tests)
            if keep:
                self._kept.write(keys[name], predictions[name])
        return {name: predictions[name] for name in names}, time.perf_counter() - started

    # -- what predictions are made from ----------------------------------------------------------------------

    def _options(self, name: str) -> BaselineSettings:
        options: BaselineSettings = getattr(self._settings.baseline_options, name)
        return options

    def _made_from(self, name: str) -> dict[str, Any]:
        options = self._options(name)
        made_from: dict[str, Any] = {"options": options.model_dump(mode="json")}
        if options.learns_modules:
            made_from["luca"] = self._luca.model_dump(mode="json")
            made_from["learning"] = self._learning.model_dump(mode="json")
        return made_from

    def _samples_digest(self, after: int, tests: Sequence[TestPart]) -> str:
        """All tasks learned, in their order, and all test samples."""
        for train in self._trains[len(self._train_digests) : after + 1]:
            before = self._train_digests[-1] if self._train_digests else ""
            both = f"{before} {train_digest(train)}"
            self._train_digests.append(hashlib.blake2b(both.encode(), digest_size=16).hexdigest())
        for test in tests:
            if test.task not in self._test_digests:
                self._test_digests[test.task] = test_digest(test)
        scored = " ".join(self._test_digests[test.task] for test in tests)
        return f"{self._train_digests[after]} {scored}"

    # -- learning and predicting -----------------------------------------------------------------------------

    def _learn(self, names: Sequence[str], after: int) -> None:
        """Let these baselines learn exactly the tasks up to ``after``; a task's features are read once for all."""
        for name in names:
            if self._observed[name] > after + 1:
                del self._baselines[name], self._observed[name]
        for task in range(min(self._observed[name] for name in names), after + 1):
            features, labels = self._read(self._trains[task].rows)
            for name in names:
                if self._observed[name] == task:
                    if name not in self._baselines:
                        self._baselines[name] = self._create(name, features.shape[1])
                    self._baselines[name].observe(features, labels, self._trains[task].classes)
                    self._observed[name] += 1

    def _create(self, name: str, width: int) -> Baseline:
        context = BaselineContext(
            width=width, seed=self._seed, luca=self._luca, learning=self._learning
        )
        return BASELINES[name].create(context, self._options(name))

    def _gathered(self, tests: Sequence[TestPart]) -> tuple[Tensor, Tensor]:
        """Features [n, d] and labels int64 [n] of all test samples; each task's are read once."""
        import torch

        for test in tests:
            if test.task not in self._tests:
                self._tests[test.task] = self._read(test.rows)
        features = torch.cat([self._tests[test.task][0] for test in tests])
        return features, torch.cat([self._tests[test.task][1] for test in tests])

    def _predict(
        self, name: str, features: Tensor, labels: Tensor, tests: Sequence[TestPart]
    ) -> MethodPredictions:
        made = self._baselines[name].predict(features)
        if self._task_known:
            made = made.among(self._own_classes(tests, made.classes))
        return MethodPredictions(
            predicted=made.class_index.numpy(),
            confidence=made.confidence.numpy(),
            log_prob_true=made.label_log_prob(labels).numpy(),
        )

    def _own_classes(self, tests: Sequence[TestPart], classes: Tensor) -> Tensor:
        """Which of ``classes`` [C] are of each test sample's own task, bool [n, C]."""
        import torch

        own = []
        for test in tests:
            mine = torch.isin(classes, torch.tensor(self._trains[test.task].classes))
            own.append(mine.expand(len(self._tests[test.task][1]), -1))
        return torch.cat(own)

    def _read(self, rows: FeatureRows) -> tuple[Tensor, Tensor]:
        """Features [n, d] and labels int64 [n]."""
        import torch

        data = open_rows(self._cache, rows)
        features = data.features.gather(np.arange(len(data.labels)))
        return torch.from_numpy(features), torch.from_numpy(data.labels)
