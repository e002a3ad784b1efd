"""A run on a bank that has unlearned: nothing comes back by mistake, and new tasks go on behind the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.preparation import prepare
from pipelines.unlearning import unlearn_class, unlearn_task
from tests.helpers import write_features
from tests.orchestrator.commands.learned_banks import NAMES, explicit, learn, quick_disk
from workers.errors import BankError
from workers.storage.bank import Bank
from workers.storage.bank_writer import BankWriter

__all__ = ["quick_disk"]

TASKS = (("a", NAMES[:2]), ("b", NAMES[2:4]), ("d", NAMES[4:]))
NEW = ("e", ["c06", "c07"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Features of eight classes."""
    write_features(tmp_path / "features.parquet", classes=8)
    return tmp_path


def bank(folder: Path, *tasks: tuple[str, list[str]], **changes: Any) -> Bank:
    return learn(explicit(folder, *tasks, whitening="none", **changes))


@pytest.mark.parametrize("gone", ["b", "d"])
def test_the_same_stream_is_refused_with_what_was_unlearned(folder: Path, gone: str) -> None:
    with BankWriter(bank(folder, *TASKS)) as writer:
        unlearn_task(writer, gone)
    with pytest.raises(BankError, match=rf"task '{gone}'.*was unlearned.*scenario 'explicit'"):
        prepare(explicit(folder, *TASKS, whitening="none"))


def test_new_tasks_go_on_behind_the_rest_as_if_it_had_never_been_there(folder: Path) -> None:
    with BankWriter(bank(folder, *TASKS)) as writer:
        unlearn_task(writer, "b")
    grown = bank(folder, TASKS[0], TASKS[2], NEW).load()
    never = bank(folder, TASKS[0], TASKS[2], NEW, bank="never").load()
    assert [task.id for task in grown.tasks] == ["task-00000", "task-00002", "task-00003"]
    assert [task.objects for task in grown.tasks] == [task.objects for task in never.tasks]


def test_the_last_task_can_be_learned_again_from_other_samples(folder: Path) -> None:
    with BankWriter(bank(folder, *TASKS)) as writer:
        unlearn_task(writer, "d")
    again = bank(folder, *TASKS[:2], ("d", [*NAMES[4:], "c06"])).load()
    assert again.tasks[2].classes == ("c04", "c05", "c06")


def test_a_bank_without_a_class_goes_on_with_a_stream_without_it(folder: Path) -> None:
    with BankWriter(bank(folder, *TASKS)) as writer:
        unlearn_class(writer, "c02")
    with pytest.raises(BankError, match="class 'c02' of task 'b' was unlearned"):
        prepare(explicit(folder, *TASKS, whitening="none"))
    grown = bank(folder, TASKS[0], ("b", ["c03"]), TASKS[2], NEW).load()
    assert grown.classes == ("c00", "c01", "c03", "c04", "c05", "c06", "c07")
