"""`luca stream show` prints tasks, classes and counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.orchestrator.commands.command_line import CommandLine
from tests.pipelines.sources.data import write_features, write_images


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment of four classes on ready features, two classes a task."""
    monkeypatch.chdir(tmp_path)
    write_features(tmp_path / "f.parquet", ["a", "b", "c", "d"])
    file = tmp_path / "mine.yaml"
    file.write_text(
        "stream:\n  scenario: class_incremental\n  classes_per_task: 2\n  shuffle_classes: false\n"
        "  source: {kind: features, path: f.parquet}\n"
    )
    return file


def test_tasks_are_printed_with_their_classes_and_counts(
    typed: CommandLine, features: Path
) -> None:
    done = typed("stream", "show", features)
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0][:2] == ["mine:", "class_incremental,"]
    assert ["task-01", "8", "0", "4", "2", "a,", "b"] in lines
    assert ["task-02", "8", "0", "4", "2", "c,", "d"] in lines
    assert "features of width 6" in done.out


def test_json_holds_all_of_it_and_the_same_digest(typed: CommandLine, features: Path) -> None:
    found = json.loads(typed("stream", "show", features, "--json").out)
    assert found["name"] == "mine"
    assert found["seed"] == 1993
    assert found["feature_width"] == 6
    assert [task["classes"] for task in found["tasks"]] == [["a", "b"], ["c", "d"]]
    assert typed("stream", "show", features).out.splitlines()[-1] == f"digest {found['digest']}"


def test_overrides_change_the_stream(typed: CommandLine, features: Path) -> None:
    done = typed(
        "stream", "show", features, "-o", "stream.classes_per_task=4", "-o", "seed=5", "--json"
    )
    found = json.loads(done.out)
    assert len(found["tasks"]) == 1
    assert found["seed"] == 5


def test_warnings_and_domains_are_shown(typed: CommandLine, tmp_path: Path) -> None:
    root = write_images(tmp_path / "im", {"x/cat": 3, "x/dog": 3, "y/cat": 3, "y/dog": 3})
    file = tmp_path / "e.yaml"
    file.write_text(
        f"storage: {tmp_path / 's'}\nstream:\n  scenario: domain_incremental\n"
        f"  source: {{kind: image_folder, path: {root}, domain_folders: true}}\n"
    )
    done = typed("stream", "show", file)
    assert done.code == 0
    assert [line.split()[:2] for line in done.out.splitlines()[3:5]] == [["x", "x"], ["y", "y"]]
    assert "warning: " in done.out
    assert "kept for test" in done.out


def test_long_lists_of_classes_are_cut_for_people_and_whole_in_json(
    typed: CommandLine, tmp_path: Path
) -> None:
    names = [f"species number {at:03d}" for at in range(40)]
    write_features(tmp_path / "f.parquet", names, train=2, test=1)
    file = tmp_path / "e.yaml"
    file.write_text(
        f"storage: {tmp_path / 's'}\nstream:\n  scenario: class_incremental\n  classes_per_task: 40\n"
        f"  source: {{kind: features, path: {tmp_path / 'f.parquet'}}}\n"
    )
    assert "and 37 more" in typed("stream", "show", file).out
    found = json.loads(typed("stream", "show", file, "--json").out)
    assert sorted(found["tasks"][0]["classes"]) == names


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stream.clases_per_task=2", "did you mean"),
        ("stream.classes_per_task=9", "the source has 4 classes"),
        ("stream.source.path=nowhere", "no file or folder"),
        ("stream.classes_per_task=many", "a whole number, found 'many'"),
    ],
)
def test_mistakes_end_in_one_sentence(
    typed: CommandLine, features: Path, override: str, words: str
) -> None:
    assert words in typed.refused("stream", "show", features, "-o", override)


def test_an_unknown_experiment_names_the_presets(typed: CommandLine) -> None:
    assert "did you mean 'demo'" in typed.refused("stream", "show", "dmeo")


def test_a_published_preset_is_shown_when_only_its_path_is_given(
    typed: CommandLine, tmp_path: Path
) -> None:
    folders = {f"{split}/c{at:02d}": 1 for at in range(50) for split in ("train", "test")}
    write_images(tmp_path, folders)
    done = typed("stream", "show", "vtab_inc10", "-o", f"stream.source.path={tmp_path}")
    assert done.code == 0
    assert "50 classes in 5 tasks" in done.out
    assert "say where the data are" in typed.refused("stream", "show", "vtab_inc10")
