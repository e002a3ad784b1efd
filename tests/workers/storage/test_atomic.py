"""Files appear whole or not at all, whatever step fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.fs as pafs
import pytest

from workers.errors import StorageError
from workers.storage.atomic import (
    is_temporary,
    temporary_name,
    write_atomic,
    write_exclusive,
    write_file,
)
from workers.storage.filesystem import Storage


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return Storage.open(str(tmp_path))
    return Storage.open((pafs._MockFileSystem(), "root"))


def test_a_write_replaces_and_leaves_no_temporary(storage: Storage) -> None:
    write_atomic(storage, "d/x", b"old")
    write_atomic(storage, "d/x", lambda file: file.write(b"new"))
    assert storage.read_bytes("d/x") == b"new"
    assert [entry.name for entry in storage.list("d")] == ["x"]


def test_an_exclusive_write_happens_once(storage: Storage) -> None:
    assert write_exclusive(storage, "d/x", b"first")
    assert not write_exclusive(storage, "d/x", b"second")
    assert storage.read_bytes("d/x") == b"first"
    assert [entry.name for entry in storage.list("d")] == ["x"]


@pytest.mark.parametrize("write", [write_atomic, write_exclusive])
def test_bytes_are_durable_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, write: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    (tmp_path / "d").mkdir()
    inodes = {(tmp_path / "d").stat().st_ino: "directory"}

    def record(name: str, act: Callable[..., object]) -> None:
        def recorded(*arguments: Any, **options: Any) -> object:
            steps.append(name)
            return act(*arguments, **options)

        monkeypatch.setattr(os, name, recorded)

    def fsync(descriptor: int) -> None:
        steps.append(f"fsync {inodes.get(os.fstat(descriptor).st_ino, 'file')}")

    monkeypatch.setattr(os, "fsync", fsync)
    record("link", os.link)
    record("replace", os.replace)
    write(Storage.open(str(tmp_path)), "d/x", b"1")
    name = "replace" if write is write_atomic else "link"
    assert steps == ["fsync file", name, "fsync directory"]


@pytest.mark.parametrize("write", [write_atomic, write_exclusive])
def test_a_writer_that_fails_leaves_the_old_file_and_no_temporary(
    storage: Storage, write: Callable[..., object]
) -> None:
    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise ValueError("boom")

    write_atomic(storage, "kept", b"old")
    with pytest.raises(ValueError, match="boom"):
        write(storage, "new", fail)
    with pytest.raises(ValueError, match="boom"):
        write_atomic(storage, "kept", fail)
    assert storage.read_bytes("kept") == b"old"
    assert [entry.name for entry in storage.list()] == ["kept"]


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.open(str(tmp_path))
    write_atomic(storage, "x", b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"no space left on device; free some space"):
        write_atomic(storage, "x", b"new")
    assert storage.read_bytes("x") == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_full_disk_under_a_file_that_the_user_named_is_not_the_storage_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="free some space or name a file elsewhere, then"):
        write_file(tmp_path / "x", b"new")
    assert os.listdir(tmp_path) == []


def test_a_disk_without_hard_links_still_creates_exclusively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    storage = Storage.open(str(tmp_path))
    assert write_exclusive(storage, "x", b"1")
    assert not write_exclusive(storage, "x", b"2")
    assert os.listdir(tmp_path) == ["x"]
    assert storage.read_bytes("x") == b"1"


def test_temporaries_are_told_from_files() -> None:
    name = temporary_name("a/b/c.json")
    assert name.startswith("a/b/.c.json.")
    assert is_temporary(name.rpartition("/")[2])
    assert temporary_name("a") != temporary_name("a")
    assert not is_temporary("c.json")
    assert not is_temporary("c.tmp")


def _race(root: str, barrier: Any, results: Any, number: int) -> None:
    storage = Storage.open(root)
    for step in range(20):
        barrier.wait()
        if write_exclusive(storage, f"race/{step}", str(number).encode()):
            results.put((step, number))


def test_of_racing_processes_exactly_one_creates_the_file(tmp_path: Path) -> None:
    context = get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    racers = [
        context.Process(target=_race, args=(str(tmp_path), barrier, results, number))
        for number in range(3)
    ]
    for racer in racers:
        racer.start()
    won = sorted(results.get(timeout=30) for _ in range(20))
    for racer in racers:
        racer.join(timeout=30)
    assert [step for step, _ in won] == list(range(20))
    assert results.empty()
    storage = Storage.open(str(tmp_path))
    assert all(storage.read_bytes(f"race/{step}") == str(number).encode() for step, number in won)
