from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from pipelines.stream.explicit import lying_in
from tests.pipelines.sources.data import (
    class_names,
    feature_table,
    stream,
    stream_settings,
    write_features,
    write_images,
)
from workers.errors import DataError, SettingsError


@pytest.fixture
def features(tmp_path: Path) -> dict[str, Any]:
    return {"kind": "features", "path": write_features(tmp_path / "f.parquet", list("abcd"))}


@pytest.fixture
def arrivals(tmp_path: Path) -> dict[str, Any]:
    """Three files of new samples, and one of test samples."""
    for name, labels in {"jan": "aab", "feb": "cc", "mar": "aad"}.items():
        table = feature_table(list(labels), ["train"] * len(labels), width=3 + len(name))
        pq.write_table(table, tmp_path / f"{name}.parquet")
    pq.write_table(feature_table(list("abcd"), ["test"] * 4), tmp_path / "scored.parquet")
    return {"kind": "features", "path": tmp_path}


def test_tasks_are_as_listed_by_class_names(features: dict[str, Any]) -> None:
    built = stream(
        features,
        scenario="explicit",
        tasks=[{"classes": ["d", "b"], "name": "first"}, {"classes": ["a", "c"]}],
    )
    assert [task.name for task in built.tasks] == ["first", "task-02"]
    assert class_names(built) == [["d", "b"], ["a", "c"]]
    assert built.classes == ("d", "b", "a", "c")


def test_files_are_tasks_in_the_order_they_arrived(arrivals: dict[str, Any]) -> None:
    built = stream(
        arrivals,
        scenario="explicit",
        tasks=[{"files": ["jan.parquet"]}, {"files": ["feb.*"]}, {"files": ["mar.parquet"]}],
    )
    assert class_names(built) == [["a", "b"], ["c"], ["a", "d"]]
    assert [len(task.train) for task in built.tasks] == [3, 2, 3]
    tested = [[built.classes[built.labels[row]] for row in task.test] for task in built.tasks]
    assert tested == [["a", "b"], ["c"], ["d"]]


def test_a_folder_that_grows_keeps_the_definitions_of_tasks_that_were_there(tmp_path: Path) -> None:
    source = {"kind": "features", "path": tmp_path, "test_fraction": 0.2}
    pq.write_table(feature_table(list("ab" * 5)), tmp_path / "jan.parquet")
    one = stream(source, scenario="explicit", tasks=[{"files": ["jan.parquet"]}])
    pq.write_table(feature_table(["c"] * 5), tmp_path / "feb.parquet")
    tasks = [{"files": ["jan.parquet"]}, {"files": ["feb.parquet"]}]
    two = stream(source, scenario="explicit", tasks=tasks)
    assert two.definition(two.tasks[0]) == one.definition(one.tasks[0])


def test_a_longer_list_keeps_the_definitions_of_tasks_that_were_there(
    arrivals: dict[str, Any],
) -> None:
    tasks = [{"files": ["jan.parquet"]}, {"files": ["feb.parquet"]}, {"files": ["mar.parquet"]}]
    short = stream(arrivals, scenario="explicit", tasks=tasks[:2], unlisted="leave_out")
    long = stream(arrivals, scenario="explicit", tasks=tasks)
    assert [short.definition(task) for task in short.tasks] == [
        long.definition(task) for task in long.tasks[:2]
    ]


def test_folders_and_domains_select_too(tmp_path: Path) -> None:
    write_images(tmp_path, {"photo/cat": 5, "photo/dog": 5, "art/cat": 5})
    source = {"kind": "image_folder", "path": tmp_path, "domain_folders": True}
    by_domain = stream(
        source,
        scenario="explicit",
        tasks=[
            {"domain": "photo", "classes": ["dog"]},
            {"domain": "photo", "classes": ["cat"]},
            {"domain": "art"},
        ],
    )
    assert class_names(by_domain) == [["dog"], ["cat"], ["cat"]]
    assert [task.domain for task in by_domain.tasks] == ["photo", "photo", "art"]
    by_folder = stream(
        source, scenario="explicit", tasks=[{"files": ["photo"]}, {"files": ["art"]}]
    )
    assert class_names(by_folder) == [["cat", "dog"], ["cat"]]


