"""The registry as a plain class: what a restarted one answers, and what a new one refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.workers.storage.bank_cases import BACKBONE, SETTINGS, WIDTH, draft, quick_disk  # noqa: F401
from workers.errors import BankError, BankLockedError, CorruptionError
from workers.learned import Committed, LearnedArrays, TaskHeader
from workers.registry import RegistryImpl
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage


def registry(folder: Path, **changes: object) -> RegistryImpl:
    made_with = {"backbone": BACKBONE, "settings": SETTINGS, "run": "run-1", "code": "test 1"}
    return RegistryImpl(str(folder), "birds", **{**made_with, **changes})  # type: ignore[arg-type]


def commit(writer: RegistryImpl, number: int) -> Committed:
    task = draft(number)
    header = TaskHeader(
        task.id, task.name, task.domain, task.classes, task.definition, dict(task.info)
    )
    whitening = {"mean": np.arange(WIDTH, dtype=np.float64)} if number == 0 else None
    return writer.commit(header, LearnedArrays(dict(task.arrays)), whitening)


def test_commits_repeated_by_a_restarted_registry_name_the_versions_they_made(
    tmp_path: Path,
) -> None:
    first = registry(tmp_path)
    made = [commit(first, number) for number in range(4)]
    first.close()
    again = registry(tmp_path)
    assert [commit(again, number) for number in (2, 0, 3)] == [made[2], made[0], made[3]]
    assert Bank.open(Storage.open(str(tmp_path)), "birds").versions() == (1, 2, 3, 4)
    again.close()


def test_a_repeated_commit_finds_its_version_among_those_of_other_operations(
    tmp_path: Path,
) -> None:
    from workers.storage.bank_writer import BankWriter

    first = registry(tmp_path)
    made = [commit(first, number) for number in range(3)]
    first.close()
    with BankWriter(Bank.open(Storage.open(str(tmp_path)), "birds")) as writer:
        writer.rollback(1)
        restored = writer.rollback(3)
    again = registry(tmp_path)
    repeated = commit(again, 1)
    assert (repeated.version, repeated.digest) == (made[1].version, made[1].digest)
    assert again.open() == Committed(restored.version, made[2].digest, 3)
    again.close()


def test_a_registry_needs_no_open_before_it_commits(tmp_path: Path) -> None:
    first = registry(tmp_path)
    assert commit(first, 0).version == 1
    first.close()


def test_another_writer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.registry.OWNER_GONE_SECONDS", 0.0)
    first = registry(tmp_path, run="the-first-run")
    assert first.open() is None
    with pytest.raises(BankLockedError, match=r"being written by .* run the-first-run"):
        registry(tmp_path).open()
    first.close()
    assert registry(tmp_path).open() is None


def test_a_refusal_lets_go_of_the_lock(tmp_path: Path) -> None:
    first = registry(tmp_path)
    commit(first, 0)
    first.close()
    with pytest.raises(BankError, match="made differently"):
        registry(tmp_path, settings={**SETTINGS, "seed": 7}).open()
    assert Bank.open(Storage.open(str(tmp_path)), "birds").owner() is None


def test_a_bank_that_cannot_be_read_lets_go_of_the_lock(tmp_path: Path) -> None:
    first = registry(tmp_path)
    commit(first, 0)
    first.close()
    bank = Bank.open(Storage.open(str(tmp_path)), "birds")
    bank.storage.local_path(bank.manifest_path(1)).write_bytes(b"{}")
    with pytest.raises(CorruptionError) as damage:  # whose traceback keeps the writer alive
        registry(tmp_path).open()
    assert "00000001.json" in str(damage.value)
    assert bank.owner() is None
