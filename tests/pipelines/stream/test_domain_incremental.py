from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tests.pipelines.sources.data import (
    class_names,
    feature_table,
    stream,
    stream_settings,
    write_images,
)
from workers.errors import DataError, SettingsError

LAYOUT = {"photo/cat": 5, "photo/dog": 5, "art/cat": 5, "art/dog": 5, "sketch/dog": 5}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Any]:
    write_images(tmp_path, LAYOUT)
    return {"kind": "image_folder", "path": tmp_path, "domain_folders": True}


def test_every_domain_is_a_task_with_the_classes_it_has(folders: dict[str, Any]) -> None:
    built = stream(folders, scenario="domain_incremental")
    assert [(task.name, task.domain) for task in built.tasks] == [
        ("art", "art"),
        ("photo", "photo"),
        ("sketch", "sketch"),
    ]
    assert class_names(built) == [["cat", "dog"], ["cat", "dog"], ["dog"]]
    assert built.classes == ("cat", "dog")
    assert [len(task.test) for task in built.tasks] == [2, 2, 1]


def test_domains_arrive_in_the_order_given_or_permuted(folders: dict[str, Any]) -> None:
    order = ["photo", "sketch", "art"]
    given = stream(folders, scenario="domain_incremental", domains=order)
    assert [task.domain for task in given.tasks] == order
    permuted = stream(folders, scenario="domain_incremental", shuffle_domains=True, seed=1)
    assert [task.domain for task in permuted.tasks] == ["art", "sketch", "photo"]


def test_a_class_that_its_domain_only_tests_is_announced(tmp_path: Path) -> None:
    table = feature_table(
        ["a", "b", "a", "b", "b"],
        ["train", "train", "train", "test", "test"],
        domain=["y", "y", "x", "x", "y"],
    )
    pq.write_table(table, tmp_path / "f.parquet")
    built = stream(
        {"kind": "features", "path": tmp_path / "f.parquet"}, scenario="domain_incremental"
    )
    assert any(
        "x: test samples of 'b', which are trained only in a later" in w for w in built.warnings
    )


def test_domains_that_the_data_do_not_have_are_refused(folders: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="no domain 'phot'; did you mean 'photo'"):
        stream(folders, scenario="domain_incremental", domains=["phot"])
    with pytest.raises(SettingsError, match="domains leaves out 'art', 'sketch'"):
        stream(folders, scenario="domain_incremental", domains=["photo"])
    with pytest.raises(DataError, match=r"set source\.domain_folders: true"):
        stream({"kind": "demo"}, scenario="domain_incremental")
    with pytest.raises(ValidationError, match="leave shuffle_domains out"):
        stream_settings(
            source={"kind": "demo"},
            scenario="domain_incremental",
            domains=["a"],
            shuffle_domains=True,
        )


def test_a_domain_must_have_training_samples_and_every_sample_a_domain(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    source = {"kind": "features", "path": path}
    pq.write_table(feature_table(["a", "a"], ["train", "test"], domain=["x", "y"]), path)
    with pytest.raises(DataError, match="domain 'y' has test samples only"):
        stream(source, scenario="domain_incremental")
    pq.write_table(feature_table(["a", "a"], ["train", "test"], domain=["x", ""]), path)
    with pytest.raises(DataError, match="1 sample with an empty domain"):
        stream(source, scenario="domain_incremental")