def test_samples_of_no_task_are_refused_or_left_out_on_request(features: dict[str, Any]) -> None:
    tasks = [{"classes": ["a"]}, {"classes": ["c"]}]
    with pytest.raises(DataError, match="labels outside the stream: 12 samples of 'b', 'd'"):
        stream(features, scenario="explicit", tasks=tasks)
    built = stream(features, scenario="explicit", tasks=tasks, unlisted="leave_out")
    assert built.classes == ("a", "c")
    assert built.samples.num_rows == 12
    assert [len(task.train) for task in built.tasks] == [4, 4]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([{"classes": ["a"]}, {"classes": ["b", "a"]}], "tasks 1 and 2 both claim class 'a'"),
        ([{"classes": ["a"]}, {"classes": ["a"], "domain": "x"}], "both claim class 'a'"),
        ([{"classes": ["a"], "domain": "x"}, {"classes": ["a"]}], "both claim class 'a'"),
        ([{"classes": ["a", "a"]}], "names a class twice"),
        ([{"name": "x"}], "needs classes, domain or files"),
        ([], "at least 1 item"),
    ],
)
def test_lists_that_contradict_themselves_are_refused(tasks: list[Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        stream_settings(scenario="explicit", source={"kind": "demo"}, tasks=tasks)


def test_lists_that_contradict_the_data_are_refused(
    features: dict[str, Any], arrivals: dict[str, Any]
) -> None:
    def refuse(source: dict[str, Any], tasks: list[Any], message: str) -> None:
        with pytest.raises((SettingsError, DataError), match=message):
            stream(source, scenario="explicit", tasks=tasks, unlisted="leave_out")

    refuse(features, [{"classes": ["aa"]}], r"tasks\.0\.classes: the data have no class 'aa'")
    refuse(features, [{"domain": "x"}], "the samples have no domains")
    same = {"files": ["jan.parquet"]}
    refuse(arrivals, [same, same], "'task-01' and 'task-02' both claim 3 samples")
    refuse(
        arrivals, [{"files": ["apr.parquet"]}], "no sample lies in 'apr.parquet'; samples lie in"
    )
    refuse(arrivals, [{**same, "classes": ["c"]}], "task 'task-01' has no training samples of 'c'")
    refuse(arrivals, [{"files": ["scored.parquet"]}], "task 'task-01' has no training samples")
    refuse(
        features,
        [{"name": "x", "classes": ["a"]}, {"name": "x", "classes": ["b"]}],
        "2 tasks are named 'x'",
    )


def test_files_are_looked_at_once_for_each_pattern(
    arrivals: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(locations: pa.Array, pattern: str) -> Any:
        asked.append(pattern)
        return lying_in(locations, pattern)

    monkeypatch.setattr("pipelines.stream.explicit.lying_in", counted)
    tasks = [{"files": [f"{name}.parquet"]} for name in ("jan", "feb", "mar")]
    stream(arrivals, scenario="explicit", tasks=tasks)
    assert asked == ["jan.parquet", "feb.parquet", "mar.parquet"]


@pytest.mark.parametrize(
    ("pattern", "inside"),
    [
        ("/data/jan/x.parquet", True),
        ("/data/jan", True),
        ("x.parquet", True),
        ("jan/x.parquet", True),
        ("jan", True),
        ("jan/*", True),
        ("/data/*/x.parquet", True),
        ("j?n/x.parquet", True),
        ("an/x.parquet", False),
        ("ja", False),
        ("/data/ja", False),
        ("x", False),
    ],
)
def test_a_file_is_named_by_path_ending_folder_or_pattern(pattern: str, inside: bool) -> None:
    files = pa.array(["/elsewhere/y", "/data/jan/x.parquet"])
    assert lying_in(files, pattern).tolist() == [False, inside]
