"""What an error prints is one readable line, whatever was put into it."""

from __future__ import annotations

import copy

import pytest

from workers.errors import LONGEST_SENTENCE, DataError, first_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot open x:\n- method gz\r\n- method xz\n", "cannot open x: - method gz - method xz"),
        ("class '\x1b[2Jevil' of 'a\0b'", r"class '\x1b[2Jevil' of 'a\x00b'"),
        ("file 'photo\u202egpj.exe'", r"file 'photo\u202egpj.exe'"),
        (
            "two  spaces stay, and so do é and 日本語 🙂",
            "two  spaces stay, and so do é and 日本語 🙂",
        ),
        ("name '\udcff'", r"name '\udcff'"),
    ],
)
def test_a_sentence_is_one_line_of_printable_characters(text: str, shown: str) -> None:
    assert str(DataError(text)) == shown
    assert str(copy.copy(DataError(text))) == shown


def test_a_long_sentence_keeps_its_beginning_and_its_end() -> None:
    text = f"no file '{'x' * 5000}': name another one"
    shown = str(DataError(text))
    assert len(shown) <= LONGEST_SENTENCE + 10
    assert shown.startswith("no file 'xxx")
    assert shown.endswith("xxx': name another one")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n  it went wrong.\nTraceback and more"), "it went wrong"),
        (KeyError(), "KeyError"),
        (RuntimeError(" \n"), "RuntimeError"),
    ],
)
def test_what_another_library_says_is_told_in_its_first_line(error: Exception, line: str) -> None:
    assert first_line(error) == line
