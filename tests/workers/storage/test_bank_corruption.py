"""Any byte that changes and any file that is cut or lost is found when it is read, and named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.storage.bank_cases import draft, fill, quick_disk  # noqa: F401
from workers.errors import CorruptionError
from workers.storage.bank import Bank
from workers.storage.bank_copy import fork_bank
from workers.storage.bank_gc import collect_garbage
from workers.storage.bank_json import is_digest
from workers.storage.bank_verify import verify
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

KINDS = ("object", "page", "manifest", "ref", "latest", "notes")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank with every kind of file in its newest version."""
    root = tmp_path_factory.mktemp("sound")
    with BankWriter(fill(Storage.open(str(root)), tasks=3)) as writer:
        writer.tag("production")
        writer.annotate({"accuracy": 0.75})
    return root


def files_of(kind: str, root: Path) -> list[Path]:
    directory = root / "banks/b"
    version = Bank.open(Storage.open(str(root)), "b").load()
    pages = {page.digest for page in version.manifest.pages}
    objects = {ref.digest for task in version.tasks for ref in task.objects.values()}
    objects |= {ref.digest for ref in version.manifest.shared.values()}
    return {
        "object": [directory / "objects" / digest for digest in sorted(objects)],
        "page": [directory / "objects" / digest for digest in sorted(pages)],
        "manifest": [directory / "versions/00000003.json"],
        "ref": [directory / "refs/production"],
        "latest": [directory / "refs/latest"],
        "notes": [directory / "notes/00000003.json"],
    }[kind]


def read_everything(root: Path) -> None:
    bank = Bank.open(Storage.open(str(root)), "b")
    bank.refs()
    for ref in ("production", "latest"):
        version = bank.load(ref)
        assert version.shared
        for task in version.tasks:
            for kind in task.objects:
                assert version.arrays(task, kind)


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "damaged"))


def damage_is_found(root: Path, path: Path) -> None:
    with pytest.raises(CorruptionError) as caught:
        read_everything(root)
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    problems = verify(Bank.open(Storage.open(str(root)), "b")).problems
    assert [os.path.basename(problem.file) for problem in problems] == [path.name]
    assert problems[0].remedy


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_of_any_file_is_found_on_read_and_named(
    sound: Path, kind: str, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(files_of(kind, sound)))
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        path.write_bytes(flipped)
        damage_is_found(sound, path)
    finally:
        path.write_bytes(content)
    read_everything(sound)


@pytest.mark.parametrize("length", [0, 1, 0.5, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_file_is_found_on_read_and_named(damaged: Path, kind: str, length: float) -> None:
    for path in files_of(kind, damaged):
        content = path.read_bytes()
        keep = int(length * len(content)) if isinstance(length, float) else length
        path.write_bytes(content[:keep])
        damage_is_found(damaged, path)
        path.write_bytes(content)


@pytest.mark.parametrize("kind", KINDS)
def test_appended_bytes_are_found_on_read_and_named(damaged: Path, kind: str) -> None:
    for path in files_of(kind, damaged):
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        damage_is_found(damaged, path)
        path.write_bytes(content)


@pytest.mark.parametrize("kind", ["object", "page"])
def test_a_lost_object_is_found_on_read_and_named(damaged: Path, kind: str) -> None:
    for path in files_of(kind, damaged):
        content = path.read_bytes()
        path.unlink()
        damage_is_found(damaged, path)
        path.write_bytes(content)


def test_exchanged_objects_are_found(damaged: Path) -> None:
    one, other = files_of("object", damaged)[:2]
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    damage_is_found(damaged, one)
    one.write_bytes(content)


def test_a_damaged_page_hides_no_damage_behind_another(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    bank = fill(storage, tasks=9)
    version = bank.load()
    first, second = (page.digest for page in version.manifest.pages)
    collect_garbage(bank, dry_run=False, keep_versions=1)
    module = version.tasks[8].objects["module"].digest
    for digest in (first, module):
        storage.local_path(f"banks/b/objects/{digest}").write_bytes(b"x")
    found = {os.path.basename(problem.file) for problem in verify(bank).problems}
    assert found == {first, module}
    assert second not in found


def test_old_versions_are_verified_too(damaged: Path) -> None:
    (damaged / "banks/b/versions/00000001.json").write_bytes(b"{}")
    read_everything(damaged)
    report = verify(Bank.open(Storage.open(str(damaged)), "b"))
    assert [os.path.basename(problem.file) for problem in report.problems] == ["00000001.json"]


def test_a_commit_of_the_same_arrays_mends_a_damaged_object(damaged: Path) -> None:
    storage = Storage.open(str(damaged))
    bank = Bank.open(storage, "b")
    with BankWriter(bank) as writer:
        writer.unlearn_task("task-2")
    digest = bank.load(3).tasks[2].objects["module"].digest
    storage.local_path(f"banks/b/objects/{digest}").write_bytes(b"x")
    with BankWriter(bank) as writer:
        writer.commit(draft(2))
    assert verify(bank).sound


def test_a_bank_holds_nothing_that_could_be_executed(sound: Path) -> None:
    """No pickle: every file is JSON or safetensors, whose first bytes are a brace or a header's length."""
    for path in (sound / "banks").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            start = content[:1] if not is_digest(path.name) else content[8:9] + content[:1]
            assert b"{" in start
            assert b"\x80\x04" not in content[:2]


@pytest.mark.parametrize("how", ["damaged", "lost"])
@pytest.mark.parametrize(("number", "other"), [(3, 2), (1, 2)])
def test_who_meets_a_bad_manifest_is_told_how_to_go_on(
    damaged: Path, how: str, number: int, other: int
) -> None:
    manifest = damaged / f"banks/b/versions/0000000{number}.json"
    if how == "damaged":
        manifest.write_bytes(manifest.read_bytes()[:-9])
    else:
        manifest.unlink()
    bank = Bank.open(Storage.open(str(damaged)), "b")
    with pytest.raises(CorruptionError, match=rf"{manifest.name} .*; put it back") as caught:
        bank.read_manifest(number)
    assert f"`luca bank fork b@{other} NAME`" in str(caught.value)
    fork_bank(bank.load(other), "c")
    assert Bank.open(bank.storage, "c").load().digest == bank.load(other).digest


def roll_back(bank: Bank, number: int) -> None:
    with BankWriter(bank) as writer:
        writer.rollback(number)


@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_a_lost_latest_version_is_named_by_every_way_to_it_and_what_it_needs_is_kept(
    damaged: Path, how: str
) -> None:
    manifest = damaged / "banks/b/versions/00000003.json"
    if how == "damaged":
        manifest.write_bytes(b"{")
    else:
        manifest.unlink()
    bank = Bank.open(Storage.open(str(damaged)), "b")
    for load in (bank.load, lambda: bank.load(3), lambda: roll_back(bank, 2)):
        with pytest.raises(CorruptionError, match=r"00000003\.json .*`luca bank fork b@2 NAME`"):
            load()
    with pytest.raises(CorruptionError, match=r"00000003\.json"):
        collect_garbage(bank, dry_run=False)
    assert not any("gc removes" in note for note in verify(bank).notes)
