"""What is tried next, and that it goes on rather than begins again."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.search.ledger import TrialRecord
from pipelines.search.proposals import make_proposals
from pipelines.search.settings import Range, SearchSettings
from pipelines.search.space import Point, SearchSpace, as_text

SPACE = SearchSpace(
    {
        "learning.l1": Range(low=1e-5, high=1e-2, log=True),
        "luca.ratio": (4, 8, 16),
        "evaluation.routers": (["lda"], ["prototype", "lda"]),
    }
)


def proposer(method: str, space: SearchSpace = SPACE, **more: Any) -> Any:
    settings = SearchSettings(method=method, **more)
    return make_proposals(space, settings, tasks=4, seed=7, trials=12)


def ended(number: int, settings: Point, accuracy: float, nonzero: int, **more: Any) -> TrialRecord:
    return TrialRecord(
        number=number,
        settings=settings,
        digest=str(number),
        **{
            "status": "finished",
            "tasks": 4,
            "validation_accuracy": accuracy,
            "nonzero_parameters": nonzero,
            **more,
        },
    )


def test_a_grid_goes_on_where_it_was() -> None:
    space = SearchSpace({"luca.ratio": (4, 8, 16), "learning.epochs": (1, 2)})
    first = proposer("grid", space)
    points = [first.ask(number, 0) for number in range(1, 7)]
    assert first.ask(7, 0) is None
    assert {as_text(point) for point in points} == {as_text(point) for point in space.grid()}
    again = proposer("grid", space)
    for number, point in enumerate(points[:2], 1):
        again.tell(ended(number, point, 0.5, 10))
    assert again.ask(3, 0) == points[2]


def test_a_grid_is_shuffled_so_that_a_part_of_it_is_a_fair_sample() -> None:
    space = SearchSpace({"luca.ratio": tuple(range(1, 41))})
    drawn = proposer("grid", space)
    first = [drawn.ask(number, 0)["luca.ratio"] for number in range(1, 11)]
    assert first != sorted(first)
    assert max(first) > 20


def test_random_proposals_depend_on_seed_and_number_alone() -> None:
    one, two = proposer("random"), proposer("random")
    two.tell(ended(1, one.ask(1, 0), 0.5, 10))
    assert one.ask(5, 0) == two.ask(5, 0)
    assert one.ask(5, 0) != one.ask(5, 1)


@pytest.mark.parametrize("objective", ["pareto", "accuracy"])
def test_optuna_learns_from_former_invocations(objective: str) -> None:
    """After trials that are better the smaller l1 is, it proposes small l1."""
    settings: list[Point] = [
        {"learning.l1": 10 ** (-5 + 3 * i / 19), "luca.ratio": 8, "evaluation.routers": ["lda"]}
        for i in range(20)
    ]
    told = proposer("optuna", objective=objective)
    for number, point in enumerate(settings, 1):
        told.tell(ended(number, point, 0.9 - 0.02 * number, 10 * number))
    drawn = []
    for number in range(21, 33):
        point = told.ask(number, 0)
        drawn.append(point["learning.l1"])
        told.tell(ended(number, point, 0.5, 500))
    assert sum(value < 10**-3.5 for value in drawn) >= 7


def test_optuna_proposes_values_as_they_were_listed() -> None:
    told = proposer("optuna")
    points = [told.ask(number, 0) for number in range(1, 8)]
    assert {as_text(point["evaluation.routers"]) for point in points} <= {
        as_text(value) for value in SPACE.domains["evaluation.routers"]
    }
    assert {point["luca.ratio"] for point in points} <= {4, 8, 16}


def test_optuna_does_not_repeat_the_draws_of_a_former_invocation() -> None:
    first = proposer("optuna")
    points = [first.ask(number, 0) for number in range(1, 4)]
    second = proposer("optuna")
    for number, point in enumerate(points, 1):
        second.tell(ended(number, point, 0.5, 10))
    assert as_text(second.ask(4, 0)) not in {as_text(point) for point in points}


def test_stopped_and_failed_trials_are_taken_too() -> None:
    told = proposer("optuna")
    first, second = told.ask(1, 0), told.ask(2, 0)
    told.tell(ended(1, first, 0.2, 10, status="stopped", tasks=2))
    told.tell(
        TrialRecord(number=2, settings=second, digest="2", status="failed", error="it diverged")
    )
    assert told.ask(3, 0) is not None


def test_optuna_leaves_a_small_space_to_chance_once_it_repeats_itself() -> None:
    space = SearchSpace({"luca.ratio": (4, 8)})
    told = proposer("optuna", space)
    seen = {told.ask(1, attempt)["luca.ratio"] for attempt in range(60)}
    assert seen == {4, 8}
