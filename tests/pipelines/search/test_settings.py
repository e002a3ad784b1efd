"""What an experiment may say about a sweep."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.search import Range, SearchSettings


def space(value: Any) -> dict[str, Any]:
    found = SearchSettings(space=value).space
    assert found is not None
    return dict(found)


def test_lists_and_ranges_are_told_apart() -> None:
    found = space({"luca.ratio": [8, 16], "learning.l1": {"low": 1e-5, "high": 1e-2, "log": True}})
    assert found == {"luca.ratio": (8, 16), "learning.l1": Range(low=1e-5, high=1e-2, log=True)}


def test_nested_keys_mean_the_same_as_dotted_ones() -> None:
    nested = {"learning": {"l1": {"low": 1, "high": 2}, "epochs": [1, 2]}, "luca": {"ratio": [8]}}
    dotted = {"learning.l1": {"low": 1, "high": 2}, "learning.epochs": [1, 2], "luca.ratio": [8]}
    assert space(nested) == space(dotted)


def test_whole_bounds_make_a_range_of_whole_numbers() -> None:
    assert Range(low=1, high=8).whole
    assert not Range(low=1, high=8.5).whole
    assert not Range(low=1, high=8, step=0.5).whole


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"learning.l1": 3}, "learning.l1: give a list of values or a range"),
        ({"learning.l1": []}, "learning.l1 has an empty list"),
        ({"learning.l1": {"low": 1, "hi": 2}}, "a range has no 'hi'"),
        ({"learning.l1": {"low": 1}}, "a range needs 'high'"),
        ({"learning.l1": {"low": 2, "high": 1}}, "low 2 must be below high 1"),
        ({"learning.l1": {"low": 0, "high": 1, "log": True}}, "needs it above 0"),
        ({"learning.l1": {"low": 1, "high": 2, "log": True, "step": 1}}, "leave one out"),
        ({"learning.l1": {"low": "a", "high": 2}}, "found 'a'"),
        ({"learning.l1": {"low": "1e-5", "high": 2}}, "low should be a number, found '1e-5'"),
        ({"learning.l1": {"low": 0.5, "high": True}}, "high should be a number, found True"),
        ({}, "at least one key"),
    ],
)
def test_a_wrong_space_is_refused_in_words(value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SearchSettings(space=value)


def test_written_out_settings_can_be_read_again() -> None:
    settings = SearchSettings(space={"a.b": {"low": 1, "high": 9}, "c": [[1, 2], None]})
    assert SearchSettings.model_validate(settings.model_dump(mode="json")) == settings
