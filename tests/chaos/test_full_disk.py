"""A disk that fills in the middle of a run: one sentence, an intact bank, and the same command afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli import app, guarded
from tests.chaos.conftest import TASKS, run_here
from tests.chaos.processes import wait_until
from tests.chaos.runs import Outcome, Place, versions
from workers.storage.bank import Bank
from workers.storage.bank_verify import verify
from workers.storage.filesystem import Storage

SIZE = 32 * 2**20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small filesystem of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small filesystem")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def used(folder: Path) -> int:
    """Bytes in whole pages, as this filesystem counts them."""
    sizes = [p.stat().st_size for p in folder.rglob("*") if p.is_file()]
    return sum(-(-size // 4096) * 4096 for size in sizes)


def leave(disk: Path, room: int) -> Path:
    """Fill the disk up but for ``room`` bytes."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - room)
    return ballast


def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on_when_there_is_room(
    stream: Place, undisturbed: Outcome, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    storage = disk / "storage"
    ballast = leave(disk, int(0.6 * used(stream.folder / "undisturbed")))
    command = ["run", str(stream.experiment), "--json", "-o", f"storage={storage}"]
    capfd.readouterr()
    assert guarded(lambda: app(args=command, standalone_mode=False)) == 2
    said = capfd.readouterr()
    # The Ray of the tests stays, and tells of actors that are stopped with the run in its own time.
    assert [line for line in said.out.splitlines() if "(raylet)" not in line] == []
    assert said.err.count("\n") == 1
    assert "no space left on device" in said.err
    assert "then run the same command again" in said.err
    learned = versions(storage)
    assert 0 < learned < TASKS
    bank = Bank.open(Storage.open(str(storage)), "chaos")
    wait_until(lambda: bank.owner() is None, 15, "the end of the registry")
    assert verify(bank).sound
    assert len(bank.load().tasks) == learned
    ballast.unlink()
    assert run_here(stream, storage) == undisturbed
