"""Scoring a bank's versions: what an evaluator remembers may not show in what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.workers.scoring_cases import WIDTH, rows
from tests.workers.storage.bank_cases import quick_disk  # noqa: F401
from workers.bank_scoring import Scorer
from workers.learned import LearnRequest, TaskHeader
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings
from workers.registry import RegistryImpl
from workers.scored import MethodPredictions, Scored, TestPart
from workers.storage.features import FeatureCache
from workers.storage.filesystem import Storage
from workers.task_learning import fit_whitening, learn_task

TASKS = 5
ROUTERS = ("lda", "entropy", "oracle")
NAMES = tuple(f"c{c}" for c in range(2 * TASKS))


@pytest.fixture(scope="module", params=[False, True], ids=["raw", "whitened"])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank of five tasks and its test features."""
    folder = tmp_path_factory.mktemp("scoring")
    cache = FeatureCache(Storage.open(str(folder)))
    learning = LearningSettings(epochs=2, batch_size=8)
    luca = LucaSettings(ratio=4)
    registry = RegistryImpl(
        str(folder),
        "b",
        backbone={"width": WIDTH},
        settings={
            "luca": luca.model_dump(mode="json"),
            "learning": learning.model_dump(mode="json"),
        },
        run="r",
        code="t",
    )
    whitening = None
    for task in range(TASKS):
        asked = LearnRequest(
            task=f"task {task}",
            rows=rows(cache, task, "1"),
            validation=None,
            classes=(2 * task, 2 * task + 1),
            new_classes=(2 * task, 2 * task + 1),
            views=0,
            seed=1,
            luca=luca,
            learning=learning,
            evaluation=EvaluationSettings(),
        )
        if request.param and task == 0:
            whitening = fit_whitening(cache, asked)
        info, learned = learn_task(cache, asked, whitening=whitening)
        header = TaskHeader(
            f"t{task}", f"task {task}", "", NAMES[2 * task : 2 * task + 2], {}, info.to_json()
        )
        registry.commit(header, learned, whitening if task == 0 else None)
    registry.close()
    return folder


def scorer(folder: Path) -> Scorer:
    return Scorer(Storage.open(str(folder)), "b", class_names=NAMES, settings=EvaluationSettings())


def parts(folder: Path, count: int) -> list[TestPart]:
    cache = FeatureCache(Storage.open(str(folder)))
    return [TestPart(task, rows(cache, task, "2")) for task in range(count)]


def bits(scored: Scored) -> dict[str, list[bytes]]:
    """Every number of every prediction, exactly."""

    def columns(made: MethodPredictions) -> list[bytes]:
        fields = ("predicted", "routed_task", "confidence", "routing_confidence", "log_prob_true")
        return [np.asarray(getattr(made, name)).tobytes() for name in fields]

    return {name: columns(made) for name, made in scored.methods.items()}


def test_a_restarted_evaluator_predicts_the_same_to_the_last_bit(storage: Path) -> None:
    steady = scorer(storage)
    for version in range(1, TASKS + 1):
        seen = steady.score(version, parts(storage, version), ROUTERS)
        fresh = scorer(storage).score(version, parts(storage, version), ROUTERS)
        assert bits(fresh) == bits(seen), f"after version {version}"


def test_only_the_new_row_and_column_are_computed(storage: Path) -> None:
    steady = scorer(storage)
    computed = [
        steady.score(version, parts(storage, version), ROUTERS).module_scores
        for version in range(1, TASKS + 1)
    ]
    assert computed == [2 * version - 1 for version in range(1, TASKS + 1)]
