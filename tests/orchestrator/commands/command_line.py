"""Runs the command line inside the test's process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from orchestrator.cli import main


@dataclass(frozen=True)
class Done:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one sentence of a user's mistake."""
        (line,) = self.err.strip().splitlines()
        assert line.startswith("luca: ")
        return line


class CommandLine:
    """``typed(...)`` runs ``luca`` as if typed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: Any) -> Done:
        """Run ``luca`` with these arguments."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = self._capsys.readouterr()
        return Done(int(end.value.code or 0), printed.out, printed.err)

    def refused(self, *arguments: Any) -> str:
        """Run a command that must end as a user's mistake: code 2, one sentence, nothing on standard output."""
        done = self(*arguments)
        assert done.code == 2, done
        assert done.out == ""
        return done.sentence
