"""Two writers on one bank: the second is refused, and told by whom."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli import app, guarded
from tests.chaos.runs import ROOT, Place, versions
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage

HOLD = """
import sys, time
from workers.storage.bank import Bank
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

writer = BankWriter(Bank.open_or_create(Storage.open(sys.argv[1]), "chaos"), run="the-other-run").open()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def storage(stream: Place) -> Path:
    return stream.folder / "two"


@pytest.fixture
def other(storage: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the bank's lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(storage)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_writer_is_refused_with_the_owner_s_name(
    stream: Place,
    ray_session: object,
    storage: Path,
    other: subprocess.Popen[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    command = ["run", str(stream.experiment), "--json", "-o", f"storage={storage}"]
    capfd.readouterr()
    assert guarded(lambda: app(args=command, standalone_mode=False)) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "bank 'chaos' is being written by " in said.err
    assert f"pid {other.pid} run the-other-run" in said.err
    assert versions(storage) == 0
    other.kill()
    other.wait()
    assert Bank.open_or_create(Storage.open(str(storage)), "chaos").owner() is None
