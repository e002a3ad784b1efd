"""What actors are told of a task: which samples, where their features lie, and what the bank calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workers.learned import LearnRequest, TaskHeader
from workers.scored import TestPart, TrainPart

if TYPE_CHECKING:
    from orchestrator.preparation import Prepared
    from pipelines.extraction import FeatureFlow
    from workers.feature_rows import FeatureRows
    from workers.storage.features import PartKey

Pairs = list[tuple[int, "PartKey"]]
"""Feature parts: positions in the plan, and where they are cached."""


class TaskInputs:
    """Answers by a task's position in the stream.

    Args:
        prepared: the validated run.
        features: knows the parts that samples lie in.
        backbone: cache key of the backbone.
    """

    def __init__(self, prepared: Prepared, features: FeatureFlow, *, backbone: str) -> None:
        self._prepared = prepared
        self._experiment = prepared.experiment
        self._features = features
        self._backbone = backbone
        self._validation: list[tuple[TestPart, Pairs]] = []

    def learn_request(self, index: int) -> LearnRequest:
        """What a trainer is asked."""
        e, prepared = self._experiment, self._prepared.tasks[index]
        return LearnRequest(
            task=prepared.task.name,
            rows=self._rows(index, "train"),
            validation=self._rows(index, "validation") if len(prepared.task.validation) else None,
            classes=prepared.task.classes,
            new_classes=prepared.new_classes,
            views=e.features.views,
            seed=e.seed,
            luca=e.luca,
            learning=e.learning,
            evaluation=e.evaluation,
        )

    def header(self, index: int, info: Mapping[str, Any]) -> TaskHeader:
        """What the bank records, beside what was learned."""
        prepared = self._prepared.tasks[index]
        return TaskHeader(
            id=prepared.id,
            name=prepared.task.name,
            domain=prepared.task.domain,
            classes=tuple(self._prepared.stream.classes[c] for c in prepared.task.classes),
            definition=prepared.definition.to_json(),
            info=info,
        )

    def test_part(self, index: int) -> TestPart:
        """The samples that a version is scored on."""
        return TestPart(index, self._rows(index, "test"))

    def train_part(self, index: int) -> TrainPart:
        """The samples that baselines learn."""
        return TrainPart(self._rows(index, "train"), self._prepared.tasks[index].task.classes)

    def validation(self, after: int) -> list[tuple[TestPart, Pairs]]:
        """The samples that a version which ends with task ``after`` is judged on, and their feature parts.

        Every version is judged on all tasks so far; what is read for each is worked out once.
        """
        for index in range(len(self._validation), after + 1):
            part = TestPart(index, self._rows(index, "validation"))
            self._validation.append((part, self.keys(index, "validation")))
        return [found for found in self._validation[: after + 1] if len(found[0].rows)]

    def learning_keys(self, index: int) -> Pairs:
        """What a trainer reads: training samples in all views, and validation samples."""
        train = self._features.keys(self._prepared.tasks[index].task.train, views=True)
        return train + self.keys(index, "validation")

    def scoring_keys(self, index: int) -> Pairs:
        """What evaluators read: test samples, and for baselines training samples."""
        train = self.keys(index, "train") if self._experiment.evaluation.baselines else []
        return self.keys(index, "test") + train

    def keys(self, index: int, split: str) -> Pairs:
        """The parts of a split, in the test view."""
        rows = getattr(self._prepared.tasks[index].task, split)
        return self._features.keys(rows, views=False)

    def _rows(self, index: int, split: str) -> FeatureRows:
        rows = getattr(self._prepared.tasks[index].task, split)
        return self._prepared.plan.rows(rows, self._backbone)
