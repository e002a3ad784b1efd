from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.pipelines.sources.data import (
    class_names,
    ids,
    stream,
    stream_settings,
    write_features,
    write_images,
)
from workers.errors import SettingsError

DEMO = {"kind": "demo"}
CLASSES = list("abcdefg")


@pytest.fixture
def seven(tmp_path: Path) -> dict[str, Any]:
    return {"kind": "features", "path": write_features(tmp_path / "f.parquet", CLASSES)}


def test_the_order_is_the_published_permutation_of_the_seed(seven: dict[str, Any]) -> None:
    built = stream(seven, scenario="class_incremental", classes_per_task=2, seed=1993)
    expected = [CLASSES[at] for at in np.random.RandomState(1993).permutation(7)]
    assert list(built.classes) == expected
    assert class_names(built) == [expected[0:2], expected[2:4], expected[4:6], expected[6:]]


def test_number_labels_are_permuted_in_the_order_of_their_values(tmp_path: Path) -> None:
    source = {"kind": "features", "path": write_features(tmp_path / "f.parquet", list(range(12)))}
    built = stream(source, scenario="class_incremental", classes_per_task=5, seed=7)
    assert list(built.classes) == [str(at) for at in np.random.RandomState(7).permutation(12)]


def test_the_first_task_may_have_another_size_and_the_rest_is_never_dropped(
    seven: dict[str, Any],
) -> None:
    built = stream(seven, scenario="class_incremental", classes_per_task=2, first_task_classes=4)
    assert [len(task.classes) for task in built.tasks] == [4, 2, 1]


def test_an_order_can_be_given_or_taken_as_the_source_has_it(seven: dict[str, Any]) -> None:
    given_order = stream(
        seven, scenario="class_incremental", classes_per_task=4, class_order=CLASSES[::-1]
    )
    assert class_names(given_order) == [list("gfed"), list("cba")]
    own = stream(seven, scenario="class_incremental", classes_per_task=4, shuffle_classes=False)
    assert class_names(own) == [list("abcd"), list("efg")]


def test_tasks_hold_the_rows_of_their_classes_in_order_of_class_then_id(
    seven: dict[str, Any],
) -> None:
    built = stream(seven, scenario="class_incremental", classes_per_task=3)
    for task in built.tasks:
        for rows, count in ((task.train, 4), (task.test, 2)):
            assert rows.dtype == np.int64
            labels = built.labels[rows]
            assert labels.tolist() == np.repeat(task.classes, count).tolist()
            for label in task.classes:
                names = ids(built, rows[labels == label])
                assert names == sorted(names)
    everything = np.concatenate([rows for task in built.tasks for rows in (task.train, task.test)])
    assert sorted(everything.tolist()) == list(range(built.samples.num_rows))


def test_labels_number_the_classes_of_the_table(seven: dict[str, Any]) -> None:
    built = stream(seven, scenario="class_incremental", classes_per_task=3)
    assert [built.classes[label] for label in built.labels] == built.samples["label"].to_pylist()


def test_only_task_incremental_streams_tell_the_task(seven: dict[str, Any]) -> None:
    told = stream(seven, scenario="task_incremental", classes_per_task=3)
    untold = stream(seven, scenario="class_incremental", classes_per_task=3)
    assert (told.task_known, untold.task_known) == (True, False)
    assert class_names(told) == class_names(untold)


def test_the_demo_is_ten_tasks_of_two() -> None:
    built = stream(DEMO, scenario="class_incremental", classes_per_task=2)
    assert len(built.tasks) == 10
    assert built.reader.kind == "images"
    assert built.feature_width is None


def test_a_class_that_is_never_scored_is_announced(tmp_path: Path) -> None:
    folder = write_images(tmp_path, {"one": 1, "many": 5})
    built = stream(
        {"kind": "image_folder", "path": folder},
        scenario="class_incremental",
        classes_per_task=1,
        validation_fraction=0.2,
    )
    task = next(task for task in built.tasks if built.classes[task.classes[0]] == "one")
    assert (len(task.train), len(task.validation), len(task.test)) == (1, 0, 0)
    assert any("no test samples of 'one'" in warning for warning in built.warnings)
    assert any("no validation samples of 'one'" in warning for warning in built.warnings)


@given(seed=st.integers(0, 2**32 - 1), fraction=st.just(0.0) | st.floats(1e-6, 0.9))
@settings(max_examples=15, deadline=None)
def test_validation_is_cut_from_every_class_and_leaves_something_to_train_on(
    tmp_path_factory: pytest.TempPathFactory, seed: int, fraction: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "validation.parquet"
    if not path.exists():
        write_features(path, CLASSES, train=5)
    built = stream(
        {"kind": "features", "path": path},
        scenario="class_incremental",
        classes_per_task=3,
        validation_fraction=fraction,
        seed=seed,
    )
    for task in built.tasks:
        assert not set(task.train) & set(task.validation)
        for label in task.classes:
            trained = int((built.labels[task.train] == label).sum())
            held = int((built.labels[task.validation] == label).sum())
            assert trained + held == 5
            assert trained >= 1
            assert held == (0 if fraction == 0 else min(max(1, int(5 * fraction + 0.5)), 4))


def test_the_seed_chooses_the_validation_samples(seven: dict[str, Any]) -> None:
    options = {"scenario": "class_incremental", "classes_per_task": 7, "shuffle_classes": False}
    chosen = [
        ids(built, built.tasks[0].validation)
        for built in (
            stream(seven, validation_fraction=0.3, seed=seed, **options) for seed in (1, 1, 2)
        )
    ]
    assert chosen[0] == chosen[1]
    assert chosen[0] != chosen[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"class_order": ["a", "b"]},
            "class_order leaves out 'c' and 4 more; add them at the end of stream.class_order",
        ),
        ({"class_order": [*"abcdef"]}, "leaves out 'g'; add it at the end of stream.class_order"),
        (
            {"class_order": [*"abcdefg", "circle"]},
            "no class 'circle'; there are 'a'.* must stay, under its name, .*: put back what was",
        ),
        ({"class_order": [*"abcdef", "gg"]}, "no class 'gg'; did you mean 'g'"),
        ({"classes_per_task": 8}, r"classes_per_task is 8, but the source has 7 classes"),
        ({"first_task_classes": 9}, r"first_task_classes is 9, but the source has 7 classes"),
    ],
)
def test_settings_that_contradict_the_data_are_refused(
    seven: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        stream(seven, **{"scenario": "class_incremental", "classes_per_task": 2, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "classes_per_task"),
        ({"classes_per_task": 0}, "greater than 0"),
        ({"classes_per_task": 2, "class_order": ["a", "a"]}, "names 'a' more than once"),
        (
            {"classes_per_task": 2, "class_order": ["a"], "shuffle_classes": True},
            "leave shuffle_classes out",
        ),
        ({"classes_per_task": 2, "full_first_task": True}, "full_first_task needs shots"),
        ({"classes_per_task": 2, "shots": 1, "max_train_per_class": 1}, "keep one"),
        ({"classes_per_task": 2, "validation_fraction": 1.0}, "less than 1"),
        ({"classes_per_task": 2, "classes_per_tsak": 3}, "Extra inputs are not permitted"),
        (
            {"classes_per_task": 2, "source": {"kind": "image_folder", "path": None}},
            "-o stream.source.path=PATH",
        ),
        (
            {"classes_per_task": 2, "source": {"kind": "image_fodler", "path": "x"}},
            "'image_folder'",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        stream_settings(**{"scenario": "class_incremental", "source": DEMO, **options})
