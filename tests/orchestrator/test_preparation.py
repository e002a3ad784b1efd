"""What is refused and made absolute before Ray is joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.preparation import prepare
from orchestrator.sweep.opening import Sweep
from orchestrator.sweep.running import run_sweep
from tests.helpers import features_experiment
from workers.errors import ClusterError


def test_actors_are_told_absolute_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = features_experiment(tmp_path, storage="here")
    assert prepare(experiment).experiment.storage == str(tmp_path / "here")


def test_a_job_refuses_storage_that_it_would_lose_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    experiment = features_experiment(tmp_path, storage="here")
    with pytest.raises(ClusterError, match="relative path"):
        prepare(experiment)
    sweep = Sweep.from_data(experiment.model_dump(mode="json"), where="here")
    with pytest.raises(ClusterError, match="relative path"):
        run_sweep(sweep, console=False)
    assert not (tmp_path / "here").exists()
