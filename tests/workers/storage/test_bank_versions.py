"""What a bank keeps: versions, digests that depend on content alone, and refusals that say what differs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.storage.bank_cases import (  # noqa: F401
    BACKBONE,
    SETTINGS,
    WIDTH,
    FaultyStorage,
    draft,
    fill,
    quick_disk,
)
from workers.errors import BankError, BankLockedError
from workers.storage.bank import Bank
from workers.storage.bank_manifest import page_layout
from workers.storage.bank_objects import ObjectStore
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path))


def test_what_was_committed_is_loaded_again(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    version = Bank.open(storage, "b").load()
    assert (version.version, version.parent) == (3, 2)
    assert [task.id for task in version.tasks] == ["task-0", "task-1", "task-2"]
    assert version.classes == tuple(f"class-{i}" for i in range(6))
    assert version.backbone == BACKBONE
    assert version.settings == SETTINGS
    assert version.metrics == {"accuracy": 0.2}
    assert version.task("task-1").info == {"samples": 10, "losses": [0.5, 0.25]}
    for number in range(3):
        for kind, arrays in draft(number).arrays.items():
            stored = version.arrays(f"task-{number}", kind)
            assert stored.keys() == arrays.keys()
            for name, array in arrays.items():
                assert stored[name].dtype == array.dtype
                np.testing.assert_array_equal(stored[name], array)
    np.testing.assert_array_equal(version.shared["whitening"]["mean"], np.arange(WIDTH))
    assert bank.versions() == (1, 2, 3)


def test_old_versions_stay_as_they_were(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    assert [task.id for task in bank.load(1).tasks] == ["task-0"]
    assert bank.load("1").digest == bank.load(1).digest
    assert bank.load(2).manifest.parent_digest == bank.load(1).digest


def test_equal_content_has_an_equal_digest_whatever_its_history(
    storage: Storage, tmp_path: Path
) -> None:
    first = fill(storage, "straight", tasks=3, run="one").load()
    other = Storage.open(str(tmp_path / "elsewhere"))
    bank = Bank.create(other, "winding")
    for number in (0, 1):
        with BankWriter(bank, run=f"run {number}") as writer:
            writer.begin(dict(reversed(BACKBONE.items())), SETTINGS)
            shared = {"whitening": {"mean": np.arange(WIDTH, dtype=np.float64)}}
            writer.commit(draft(number, info={"seconds": number}), shared=shared)
    with BankWriter(bank) as writer:
        writer.commit(draft(7))
        writer.rollback(2)
        writer.commit(draft(2), metrics={"accuracy": 0.9})
    assert bank.load().version == 5
    assert bank.load().digest == first.digest


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "x"},
        {"domain": "x"},
        {"classes": ("class-0", "y")},
        {"definition": {"samples_digest": "x"}},
        {"arrays": draft(0, seed=1).arrays},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_any_change_of_content_changes_the_digest(
    storage: Storage, changed: dict[str, object]
) -> None:
    digests = set()
    for name, task in (("a", draft(0)), ("b", draft(0, **changed))):
        with BankWriter(Bank.create(storage, name)) as writer:
            writer.begin(BACKBONE, SETTINGS)
            digests.add(writer.commit(task).digest)
    assert len(digests) == 2


def test_settings_backbone_and_shared_arrays_are_content(storage: Storage) -> None:
    digests = set()
    for number, (backbone, made_with, shared) in enumerate(
        [
            (BACKBONE, SETTINGS, {}),
            ({**BACKBONE, "width": 9}, SETTINGS, {}),
            (BACKBONE, {}, {}),
            (BACKBONE, SETTINGS, {"head": {"w": np.zeros(2)}}),
            (BACKBONE, SETTINGS, {"head": {"w": np.ones(2)}}),
        ]
    ):
        with BankWriter(Bank.create(storage, f"bank-{number}")) as writer:
            writer.begin(backbone, made_with)
            digests.add(writer.commit(draft(0), shared=shared).digest)
    assert len(digests) == 5


def test_committing_again_changes_nothing(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    with BankWriter(bank) as writer:
        writer.begin(BACKBONE, SETTINGS)
        again = writer.commit(
            draft(1), shared={"head": {"w": np.zeros(1)}}, metrics={"accuracy": 9}
        )
    assert again.version == 3
    assert bank.versions() == (1, 2, 3)
    assert bank.load().shared.keys() == {"whitening"}


def test_a_changed_definition_is_refused_with_the_differences(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    definition = {**draft(1).definition, "samples_digest": "other"}
    changed = draft(1, count=3, definition=definition)
    with BankWriter(bank) as writer, pytest.raises(BankError) as caught:
        writer.commit(changed)
    message = str(caught.value)
    assert "classes: without class-2" in message
    assert "with new class-4, class-5" in message
    assert "definition.samples_digest: 0000" in message
    assert "became other" in message
    assert bank.versions() == (1, 2)


def test_other_parameters_for_the_same_task_are_refused(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    arrays = {**draft(1).arrays, "head": draft(1, seed=5).arrays["head"]}
    with (
        BankWriter(bank) as writer,
        pytest.raises(BankError, match="another head; unlearn it before"),
    ):
        writer.commit(draft(1, arrays=arrays))


def test_another_backbone_or_setting_is_refused_with_the_differences(storage: Storage) -> None:
    bank = fill(storage, tasks=1)
    other = {"luca": {"flow": "adapter", "ratio": 4}, "learning": SETTINGS["learning"]}
    with BankWriter(bank) as writer, pytest.raises(BankError) as caught:
        writer.begin({**BACKBONE, "fingerprint": "0" * 16}, other)
    assert "backbone.fingerprint: ffffffffffffffff became 0000000000000000" in str(caught.value)
    assert "settings.luca.flow: tosca became adapter" in str(caught.value)


def test_shared_arrays_are_kept_replaced_and_removed_by_kind(storage: Storage) -> None:
    bank = fill(storage, tasks=1)
    with BankWriter(bank) as writer:
        kept = writer.commit(draft(1), shared={"head": {"w": np.ones(3)}})
        assert kept.shared.keys() == {"whitening", "head"}
        removed = writer.commit(draft(2), shared={"head": None})
    assert removed.shared.keys() == {"whitening"}
    assert bank.load(2).shared["head"]["w"].tolist() == [1, 1, 1]


def test_a_new_bank_must_say_what_it_is_made_with(storage: Storage) -> None:
    with BankWriter(Bank.create(storage, "b")) as writer, pytest.raises(BankError, match="begin"):
        writer.commit(draft(0))


def test_writing_needs_the_lock(storage: Storage) -> None:
    writer = BankWriter(fill(storage, tasks=1))
    with pytest.raises(BankLockedError, match="acquire its lock first"):
        writer.commit(draft(1))
    with pytest.raises(BankLockedError, match="acquire its lock first"):
        writer.tag("production")


@pytest.mark.parametrize(
    "name", ["", ".hidden", "../up", "a/b", "a b", "-flag", "x" * 101, "ä", "a\n", "a\x00"]
)
def test_names_that_could_leave_their_directory_are_refused(storage: Storage, name: str) -> None:
    bank = fill(storage, tasks=1)
    with pytest.raises(BankError, match="not a usable name"):
        Bank.open_or_create(storage, name)
    with BankWriter(bank) as writer:
        with pytest.raises(BankError, match="not a usable name"):
            writer.tag(name)
        with pytest.raises(BankError, match="not a usable name"):
            writer.commit(draft(1, id=name))
        with pytest.raises(BankError, match="not a usable name"):
            writer.commit(draft(1, arrays={name: {}}))
    if name:
        with pytest.raises(BankError, match="not a usable name"):
            bank.load(name)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes": ()}, "at least one class"),
        ({"classes": ("a", "a")}, "given once"),
        ({"classes": ("a\x1b[2J",)}, "control characters"),
        ({"name": "two\nlines"}, "control characters"),
        ({"arrays": {}}, "no arrays"),
        ({"arrays": {"module": {"w": [1.0]}}}, "'w' is a list"),
        ({"arrays": {"module": {"w": np.array(["x"])}}}, "type <U1"),
        ({"arrays": {"module": {"w": np.array([object()])}}}, "type object"),
        ({"definition": {"x": float("nan")}}, "definition of task 'task-1' is not plain JSON"),
        ({"info": {"x": np.zeros(2)}}, "info of task 'task-1' is not plain JSON"),
    ],
)
def test_a_draft_that_cannot_be_kept_is_refused_and_leaves_the_bank(
    storage: Storage, changed: dict[str, object], message: str
) -> None:
    bank = fill(storage, tasks=1)
    with BankWriter(bank) as writer, pytest.raises(BankError, match=message):
        writer.commit(draft(1, **changed))
    assert bank.versions() == (1,)


def test_asking_for_what_is_not_there_lists_what_is(storage: Storage) -> None:
    bank = fill(storage, "birds", tasks=1)
    for ask, message in [
        (lambda: Bank.open(storage, "dogs"), "no bank 'dogs'.*birds"),
        (lambda: Bank.create(storage, "birds"), "exists already"),
        (lambda: bank.load(9), "no version 9; the latest is 1"),
        (lambda: bank.load(0), "out of range"),
        (lambda: bank.load("production"), "no tag 'production'; it has: latest"),
        (lambda: bank.load().task("nope"), "no task 'nope'; it has: task-0"),
        (lambda: bank.load().arrays("task-0", "nope"), "no nope; it has: head, module, statistics"),
        (lambda: Bank.open_or_create(storage, "new").load(), "no version yet"),
    ]:
        with pytest.raises(BankError, match=message):
            ask()


def test_tags_point_move_and_go(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    with BankWriter(bank) as writer:
        assert writer.tag("production", 2) == 2
        assert bank.load("production").version == 2
        writer.tag("production")
        writer.tag("first", 1)
        assert bank.refs() == {"latest": 3, "production": 3, "first": 1}
        assert bank.tags(3) == ("production",)
        writer.untag("first")
        with pytest.raises(BankError, match="no tag 'first'; tags: production"):
            writer.untag("first")
        for impossible in ("latest", "12"):
            with pytest.raises(BankError, match="cannot be a tag"):
                writer.tag(impossible)
        with pytest.raises(BankError, match="no version 9"):
            writer.tag("x", 9)
    assert bank.refs() == {"latest": 3, "production": 3}


def test_rollback_is_a_new_version_with_the_old_content(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    with BankWriter(bank) as writer:
        back = writer.rollback(1)
        assert (back.version, back.parent, back.digest) == (4, 3, bank.load(1).digest)
        assert back.manifest.origin == {"bank": "b", "version": 1, "digest": back.digest}
        assert back.metrics == {"accuracy": 0.0}
        assert writer.rollback(1).version == 4
        assert writer.commit(draft(5)).version == 5
    assert [task.id for task in bank.load().tasks] == ["task-0", "task-5"]
    assert bank.versions() == (1, 2, 3, 4, 5)


def test_metrics_that_come_later_do_not_change_a_version(storage: Storage) -> None:
    bank = fill(storage, tasks=2)
    before = bank.load(1)
    with BankWriter(bank) as writer:
        writer.annotate({"forgetting": 0.5}, 1)
        annotated = writer.annotate({"accuracy": 0.75}, 1)
        assert annotated.metrics == {"accuracy": 0.75, "forgetting": 0.5}
        head = writer.annotate({"x": 1})
        assert head.metrics == {"accuracy": 0.1, "x": 1}
    after = bank.load(1)
    assert after.digest == before.digest
    assert after.metrics == annotated.metrics
    assert bank.versions() == (1, 2)


def test_a_commit_found_by_nobody_s_hint_is_still_the_latest(storage: Storage) -> None:
    bank = fill(storage, tasks=3)
    hint = storage.read_bytes("banks/b/refs/latest")
    with BankWriter(bank) as writer:
        writer.commit(draft(3))
        writer.commit(draft(4))
    (storage.local_path() / "banks/b/refs/latest").write_bytes(hint)
    assert bank.latest() == 5
    storage.delete("banks/b/refs/latest")
    assert bank.latest() == 5
    with BankWriter(bank) as writer:
        assert writer.commit(draft(5)).version == 6
    assert bank.load("latest").version == 6


def test_a_commit_neither_lists_nor_reads_old_objects(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = fill(storage, tasks=5)
    with BankWriter(bank) as writer:
        writer.begin(BACKBONE, SETTINGS)
        read: list[str] = []
        reading = Storage.read_if_exists
        monkeypatch.setattr(Storage, "list", None)
        monkeypatch.setattr(Storage, "read_bytes", None)
        monkeypatch.setattr(
            Storage, "read_if_exists", lambda self, path: read.append(path) or reading(self, path)
        )
        writer.commit(draft(5), shared=dict(bank_shared()))
        monkeypatch.undo()
    new = {f"banks/b/objects/{ref.digest}" for ref in bank.load().tasks[5].objects.values()}
    new |= {f"banks/b/objects/{page.digest}" for page in bank.load().manifest.pages}
    assert set(read) <= new


def bank_shared() -> list[tuple[str, dict[str, np.ndarray]]]:
    return [("whitening", {"mean": np.arange(WIDTH, dtype=np.float64)})]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2000))
def test_pages_hold_every_task_and_a_commit_changes_only_the_last(tasks: int) -> None:
    before, after = page_layout(tasks), page_layout(tasks + 1)
    assert sum(before) == tasks
    assert len(before) <= tasks // 64 + 14
    same = (old == new for old, new in zip(before, after, strict=False))
    kept = len(list(itertools.takewhile(bool, same)))
    assert sum(before[kept:]) <= 63


def test_pages_of_many_tasks_load_in_order(storage: Storage) -> None:
    bank = Bank.create(storage, "many")
    with BankWriter(bank) as writer:
        writer.begin(BACKBONE, SETTINGS)
        for number in range(75):
            writer.commit(draft(number))
    assert [page.tasks for page in bank.load().manifest.pages] == [64, 8, 1, 1, 1]
    for version in (1, 8, 9, 63, 64, 65, 75):
        loaded = bank.load(version)
        assert [task.id for task in loaded.tasks] == [f"task-{i}" for i in range(version)]
        assert loaded.manifest.counts["classes"] == 2 * version == len(loaded.classes)


def test_all_versions_are_loaded_with_each_page_read_once(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = fill(storage, tasks=12)
    expected = [bank.load(number) for number in bank.versions()]
    read: list[str] = []
    reading = ObjectStore.read
    monkeypatch.setattr(ObjectStore, "read", lambda self, d: read.append(d) or reading(self, d))
    assert list(bank.load_all()) == expected
    assert len(read) == len(set(read)) == 12


def test_a_commit_takes_as_many_steps_with_many_tasks_as_with_few(storage: Storage) -> None:
    counting = FaultyStorage(storage.root, 10**9, "torn")
    steps = {}
    with BankWriter(Bank.create(counting, "b"), lease=1e6, heartbeat=1e6) as writer:
        writer.begin(BACKBONE, SETTINGS)
        for number in range(70):
            before = counting.steps
            writer.commit(draft(number))
            steps[number + 1] = counting.steps - before
        for _ in range(20):
            writer.rollback(69)
            writer.rollback(70)
        before = counting.steps
        assert writer.commit(draft(70)).version == 111
        assert steps[2] == steps[10] == steps[66] == counting.steps - before
    assert set(steps.values()) == {25}


def test_a_version_is_json_for_machines(storage: Storage) -> None:
    shown = json.loads(json.dumps(fill(storage, tasks=2).load().to_json()))
    assert shown["operation"] == "commit task-1"
    assert shown["counts"]["tasks"] == 2
    assert shown["tasks"][0]["objects"]["module"]["size"] > 0
    assert shown["writer"]["pid"] == os.getpid()


def test_reading_a_bank_imports_neither_torch_nor_ray_nor_pyarrow(storage: Storage) -> None:
    fill(storage, tasks=1)
    program = (
        "import sys; from workers.storage.bank import Bank; from workers.storage.filesystem import Storage\n"
        "Bank.open(Storage.open(sys.argv[1]), 'b').load()\n"
        "print([m for m in ('torch', 'ray', 'pandas', 'pyarrow', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(storage.local_path())],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
