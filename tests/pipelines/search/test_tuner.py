"""Trials side by side under Ray Tune: failures, lost processes, damaged features, other methods."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sweep.results import SweepResult
from orchestrator.sweep.running import run_sweep
from pipelines.cluster import CapacityWatch
from pipelines.search.conductor import Conductor
from pipelines.search.ledger import SweepLedger, TrialRecord
from tests.pipelines.search.toy import toy_plan, toy_sweep
from workers.errors import ClusterError
from workers.storage.filesystem import Storage

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

SPACE = {"learning.l1": {"low": 1e-4, "high": 1e-1, "log": True}, "luca.ratio": [2, 4, 8]}


def run(
    folder: Path, trials: int | None, *, space: Any = SPACE, extracted: bool = False, **search: Any
) -> SweepResult:
    """Run a sweep whose features are in the cache already, so that only trials need processes."""
    settings = {"trials": trials, "max_concurrent": 1, "space": space, **search}
    sweep = toy_sweep(folder, search=settings)
    if not extracted:
        toy_plan(sweep)
    return run_sweep(sweep, console=False).result


def processes() -> list[int]:
    """Trial processes of this test's own Ray: grandchildren of this process."""

    def children(parent: int) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "stat").read_text().rsplit(")", 1)[1].split()[
                    1
                ] == str(parent):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    workers = [pid for child in children(os.getpid()) for pid in children(child)]
    return [pid for pid in workers if b"SweepTrial" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_complete_sweep_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path, 3, max_concurrent=2)
    assert [record.id for record in first.records] == ["t000", "t001", "t002"]
    assert [record.published for record in first.records] == [True, False, False]
    assert {record.status for record in first.records} == {"finished"}
    assert first.best is not None
    assert first.best.validation_accuracy is not None
    assert first.best.validation_accuracy > 0.8
    ledger = SweepLedger(Storage.open(str(tmp_path / "storage")), f"sweeps/{first.id}")
    assert list(ledger.read().values()) == list(first.records)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a complete sweep must not join Ray")

    monkeypatch.setattr("pipelines.cluster.join_ray", refuse)
    second = run(tmp_path, 3, max_concurrent=2)
    assert second.records == first.records
    assert [r.seconds for r in second.records] == [r.seconds for r in first.records]


def test_a_cluster_without_room_for_any_trial_ends_the_sweep_and_it_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def check(self: CapacityWatch) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise ClusterError("there is still no room for 1 CPU")

    with monkeypatch.context() as patch:
        patch.setattr(CapacityWatch, "check", check)
        with pytest.raises(ClusterError, match="no room for 1 CPU"):
            run(tmp_path, 3)
    assert len(run(tmp_path, 3, extracted=True).finished) == 3


def test_a_failing_trial_does_not_stop_a_grid(tmp_path: Path) -> None:
    space = {"learning.learning_rate": [0.02, 1e18], "luca.ratio": [2, 4]}
    result = run(tmp_path, None, space=space, method="grid")
    tried = {
        (record.settings["learning.learning_rate"], record.settings["luca.ratio"])
        for record in result.records[1:]
    }
    assert tried == {(0.02, 2), (0.02, 4), (1e18, 2), (1e18, 4)}
    failed = [record for record in result.records if record.status == "failed"]
    assert [record.settings["learning.learning_rate"] for record in failed] == [1e18, 1e18]
    assert all("diverged" in record.error for record in failed)
    assert len(result.finished) == 3


def test_killed_trial_processes_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 1 is killed at every report and given up; trial 0's process is killed once, as it ends."""
    end, report = Conductor.end, Conductor.report
    killed: list[int] = []

    def kill() -> None:
        for pid in processes():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    def deadly_end(self: Conductor, number: int, last: Any) -> TrialRecord:
        if number == 0:
            kill()
        return end(self, number, last)

    def deadly_report(self: Conductor, number: int, given: Any) -> bool:
        if number == 1:
            kill()
        return report(self, number, given)

    search: dict[str, Any] = {
        "retries": 1,
        "grace_tasks": 1,
        "stop_margin": 1.0,
    }  # reports after the first task
    with monkeypatch.context() as patch:
        patch.setattr(Conductor, "end", deadly_end)
        patch.setattr(Conductor, "report", deadly_report)
        first = run(tmp_path, 3, **search)
    assert len(killed) >= 2
    assert [record.status for record in first.records] == ["finished", "lost", "finished"]
    assert "process was lost" in first.records[1].error
    again = run(tmp_path, 3, **search)
    assert {record.status for record in again.records} == {"finished"}
    assert [again.records[0], again.records[2]] == [first.records[0], first.records[2]]


def test_damaged_features_are_extracted_again(tmp_path: Path) -> None:
    first = run(tmp_path, 1)
    for part in (tmp_path / "storage" / "features").rglob("*.arrow"):
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 0xFF
        part.write_bytes(bytes(data))
    second = run(tmp_path, 2, extracted=True)
    assert second.records[:1] == first.records
    assert second.records[1].status == "finished"
