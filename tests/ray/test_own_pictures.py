"""A folder of pictures as people have them, through a whole run and back: nothing that can be shown is refused."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator import results
from orchestrator.commands.run import run_experiment
from orchestrator.experiment_files import parse_experiment
from orchestrator.tracking import read_events
from tests import pictures

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def summary(folder: Path, ray_session: object) -> dict[str, Any]:
    """A run over every kind of picture that is handled."""
    pictures.every_kind(folder / "pictures")
    experiment = parse_experiment(
        {
            "name": "own",
            "storage": str(folder / "storage"),
            "stream": {
                "scenario": "class_incremental",
                "classes_per_task": 2,
                "source": {"kind": "image_folder", "path": str(folder / "pictures")},
            },
            "evaluation": {"routers": ["lda", "oracle"], "baselines": ["simplecil"]},
            "tracking": {"console": "quiet", "wandb": {"mode": "disabled"}},
            "cluster": {"shards": 2, "trainers": 1, "evaluators": 1},
        }
    )
    return run_experiment(experiment, console=False)


def test_every_picture_is_learned_from_or_scored(summary: dict[str, Any]) -> None:
    assert summary["backbone_images"] == 13 + 7 + 1 + 3 * len(pictures.STRANGE)
    assert summary["tasks_learned"] == 4
    assert summary["metrics"]["oracle"]["final_accuracy"] > 0.7
    log = read_events(Path(summary["run_dir"]) / "events.jsonl")
    assert not [event for event in log if getattr(event, "skipped", ())]


def test_a_class_of_one_picture_is_learned_and_said_to_be_never_scored(
    summary: dict[str, Any],
) -> None:
    assert any("no test samples of 'single'" in warning for warning in summary["warnings"])


def test_equal_pictures_are_kept_and_said(summary: dict[str, Any]) -> None:
    told = " ".join(summary["warnings"])
    assert "1 content with more than one label" in told
    assert "2 images in hidden files or folders" in told
    assert "left out 1 file not an image by name, such as 'dark/notes.txt'" in told


def test_class_names_are_the_folders_names_and_lead_nowhere(
    summary: dict[str, Any], folder: Path
) -> None:
    bank = orchestrator.open_bank(folder / "storage", "own").load()
    assert set(bank.class_names) == {"dark", "light", "single", *pictures.STRANGE}
    page = Path(summary["report"]).read_text()
    for name in pictures.STRANGE:
        assert html.escape(name) in page
    assert "<b>&" not in page
    assert sorted(entry.name for entry in folder.iterdir()) == ["pictures", "storage"]


def test_every_kind_can_be_predicted(summary: dict[str, Any], folder: Path) -> None:
    files = sorted((folder / "pictures" / "dark").glob("*.[gjpJ]*"))
    predicted = orchestrator.open_bank(folder / "storage", "own").load()(files)
    right = [name == "dark" for name in predicted.classes]
    assert len(right) == 13
    assert sum(right) >= 10
    assert results.read_predictions(summary["run_dir"]).num_rows > 0
