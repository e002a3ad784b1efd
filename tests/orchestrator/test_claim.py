"""One run at a time on a bank: the second is refused before Ray starts and before it writes a line anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import pipelines.cluster
from orchestrator import claim
from orchestrator.claim import claimed
from orchestrator.commands import run as run_module
from tests.helpers import features_experiment
from tests.orchestrator.commands.command_line import CommandLine
from workers.errors import BankLockedError, DataError
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage

HOLD = """
import sys, time
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage
from workers.storage.lock import BankLock

bank = Bank.open_or_create(Storage.open(sys.argv[1]), "tiny")
directory = getattr(bank, sys.argv[2])
lock = BankLock(bank.storage, directory, what="it", run="the-other-run")
lock.acquire()
print("held", flush=True)
time.sleep(600)
"""

Hold = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """An experiment file that speaks on the console."""
    file = tmp_path / "tiny.yaml"
    file.write_text(features_experiment(tmp_path, tracking={"console": "plain"}).to_yaml())
    return file


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Another process that holds one of the bank's locks."""
    started: list[subprocess.Popen[str]] = []

    def start(directory: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path / "storage"), directory],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting Ray is a fault of the program; nobody waits for a lock that is not let go."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(pipelines.cluster, "join_ray", refuse)
    monkeypatch.setattr(claim, "OWNER_GONE_SECONDS", 0.0)


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("directory", ["run_lock_directory", "lock_directory"])
def test_a_second_run_is_refused_before_ray_and_before_its_folder_is_touched(
    typed: CommandLine, experiment: Path, hold: Hold, tmp_path: Path, directory: str
) -> None:
    other = hold(directory)
    sentence = typed.refused("run", experiment)
    assert "bank 'tiny' is being written by " in sentence
    assert f"pid {other.pid} run the-other-run" in sentence
    assert not (tmp_path / "storage" / "runs").exists()
    assert Bank.open_or_create(Storage.open(str(tmp_path / "storage")), "tiny").latest() is None


def test_the_claim_of_a_killed_run_is_taken_over(tmp_path: Path, hold: Hold) -> None:
    bank = Bank.open_or_create(Storage.open(str(tmp_path / "storage")), "tiny")
    dead = hold("run_lock_directory")
    dead.kill()
    dead.wait()
    with claimed(bank, "mine", writes=True), pytest.raises(BankLockedError, match="run mine"):
        claimed(bank, "another", writes=True).__enter__()
    with claimed(bank, "another", writes=True):
        pass


def test_what_only_shows_a_finished_run_does_not_wait_for_a_writer(
    tmp_path: Path, hold: Hold
) -> None:
    hold("lock_directory")
    bank = Bank.open_or_create(Storage.open(str(tmp_path / "storage")), "tiny")
    with claimed(bank, "mine", writes=False):
        pass


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def learn(*_: object) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(run_module, "_learn_and_score", learn)


def test_why_a_run_failed_is_printed_once_and_kept_in_its_log(
    typed: CommandLine, experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, DataError("image 'x.png' is a picture of nothing"))
    done = typed("run", experiment)
    assert done.code == 2
    assert done.err.count("is a picture of nothing") == 1
    assert done.err.splitlines()[-1] == "luca: image 'x.png' is a picture of nothing"
    (log,) = (tmp_path / "storage" / "runs").glob("*/events.jsonl")
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["event"], last["status"]) == ("run_finished", "failed")
    assert last["error"] == "image 'x.png' is a picture of nothing"


def test_a_fault_of_the_program_is_kept_in_the_log_with_its_kind(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, ZeroDivisionError("by zero"))
    with pytest.raises(ZeroDivisionError):
        run_module.run_experiment(features_experiment(tmp_path), console=False)
    (log,) = (tmp_path / "storage" / "runs").glob("*/events.jsonl")
    assert json.loads(log.read_text().splitlines()[-1])["error"] == "ZeroDivisionError: by zero"
    assert os.listdir(tmp_path / "storage" / "banks" / "tiny" / "lock" / "run") == []
