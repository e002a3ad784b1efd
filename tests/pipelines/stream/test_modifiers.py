from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.stream import Stream
from tests.pipelines.sources.data import class_names, ids, stream, write_features

BASE = {"scenario": "class_incremental", "classes_per_task": 2, "shuffle_classes": False}


@pytest.fixture
def features(tmp_path: Path) -> dict[str, Any]:
    return {
        "kind": "features",
        "path": write_features(tmp_path / "f.parquet", list("abcdef"), train=20, test=3),
    }


def counts(built: Stream) -> list[dict[str, int]]:
    """Training samples of each class of each task."""
    return [
        {
            built.classes[label]: int((built.labels[task.train] == label).sum())
            for label in task.classes
        }
        for task in built.tasks
    ]


def test_few_shot_keeps_k_of_each_class_and_all_test_samples(features: dict[str, Any]) -> None:
    built = stream(features, shots=5, **BASE)
    assert counts(built) == [{"a": 5, "b": 5}, {"c": 5, "d": 5}, {"e": 5, "f": 5}]
    assert [len(task.test) for task in built.tasks] == [6, 6, 6]


def test_few_shot_may_spare_the_first_task(features: dict[str, Any]) -> None:
    built = stream(features, shots=5, full_first_task=True, **BASE)
    assert counts(built)[:2] == [{"a": 20, "b": 20}, {"c": 5, "d": 5}]


def test_more_shots_include_the_fewer_and_too_many_are_announced(features: dict[str, Any]) -> None:
    few, more, all_of_them = (stream(features, shots=shots, **BASE) for shots in (3, 9, 50))
    for task, wider in zip(few.tasks, more.tasks, strict=True):
        assert set(ids(few, task.train)) < set(ids(more, wider.train))
    assert "class 'a' has 20 training samples, fewer than the 50 shots" in all_of_them.warnings[0]


def test_a_long_tail_falls_off_exponentially_to_its_ratio(features: dict[str, Any]) -> None:
    built = stream(features, long_tail=0.1, **BASE)
    sizes = sorted((n for task in counts(built) for n in task.values()), reverse=True)
    assert sizes == [int(20 * 0.1 ** (rank / 5)) for rank in range(6)]
    assert stream(features, long_tail=1.0, **BASE).digest == stream(features, **BASE).digest


def test_another_seed_makes_other_classes_rare(features: dict[str, Any]) -> None:
    assert counts(stream(features, long_tail=0.1, seed=1, **BASE)) != counts(
        stream(features, long_tail=0.1, seed=2, **BASE)
    )


def test_blurry_tasks_share_training_samples_but_are_tested_on_their_own(
    features: dict[str, Any],
) -> None:
    built = stream(features, blurry=0.2, **BASE)
    home = [["a", "b"], ["c", "d"], ["e", "f"]]
    for own, found, task in zip(home, counts(built), built.tasks, strict=True):
        assert all(found[name] == 16 for name in own)
        assert sum(found.values()) == 40
        assert {built.classes[built.labels[row]] for row in task.test} == set(own)
    trained = np.concatenate([task.train for task in built.tasks])
    assert len(np.unique(trained)) == len(trained) == 120
    assert built.classes == tuple("abcdef")


def test_a_single_task_has_nowhere_to_scatter_to(features: dict[str, Any]) -> None:
    options = {**BASE, "classes_per_task": 6}
    assert stream(features, blurry=0.5, **options).digest == stream(features, **options).digest


def test_samples_of_a_class_can_be_limited_in_train_and_test(features: dict[str, Any]) -> None:
    built = stream(features, max_train_per_class=7, max_test_per_class=2, **BASE)
    assert counts(built)[0] == {"a": 7, "b": 7}
    assert [len(task.test) for task in built.tasks] == [4, 4, 4]


def test_validation_is_cut_from_what_the_modifiers_leave(features: dict[str, Any]) -> None:
    built = stream(features, shots=5, validation_fraction=0.4, **BASE)
    assert [(len(task.train), len(task.validation)) for task in built.tasks] == [(6, 4)] * 3
    assert class_names(built)[0] == ["a", "b"]
