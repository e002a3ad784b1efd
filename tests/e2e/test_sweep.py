"""``luca sweep`` and ``luca run --from-sweep`` as a user runs them, killed in the middle too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers import features_experiment

pytestmark = pytest.mark.e2e

LUCA = [sys.executable, "-m", "orchestrator.cli"]
KEYS = ["id", "settings", "validation_accuracy", "nonzero_parameters", "published", "seconds"]


def luca(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LUCA, *arguments], capture_output=True, text=True, timeout=280, check=False
    )


def sweep_json(*arguments: str) -> dict[str, Any]:
    finished = luca("sweep", *arguments, "--json")
    assert finished.returncode == 0, finished.stderr[-2000:]
    value: dict[str, Any] = json.loads(finished.stdout)
    return value


def experiment_file(folder: Path, **changes: Any) -> str:
    """An experiment over small ready features, as a file."""
    experiment = features_experiment(folder, **changes)
    path = folder / "tiny.yaml"
    path.write_text(experiment.to_yaml())
    return str(path)


def test_a_sweep_of_pictures_passes_each_training_image_through_the_backbone_once(
    tmp_path: Path,
) -> None:
    common = ["-o", f"storage={tmp_path / 'storage'}", "-o", "search.trials=2"]
    common += ["-o", "search.space.learning.epochs=[1, 2]", "-o", "tracking.wandb.mode=disabled"]
    first = sweep_json("demo", *common)
    assert (
        first["backbone_images"] == 3198
    )  # training images; no test image, and none again for a trial
    assert list(first) == ["sweep", "backbone_images", "trials", "pareto", "best"]
    assert all(list(trial) == KEYS for trial in first["trials"])
    assert [trial["published"] for trial in first["trials"]] == [True, False]
    assert first["best"] in {trial["id"] for trial in first["trials"]}
    other_order = sweep_json("demo", *common, "-o", "seed=7")
    assert other_order["backbone_images"] == 0
    assert other_order["sweep"] != first["sweep"]


def test_a_killed_sweep_goes_on_and_its_choice_can_be_run(tmp_path: Path) -> None:
    file = experiment_file(
        tmp_path,
        learning={"epochs": 60},
        search={"trials": 5, "max_concurrent": 1, "space": {"learning.l1": [0.0, 1e-3, 0.01, 0.1]}},
    )
    process = subprocess.Popen(
        [*LUCA, "sweep", file, "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    ended = wait_for_trials(tmp_path / "storage", 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    found = sweep_json(file)
    assert len(found["trials"]) == 5
    kept = {trial["id"]: trial["seconds"] for trial in found["trials"]}
    assert {name: kept[name] for name in ended} == ended
    again = sweep_json(file)
    assert again == {**found, "backbone_images": 0}

    chosen = luca("run", file, "--from-sweep", f"{found['sweep']}:smallest", "--json")
    assert chosen.returncode == 0, chosen.stderr[-2000:]
    summary = json.loads(chosen.stdout)
    smallest = min(
        (t for t in found["trials"] if t["validation_accuracy"] >= best_of(found) - 0.003 - 1e-9),
        key=lambda t: t["nonzero_parameters"],
    )
    assert summary["tasks_learned"] == 3
    assert summary["bank"].endswith(smallest["id"])
    settings = yaml.safe_load((Path(summary["run_dir"]) / "experiment.yaml").read_text())
    for key, value in smallest["settings"].items():
        section, _, name = key.partition(".")
        assert (settings[section][name] if name else settings[section]) == value


def best_of(found: dict[str, Any]) -> float:
    return max(trial["validation_accuracy"] for trial in found["trials"])


def wait_for_trials(
    storage: Path, count: int, process: subprocess.Popen[bytes]
) -> dict[str, float]:
    """Seconds of the first trials that ended, by name, once there are so many."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        records = [json.loads(p.read_text()) for p in storage.glob("sweeps/*/trials/t*.json")]
        ended = {r["id"]: r["seconds"] for r in records if r["status"] == "finished"}
        if len(ended) >= count:
            return ended
        time.sleep(0.05)
    raise AssertionError(f"the sweep did not end {count} trials in time")


def test_mistakes_end_in_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    storage = f"storage={tmp_path / 'storage'}"
    wrong = luca("sweep", "demo", "-o", storage, "-o", "search.space.learning.l2=[1]")
    assert wrong.returncode == 2
    assert wrong.stderr.strip().splitlines() == [
        "luca: search.space: learning.l2=1: unknown key 'learning.l2'; did you mean 'learning.l1'?"
    ]
    unknown = luca("run", "demo", "-o", storage, "--from-sweep", "nothing")
    assert unknown.returncode == 2
    assert "there is no sweep" in unknown.stderr
    assert wrong.stdout == unknown.stdout == ""
