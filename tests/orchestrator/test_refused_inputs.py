"""Bad input through a whole ``luca run``: one sentence, exit code 2, and no bank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from orchestrator.experiment import merge
from tests import pictures
from tests.helpers import write_features
from tests.orchestrator.commands.command_line import CommandLine, Done
from tests.orchestrator.in_process import commands_without_ray
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs need no Ray, and what they write without being told where lies in the test's folder."""
    commands_without_ray(monkeypatch)
    monkeypatch.chdir(tmp_path)


def experiment(folder: Path, source: dict[str, Any], **changes: Any) -> Path:
    """An experiment file over a source of two classes."""
    data = {
        "name": "mine",
        "storage": str(folder / "storage"),
        "stream": {"scenario": "class_incremental", "classes_per_task": 1, "source": source},
        "learning": {"epochs": 2},
        "evaluation": {"routers": ["lda"], "baselines": []},
        "tracking": {"console": "plain", "live_report": False, "wandb": {"mode": "disabled"}},
    }
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(merge(data, changes)))
    return file


def refused(typed: CommandLine, folder: Path, file: Path, *options: str) -> str:
    """Run what must be refused, and nothing of it may be left in a bank; the sentence."""
    done: Done = typed("run", file, *options)
    assert done.code == 2, done
    assert done.out == ""
    assert "Traceback" not in done.err
    *progress, sentence = done.err.splitlines()
    assert sentence.startswith("luca: ")
    assert not [line for line in progress if sentence.removeprefix("luca: ") in line]
    storage = Storage.open(str(folder / "storage"))
    assert Bank.names(storage) == ()
    assert not [entry for entry in storage.list("banks", recursive=True) if not entry.is_directory]
    return sentence


@pytest.mark.parametrize("fault", pictures.FAULTS)
def test_a_folder_that_cannot_be_learned_leaves_no_bank(
    typed: CommandLine, tmp_path: Path, fault: str
) -> None:
    root = pictures.two_classes(tmp_path / "pictures")
    words = pictures.FAULTS[fault](root)
    file = experiment(tmp_path, {"kind": "image_folder", "path": str(root)})
    assert words in refused(typed, tmp_path, file)


def test_the_same_folder_without_a_fault_is_learned(typed: CommandLine, tmp_path: Path) -> None:
    root = pictures.two_classes(tmp_path / "pictures")
    done = typed("run", experiment(tmp_path, {"kind": "image_folder", "path": str(root)}))
    assert done.code == 0, done.err
    assert Bank.names(Storage.open(str(tmp_path / "storage"))) == ("mine",)


def test_unreadable_pictures_within_the_tolerance_are_left_out_and_named(
    typed: CommandLine, tmp_path: Path
) -> None:
    root = pictures.two_classes(tmp_path / "pictures")
    words = pictures.FAULTS["a truncated JPEG"](root)
    file = experiment(tmp_path, {"kind": "image_folder", "path": str(root)})
    done = typed("run", file, "-o", "features.tolerate_unreadable=1")
    assert done.code == 0, done.err
    assert words in done.err


TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "a missing column": ({"feature": [[1.0, 2.0]] * 4}, "'label'"),
    "nulls": ({"feature": [[1.0, 2.0]] * 4, "label": ["a", None, "b", "b"]}, "row 1"),
    "a null feature": ({"feature": [[1.0, 2.0], None] * 2, "label": list("aabb")}, "rows 1, 3"),
}


@pytest.mark.parametrize("fault", TABLES)
def test_a_table_with_a_fault_leaves_no_bank(
    typed: CommandLine, tmp_path: Path, fault: str
) -> None:
    columns, words = TABLES[fault]
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    file = experiment(tmp_path, {"kind": "features", "path": str(tmp_path / "table.parquet")})
    sentence = refused(typed, tmp_path, file)
    assert words in sentence
    assert "table.parquet" in sentence


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("learning.epoch=3", "did you mean 'epochs'"),
        ("seed=true", "seed: input should be a whole number, found true"),
        ("stream.classes_per_task=3", "the source has 2 classes"),
    ],
)
def test_a_setting_with_a_fault_leaves_no_bank(
    typed: CommandLine, tmp_path: Path, option: str, words: str
) -> None:
    path = write_features(tmp_path / "f.parquet", classes=2)
    file = experiment(tmp_path, {"kind": "features", "path": str(path)})
    assert words in refused(typed, tmp_path, file, "-o", option)


def test_weights_of_another_architecture_leave_no_bank(typed: CommandLine, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    root = pictures.two_classes(tmp_path / "pictures")
    save_file({"conv.weight": torch.ones(3, 3)}, tmp_path / "other.safetensors")
    backbone = {"name": "vit_tiny_patch16_224", "weights": str(tmp_path / "other.safetensors")}
    source = {"kind": "image_folder", "path": str(root)}
    sentence = refused(typed, tmp_path, experiment(tmp_path, source, backbone=backbone))
    assert "other.safetensors' does not fit 'vit_tiny_patch16_224'" in sentence


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("backbone.name=vit_bas_patch16_224", "did you mean vit_base_patch16_224"),
        ("backbone.name=resnet50", "no [CLS] token"),
        ("backbone.weights=nowhere.pth", "'nowhere.pth' does not exist"),
        ("backbone.weights=pictures", "is a directory"),
        ("backbone.image_size=30", "not a multiple of the patch size 8"),
    ],
)
def test_a_backbone_that_cannot_be_had_is_refused_before_ray_or_wandb_start(
    typed: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    option: str,
    words: str,
) -> None:
    started: list[object] = []
    monkeypatch.setattr("pipelines.cluster.join_ray", lambda *_, **__: started.append("ray"))
    monkeypatch.setattr("orchestrator.commands.run.build_trackers", started.append)
    root = pictures.two_classes(tmp_path / "pictures")
    file = experiment(tmp_path, {"kind": "image_folder", "path": str(root)})
    done = typed(command, file, "-o", option)
    assert done.code == 2, done
    assert words in done.err.splitlines()[-1]
    assert started == []


def test_ready_features_ask_for_no_backbone(typed: CommandLine, tmp_path: Path) -> None:
    path = write_features(tmp_path / "f.parquet", classes=2)
    file = experiment(tmp_path, {"kind": "features", "path": str(path)})
    done = typed("run", file, "-o", "backbone.weights=nowhere.pth")
    assert done.code == 0, done.err


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_csv_with_a_byte_order_mark_is_learned_as_one_without(
    typed: CommandLine, tmp_path: Path, mark: str
) -> None:
    root = pictures.two_classes(tmp_path / "pictures")
    names = sorted(file.relative_to(root) for file in root.rglob("*.png"))
    rows = [f"{name},{name.parts[1]},{name.parts[0]}" for name in names]
    (root / "list.csv").write_text(mark + "\n".join(["path,label,split", *rows]), encoding="utf-8")
    file = experiment(tmp_path, {"kind": "manifest", "path": str(root / "list.csv")})
    done = typed("run", file)
    assert done.code == 0, done.err
    bank = Bank.open(Storage.open(str(tmp_path / "storage")), "mine")
    assert set(bank.load().classes) == {"dark", "light"}
