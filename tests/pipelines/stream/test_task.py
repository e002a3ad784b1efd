from __future__ import annotations

import json
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.stream import TaskDefinition, describe
from tests.pipelines.sources.data import feature_table, stream, write_features, write_images

BASE = {"scenario": "class_incremental", "classes_per_task": 2, "validation_fraction": 0.25}


@pytest.fixture
def features(tmp_path: Path) -> dict[str, Any]:
    return {"kind": "features", "path": write_features(tmp_path / "f.parquet", list("abcd"))}


def definition(source: dict[str, Any], **options: Any) -> TaskDefinition:
    built = stream(source, **{**BASE, **options})
    return built.definition(built.tasks[0])


def test_a_definition_survives_json(features: dict[str, Any]) -> None:
    original = definition(features)
    again = TaskDefinition.from_json(json.loads(json.dumps(original.to_json())))
    assert again == original
    assert again.digest == original.digest
    assert original.difference(again) == []


def test_equal_data_give_equal_definitions_wherever_they_lie(tmp_path: Path) -> None:
    for place in ("here", "there"):
        write_images(tmp_path / place, {"cat": 6, "dog": 6})
    one, two = (
        definition({"kind": "image_folder", "path": tmp_path / place})
        for place in ("here", "there")
    )
    assert one.digest == two.digest


def test_a_samples_digest_is_that_of_lines_of_json(tmp_path: Path) -> None:
    """Banks keep it, so it may not change."""
    path = tmp_path / "f.parquet"
    table = feature_table(list("ab"), ["train"] * 2)
    labels, ids = ['a "class"', "b\\ä\u2028"], ['one ],["', "zwei\N{FIRE}"]
    table = table.set_column(table.column_names.index("label"), "label", pa.array(labels))
    pq.write_table(table.append_column("id", pa.array(ids)), path)
    source = {"kind": "features", "path": path}
    built = stream(source, **{**BASE, "validation_fraction": 0.0})
    (task,) = built.tasks
    expected = blake2b(digest_size=16)
    for row in task.train.tolist():
        sample = built.samples.slice(row, 1).to_pylist()[0]
        line = ["train", sample["label"], sample["id"], sample["content"]]
        expected.update(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    assert built.definition(task).samples_digest == expected.hexdigest()


def test_test_samples_are_no_part_of_a_definition(features: dict[str, Any]) -> None:
    assert definition(features) == definition(features, max_test_per_class=1)


def test_changed_samples_change_the_digest_and_are_told(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    splits = ["train"] * 4
    pq.write_table(feature_table(list("aabb"), splits), path)
    options = {"validation_fraction": 0.0}
    before = definition({"kind": "features", "path": path}, **options)
    table = feature_table(list("aabb"), splits)
    pq.write_table(table.set_column(0, "feature", table["feature"].take([1, 0, 2, 3])), path)
    after = definition({"kind": "features", "path": path}, **options)
    assert before.digest != after.digest
    assert before.difference(after) == [
        "the samples' ids or contents differ, though classes and counts agree"
    ]


def test_differences_are_sentences(features: dict[str, Any]) -> None:
    one = definition(features)
    other = replace(
        one,
        name="other",
        domain="x",
        classes=(one.classes[0], "z"),
        counts={one.classes[0]: {"train": 9, "validation": 0}, "z": {"train": 1, "validation": 0}},
    )
    assert one.difference(other) == [
        "the task is named 'task-01', the other 'other'",
        "the domain is '', the other's 'x'",
        f"only the first has the classes {one.classes[1]!r}",
        "only the second has the classes 'z'",
        f"class {one.classes[0]!r} has 3 training and 1 validation sample, "
        "the other 9 training and 0 validation samples",
    ]
    turned = replace(one, classes=one.classes[::-1])
    assert one.difference(turned) == ["the same classes stand in another order"]


def test_a_seed_that_holds_out_other_samples_is_another_task(features: dict[str, Any]) -> None:
    options = {"shuffle_classes": False}
    assert definition(features, seed=1, **options) != definition(features, seed=2, **options)


def test_a_description_counts_every_task(features: dict[str, Any]) -> None:
    built = stream(features, **BASE)
    summary = describe(built)
    assert [(task.train, task.validation, task.test) for task in summary.tasks] == [(6, 2, 4)] * 2
    assert summary.tasks[0].digest == built.definition(built.tasks[0]).digest
    assert (summary.kind, summary.feature_width) == ("features", 6)
    assert json.loads(json.dumps(summary.to_json()))["classes"] == list(built.classes)


def test_the_digest_of_a_stream_covers_its_test_samples(features: dict[str, Any]) -> None:
    assert stream(features, **BASE).digest == stream(features, **BASE).digest
    assert stream(features, **BASE).digest != stream(features, max_test_per_class=1, **BASE).digest
