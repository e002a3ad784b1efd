"""Taking tasks and classes out of real banks: against banks that never saw them, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.stream import TaskDefinition, build_stream
from pipelines.unlearned import carried, difference, refuse_unlearned, task_ids, unlearned
from pipelines.unlearning import Unlearning, unlearn_class, unlearn_task
from tests.orchestrator.commands.learned_banks import (
    NAMES,
    class_log_probs,
    explicit,
    features,
    learn,
    quick_disk,
)
from workers.errors import BankError, CorruptionError
from workers.modeling.routers import ROUTERS
from workers.storage.bank import Bank, BankVersion
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

__all__ = ["quick_disk"]

TASKS = (("a", NAMES[:2]), ("b", NAMES[2:4]), ("d", NAMES[4:]))
LOCAL: dict[str, Any] = {"whitening": "none"}
UNIFIED: dict[str, Any] = {"whitening": "none", "learning": {"objective": "unified"}}
RANDOM: dict[str, Any] = {
    **LOCAL,
    "evaluation": {
        "routers": ["lda", "ridge"],
        "router_options": {"ridge": {"random_features": 24}},
    },
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the features, and each bank that was learned once."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def bank_of(kept: Path, tmp_path: Path) -> Any:
    """Learns a bank over explicit tasks, once a module, and gives each test a copy of its own."""

    def make(*tasks: tuple[str, list[str]], **changes: Any) -> Bank:
        name = f"bank-{abs(hash((str(tasks), str(changes))))}"
        experiment = explicit(kept, *tasks, bank=name, **changes)
        if not Bank(Storage.open(experiment.storage), name).exists():
            learn(experiment)
        source = kept / "storage" / "banks" / name
        shutil.copytree(source, tmp_path / "storage" / "banks" / name)
        return Bank.open(Storage.open(str(tmp_path / "storage")), name)

    return make


def without_task(bank: Bank, task: str, **options: Any) -> tuple[BankVersion, Unlearning]:
    with BankWriter(bank) as writer:
        return unlearn_task(writer, task, **options)


def without_class(bank: Bank, name: str, **options: Any) -> tuple[BankVersion, Unlearning]:
    with BankWriter(bank) as writer:
        return unlearn_class(writer, name, **options)


def definitions(kept: Path, *tasks: tuple[str, list[str]], **changes: Any) -> list[TaskDefinition]:
    experiment = explicit(kept, *tasks, **changes)
    stream = build_stream(experiment.stream, seed=experiment.seed)
    return [stream.definition(task) for task in stream.tasks]


# -- a task --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["a", "b", "d"])
def test_the_rest_is_bit_for_bit_what_it_is_in_a_bank_that_never_saw_the_task(
    kept: Path, bank_of: Any, gone: str
) -> None:
    rest = [task for task in TASKS if task[0] != gone]
    after, outcome = without_task(bank_of(*TASKS, **RANDOM), gone)
    never = bank_of(*rest, **RANDOM).load()
    assert outcome.exact
    assert after.classes == never.classes
    for left, right in zip(after.tasks, never.tasks, strict=True):
        assert left.objects == right.objects
        assert left.definition == right.definition
    samples, _, tasks = features(explicit(kept, *rest, **RANDOM), "test")
    for router in ROUTERS:
        for combination in ("hard", "joint", "product", "refine"):
            options = {"combination": combination, **RANDOM["evaluation"]}
            got, want = (
                class_log_probs(version, samples, router, tasks=tasks, **options)
                for version in (after, never)
            )
            assert torch.equal(got, want), (router, combination)


def test_a_later_task_can_be_unlearned_from_a_whitened_bank(kept: Path, bank_of: Any) -> None:
    after, _ = without_task(bank_of(*TASKS, whitening="first_task"), "b")
    never = bank_of(TASKS[0], TASKS[2], whitening="first_task").load()
    assert [task.objects for task in after.tasks] == [task.objects for task in never.tasks]
    assert after.manifest.shared == never.manifest.shared


@pytest.mark.parametrize("unlearn", [("task", "a"), ("class", "c01")])
def test_nothing_of_the_first_task_leaves_a_whitened_bank(
    bank_of: Any, unlearn: tuple[str, str]
) -> None:
    bank = bank_of(*TASKS, whitening="first_task")
    kind, name = unlearn
    with pytest.raises(BankError, match=r"whitening.*first task.*-o bank=NAME"):
        (without_task if kind == "task" else without_class)(bank, name)
    assert bank.latest() == 3


@pytest.mark.parametrize("changes", [UNIFIED, {"whitening": "first_task"}])
@pytest.mark.parametrize("by_class", [True, False])
def test_the_only_task_goes_exactly_with_all_that_is_shared(
    bank_of: Any, changes: dict[str, Any], by_class: bool
) -> None:
    bank = bank_of(("a", ["c00"]), **changes)
    after, outcome = without_class(bank, "c00") if by_class else without_task(bank, "a")
    assert outcome.exact
    assert after.tasks == ()
    assert after.manifest.shared == {}


def test_a_task_is_found_by_id_or_name_and_others_are_listed(bank_of: Any) -> None:
    bank = bank_of(*TASKS, **LOCAL)
    with pytest.raises(BankError, match=r"no task 'x'.*task-00001 \('b'\)"):
        without_task(bank, "x")
    assert [task.name for task in without_task(bank, "task-00001")[0].tasks] == ["a", "d"]


# -- a shared head -------------------------------------------------------------------------------------------------


def test_a_shared_head_refuses_with_the_version_that_is_exact(bank_of: Any) -> None:
    bank = bank_of(*TASKS, **UNIFIED)
    with pytest.raises(BankError, match=r"'unified'.*luca bank rollback \S+ 2.*--approximate"):
        without_task(bank, "d")
    with pytest.raises(BankError, match=r"'unified'.*another bank.*--approximate"):
        without_task(bank, "b")
    with pytest.raises(BankError, match=r"class 'c02'.*'unified'.*--approximate"):
        without_class(bank, "c02")
    assert bank.latest() == 3


@pytest.mark.parametrize(("kind", "name"), [("task", "b"), ("class", "c02")])
def test_with_approximate_its_rows_leave_the_shared_head(
    kept: Path, bank_of: Any, kind: str, name: str
) -> None:
    bank = bank_of(*TASKS, **UNIFIED)
    before = bank.load()
    unlearn = without_task if kind == "task" else without_class
    after, outcome = unlearn(bank, name, approximate=True)
    assert not outcome.exact
    assert "keep its influence" in outcome.notes[0]
    old, new = before.shared["head"]["weight"], after.shared["head"]["weight"]
    kept_rows = [before.classes.index(each) for each in after.classes]
    np.testing.assert_array_equal(new, old[kept_rows])
    samples, _, tasks = features(explicit(kept, TASKS[0], **UNIFIED), "test")
    for router in ROUTERS:
        shape = class_log_probs(after, samples, router, tasks=tasks).shape
        assert shape == (len(samples), len(after.classes))


# -- a class -------------------------------------------------------------------------------------------------------


def test_a_class_leaves_statistics_and_head_and_other_tasks_untouched(bank_of: Any) -> None:
    bank = bank_of(*TASKS, **LOCAL)
    before = bank.load()
    after, outcome = without_class(bank, "c02")
    never = bank_of(TASKS[0], ("b", ["c03"]), TASKS[2], **LOCAL).load()
    assert outcome.classes == ("c02",)
    assert outcome.sliced == ("task-00001",)
    assert after.tasks[0] == before.tasks[0]
    assert after.tasks[2] == before.tasks[2]
    assert after.tasks[1].objects["statistics"] == never.tasks[1].objects["statistics"]
    np.testing.assert_array_equal(
        after.arrays("task-00001", "head")["weight"],
        before.arrays("task-00001", "head")["weight"][1:],
    )
    assert after.tasks[1].info["samples"] == 20
    assert "c02" not in after.tasks[1].definition["counts"]


def test_routing_by_statistics_forgets_a_class_exactly_and_its_module_is_named(
    kept: Path, bank_of: Any
) -> None:
    after, outcome = without_class(bank_of(*TASKS, **LOCAL), "c02")
    assert not outcome.exact
    assert "module of task 'b'" in outcome.notes[0]
    assert "influence" in outcome.notes[0]
    tasks = (TASKS[0], ("b", ["c03"]), TASKS[2])
    never = bank_of(*tasks, **LOCAL).load()
    samples, _, positions = features(explicit(kept, *tasks, **LOCAL), "test")
    for router in ("lda", "ridge", "prototype"):
        got, want = (
            class_log_probs(each, samples, router, tasks=positions, combination="hard").argmax(1)
            for each in (after, never)
        )
        slots = torch.tensor([0, 0, 1, 2, 2])  # the task of each class: what the router chose
        assert torch.equal(slots[got], slots[want])


def test_a_tasks_only_class_takes_the_task_along_exactly(bank_of: Any) -> None:
    tasks = (("a", ["c00", "c01"]), ("b", ["c02"]), ("d", ["c03"]))
    after, outcome = without_class(bank_of(*tasks, **LOCAL), "c02")
    never = bank_of(tasks[0], tasks[2], **LOCAL).load()
    assert outcome.exact
    assert outcome.tasks == ("task-00001",)
    assert [task.objects for task in after.tasks] == [task.objects for task in never.tasks]


def test_a_second_class_can_follow_the_first(bank_of: Any) -> None:
    bank = bank_of(("a", NAMES[:3]), TASKS[2], **LOCAL)
    without_class(bank, "c00")
    after, _ = without_class(bank, "c02")
    assert after.classes == ("c01", "c04", "c05")
    assert after.tasks[0].definition["without"] == ["c00", "c02"]
    assert {item.classes for item in unlearned(after)} == {("c00",), ("c02",)}


def test_one_gram_matrix_for_a_whole_task_refuses_with_the_reason(bank_of: Any) -> None:
    changes = {**LOCAL, "evaluation": {"statistics": {"granularity": "task"}}}
    bank = bank_of(*TASKS, **changes)
    with pytest.raises(BankError, match=r"'b'.*one Gram matrix.*--task task-00001"):
        without_class(bank, "c02")
    assert bank.latest() == 3


def test_random_feature_sums_are_dropped_with_a_word_about_it(kept: Path, bank_of: Any) -> None:
    after, outcome = without_class(bank_of(*TASKS, **RANDOM), "c02")
    assert any("random-feature statistics of task 'b' are dropped" in n for n in outcome.notes)
    assert "projected.gram" not in after.arrays("task-00001", "statistics")
    samples, _, tasks = features(explicit(kept, *TASKS, **RANDOM), "test")
    class_log_probs(after, samples, "ridge", tasks=tasks)
    with pytest.raises(BankError, match="random"):
        class_log_probs(after, samples, "ridge", tasks=tasks, **RANDOM["evaluation"])


def test_an_unknown_class_is_refused_with_those_there_are(bank_of: Any) -> None:
    with pytest.raises(BankError, match=r"no class 'zebra'.*c00, c01"):
        without_class(bank_of(*TASKS, **LOCAL), "zebra")


# -- a run afterwards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["b", "d"])
def test_the_same_samples_are_not_learned_again(kept: Path, bank_of: Any, gone: str) -> None:
    after, _ = without_task(bank_of(*TASKS, **LOCAL), gone)
    with pytest.raises(BankError, match=rf"task '{gone}' .*was unlearned.*version 4.*explicit"):
        refuse_unlearned(after, definitions(kept, *TASKS))
    refuse_unlearned(after, definitions(kept, *(task for task in TASKS if task[0] != gone)))


def test_a_stream_with_an_unlearned_class_is_refused_and_one_without_it_goes_on(
    kept: Path, bank_of: Any
) -> None:
    after, _ = without_class(bank_of(*TASKS, **LOCAL), "c02")
    with pytest.raises(BankError, match="class 'c02' of task 'b' was unlearned"):
        refuse_unlearned(after, definitions(kept, *TASKS))
    rest = definitions(kept, TASKS[0], ("b", ["c03"]), TASKS[2])
    refuse_unlearned(after, rest)
    assert [difference(r, d) for r, d in zip(after.tasks, rest, strict=True)] == [[], [], []]


def test_the_rest_of_a_task_is_still_compared_by_names_and_counts(kept: Path, bank_of: Any) -> None:
    after, _ = without_class(bank_of(*TASKS, **LOCAL), "c02")
    (other,) = definitions(kept, ("b", ["c03"]), stream={"max_train_per_class": 7})
    assert "7 training" in " ".join(difference(after.tasks[1], other))


def test_other_samples_may_be_learned_under_the_old_names(kept: Path, bank_of: Any) -> None:
    after, _ = without_task(bank_of(*TASKS, **LOCAL), "d")
    refuse_unlearned(after, definitions(kept, *TASKS, stream={"max_train_per_class": 7}))


def test_what_a_rollback_brings_back_may_be_there(kept: Path, bank_of: Any) -> None:
    bank = bank_of(*TASKS, **LOCAL)
    without_task(bank, "d")
    with BankWriter(bank) as writer:
        back = writer.rollback(3)
        earlier = writer.rollback(2)
    assert unlearned(back) == ()
    assert unlearned(earlier) == ()


def test_memory_survives_further_commits_and_collected_history(kept: Path, bank_of: Any) -> None:
    from workers.storage.bank_gc import collect_garbage

    bank = bank_of(*TASKS, **LOCAL)
    after, _ = without_task(bank, "b")
    with BankWriter(bank) as writer:
        writer.annotate(carried(unlearned(after)))
    collect_garbage(bank, dry_run=False, keep_versions=1)
    (item,) = unlearned(bank.load())
    assert (item.task, item.classes, item.whole) == ("b", ("c02", "c03"), True)


@pytest.mark.parametrize(
    "wrong", [{"version": "x"}, {"task": "\x1b[2J"}, {"classes": [1]}, {"more": 1}, {"classes": 1}]
)
def test_a_malformed_memory_is_refused_in_one_sentence(bank_of: Any, wrong: dict[str, Any]) -> None:
    bank = bank_of(*TASKS, **LOCAL)
    after, _ = without_task(bank, "b")
    (item,) = carried(unlearned(after))["unlearned"]
    with BankWriter(bank) as writer:
        writer.annotate({"unlearned": [{**item, **wrong}]})
    with pytest.raises(CorruptionError, match="'unlearned'"):
        unlearned(bank.load())


def test_ids_go_on_behind_those_a_bank_has(bank_of: Any) -> None:
    bank = bank_of(*TASKS, **LOCAL)
    assert task_ids(None, 2) == ("task-00000", "task-00001")
    assert task_ids(bank.load(), 4)[3] == "task-00003"
    after, _ = without_task(bank, "b")
    assert task_ids(after, 3) == ("task-00000", "task-00002", "task-00003")
