"""A run's stages called one after the other in this process, without Ray: what they cost is then plain to measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.extraction import Extractor, PartRequest
from workers.storage.features import FeatureCache


@dataclass
class Stages:
    """The stages of an experiment, with the bank and cache in ``folder``.

    Attributes:
        prepared: the validated run.
        extractor: with its backbone loaded.
        images: pictures that went through the backbone so far.
    """

    prepared: Any
    extractor: Extractor
    images: int = 0

    @classmethod
    def of(cls, folder: Path, described: Mapping[str, Any]) -> Stages:
        """Prepares an experiment given as plain data."""
        from orchestrator.experiment_files import parse_experiment
        from orchestrator.preparation import prepare

        prepared = prepare(parse_experiment({"name": "bench", "storage": str(folder), **described}))
        e = prepared.experiment
        extractor = Extractor(
            reader=prepared.stream.reader,
            backbone=e.backbone if prepared.stream.reader.kind == "images" else None,
            settings=e.features,
            seed=e.seed,
            storage=prepared.storage,
            feature_width=prepared.stream.feature_width,
        )
        return cls(prepared, extractor)

    @property
    def tasks(self) -> range:
        """Positions of the tasks."""
        return range(len(self.prepared.tasks))

    @property
    def cache(self) -> FeatureCache:
        """Where features lie."""
        return FeatureCache(self.prepared.storage)

    def extract(self, task: int, split: str) -> None:
        """Have the features of a task's samples cached."""
        plan = self.prepared.plan
        for part in plan.parts_of(getattr(self.prepared.tasks[task].task, split)):
            result = self.extractor.extract(PartRequest(plan.samples_of(part)))
            self.images += result.images

    def rows(self, task: int, split: str) -> Any:
        """Where the features of a task's samples lie."""
        rows = getattr(self.prepared.tasks[task].task, split)
        return self.prepared.plan.rows(rows, self.extractor.backbone_key)

    def learn(self, task: int, previous_head: Any = None) -> tuple[Any, Any]:
        """What a trainer does."""
        from workers.learned import LearnRequest
        from workers.task_learning import learn_task

        e, prepared = self.prepared.experiment, self.prepared.tasks[task]
        request = LearnRequest(
            task=prepared.task.name,
            rows=self.rows(task, "train"),
            validation=None,
            classes=prepared.task.classes,
            new_classes=prepared.new_classes,
            views=0,
            seed=e.seed,
            luca=e.luca,
            learning=e.learning,
            evaluation=e.evaluation,
        )
        return learn_task(self.cache, request, previous_head=previous_head)

    def registry(self) -> Any:
        """The bank's writer, open."""
        from workers.registry import RegistryImpl

        e = self.prepared.experiment
        registry = RegistryImpl(
            e.storage,
            e.bank_name,
            backbone=self.extractor.backbone_info(),
            settings=e.learning_identity(),
            run="bench",
            code="bench",
        )
        registry.open()
        return registry

    def commit(self, registry: Any, task: int, info: Any, learned: Any) -> Any:
        """What the registry does."""
        from workers.learned import TaskHeader

        prepared = self.prepared.tasks[task]
        header = TaskHeader(
            id=prepared.id,
            name=prepared.task.name,
            domain=prepared.task.domain,
            classes=tuple(self.prepared.stream.classes[c] for c in prepared.task.classes),
            definition=prepared.definition.to_json(),
            info=info.to_json(),
        )
        return registry.commit(header, learned)

    def scorer(self) -> Any:
        """What an evaluator holds."""
        from workers.bank_scoring import Scorer

        e = self.prepared.experiment
        return Scorer(
            self.prepared.storage,
            e.bank_name,
            class_names=self.prepared.stream.classes,
            settings=e.evaluation,
        )

    def score(self, scorer: Any, version: int, after: int, routers: tuple[str, ...]) -> Any:
        """A version's predictions for the test samples of all tasks up to ``after``."""
        from workers.scored import TestPart

        tests = [TestPart(task, self.rows(task, "test")) for task in range(after + 1)]
        return scorer.score(version, tests, routers)
