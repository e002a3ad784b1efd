"""A sweep without Ray: who is next, what is kept, what is not done twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipelines.search.conductor import Conductor
from pipelines.search.ledger import SweepLedger
from pipelines.search.proposals import make_proposals
from pipelines.search.settings import Range, SearchSettings
from pipelines.search.space import SearchSpace
from pipelines.search.trial_settings import TrialSettings
from tests.pipelines.search.toy import report, trial_settings
from workers.errors import SettingsError
from workers.storage.filesystem import Storage

CONTINUOUS = SearchSpace({"l1": Range(low=0.1, high=0.9)})


def resolve(settings: Mapping[str, Any], published: bool) -> TrialSettings:
    if published:
        return trial_settings(l1=0.123)
    if settings["l1"] == 0.5:
        raise SettingsError("l1 must not be 0.5")
    return trial_settings(l1=settings["l1"])


def conductor(
    folder: Path, *, trials: int = 4, space: SearchSpace = CONTINUOUS, **search: Any
) -> Conductor:
    settings = SearchSettings(**{"method": "random", **search})
    return Conductor(
        SweepLedger(Storage.open(str(folder)), "sweeps/x"),
        make_proposals(space, settings, tasks=4, seed=1, trials=trials),
        resolve,
        published={"recipe": "tosca"},
        trials=trials,
        tasks=4,
        settings=settings,
        identity="x",
    )


def run_next(sweep: Conductor, accuracy: float = 0.5, *, tasks: int = 4) -> int | None:
    """Take the next trial through its tasks."""
    given = sweep.next()
    if given is None:
        return None
    for done in range(1, tasks):
        sweep.report(given.record.number, [report(done, accuracy)])
    sweep.end(given.record.number, [report(tasks, accuracy)])
    return given.record.number


def test_the_published_recipe_comes_first(tmp_path: Path) -> None:
    given = conductor(tmp_path).next()
    assert given is not None
    assert (given.record.number, given.record.published) == (0, True)
    assert given.settings == trial_settings(l1=0.123)


def test_there_are_as_many_trials_as_asked_for(tmp_path: Path) -> None:
    sweep = conductor(tmp_path)
    assert [run_next(sweep) for _ in range(5)] == [0, 1, 2, 3, None]
    assert sweep.complete
    assert [record.published for record in sweep.records] == [True, False, False, False]


def test_ended_trials_are_not_run_again(tmp_path: Path) -> None:
    first = conductor(tmp_path)
    run_next(first)
    run_next(first)
    second = conductor(tmp_path)
    assert not second.complete
    assert [run_next(second) for _ in range(3)] == [2, 3, None]
    assert second.records[:2] == first.records


def test_what_was_proposed_and_not_ended_is_run_under_its_name(tmp_path: Path) -> None:
    first = conductor(tmp_path)
    run_next(first)
    interrupted = first.next()
    assert interrupted is not None
    again = conductor(tmp_path).next()
    assert again is not None
    assert again == interrupted


def test_a_sweep_can_be_extended(tmp_path: Path) -> None:
    first = conductor(tmp_path, trials=2)
    while run_next(first) is not None:
        pass
    more = conductor(tmp_path, trials=4)
    assert [run_next(more) for _ in range(3)] == [2, 3, None]
    fewer = conductor(tmp_path, trials=2)
    assert fewer.complete
    assert len(fewer.records) == 2


def test_equal_settings_are_tried_once(tmp_path: Path) -> None:
    space = SearchSpace(
        {"l1": (0.25, 0.123, 0.75)}
    )  # 0.123 is what the published recipe resolves to
    sweep = conductor(tmp_path, trials=9, space=space)
    assert [run_next(sweep) for _ in range(4)] == [0, 1, 2, None]
    assert sweep.complete
    assert sweep.total == 3
    assert sorted(r.settings["l1"] for r in sweep.records if not r.published) == [0.25, 0.75]


@pytest.mark.parametrize("method", ["random", "optuna", "grid"])
def test_settings_that_do_not_work_fail_their_trial_alone(tmp_path: Path, method: str) -> None:
    space = SearchSpace({"l1": (0.25, 0.5, 0.75)})
    sweep = conductor(tmp_path, trials=4, space=space, method=method)
    while run_next(sweep) is not None:
        pass
    failed = [record for record in sweep.records if record.status == "failed"]
    assert [(record.settings, record.error) for record in failed] == [
        ({"l1": 0.5}, "l1 must not be 0.5")
    ]
    assert len([record for record in sweep.records if record.status == "finished"]) == 3


def test_an_ended_trial_is_recorded_with_its_course(tmp_path: Path) -> None:
    sweep = conductor(tmp_path)
    given = sweep.next()
    assert given is not None
    course = [
        report(done, accuracy, 10.0 * done)
        for done, accuracy in enumerate((1.0, 0.5, 0.75, 0.625), 1)
    ]
    sweep.report(0, course[:1])
    sweep.report(0, course[1:3])
    record = sweep.end(0, course[2:])
    assert record.status == "finished"
    assert record.curve == (1.0, 0.5, 0.75, 0.625)
    assert record.sizes == (10.0, 20.0, 30.0, 40.0)
    assert (record.validation_accuracy, record.nonzero_parameters) == (0.625, 40)
    assert record.seconds == 2.0


def test_classes_that_a_stopped_trial_never_learned_count_as_wrong(tmp_path: Path) -> None:
    sweep = conductor(tmp_path)
    sweep.next()
    record = sweep.end(0, [report(1, 1.0)])
    assert record.status == "stopped"
    assert record.validation_accuracy == 0.25


def test_a_poor_trial_is_told_to_stop_and_the_published_one_is_not(tmp_path: Path) -> None:
    sweep = conductor(tmp_path, grace_tasks=1, trials=9, objective="accuracy")
    for _ in range(3):
        assert sweep.next() is not None
    assert not sweep.report(1, [report(1, 0.9)])
    assert sweep.report(2, [report(1, 0.5)])
    assert not sweep.report(0, [report(1, 0.1)])


def test_fewer_parameters_make_up_for_accuracy(tmp_path: Path) -> None:
    for worth, stops in ((0.0, True), (0.1, False)):
        sweep = conductor(tmp_path / str(worth), grace_tasks=1, decade_worth=worth, trials=9)
        for _ in range(3):
            assert sweep.next() is not None
        sweep.report(1, [report(1, 0.9, 10_000.0)])
        assert sweep.report(2, [report(1, 0.75, 100.0)]) is stops


def test_scores_of_a_former_invocation_still_count(tmp_path: Path) -> None:
    first = conductor(tmp_path, grace_tasks=1, objective="accuracy")
    run_next(first, 0.9)
    run_next(first, 0.9)
    second = conductor(tmp_path, grace_tasks=1, objective="accuracy")
    given = second.next()
    assert given is not None
    assert second.report(given.record.number, [report(1, 0.5)])


def test_a_trial_that_begins_again_begins_its_course_again(tmp_path: Path) -> None:
    sweep = conductor(tmp_path)
    sweep.next()
    for done in (1, 2, 1, 2, 3):
        sweep.report(0, [report(done, done / 10)])
    assert sweep.end(0, [report(4, 0.4)]).curve == (0.1, 0.2, 0.3, 0.4)


def test_a_lost_trial_is_handed_out_again_a_few_times(tmp_path: Path) -> None:
    sweep = conductor(tmp_path, trials=1, retries=2)
    for _ in range(3):
        given = sweep.next()
        assert given is not None
        assert (given.record.number, given.record.status) == (0, "proposed")
        assert sweep.running
        assert sweep.next() is None
        assert sweep.lost(0, "killed").status == "lost"
        assert not sweep.running
    assert sweep.next() is None


def test_a_lost_trial_is_learned_again_by_the_next_invocation(tmp_path: Path) -> None:
    first = conductor(tmp_path, trials=1, retries=0)
    first.next()
    first.lost(0, "killed")
    second = conductor(tmp_path, trials=1, retries=0)
    assert not second.complete
    assert run_next(second) == 0
    assert second.records[0].status == "finished"
    assert second.records[0].error == ""
