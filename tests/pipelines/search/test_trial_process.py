"""What a trial process says of a trial, without Tune around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.search.data import SweepPlan
from pipelines.search.trial import Trial
from pipelines.search.tuner import TrialProcess
from tests.pipelines.search.toy import toy_plan, toy_sweep, trial_settings
from workers.errors import StorageError


def begun(plan: SweepPlan, **learning: Any) -> TrialProcess:
    process = TrialProcess(plan)
    process.begin(trial_settings(**learning).model_dump_json())
    return process


def test_a_trial_reports_every_task(tmp_path: Path) -> None:
    process = begun(toy_plan(toy_sweep(tmp_path)))
    said: list[dict[str, Any]] = []
    while not said or not said[-1]["done"]:
        said.append(process.step())
    reports = [report for each in said for report in json.loads(each["reports"])]
    assert [report["tasks"] for report in reports] == [1, 2, 3]


def test_settings_that_do_not_work_fail_their_trial(tmp_path: Path) -> None:
    said = begun(toy_plan(toy_sweep(tmp_path)), learning_rate=1e18).step()
    assert "diverged" in said["failed"]
    assert said["done"]


def test_features_that_are_gone_are_no_fault_of_the_settings(tmp_path: Path) -> None:
    process = begun(toy_plan(toy_sweep(tmp_path)))
    victim = next((tmp_path / "storage" / "features").rglob("*.arrow"))
    victim.unlink()
    said = process.step()
    assert victim.stem in said["broken"]
    assert "failed" not in said


def test_a_storage_that_cannot_be_read_is_no_fault_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begun(toy_plan(toy_sweep(tmp_path)))

    def unreadable(_: Trial) -> None:
        raise StorageError("the storage cannot be read: input/output error")

    monkeypatch.setattr(Trial, "step", unreadable)
    with pytest.raises(StorageError, match="input/output error"):
        process.step()
