"""A sweep in W&B: one offline group with a run a trial and one for the whole, each trial once."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sweep.wandb_group import WandbGroup
from orchestrator.tracking import WandbSettings
from tests.orchestrator.test_sweep_results import FAILED, PUBLISHED, STOPPED, result, trial

SWEEP = "demo-sweep-0123456789"


def group(folder: Path, notices: list[str], **settings: Any) -> WandbGroup:
    return WandbGroup(
        WandbSettings(**{"mode": "offline", **settings}),
        folder,
        SWEEP,
        config={"experiment": "demo"},
        notify=lambda message, level: notices.append(message),
    )


def runs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Records of every offline run, by the run's name."""
    found = {}
    for log in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        read = subprocess.run(
            [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log.parent)],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        records = [json.loads(line) for line in read.stdout.splitlines() if line.startswith("{")]
        text = json.dumps(records)
        name = next(
            part
            for part in ("t000", "t001", "t005", "t006", "summary")
            if f"{SWEEP}-{part}" in text
        )
        found[name] = records
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("sweep")
    notices: list[str] = []
    first = group(folder, notices)
    first.trial(trial(1, 0.85, 300))
    outcome = result(PUBLISHED, trial(1, 0.85, 300), STOPPED, FAILED, id=SWEEP)
    first.finish(outcome)
    return folder, notices


def test_every_trial_is_a_run_of_one_group(recorded: tuple[Path, list[str]]) -> None:
    found = runs(recorded[0])
    assert set(found) == {"t000", "t001", "t005", "t006", "summary"}
    assert all(f'"{SWEEP}"' in json.dumps(records) for records in found.values())
    assert "learning.l1" in json.dumps(found["t001"])
    assert "validation/accuracy_seen" in json.dumps(found["t001"])
    assert "diverged" in json.dumps(found["t006"])


def test_the_user_is_told_how_to_send_it(recorded: tuple[Path, list[str]]) -> None:
    assert [notice for notice in recorded[1] if "wandb sync" in notice]


def test_a_continued_sweep_records_only_what_is_new(recorded: tuple[Path, list[str]]) -> None:
    folder, _ = recorded
    before = len(list((folder / "wandb").glob("offline-run-*")))
    known = result(PUBLISHED, trial(1, 0.85, 300), id=SWEEP)
    group(folder, []).finish(known)
    assert len(list((folder / "wandb").glob("offline-run-*"))) == before
    group(folder, []).finish(result(*known.records, trial(2, 0.85, 30), id=SWEEP))
    assert len(list((folder / "wandb").glob("offline-run-*"))) == before + 2  # and the whole


def test_disabled_leaves_nothing(tmp_path: Path) -> None:
    quiet = group(tmp_path, [], mode="disabled")
    quiet.trial(trial(1, 0.85, 300))
    quiet.finish(replace(result(PUBLISHED), id=SWEEP))
    assert list(tmp_path.iterdir()) == []
