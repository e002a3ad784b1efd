"""`luca run --dry-run` says what a run would do and starts nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.experiment_files import load_experiment
from orchestrator.preparation import Prepared, prepare
from pipelines.features import FeaturePlan
from pipelines.sources import index
from tests.orchestrator.commands.command_line import CommandLine
from tests.pipelines.sources.data import write_features, write_images
from workers.storage.bank_draft import TaskDraft
from workers.storage.bank_writer import BankWriter
from workers.storage.features import FeatureCache, cache_key, ready_key


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """An experiment of four classes on ready features of width 6, in two tasks."""
    write_features(tmp_path / "f.parquet", ["a", "b", "c", "d"])
    return experiment(tmp_path, f"{{kind: features, path: {tmp_path / 'f.parquet'}}}")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """An experiment of two classes of images, in two tasks."""
    write_images(tmp_path / "im", {"train/x": 3, "train/y": 3, "test/x": 2, "test/y": 2})
    return experiment(
        tmp_path, f"{{kind: image_folder, path: {tmp_path / 'im'}}}", classes_per_task=1
    )


def experiment(tmp_path: Path, source: str, *, classes_per_task: int = 2) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"storage: {tmp_path / 'storage'}\nluca: {{ratio: 2}}\nstream:\n  scenario: class_incremental\n"
        f"  classes_per_task: {classes_per_task}\n  shuffle_classes: false\n  source: {source}\n"
    )
    return file


def plan(typed: CommandLine, *arguments: Any) -> dict[str, Any]:
    done = typed("run", "--dry-run", "--json", *arguments)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def commit(prepared: Prepared, count: int, backbone: dict[str, Any]) -> None:
    """The first tasks in the bank, with arrays that nobody reads."""
    with BankWriter(prepared.bank) as writer:
        writer.begin(backbone, prepared.experiment.learning_identity())
        for each in prepared.tasks[:count]:
            writer.commit(
                TaskDraft(
                    id=each.id,
                    name=each.task.name,
                    classes=tuple(prepared.stream.classes[c] for c in each.task.classes),
                    definition=each.definition.to_json(),
                    arrays={"module": {"x": np.zeros(3, np.float32)}},
                )
            )


def cache_parts(prepared: Prepared, key: str, rows: Any, width: int) -> None:
    cache, layout = FeatureCache(prepared.storage), prepared.plan
    assert isinstance(layout, FeaturePlan)
    for part in layout.parts_of(rows):
        ids = layout.samples_of(part)["id"].combine_chunks()
        cache.write(layout.key(part, 0, key), ids, np.ones((len(ids), width), np.float32))


def test_a_new_bank_of_ready_features(typed: CommandLine, features: Path) -> None:
    found = plan(typed, features)
    assert [task["learned"] for task in found["tasks"]] == [False, False]
    assert [task["train"] for task in found["tasks"]] == [8, 8]
    assert found["backbone"] == {"name": "ready-features", "width": 6}
    assert found["features"]["rows"] == 24
    assert found["features"]["bytes"] == 24 * 6 * 4
    assert found["features"]["backbone_images"] == 0
    assert found["features"]["exact"]
    assert found["bank"]["version"] is None
    assert found["bank"]["to_learn"] == 2


def test_parameters_are_those_a_module_has(typed: CommandLine, features: Path) -> None:
    import torch

    from workers.modeling.luca import init_parameters, parameter_count
    from workers.modeling.luca_settings import LucaSettings

    module = plan(typed, features)["module"]
    made = init_parameters(6, LucaSettings(ratio=2), generator=torch.Generator())
    assert module["parameters"] == parameter_count(made)
    assert module["bytes"] == 4 * parameter_count(made)
    assert module["head_parameters"] == 4 * 6 + 2
    assert module["statistics_bytes"] == 4 * (6 * 7 // 2 + 6 + 1) * 8


def test_half_precision_and_unified_heads_change_the_sizes(
    typed: CommandLine, features: Path
) -> None:
    found = plan(typed, features, "-o", "features.dtype=float16", "-o", "recipe=tosca")
    assert found["features"]["bytes"] == 24 * 6 * 2
    assert found["objective"] == "unified"
    assert found["module"]["head_parameters"] == 4 * 6 + 1


def test_what_the_bank_holds_is_not_learned_again(typed: CommandLine, features: Path) -> None:
    prepared = prepare(load_experiment(str(features)))
    commit(prepared, 1, {"name": "ready-features", "width": 6, "fingerprint": "ready-features-6"})
    found = plan(typed, features)
    assert [task["learned"] for task in found["tasks"]] == [True, False]
    assert found["bank"]["version"] == 1
    assert found["bank"]["to_learn"] == 1
    text = typed("run", features, "--dry-run").out
    assert "version 1 holds 1 task" in text
    assert "1 task to learn" in text


def test_images_that_are_not_cached_would_go_through_the_backbone(
    typed: CommandLine, images: Path
) -> None:
    found = plan(typed, images)
    assert found["backbone"] == {"name": "demo_vit", "width": 192}
    assert found["features"]["backbone_images"] == 10
    assert found["features"]["exact"]
    assert found["features"]["cached_rows"] == 0
    views = plan(typed, images, "-o", "features.views=3")
    assert views["features"]["rows"] == 10 + 3 * 6
    assert views["features"]["backbone_images"] == 28


def test_cached_features_are_seen_under_the_banks_fingerprint(
    typed: CommandLine, images: Path
) -> None:
    prepared = prepare(load_experiment(str(images)))
    commit(prepared, 1, {"name": "demo_vit", "width": 192, "fingerprint": "f" * 32})
    key = cache_key("f" * 32, "float32")
    cache_parts(prepared, key, prepared.tasks[1].task.train, 192)
    found = plan(typed, images)["features"]
    assert found["cached_rows"] == 3
    # The second task's test images, and the first task's for scoring it again.
    assert found["backbone_images"] == 2 + 3 + 2
    assert not found["exact"]
    for split in ("train", "test"):
        cache_parts(prepared, key, getattr(prepared.tasks[0].task, split), 192)
    cache_parts(prepared, key, prepared.tasks[1].task.test, 192)
    found = plan(typed, images)["features"]
    assert (found["backbone_images"], found["exact"]) == (0, True)
    assert "0 images would go through it" in typed("run", images, "--dry-run").out


def test_hub_weights_are_not_fetched_and_the_count_is_an_upper_bound(
    typed: CommandLine, images: Path
) -> None:
    name = "vit_tiny_patch16_224"
    found = plan(typed, images, "-o", f"backbone.name={name}")
    assert found["backbone"] == {"name": name, "width": 192}
    assert found["features"]["cached_rows"] is None
    assert not found["features"]["exact"]
    text = typed("run", images, "--dry-run", "-o", f"backbone.name={name}").out
    assert "at most 10 images" in text


def test_the_text_names_tasks_bank_run_and_that_nothing_started(
    typed: CommandLine, features: Path, tmp_path: Path
) -> None:
    text = typed("run", features, "--dry-run").out
    for words in (
        "mine: class_incremental, 4 classes in 2 tasks",
        "24 of width 6 as float32, 576 B",
        f"mine in {tmp_path / 'storage'} does not exist yet; 2 tasks to learn",
        "batch_entropy_shuffled",
        "nothing was started",
    ):
        assert words in text
    assert not list((tmp_path / "storage").glob("banks/*"))
    assert not list((tmp_path / "storage").glob("runs/*"))


def everything(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize("kind", ["features", "images"])
def test_a_storage_that_does_not_exist_is_not_made(
    typed: CommandLine,
    tmp_path: Path,
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = request.getfixturevalue(kind)
    monkeypatch.chdir(tmp_path)
    before = everything(tmp_path)
    plan(typed, file)
    plan(typed, file, "-o", "storage=deep/down")
    assert everything(tmp_path) == before


def test_a_storage_that_exists_keeps_the_digests_of_the_data(
    typed: CommandLine, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "storage").mkdir()
    plan(typed, images)
    assert len(list((tmp_path / "storage").glob("index/*.arrow"))) == 1
    monkeypatch.setattr(index, "file_digests", lambda _, files: [1 / 0 for _ in files])
    plan(typed, images)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("backbone.name=resnet18", "no [CLS] token"),
        ("backbone.name=vit_nano", "not in timm"),
        ("backbone.name=hf-hub:nobody/nothing", "not in timm"),
        ("backbone.weights=none.pth", "does not exist"),
        ("luca.ratio=1000", "no bottleneck"),
        ("storage=/proc/none", "cannot be"),
        ("storage=/proc/version/none", "cannot be"),
    ],
)
def test_what_a_run_would_refuse_is_refused(
    typed: CommandLine, images: Path, override: str, words: str
) -> None:
    assert words in typed.refused("run", "--dry-run", images, "-o", override)


def test_views_of_ready_features_are_refused_before_ray_starts(
    typed: CommandLine, features: Path
) -> None:
    sentence = typed.refused("run", features, "-o", "features.views=3")
    assert "features.views=3 needs pictures" in sentence


def test_a_bank_of_another_backbone_is_refused(typed: CommandLine, images: Path) -> None:
    prepared = prepare(load_experiment(str(images)))
    commit(prepared, 1, {"name": "vit_base_patch16_224", "width": 768, "fingerprint": "0" * 32})
    sentence = typed.refused("run", "--dry-run", images)
    assert "'vit_base_patch16_224', not 'demo_vit'" in sentence


def test_ready_features_are_looked_for_under_their_own_key(
    typed: CommandLine, features: Path
) -> None:
    prepared = prepare(load_experiment(str(features)))
    key = ready_key(6, "float32")
    cache_parts(prepared, key, prepared.tasks[0].task.train, 6)
    assert plan(typed, features)["features"]["cached_rows"] == 8
