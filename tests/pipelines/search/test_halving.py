"""When trials are stopped early."""

from __future__ import annotations

from pipelines.search.halving import Halving
from pipelines.search.planning import rungs
from pipelines.search.settings import SearchSettings


def test_the_best_third_goes_on() -> None:
    for score, stops in ((0.71, False), (0.60, True)):
        halving = Halving([2], factor=3.0, margin=0.0)
        for other in range(1, 10):
            halving.note(other, 2, other / 10)
        assert halving.stops(0, 2, score) is stops


def test_a_trial_within_the_margin_of_the_cut_goes_on() -> None:
    for margin, stops in ((0.0, True), (0.02, False)):
        halving = Halving([2], factor=2.0, margin=margin)
        halving.note(0, 2, 0.8)
        assert halving.stops(1, 2, 0.79) is stops


def test_nothing_is_decided_between_rungs() -> None:
    halving = Halving([2, 6], factor=2.0, margin=0.0)
    halving.note(0, 3, 0.9)
    assert not halving.stops(1, 3, 0.1)


def test_a_trial_that_begins_again_is_not_compared_with_itself() -> None:
    halving = Halving([1], factor=2.0, margin=0.0)
    assert not halving.stops(0, 1, 0.9)
    assert not halving.stops(0, 1, 0.2)


def test_rungs_grow_by_the_factor_and_leave_the_last_quarter_alone() -> None:
    assert rungs(SearchSettings(), 10) == (3,)
    assert rungs(SearchSettings(), 20) == (3, 9)
    assert rungs(SearchSettings(), 100) == (16, 48)
    assert rungs(SearchSettings(grace_tasks=1, reduction_factor=2.5), 20) == (1, 3, 7)
    assert rungs(SearchSettings(), 3) == ()
    assert rungs(SearchSettings(early_stopping=False), 100) == ()
