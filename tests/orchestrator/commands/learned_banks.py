"""Small real banks: learned from features by the functions that actors call, without Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from orchestrator.experiment import Experiment, merge
from orchestrator.experiment_files import parse_experiment
from orchestrator.preparation import Prepared, prepare
from tests.helpers import features_experiment
from workers.extraction import Extractor, PartRequest
from workers.feature_rows import open_rows
from workers.learned import LearnRequest, TaskHeader
from workers.loading import TensorLoader
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.predictor import Predictor
from workers.modeling.routers import ROUTERS
from workers.registry import RegistryImpl
from workers.storage.bank import Bank, BankVersion
from workers.storage.features import FeatureCache
from workers.storage.filesystem import Storage
from workers.task_learning import fit_whitening, learn_task

NAMES = [f"c{c:02d}" for c in range(6)]
"""The classes of :func:`tests.helpers.write_features`."""


@pytest.fixture(autouse=True, scope="module")
def quick_disk() -> Iterator[None]:
    """No fsync: nothing here stops the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def explicit(folder: Path, *tasks: tuple[str, list[str]], **changes: Any) -> Experiment:
    """An experiment over the tasks (name, classes) given; samples of other classes stay out."""
    base = features_experiment(folder).model_dump(mode="json")
    base["stream"] = {
        "scenario": "explicit",
        "source": {"kind": "features", "path": str(folder / "features.parquet")},
        "unlisted": "leave_out",
        "tasks": [{"name": name, "classes": classes} for name, classes in tasks],
    }
    return parse_experiment(merge(base, changes))


def learn(experiment: Experiment) -> Bank:
    """Learn what the experiment's bank lacks, as a run would, and return the bank."""
    prepared = prepare(experiment)
    extractor = extract(prepared)
    registry = RegistryImpl(
        experiment.storage,
        experiment.bank_name,
        backbone=extractor.backbone_info(),
        settings=experiment.learning_identity(),
        run=experiment.run_id,
        code="test",
        defaults=experiment.prediction_defaults(),
    )
    registry.open()
    cache = FeatureCache(prepared.storage)
    shared = prepared.head.shared if prepared.head is not None else {}
    whitening, head = shared.get("whitening"), shared.get("head")
    for index in range(prepared.learned, len(prepared.tasks)):
        each = prepared.tasks[index]
        rows = {
            split: prepared.plan.rows(getattr(each.task, split), extractor.backbone_key)
            for split in ("train", "validation")
        }
        request = LearnRequest(
            task=each.task.name,
            rows=rows["train"],
            validation=rows["validation"] if len(each.task.validation) else None,
            classes=each.task.classes,
            new_classes=each.new_classes,
            views=experiment.features.views,
            seed=experiment.seed,
            luca=experiment.luca,
            learning=experiment.learning,
            evaluation=experiment.evaluation,
        )
        if experiment.whitening == "first_task" and index == 0:
            whitening = fit_whitening(cache, request)
        info, learned = learn_task(cache, request, whitening=whitening, previous_head=head)
        head = learned.head
        header = TaskHeader(
            id=each.id,
            name=each.task.name,
            domain=each.task.domain,
            classes=tuple(prepared.stream.classes[c] for c in each.task.classes),
            definition=each.definition.to_json(),
            info=info.to_json(),
        )
        registry.commit(header, learned, whitening if index == 0 else None)
    registry.close()
    return Bank.open(Storage.open(experiment.storage), experiment.bank_name)


def extract(prepared: Prepared) -> Extractor:
    """Have every feature of the stream cached; the extractor says what they are of."""
    extractor = Extractor(
        reader=prepared.stream.reader,
        backbone=None,
        settings=prepared.experiment.features,
        seed=prepared.experiment.seed,
        storage=prepared.storage,
        feature_width=prepared.stream.feature_width,
    )
    for part in range(len(prepared.plan.parts)):
        extractor.extract(PartRequest(samples=prepared.plan.samples_of(part)))
    return extractor


def features(
    experiment: Experiment, split: str
) -> tuple[NDArray[np.float32], list[str], list[int]]:
    """Features [n, d], class names and task positions of all samples of a split, in stream order."""
    prepared = prepare(experiment)
    extractor = extract(prepared)
    cache = FeatureCache(prepared.storage)
    blocks, names, tasks = [], [], []
    for position, each in enumerate(prepared.tasks):
        rows = prepared.plan.rows(getattr(each.task, split), extractor.backbone_key)
        data = open_rows(cache, rows)
        blocks.append(data.features.gather(np.arange(len(data.labels))))
        names += [prepared.stream.classes[label] for label in data.labels]
        tasks += [position] * len(data.labels)
    return np.concatenate(blocks), names, tasks


def class_log_probs(
    version: BankVersion,
    samples: NDArray[np.float32],
    router: str,
    *,
    tasks: list[int],
    **evaluation: Any,
) -> torch.Tensor:
    """log p(class | x), float64 [n, C], with one router; ``tasks`` for those that are told."""
    settings = EvaluationSettings(**evaluation)
    predictor = Predictor(TensorLoader().load(version), settings, router)
    told = torch.tensor(tasks) if ROUTERS[router].Options.upper_bound else None
    return predictor.class_log_probs(torch.from_numpy(samples), task_ids=told)
