"""Points of a space: drawn, enumerated, and what may not be searched."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.search.settings import Range
from pipelines.search.space import SearchSpace, default_space, get_at, set_at
from workers.errors import SettingsError


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    low = draw(st.integers(1, 50))
    high = low + draw(st.integers(1, 50))
    kind = draw(st.sampled_from(["plain", "log", "step"]))
    scale: Any = draw(st.sampled_from([1, 0.37]))
    step = {"step": draw(st.integers(1, 7)) * scale} if kind == "step" else {}
    return Range(low=low * scale, high=high * scale, log=kind == "log", **step)


@given(ranges(), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_draws_and_grids_stay_inside_a_range(domain: Range, seed: int) -> None:
    space = SearchSpace({"learning.l1": domain})
    values = [space.draw(random.Random(seed + i))["learning.l1"] for i in range(5)]
    values += [point["learning.l1"] for point in space.grid()]
    assert all(domain.low <= value <= domain.high + 1e-9 for value in values)
    assert all(isinstance(value, int) == domain.whole for value in values)
    if domain.step is not None:
        steps = [(value - domain.low) / domain.step for value in values]
        assert all(abs(step - round(step)) < 1e-6 for step in steps)


def test_a_grid_has_every_combination_once() -> None:
    space = SearchSpace({"luca.ratio": (8, 16), "learning.epochs": Range(low=1, high=3, step=1)})
    points = {tuple(point.values()) for point in space.grid()}
    assert points == {(r, e) for r in (8, 16) for e in (1, 2, 3)}
    assert space.size == 6


def test_a_logarithmic_range_of_whole_numbers_reaches_both_ends() -> None:
    space = SearchSpace({"luca.ratio": Range(low=1, high=4, log=True)})
    drawn = {space.draw(random.Random(i))["luca.ratio"] for i in range(200)}
    assert drawn == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("seed", "search.repeats"),
        ("stream.classes_per_task", "same stream"),
        ("backbone.name", "cached features"),
        ("features.views", "cached features"),
        ("storage", "does not change what a trial measures"),
        ("evaluation.baselines", "no part"),
        ("search.trials", "its own settings"),
    ],
)
def test_what_would_make_trials_incomparable_is_refused(key: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        SearchSpace({key: (1, 2)})


def test_the_default_space_gives_exact_zeros_to_a_subgradient_experiment() -> None:
    assert "learning.l1_mode" not in default_space(l1_mode="proximal")
    assert default_space(l1_mode="subgradient")["learning.l1_mode"] == ("proximal",)


def test_setting_a_dotted_key_leaves_its_neighbours_and_the_original_alone() -> None:
    data = {"learning": {"l1": 1, "epochs": 2}, "seed": 3}
    changed = set_at(data, "learning.l1", 9)
    assert changed == {"learning": {"l1": 9, "epochs": 2}, "seed": 3}
    assert data["learning"] == {"l1": 1, "epochs": 2}
    assert get_at(set_at({}, "a.b.c", [1]), "a.b.c") == [1]
    with pytest.raises(KeyError):
        get_at(data, "seed.x")
