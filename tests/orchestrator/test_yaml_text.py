"""YAML as people write it: no Python error gets through, no key is dropped, nothing runs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.manifests.files import to_yaml
from orchestrator.yaml_text import parse_yaml, write_yaml
from workers.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: 2020-99-99", "line 1, column 7: a value that is no timestamp"),
        (f"seed: {'9' * 5000}", "no int"),
        ("seed: !!bool perhaps", "no bool"),
        ("seed: !!int ''", "no int"),
        ("seed: !!timestamp soon", "no timestamp"),
        ("seed: !!float x", "no float"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key 'a' stands there twice"),
        ("a: {b: 1, b: 2}", "'b' stands there twice"),
        ("[" * 5000, "nested too deeply"),
        ("{a: " * 3000, "nested too deeply"),
        ("? [1, 2]\n: 3", "unhashable key"),
        ("a: 1\n---\na: 2", "another document"),
        ("a: \0", "not allowed"),
        ("a:\n\tb: 1", "line 2, column 1: a tab where spaces are needed: use spaces"),
        ("x: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
    ],
)
def test_what_cannot_be_a_value_is_told_by_place(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_yaml(text)
    assert words in str(caught.value), caught.value


def test_merged_keys_may_be_overridden() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}"
    assert parse_yaml(text) == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", "+1e-3", "0.001", ".001"])
def test_numbers_are_read_in_every_usual_spelling(text: str) -> None:
    assert parse_yaml(text) == 0.001


@given(text=st.from_regex(r"[-+]?[0-9_]{1,3}(\.[0-9]?)?[eE][-+]?[0-9]{1,2}", fullmatch=True))
@settings(max_examples=50, deadline=None)
def test_text_that_looks_like_a_number_stays_text_when_it_is_written(text: str) -> None:
    assert parse_yaml(write_yaml({"bank": text})) == {"bank": text}


@given(text=st.text(alphabet="ab:1-&*!<>{}[]?'\"\n\t #|%@,.~=_\\", max_size=30))
@settings(max_examples=30, deadline=None)
def test_any_text_is_a_value_or_one_sentence(text: str) -> None:
    with contextlib.suppress(SettingsError):  # anything else would reach the user as a traceback
        parse_yaml(text)


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
@example(value={"\x85": "a\u2028b", "\ufeff": ["\u2029", "\r\n", "\ud7ff\U0001f600"]})
@settings(max_examples=30, deadline=None)
def test_plain_data_are_read_as_they_were_written(value: object) -> None:
    assert parse_yaml(write_yaml(value)) == value
    assert parse_yaml(to_yaml({"command": value})) == {"command": value}
