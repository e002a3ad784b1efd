"""Loading versions one after the other gives what loading each of them alone gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.storage.bank_cases import quick_disk  # noqa: F401
from workers.loading import TensorLoader
from workers.storage.bank import Bank, BankVersion
from workers.storage.bank_draft import TaskDraft
from workers.storage.bank_manifest import TaskRecord
from workers.storage.bank_pages import PageCache
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

BACKBONE = {"width": 4}
SETTINGS = {"luca": {"flow": "tosca"}, "learning": {"objective": "local"}}
BANKS = {"a": (0, 1, 2), "again": (0, 1, 2), "turned": (1, 0, 3)}
"""Which pairs of classes each bank learned, in order: three versions each."""
VERSIONS = 3 * len(BANKS)


def draft(number: int, pair: int, bank: str) -> TaskDraft:
    """A task of two classes with arrays of its own."""
    rng = np.random.default_rng([pair, *bank.encode()])

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    module = {
        "mlp.0.weight": drawn(2, 4),
        "mlp.0.bias": drawn(2),
        "mlp.2.weight": drawn(4, 2),
        "mlp.2.bias": drawn(4),
        "norm.weight": drawn(4),
        "norm.bias": drawn(4),
        "se.0.weight": drawn(2, 4),
        "se.2.weight": drawn(4, 2),
    }
    return TaskDraft(
        id=f"task-{number:05d}",
        name=f"task {pair}",
        domain="",
        classes=(f"class {2 * pair}", f"class {2 * pair + 1}"),
        definition={},
        arrays={"module": module, "head": {"weight": drawn(2, 4), "scale": drawn()}},
        info={},
    )


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> list[Bank]:
    storage = Storage.open(str(tmp_path_factory.mktemp("banks")))
    made = []
    for name, order in BANKS.items():
        bank = Bank.open_or_create(storage, name)
        with BankWriter(bank, run="r", code="t") as writer:
            writer.begin(BACKBONE, SETTINGS)
            for number, pair in enumerate(order):
                writer.commit(draft(number, pair, name))
        made.append(bank)
    return made


@settings(max_examples=20, deadline=None)
@given(order=st.lists(st.integers(0, VERSIONS - 1), max_size=8))
def test_what_was_loaded_before_changes_nothing(banks: list[Bank], order: list[int]) -> None:
    loader = TensorLoader()
    pages = [
        PageCache(bank.objects) for bank in banks
    ]  # as an evaluator has: equal records are the same
    for number in order:
        bank, version = banks[number // 3], number % 3 + 1
        loaded = bank.load(version, pages=pages[number // 3])
        found = loader.load(loaded, statistics=False)
        expected = TensorLoader().load(bank.load(version), statistics=False)
        assert found.class_names == expected.class_names
        assert [task.name for task in found.tasks] == [task.name for task in expected.tasks]
        for ours, theirs in zip(found.tasks, expected.tasks, strict=True):
            assert ours.classes == theirs.classes
            assert ours.head is not None
            assert theirs.head is not None
            assert torch.equal(ours.head, theirs.head)
            assert all(torch.equal(ours.module[name], theirs.module[name]) for name in ours.module)


def test_a_task_is_decoded_once(banks: list[Bank]) -> None:
    loader = TensorLoader()
    first = loader.load(banks[0].load(2), statistics=False)
    later = loader.load(banks[0].load(3), statistics=False)
    assert all(a is b for a, b in zip(first.tasks, later.tasks, strict=False))


def test_the_next_version_costs_its_new_task_alone(
    banks: list[Bank], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, pages = TensorLoader(), PageCache(banks[0].objects)
    loader.load(banks[0].load(2, pages=pages), statistics=False)
    looked_at: list[str] = []
    look = TensorLoader._module

    def counted(self: TensorLoader, version: BankVersion, record: TaskRecord, index: Any) -> Any:
        looked_at.append(record.id)
        return look(self, version, record, index)

    monkeypatch.setattr(TensorLoader, "_module", counted)
    loader.load(banks[0].load(3, pages=pages), statistics=False)
    assert looked_at == ["task-00002"]
