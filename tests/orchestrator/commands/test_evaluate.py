"""`luca evaluate`: a version of a bank against a stream's test samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from orchestrator.commands.evaluate import heading, score, summarise
from orchestrator.experiment import Experiment
from orchestrator.preparation import prepare_evaluation
from pipelines.unlearning import unlearn_task
from tests.helpers import write_features
from tests.orchestrator.commands.learned_banks import NAMES, explicit, learn, quick_disk
from workers.errors import BankError
from workers.storage.bank_writer import BankWriter

__all__ = ["quick_disk"]

TASKS = (("a", NAMES[:2]), ("b", NAMES[2:4]), ("d", NAMES[4:]))


def evaluated(experiment: Experiment, ref: str = "latest") -> dict[str, Any]:
    prepared, version, shared = prepare_evaluation(experiment, ref)
    return summarise(prepared, version, score(prepared, version, shared))


def test_the_newest_version_is_scored_on_all_tests(tmp_path: Path) -> None:
    learn(explicit(tmp_path, *TASKS))
    found = evaluated(explicit(tmp_path, *TASKS))
    assert (found["version"], found["samples"], found["classes"]) == (3, 60, 6)
    assert heading(found) == "bank tiny version 3: 60 test samples of 6 classes"
    assert found["metrics"]["oracle"]["routing_accuracy"] == 1.0


def test_an_older_version_is_scored_on_what_it_had_learned(tmp_path: Path) -> None:
    learn(explicit(tmp_path, *TASKS))
    assert evaluated(explicit(tmp_path, *TASKS), "2")["samples"] == 40


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_bank_that_has_unlearned_a_task_is_scored_on_the_others(
    tmp_path: Path, gone: int
) -> None:
    bank = learn(explicit(tmp_path, *TASKS, whitening="none"))
    with BankWriter(bank) as writer:
        unlearn_task(writer, TASKS[gone][0])
    rest = [task for task in TASKS if task != TASKS[gone]]
    for tasks in (rest, TASKS):
        found = evaluated(explicit(tmp_path, *tasks, whitening="none"))
        assert found["samples"] == 40
        assert found["metrics"]["oracle"]["routing_accuracy"] == 1.0
        assert found["metrics"]["oracle"]["final_accuracy"] > 0.9


def test_tasks_without_test_samples_are_left_out(tmp_path: Path) -> None:
    path = write_features(tmp_path / "features.parquet")
    table = pq.read_table(path)
    train = pc.equal(table["split"], "train")
    pq.write_table(table.filter(pc.or_(train, pc.equal(table["label"], "c04"))), path)
    learn(explicit(tmp_path, *TASKS))
    assert evaluated(explicit(tmp_path, *TASKS))["samples"] == 10
    with pytest.raises(BankError, match="version 2 of bank 'tiny' holds have no test samples"):
        evaluated(explicit(tmp_path, *TASKS), "2")


def test_damaged_features_are_made_again(tmp_path: Path) -> None:
    learn(explicit(tmp_path, *TASKS))
    before = evaluated(explicit(tmp_path, *TASKS))
    for part in (tmp_path / "storage" / "features").rglob("*.arrow"):
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 0xFF
        part.write_bytes(bytes(data))
    assert evaluated(explicit(tmp_path, *TASKS)) == before


def test_a_bank_of_other_samples_is_refused(tmp_path: Path) -> None:
    learn(explicit(tmp_path, *TASKS))
    write_features(tmp_path / "features.parquet", seed=1)
    with pytest.raises(BankError, match="holds no task of this stream"):
        evaluated(explicit(tmp_path, *TASKS))
