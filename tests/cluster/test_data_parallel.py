"""A task learned by two workers through Ray Train, against the same task on one trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.cluster import ClusterSettings, RayHandle, join_ray
from pipelines.data_parallel import Group, run_together
from tests.cluster.conftest import STORE
from workers.errors import SettingsError
from workers.modeling.learner import Execution, LearnedTask, LearnJob, learn_many
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings

pytestmark = pytest.mark.timeout(600)


def make_job(**learning: Any) -> Callable[[], LearnJob]:
    """A job that is pickled by value; 50 samples in batches of 16, so ranks get unequal shares."""

    def make() -> LearnJob:
        rng = np.random.default_rng(3)
        labels = np.arange(50) % 3
        features = rng.normal(size=(50, 16)) + 2 * rng.normal(size=(3, 16))[labels]
        return LearnJob(
            views=[torch.from_numpy(features.astype(np.float32))],
            labels=torch.from_numpy(labels),
            classes=3,
            luca=LucaSettings(ratio=4),
            learning=LearningSettings(
                objective="local", **{"epochs": 3, "batch_size": 16, **learning}
            ),
            seed=1,
            task_key="a",
        )

    return make


def learn_together(make: Callable[[], LearnJob], group: Group) -> LearnedTask:
    def learn(execution: Execution) -> LearnedTask:
        return learn_many([make()], execution=execution)[0]

    return run_together(learn, group)


@pytest.fixture(scope="module")
def handle() -> Iterator[RayHandle]:
    with join_ray(ClusterSettings(address="local", cpus=4, object_store_memory=STORE)) as joined:
        yield joined


def test_two_workers_learn_what_one_trainer_learns(handle: RayHandle) -> None:
    alone = learn_many([make_job()()])[0]
    together = learn_together(make_job(), Group(workers=2))
    assert together.steps == alone.steps == 12
    for name, value in alone.module.items():
        torch.testing.assert_close(together.module[name], value, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(together.head, alone.head, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(together.losses, alone.losses, rtol=1e-4)


def test_the_learners_own_sentence_comes_back(handle: RayHandle) -> None:
    with pytest.raises(SettingsError, match="diverged"):
        learn_together(make_job(learning_rate=1e30, l1=0.0), Group(workers=2, retries=0))
