"""`luca init` writes an experiment that the other commands take as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.commands.init import classes_per_task, experiment_name
from orchestrator.experiment_files import load_experiment
from tests.orchestrator.commands.command_line import CommandLine
from tests.pipelines.sources.data import png, write_features, write_images


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def folder(root: Path) -> Path:
    return write_images(root / "pets", {"cat": 3, "dog": 3, "eel": 3})


def domains(root: Path) -> Path:
    return write_images(root / "pets", {"a/cat": 3, "a/dog": 3, "b/cat": 3, "b/dog": 3})


def odd_names(root: Path) -> Path:
    return write_images(
        root / "my: 'pets' # é", {"yes": 3, "null": 3, "1e3": 3, '{"a": [': 3, "- x": 3}
    )


def odd_folder(root: Path) -> Path:
    return write_images(root / "em 🙂oji \u202e\x85 \n '\"\\", {"a": 3, "b": 3})


def features(root: Path) -> Path:
    return write_features(root / "vectors.parquet", list("abcdefgh"))


def tables(root: Path) -> Path:
    table = pa.table({"img": [png(at) for at in range(8)], "class": [at % 2 for at in range(8)]})
    pq.write_table(table, root / "images.parquet")
    return root / "images.parquet"


def listed(root: Path) -> Path:
    write_images(root, {"images": 6})
    rows = "".join(f"images/{at:03d}.png,{'ab'[at % 2]}\n" for at in range(6))
    (root / "list.csv").write_text("path,label\n" + rows)
    return root / "list.csv"


@pytest.mark.parametrize("make", [folder, domains, odd_names, odd_folder, features, tables, listed])
def test_what_is_written_loads_and_its_stream_can_be_shown(
    typed: CommandLine, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    data = make(tmp_path)
    done = typed("init", data, "--output", "e.yaml")
    assert done.code == 0, done.err
    experiment = load_experiment("e.yaml")
    assert experiment.stream.source.path == str(data)
    shown = typed("stream", "show", "e.yaml", "--json")
    assert shown.code == 0, shown.err
    assert len(json.loads(shown.out)["tasks"]) >= 1
    assert "luca stream show e.yaml" in done.out
    assert "luca run e.yaml" in done.out


def test_the_file_means_the_same_wherever_luca_is_started(
    typed: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path)
    done = typed("init", "pets", "--output", "my pets.yaml")
    assert "luca run 'my pets.yaml' --dry-run" in done.out
    (tmp_path / "elsewhere").mkdir()
    found = []
    for place, file in ((tmp_path, "my pets.yaml"), (tmp_path / "elsewhere", "../my pets.yaml")):
        monkeypatch.chdir(place)
        shown = typed("run", file, "--dry-run", "--json")
        assert shown.code == 0, shown.err
        found.append(json.loads(shown.out))
    assert found[0] == found[1]
    assert found[0]["storage"] == str(tmp_path / "luca-storage")


def test_the_file_is_named_after_the_data_and_comments_name_the_options(
    typed: CommandLine, tmp_path: Path
) -> None:
    assert typed("init", folder(tmp_path)).code == 0
    text = (tmp_path / "pets.yaml").read_text()
    for words in (
        "validation_fraction",
        "class_order",
        "weights: PATH",
        "test_fraction",
        "shots: 5",
    ):
        assert words in text
    assert "domain" not in text
    assert "9 images of 3 classes, 6 for training and 3 for test" in text
    assert "name: pets\n" in text


def test_domains_are_offered_and_taking_the_offer_works(typed: CommandLine, tmp_path: Path) -> None:
    typed("init", domains(tmp_path))
    text = (tmp_path / "pets.yaml").read_text()
    assert "scenario: domain_incremental, without classes_per_task and class_order" in text
    changed = text.replace("scenario: class_incremental", "scenario: domain_incremental")
    left_out = ("  classes_per_task", "  class_order")
    kept = [line for line in changed.splitlines() if not line.startswith(left_out)]
    (tmp_path / "pets.yaml").write_text("\n".join(kept))
    found = json.loads(typed("stream", "show", "pets.yaml", "--json").out)
    assert [task["name"] for task in found["tasks"]] == ["a", "b"]


def test_the_order_is_the_seeds_and_stays_when_a_class_arrives(
    typed: CommandLine, tmp_path: Path
) -> None:
    typed("init", folder(tmp_path))
    before = json.loads(typed("stream", "show", "pets.yaml", "--json").out)
    text = (tmp_path / "pets.yaml").read_text()
    without = "".join(line for line in text.splitlines(True) if "class_order:" not in line)
    (tmp_path / "drawn.yaml").write_text(without)
    assert json.loads(typed("stream", "show", "drawn.yaml", "--json").out) == before
    write_images(tmp_path / "pets", {"ant": 3})
    (order,) = (line for line in text.splitlines() if "class_order:" in line)
    (tmp_path / "pets.yaml").write_text(text.replace(order, order.replace("]", ", ant]")))
    after = json.loads(typed("stream", "show", "pets.yaml", "--json").out)
    assert after["tasks"][:-1] == before["tasks"]
    assert after["tasks"][-1]["classes"] == ["ant"]


def test_data_with_their_own_split_get_no_test_fraction(typed: CommandLine, tmp_path: Path) -> None:
    typed("init", features(tmp_path))
    text = (tmp_path / "vectors.yaml").read_text()
    assert "test_fraction" not in text
    assert "backbone:" not in text
    assert load_experiment("vectors.yaml").stream.source.kind == "features"


def test_options_in_comments_are_real(typed: CommandLine, tmp_path: Path) -> None:
    """Every commented key that stands on a line of its own can be switched on."""
    typed("init", folder(tmp_path))
    for override in (
        "stream.shots=5",
        "stream.long_tail=0.01",
        "stream.blurry=0.1",
        "stream.first_task_classes=2",
        "stream.source.split_seed=1",
        "features.precision=bfloat16",
        "features.tolerate_unreadable=3",
        "tracking.wandb.mode=online",
        "recipe=tosca",
        "recipe=local_sparse",
        "evaluation.routers=[ridge,lda_ridge,prototype,batch_entropy]",
        "evaluation.baselines=[slda,ranpac,fecam,sequential_linear,joint_luca]",
    ):
        load_experiment("pets.yaml", [override])
    load_experiment("pets.yaml", ["gate.min_accuracy=0.8", "stream.validation_fraction=0.1"])


def test_a_file_that_is_there_is_kept_unless_forced(typed: CommandLine, tmp_path: Path) -> None:
    data = folder(tmp_path)
    (tmp_path / "pets.yaml").write_text("mine")
    assert "'pets.yaml' exists already" in typed.refused("init", data)
    assert (tmp_path / "pets.yaml").read_text() == "mine"
    assert typed("init", data, "--force").code == 0
    assert load_experiment("pets.yaml").name == "pets"


def test_offline_the_embedded_backbone_is_taken_and_said(
    typed: CommandLine, tmp_path: Path
) -> None:
    done = typed("init", folder(tmp_path))
    assert load_experiment("pets.yaml").backbone.name == "demo_vit"
    assert "the hub cannot be reached" in done.err
    typed("init", tmp_path / "pets", "--force", "--backbone", "vit_small_patch16_224")
    assert load_experiment("pets.yaml").backbone.name == "vit_small_patch16_224"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no file or folder"),
        (["empty"], "expected"),
        (["pets", "--output", "pets"], "is a folder"),
        (["pets", "--output", "/proc/none/e.yaml"], "cannot be"),
        (["pets", "--backbone", ""], "backbone"),
    ],
)
def test_mistakes_leave_nothing(
    typed: CommandLine, tmp_path: Path, arguments: list[str], words: str
) -> None:
    folder(tmp_path)
    (tmp_path / "empty").mkdir()
    assert words in typed.refused("init", *arguments)
    assert sorted(os.listdir(tmp_path)) == ["empty", "pets"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/flowers/", "flowers"),
        ("cifar-100-python.tar.gz", "cifar-100-python"),
        ("s3://bucket/x/train.parquet?region=eu", "train"),
        ("/data/meine Blüten", "meine-Bl-ten"),
        ("/data/demo", "demo-data"),
        ("/data/...", "experiment"),
    ],
)
def test_experiments_are_named_after_their_data(path: str, name: str) -> None:
    assert experiment_name(path) == name


@given(st.integers(1, 3000))
def test_there_are_about_ten_tasks(classes: int) -> None:
    size = classes_per_task(classes)
    tasks = -(-classes // size)
    assert 1 <= size <= classes
    assert tasks <= 20
    if classes >= 10:
        assert tasks >= 5


def test_common_data_sets_divide_evenly() -> None:
    assert [classes_per_task(n) for n in (10, 20, 100, 102, 200, 1000)] == [1, 2, 10, 17, 20, 100]
