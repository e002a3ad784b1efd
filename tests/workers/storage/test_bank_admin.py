"""Keeping a bank: listings, differences, verification, garbage, forks, exports, unlearning, audit."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.storage.bank_cases import (
    BACKBONE,
    SETTINGS,
    WIDTH,
    draft,
    files,
    fill,
    quick_disk,  # noqa: F401
)
from workers.errors import BankError, BankLockedError, CorruptionError, LucaError
from workers.storage.atomic import temporary_name, write_atomic
from workers.storage.bank import Bank
from workers.storage.bank_audit import audit
from workers.storage.bank_copy import export_version, fork_bank, import_version
from workers.storage.bank_draft import TaskDraft
from workers.storage.bank_gc import collect_garbage
from workers.storage.bank_inspect import diff, history, list_banks
from workers.storage.bank_json import seal, sha256, unseal
from workers.storage.bank_manifest import Manifest, TaskRecord
from workers.storage.bank_pages import PageCache
from workers.storage.bank_tensors import encode, read_metadata
from workers.storage.bank_verify import verify
from workers.storage.bank_version import BankVersion
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path / "store"))


def never_saw(storage: Storage, name: str, tasks: list[int]) -> BankVersion:
    """A bank that learned only these tasks."""
    with BankWriter(Bank.create(storage, name)) as writer:
        writer.begin(BACKBONE, SETTINGS)
        for position, number in enumerate(tasks):
            shared = {"whitening": {"mean": np.arange(WIDTH, dtype=np.float64)}}
            version = writer.commit(draft(number), shared=shared if position == 0 else None)
    return version


# -- listings and differences


def test_a_listing_shows_every_bank_its_tags_and_its_writer(storage: Storage) -> None:
    assert list_banks(storage) == ()
    fill(storage, "birds", tasks=2)
    with BankWriter(fill(storage, "dogs", tasks=1, run="first"), run="second") as writer:
        writer.tag("production")
        birds, dogs = list_banks(storage)
    assert birds.latest is not None
    assert dogs.latest is not None
    assert (birds.name, birds.latest.tasks, birds.latest.classes, birds.tags) == ("birds", 2, 4, {})
    assert (dogs.tags, dogs.latest.tags, dogs.latest.run) == (
        {"production": 1},
        ("production",),
        "first",
    )
    assert birds.owner is None
    assert dogs.owner is not None
    assert f"pid {os.getpid()} run second" in dogs.owner
    assert json.loads(json.dumps(dogs.to_json()))["latest"]["version"] == 1


def test_a_damaged_bank_is_listed_with_its_damage_and_hides_no_other(storage: Storage) -> None:
    fill(storage, "birds", tasks=1)
    fill(storage, "dogs", tasks=1)
    (storage.local_path() / "banks/birds/versions/00000001.json").write_bytes(b"{}")
    birds, dogs = list_banks(storage)
    assert birds.latest is None
    assert birds.problem is not None
    assert "00000001.json" in birds.problem
    assert dogs.problem is None


def test_history_tells_what_happened(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    with BankWriter(bank, run="later") as writer:
        writer.tag("production", 1)
        writer.rollback("production")
    lines = history(bank)
    assert [line.operation for line in lines] == [
        "commit task-0",
        "commit task-1",
        "rollback to version 1",
    ]
    assert [line.run for line in lines] == ["", "", "later"]
    assert lines[0].tags == ("production",)
    assert lines[0].digest == lines[2].digest
    json.dumps([line.to_json() for line in lines])


def test_a_difference_names_what_came_went_and_changed(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    changed = draft(1, seed=1, definition={**draft(1).definition, "samples_digest": "x"})
    with BankWriter(Bank.create(storage, "other")) as writer:
        writer.begin({**BACKBONE, "name": "vit"}, SETTINGS)
        for task in (draft(0), changed, draft(5)):
            other = writer.commit(task, shared={"head": {"w": np.zeros(1)}})
    found = diff(bank.load(), other)
    assert not found.same_content
    assert [str(change) for change in found.backbone] == ["name: demo_vit became vit"]
    assert found.settings == ()
    assert (found.tasks_added, found.tasks_removed) == (("task-5",), ("task-2",))
    assert [change.task for change in found.tasks_changed] == ["task-1"]
    assert found.tasks_changed[0].arrays == ("head", "module", "statistics")
    assert found.tasks_changed[0].definition[0].path == "definition.samples_digest"
    assert found.classes_added == ("class-10", "class-11")
    assert found.classes_removed == ("class-4", "class-5")
    assert found.shared == ("head", "whitening")
    assert json.loads(json.dumps(found.to_json()))["tasks_added"] == ["task-5"]
    assert diff(other, other).same_content


# -- verification


def test_a_sound_bank_is_sound(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    with BankWriter(bank) as writer:
        writer.tag("production", 2)
        writer.annotate({"x": 1}, 2)
        writer.rollback(1)
    report = verify(bank)
    assert (report.problems, report.notes, report.versions) == ((), (), 4)
    assert report.sound
    assert report.objects == 3 * 3 + 1 + 3
    json.dumps(report.to_json())


def test_verification_names_every_damaged_file_and_what_to_do(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    with BankWriter(bank) as writer:
        writer.tag("production", 2)
        writer.annotate({"x": 1}, 2)
    root = storage.local_path("banks/b")
    head = bank.load()
    module = head.tasks[1].objects["module"].digest
    statistics = head.tasks[0].objects["statistics"].digest
    (root / "objects" / module).write_bytes(b"x")
    (root / "objects" / statistics).unlink()
    (root / "refs/production").write_bytes(b"{}")
    (root / "notes/00000002.json").write_bytes(b"{}")
    (root / "versions/00000001.json").unlink()
    (root / "stray.txt").write_bytes(b"")
    report = verify(bank)
    assert not report.sound
    lines = {os.path.basename(problem.file): str(problem) for problem in report.problems}
    assert set(lines) == {module, statistics, "production", "00000002.json"}
    assert "needed by version 2 to 3, task task-1" in lines[module]
    assert (
        "is missing (needed by version 2 to 3, task task-0); put it back from a fork"
        in lines[statistics]
    )
    assert "tag a version as 'production' again" in lines["production"]
    assert "only metrics added after the commit are lost" in lines["00000002.json"]
    assert any("stray.txt is not a file of a bank" in note for note in report.notes)
    assert any("version 1, the parent of 2" in note for note in report.notes)


def test_a_lost_folder_costs_no_look_through_history_for_each_of_its_objects(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = fill(storage, tasks=4)
    pages = {page.digest for n in bank.versions() for page in bank.read_manifest(n).pages}
    for file in storage.local_path("banks/b/objects").iterdir():
        if file.name not in pages:
            file.unlink()
    looks: list[int] = []
    tasks = PageCache.tasks

    def counted(self: PageCache, manifest: Manifest) -> tuple[TaskRecord, ...]:
        looks.append(manifest.version)
        return tasks(self, manifest)

    monkeypatch.setattr(PageCache, "tasks", counted)
    found = [str(problem) for problem in verify(bank).problems]
    assert looks == [1, 2, 3, 4]
    assert sum("(needed by version 3 to 4, task task-2)" in line for line in found) == 3
    assert sum("(needed by version 4, task task-3)" in line for line in found) == 3


def test_exchanged_manifests_and_refs_are_found(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    root = storage.local_path("banks/b")
    with BankWriter(bank) as writer:
        writer.tag("production", 1)
    moved = {**unseal((root / "refs/production").read_bytes(), "x"), "version": 2}
    (root / "refs/production").write_bytes(seal(moved))
    with pytest.raises(CorruptionError, match=r"refs/production.*disagree"):
        bank.load("production")
    assert [os.path.basename(p.file) for p in verify(bank).problems] == ["production"]
    (root / "versions/00000002.json").write_bytes((root / "versions/00000001.json").read_bytes())
    with pytest.raises(CorruptionError, match="manifest of version 1, not 2"):
        bank.load(2)
    assert [os.path.basename(p.file) for p in verify(bank).problems] == ["00000002.json"]
    (root / "versions/00000002.json").unlink()
    assert {os.path.basename(p.file) for p in verify(bank).problems} == {"latest", "production"}


def test_a_manifest_sealed_over_other_content_is_found(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    path = storage.local_path("banks/b/versions/00000002.json")
    body = unseal(path.read_bytes(), "x")
    path.write_bytes(seal({**body, "settings": {"other": 1}}))
    with pytest.raises(CorruptionError, match="does not match its digest"):
        bank.load()
    assert [os.path.basename(p.file) for p in verify(bank).problems] == ["00000002.json"]


# -- garbage


def test_garbage_is_what_no_version_needs_and_only_that(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    before = files(storage)
    write_atomic(storage, f"banks/b/objects/{sha256(b'orphan')}", b"orphan")
    for directory in ("objects", "versions", "refs"):
        write_atomic(storage, temporary_name(f"banks/b/{directory}/x"), b"half")
    found = collect_garbage(bank)
    assert found.dry_run
    assert [removal.why for removal in found.removed] == [
        "object",
        "temporary",
        "temporary",
        "temporary",
    ]
    assert found.bytes == 6 + 3 * 4
    assert len(files(storage)) == len(before) + 4
    done = collect_garbage(bank, dry_run=False)
    assert done.removed == found.removed
    assert files(storage) == before
    assert collect_garbage(bank).removed == ()
    json.dumps(done.to_json())


def test_old_versions_go_only_when_asked_and_never_one_that_a_name_points_to(
    storage: Storage,
) -> None:
    bank = fill(storage, tasks=3)
    with BankWriter(bank) as writer:
        writer.tag("production", 2)
        writer.annotate({"x": 1}, 1)
        writer.unlearn_task("task-0")
        writer.unlearn_task("task-2")
    assert collect_garbage(bank).removed == ()
    done = collect_garbage(bank, dry_run=False, keep_versions=1)
    assert done.kept_versions == (2, 5) == bank.versions()
    gone = {removal.path.rpartition("/")[2] for removal in done.removed}
    kept = {ref.digest for task in bank.load(2).tasks for ref in task.objects.values()}
    assert not gone & kept
    report = verify(bank)
    assert report.sound
    assert not any("gc" in note for note in report.notes)
    for ref in (2, 5, "production", "latest"):
        version = bank.load(ref)
        for task in version.tasks:
            version.arrays(task, "module")
    with pytest.raises(BankError, match="no version 3"):
        bank.load(3)
    with BankWriter(bank) as writer:
        assert writer.commit(draft(8)).version == 6


def test_an_unlearned_task_is_erased_when_its_versions_go(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    with BankWriter(bank) as writer:
        writer.unlearn_task("task-1")
    secret = encode(draft(1).arrays["statistics"])
    assert secret in files(storage).values()
    collect_garbage(bank, dry_run=False, keep_versions=1)
    assert secret not in files(storage).values()


def test_garbage_is_not_collected_while_somebody_writes(storage: Storage) -> None:
    bank = fill(storage, tasks=1)
    with BankWriter(bank, run="busy"):
        assert collect_garbage(bank).removed == ()
        with pytest.raises(BankLockedError, match="run busy"):
            collect_garbage(bank, dry_run=False)


def test_nothing_is_removed_when_it_is_not_known_what_is_needed(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    page = bank.load().manifest.pages[0].digest
    storage.local_path(f"banks/b/objects/{page}").write_bytes(b"x")
    before = files(storage)
    with pytest.raises(CorruptionError, match="nothing is removed"):
        collect_garbage(bank, dry_run=False)
    with pytest.raises(BankError, match="at least the newest"):
        collect_garbage(bank, dry_run=False, keep_versions=0)
    with pytest.raises(BankError, match="has no version"):
        collect_garbage(Bank.open_or_create(storage, "new"), dry_run=False)
    assert files(storage) == before


def test_a_reader_of_a_version_that_goes_is_told_so(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    with BankWriter(bank) as writer:
        writer.unlearn_task("task-0")
    old = bank.load(2)
    collect_garbage(bank, dry_run=False, keep_versions=1)
    with pytest.raises(
        BankError, match="version 2 of bank 'b' was removed while it was being read"
    ):
        old.arrays("task-0", "module")


# -- forks


def test_a_fork_has_the_content_and_a_history_of_its_own(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    fork = fork_bank(bank.load(2), "fork")
    assert (fork.version, fork.parent, fork.digest) == (1, None, bank.load(2).digest)
    assert fork.manifest.origin == {"bank": "b", "version": 2, "digest": fork.digest}
    with BankWriter(fork.bank) as writer:
        writer.begin(BACKBONE, SETTINGS)
        grown = writer.commit(draft(9))
    assert [task.id for task in grown.tasks] == ["task-0", "task-1", "task-9"]
    assert bank.versions() == (1, 2, 3)
    with pytest.raises(BankError, match="exists already"):
        fork_bank(bank.load(), "fork")


def test_a_fork_shares_disk_space_and_survives_its_source(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    fork = fork_bank(bank.load(), "fork")
    module = fork.tasks[1].objects["module"].digest
    assert storage.local_path(f"banks/fork/objects/{module}").stat().st_nlink == 2
    with BankWriter(bank) as writer:
        writer.unlearn_task("task-1")
    collect_garbage(bank, dry_run=False, keep_versions=1)
    assert not storage.exists(f"banks/b/objects/{module}")
    assert verify(fork.bank).sound
    shutil.rmtree(storage.local_path("banks/b"))
    assert Bank.open(storage, "fork").load().arrays("task-1", "module")


def test_a_version_without_tasks_is_forked_and_goes_on(storage: Storage) -> None:
    bank = fill(storage, tasks=1)
    with BankWriter(bank) as writer:
        emptied = writer.unlearn_task("task-0")
    fork = fork_bank(emptied, "anew")
    assert (fork.tasks, fork.digest) == ((), emptied.digest)
    with BankWriter(fork.bank) as writer:
        assert len(writer.commit(draft(0)).tasks) == 1


def test_a_fork_goes_on_with_other_settings(storage: Storage) -> None:
    bank = fill(storage, tasks=1)
    other = {**SETTINGS, "learning": {"epochs": 5}}
    fork = fork_bank(bank.load(), "fork", settings=other)
    assert fork.settings == other
    with BankWriter(fork.bank) as writer:
        writer.begin(BACKBONE, other)
        writer.commit(draft(1))
        with pytest.raises(BankError, match=r"settings\.learning\.epochs"):
            writer.begin(BACKBONE, SETTINGS)


def test_a_fork_into_another_storage_is_a_copy(storage: Storage, tmp_path: Path) -> None:
    bank = fill(storage, tasks=2)
    fork = fork_bank(bank.load(), "fork", storage=Storage.open(str(tmp_path / "elsewhere")))
    shutil.rmtree(storage.local_path("banks"))
    assert verify(fork.bank).sound
    assert fork.digest == never_saw(storage, "b", [0, 1]).digest


def test_a_damaged_source_is_not_forked(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    version = bank.load()
    digest = version.tasks[0].objects["head"].digest
    storage.local_path(f"banks/b/objects/{digest}").write_bytes(b"x")
    with pytest.raises(CorruptionError, match=digest):
        fork_bank(version, "fork")
    assert Bank.names(storage) == ("b",)


# -- export and import


def test_an_export_comes_back_with_the_same_digest(storage: Storage, tmp_path: Path) -> None:
    version = fill(storage, tasks=3).load(2)
    path = tmp_path / "bank.safetensors"
    assert export_version(version, path) == path.stat().st_size
    elsewhere = Storage.open(str(tmp_path / "elsewhere"))
    again = import_version(elsewhere, path)
    assert (again.bank.name, again.version, again.digest) == ("b", 1, version.digest)
    assert again.tasks == version.tasks
    assert again.metrics == version.metrics
    assert verify(again.bank).sound
    with pytest.raises(BankError, match="exists already"):
        import_version(elsewhere, path)
    assert import_version(elsewhere, path, "other").digest == version.digest


def test_an_export_is_one_safetensors_file_for_anybody(storage: Storage, tmp_path: Path) -> None:
    version = fill(storage, tasks=2).load()
    path = tmp_path / "bank.safetensors"
    export_version(version, path)
    read = safetensors.numpy.load_file(path)
    assert len(read) == 2 * 5 + 1
    np.testing.assert_array_equal(
        read["tasks/task-1/module/mlp.0.weight"], draft(1).arrays["module"]["mlp.0.weight"]
    )
    np.testing.assert_array_equal(read["shared/whitening/mean"], np.arange(WIDTH))
    same = tmp_path / "same.safetensors"
    export_version(version, same)
    assert same.read_bytes() == path.read_bytes()


def test_array_names_with_slashes_and_empty_kinds_survive_an_export(
    storage: Storage, tmp_path: Path
) -> None:
    with BankWriter(Bank.create(storage, "b")) as writer:
        writer.begin({}, {})
        arrays = {"module": {"a/b": np.zeros(2), "c": np.ones(3, np.int8)}, "head": {}}
        version = writer.commit(draft(0, arrays=arrays), shared={"x": {"y/z": np.zeros(1)}})
    export_version(version, tmp_path / "x")
    assert import_version(storage, tmp_path / "x", "again").digest == version.digest


@pytest.fixture
def exported(tmp_path: Path) -> bytes:
    storage = Storage.open(str(tmp_path / "source"))
    path = tmp_path / "bank.safetensors"
    export_version(fill(storage, tasks=2).load(), path)
    return path.read_bytes()


def forged(exported: bytes, **changed: Any) -> bytes:
    """The exported file with fields of its metadata changed and sealed again."""
    body = unseal(read_metadata(exported, "x")["luca-bank-archive"].encode(), "x")
    text = seal({**body, **changed}).decode()
    length = int.from_bytes(exported[:8], "little")
    header = json.loads(exported[8 : 8 + length])
    header["__metadata__"]["luca-bank-archive"] = text
    new = json.dumps(header).encode()
    return len(new).to_bytes(8, "little") + new + exported[8 + length :]


def archive_tasks(exported: bytes) -> list[dict[str, Any]]:
    body = unseal(read_metadata(exported, "x")["luca-bank-archive"].encode(), "x")
    tasks: list[dict[str, Any]] = body["tasks"]
    return tasks


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (lambda e: b"", "empty"),
        (lambda e: b"PK\x03\x04" * 100, "not a safetensors file"),
        (lambda e: e[:-1], "expected; copy the file again, or write it again with `luca bank"),
        (lambda e: e + b"x", "expected"),
        (lambda e: safetensors.numpy.save({"a": np.zeros(1)}), "not an exported bank"),
        (lambda e: forged(e, bank="../escape"), "not a usable name"),
        (lambda e: forged(e, settings={"other": 1}), "does not match its digest"),
        (lambda e: forged(e, digest="x"), "does not match its digest"),
        (lambda e: forged(e, format_version=9), "format version 9"),
        (lambda e: forged(e, version="1"), "other fields"),
        (lambda e: forged(e, tasks=archive_tasks(e)[:1]), "does not match its digest"),
        (lambda e: forged(e, tasks=archive_tasks(e) * 2), "a task twice"),
        (lambda e: forged(e, tasks=[{**archive_tasks(e)[0], "id": "../../x"}]), "impossible id"),
        (lambda e: forged(e, shared={"w": {"digest": "../" * 20, "size": 1}}), "not a sha256"),
        (lambda e: forged(e, extra=1), "other fields"),
    ],
)
def test_a_hostile_or_broken_export_is_refused_and_makes_nothing(
    exported: bytes, tmp_path: Path, forge: Any, message: str
) -> None:
    path = tmp_path / "hostile"
    path.write_bytes(forge(exported))
    storage = Storage.open(str(tmp_path / "target"))
    with pytest.raises(LucaError, match=message):
        import_version(storage, path)
    assert Bank.names(storage) == ()
    assert not (tmp_path / "target" / "banks").exists()


def test_a_file_larger_than_accepted_is_refused_unread(exported: bytes, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(exported)
    with pytest.raises(BankError, match="at most 100 are accepted"):
        import_version(Storage.open(str(tmp_path / "target")), path, largest=100)
    with pytest.raises(LucaError, match="no-such-file cannot be read"):
        import_version(Storage.open(str(tmp_path / "target")), tmp_path / "no-such-file")


@pytest.fixture(scope="module")
def exported_once(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("export")
    export_version(fill(Storage.open(str(folder / "s")), tasks=1).load(), folder / "bank")
    return (folder / "bank").read_bytes()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_of_an_export_is_found(
    tmp_path_factory: pytest.TempPathFactory, exported_once: bytes, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    path = folder / "bank.safetensors"
    content = bytearray(exported_once)
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    target = Storage.open(str(folder / "t"))
    try:
        imported = import_version(target, path)
    except LucaError:
        assert Bank.names(target) == ()
    else:  # a space of the padding or of JSON became another space
        body = unseal(read_metadata(exported_once, "x")["luca-bank-archive"].encode(), "x")
        assert imported.digest == body["digest"]


# -- unlearning


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_bank_without_a_task_is_the_bank_that_never_saw_it(storage: Storage, gone: int) -> None:
    bank = fill(storage, tasks=3)
    with BankWriter(bank) as writer:
        version = writer.unlearn_task(f"task-{gone}")
    rest = [number for number in range(3) if number != gone]
    assert version.digest == never_saw(storage, "clean", rest).digest
    assert version.manifest.counts == Bank.open(storage, "clean").load().manifest.counts
    assert version.version == 4
    assert bank.load(3).find(f"task-{gone}") is not None


def test_unlearning_lets_the_caller_mend_what_is_shared(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    asked: list[Any] = []

    def reshare(old: BankVersion, rest: tuple[TaskRecord, ...]) -> dict[str, Any]:
        asked.append((old.version, [task.id for task in rest]))
        return {"whitening": None, "head": {"w": np.zeros(2)}}

    with BankWriter(bank) as writer:
        version = writer.unlearn_task("task-1", reshare=reshare)
        with pytest.raises(BankError, match="no task 'task-1'; it has: task-0, task-2"):
            writer.unlearn_task("task-1")
        again = writer.commit(draft(1))
    assert asked == [(3, ["task-0", "task-2"])]
    assert version.shared.keys() == {"head"}
    assert [task.id for task in again.tasks] == ["task-0", "task-2", "task-1"]


def without(task: TaskDraft, name: str) -> TaskDraft:
    keep = [position for position, other in enumerate(task.classes) if other != name]
    arrays = {
        kind: {n: a if kind == "module" else a[keep] for n, a in group.items()}
        for kind, group in task.arrays.items()
    }
    return dataclasses.replace(
        task,
        classes=tuple(task.classes[k] for k in keep),
        arrays=arrays,
        definition={"classes": [task.classes[k] for k in keep]},
    )


def test_a_class_is_cut_out_of_the_tasks_that_have_it(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    with BankWriter(bank) as writer:
        version = writer.unlearn_class("class-2", without_class=without)
        assert version.classes == ("class-0", "class-1", "class-3")
        head = version.arrays("task-1", "head")["weight"]
        np.testing.assert_array_equal(head, draft(1).arrays["head"]["weight"][1:])
        last = writer.unlearn_class(
            "class-3", without_class=lambda task, name: pytest.fail("asked")
        )
        assert [task.id for task in last.tasks] == ["task-0"]
        dropped = writer.unlearn_class("class-0", without_class=lambda task, name: None)
        assert dropped.tasks == ()
        with pytest.raises(BankError, match="has no class 'class-0'"):
            writer.unlearn_class("class-0", without_class=without)
        assert writer.commit(draft(0)).version == 6
    assert verify(bank).sound


def test_a_cut_that_does_not_cut_is_refused(storage: Storage) -> None:
    bank = fill(storage, tasks=1)
    with BankWriter(bank) as writer, pytest.raises(BankError, match="still has class 'class-0'"):
        writer.unlearn_class("class-0", without_class=lambda task, name: task)
    assert bank.versions() == (1,)


# -- audit


def stocked(
    storage: Storage, extra: Any = None, counts: tuple[int, ...] = (5, 6, 7)
) -> BankVersion:
    with BankWriter(Bank.create(storage, "audited")) as writer:
        writer.begin(BACKBONE, SETTINGS)
        for number, samples in enumerate(counts):
            task = draft(number, samples=samples)
            if extra is not None:
                task = extra(task, 2 * samples)
            version = writer.commit(task)
    return version


def test_a_bank_of_modules_heads_and_statistics_holds_no_sample(storage: Storage) -> None:
    report = audit(stocked(storage))
    assert report.findings == ()
    assert report.clean
    assert len(report.tensors) == 3 * 5
    assert report.samples["task-1"]["train"] == 12
    json.dumps(report.to_json())


def test_a_bank_with_equal_tasks_holds_no_sample_either(storage: Storage) -> None:
    assert audit(stocked(storage, counts=(5, 5, 5))).clean
    assert audit(stocked(Storage.open(f"{storage.root}2"), counts=(5,))).clean


def plant(kind: str, name: str, shape: Any) -> Any:
    def extra(task: TaskDraft, samples: int) -> TaskDraft:
        arrays = {k: dict(v) for k, v in task.arrays.items()}
        arrays.setdefault(kind, {})[name] = np.ones(shape(samples), dtype=np.float32)
        return dataclasses.replace(task, arrays=arrays)

    return extra


@pytest.mark.parametrize("counts", [(5, 6, 7), (11, 11, 11), (13,)])
@pytest.mark.parametrize(
    "shape",
    [
        lambda n: (n, WIDTH),
        lambda n: (WIDTH, n),
        lambda n: (n * WIDTH,),
        lambda n: (n,),
        lambda n: (2, n // 2, WIDTH),
    ],
)
def test_arrays_that_grow_with_the_samples_are_found(
    storage: Storage, shape: Any, counts: tuple[int, ...]
) -> None:
    report = audit(stocked(storage, plant("statistics", "features", shape), counts))
    assert not report.clean
    assert all("statistics/features" in finding.where for finding in report.findings)
    assert "number of samples" in str(report.findings[0])


def test_an_undeclared_role_and_lists_of_samples_are_found(storage: Storage) -> None:
    report = audit(stocked(storage, plant("exemplars", "x", lambda n: (1,))))
    assert {"'exemplars' is none of the roles" in finding.what for finding in report.findings} == {
        True
    }
    assert len(report.findings) == 3

    def remember(task: TaskDraft, samples: int) -> TaskDraft:
        return dataclasses.replace(
            task, info={**task.info, "ids": [f"id{i}" for i in range(samples)]}
        )

    report = audit(stocked(Storage.open(f"{storage.root}2"), remember))
    assert [finding.where for finding in report.findings] == ["info.ids"]


def test_samples_kept_with_what_is_shared_are_found(storage: Storage) -> None:
    bank = stocked(storage).bank
    with BankWriter(bank) as writer:
        version = writer.commit(draft(3), shared={"whitening": {"rows": np.zeros((46, WIDTH))}})
    (finding,) = audit(version).findings
    assert finding.where == "shared/whitening/rows axis 0"
    assert "all tasks, train" in finding.what


def test_sparse_values_are_explained_by_their_mask_and_only_then(storage: Storage) -> None:
    def sparse(bits: int) -> Any:
        def extra(task: TaskDraft, samples: int) -> TaskDraft:
            module = {
                "w#mask": np.packbits(np.arange(64) < samples + bits),
                "w#values": np.ones(samples, np.float32),
            }
            return dataclasses.replace(task, arrays={**task.arrays, "module": module})

        return extra

    assert audit(stocked(storage, sparse(0))).clean
    assert not audit(stocked(Storage.open(f"{storage.root}2"), sparse(1))).clean


def test_tasks_without_counts_cannot_be_audited_silently(storage: Storage) -> None:
    with BankWriter(Bank.create(storage, "b")) as writer:
        writer.begin(BACKBONE, SETTINGS)
        version = writer.commit(draft(0, definition={}, info={}))
    (finding,) = audit(version).findings
    assert "no sample counts" in finding.what
