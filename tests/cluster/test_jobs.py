"""Runs as Ray jobs against a real ``ray start --head``: submit, logs, exit codes, stop and resume."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.submit import Submitted, connect, submit
from tests.cluster.conftest import Head, wait_until
from tests.helpers import features_experiment
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage

pytestmark = pytest.mark.timeout(1200)


AUTO = {"shards": "auto", "trainers": "auto", "evaluators": "auto"}
"""One of each would be three CPUs, and the head has two: a run that names counts would wait for them."""


def write_experiment(folder: Path, **changes: Any) -> Path:
    experiment = features_experiment(folder, cluster=AUTO, **changes)
    file = folder / "tiny.yaml"
    file.write_text(experiment.to_yaml())
    return file


def digest(folder: Path) -> str:
    bank = Bank.open(Storage.open(str(folder / "storage")), "tiny")
    return bank.load("latest").digest


def versions(folder: Path) -> int:
    return len(list((folder / "storage" / "banks" / "tiny" / "versions").glob("*.json")))


def run_job(head: Head, file: Path, **more: Any) -> tuple[Submitted, str, list[str]]:
    log: list[str] = []
    said: list[str] = []
    done = submit(str(file), address=head.url, say=said.append, write=log.append, **more)
    return done, "".join(log), said


def test_an_experiment_runs_as_a_job_and_running_it_again_repeats_nothing(
    head: Head, tmp_path: Path
) -> None:
    file = write_experiment(tmp_path)
    done, log, _ = run_job(head, file, submission_id="tiny")
    assert (done.status, done.exit_code) == ("SUCCEEDED", 0), log
    assert "3 tasks learned" in " ".join(log.split())
    first = digest(tmp_path)
    again, log, said = run_job(head, file, submission_id="tiny")
    assert (again.submission_id, again.exit_code) == ("tiny-2", 0)
    assert any("after tiny, and resumes it" in sentence for sentence in said)
    assert "0 tasks learned" in " ".join(log.split())
    assert digest(tmp_path) == first


def test_a_mistake_found_on_the_cluster_ends_with_the_runs_own_exit_code(
    head: Head, tmp_path: Path
) -> None:
    file = write_experiment(tmp_path)
    (tmp_path / "features.parquet").unlink()
    done, log, _ = run_job(head, file)
    assert (done.status, done.exit_code) == ("FAILED", 2)
    assert "features.parquet" in log
    assert "Traceback" not in log
    assert versions(tmp_path) == 0


def test_relative_storage_is_refused_inside_a_job_too(head: Head, tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    done = ray_job_submit(head, tmp_path, "luca", "run", file.name, "-o", "storage=here")
    assert done.returncode == 1
    assert "storage=/shared/luca" in " ".join(done.stdout.split())


def ray_job_submit(head: Head, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Ray's own command line, as the documentation shows it."""
    ray = str(Path(sys.executable).parent / "ray")
    arguments = [ray, "job", "submit", "--address", head.url, "--working-dir", ".", "--", *command]
    return subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, timeout=500, check=False
    )


def test_a_stopped_job_is_resumed_and_ends_in_the_same_bank(head: Head, tmp_path: Path) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    for folder in (straight, stopped):
        folder.mkdir()
        write_experiment(folder, learning={"epochs": 4000})
    whole = ray_job_submit(head, straight, "luca", "run", "tiny.yaml")
    assert whole.returncode == 0, whole.stdout

    file = stopped / "tiny.yaml"
    begun, _, _ = run_job(head, file, submission_id="stopped", follow=False)
    assert begun.status == "PENDING"
    wait_until(lambda: versions(stopped) >= 1, 300, "the first version")
    client = connect(head.url, 10)
    client.stop_job("stopped")
    wait_until(lambda: str(client.get_job_status("stopped")) == "STOPPED", 200, "the stop")
    assert versions(stopped) < 3
    done, log, _ = run_job(head, file, submission_id="stopped")
    assert done.exit_code == 0, log
    assert versions(stopped) == 3
    assert digest(stopped) == digest(straight)
