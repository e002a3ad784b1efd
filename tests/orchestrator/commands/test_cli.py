"""The command line itself: quick to answer, and every mistake one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.orchestrator.commands.command_line import CommandLine

HEAVY = ("torch", "ray", "timm", "pandas", "sklearn", "pyarrow", "numpy", "wandb", "pydantic")
COMMANDS = ("run", "stream", "init", "doctor", "predict", "schema")


def loaded_after(statement: str) -> set[str]:
    """Which heavy packages a fresh interpreter has imported after a statement."""
    code = f"import sys\n{statement}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_neither_torch_nor_ray_nor_anything_large() -> None:
    statement = (
        "from orchestrator.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0"
    )
    assert loaded_after(statement) == set()


def test_opening_a_bank_needs_neither_torch_nor_ray() -> None:
    assert loaded_after("import orchestrator; orchestrator.open_bank") <= {"numpy", "pydantic"}


def test_help_names_every_command(typed: CommandLine) -> None:
    done = typed("--help")
    assert done.code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in done.out


@pytest.mark.parametrize("command", [*COMMANDS, ("stream", "show")])
def test_every_command_explains_itself(typed: CommandLine, command: str | tuple[str, ...]) -> None:
    words = (command,) if isinstance(command, str) else command
    done = typed(*words, "--help")
    assert done.code == 0
    assert "Usage: " in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rum"], "No such command 'rum'"),
        (["predict", "--bnak", "demo", "."], "No such option: --bnak"),
        (["predict", "."], "Missing option '--bank'"),
        (["predict", ".", "--bank", "a", "--batch-size", "0"], "Invalid value for '--batch-size'"),
        (["rum\n\x1b[2J"], "No such command 'rum"),
    ],
)
def test_a_wrong_command_line_ends_in_one_sentence(
    typed: CommandLine, arguments: list[str], words: str
) -> None:
    sentence = typed.refused(*arguments)
    assert words in sentence
    assert sentence.endswith("--help")


@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [(">&-", 0, ""), (">&- 2>&-", 0, ""), ("> /dev/full", 2, "standard output cannot be written")],
)
def test_output_that_nobody_can_take_is_no_fault_of_the_program(
    tmp_path: Path, redirection: str, code: int, words: str
) -> None:
    command = f"{sys.executable} -m orchestrator.cli bank list --storage {tmp_path} {redirection}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == bool(words)


def test_an_unknown_attribute_of_the_package_is_an_attribute_error() -> None:
    import orchestrator

    with pytest.raises(AttributeError, match="no attribute 'bank'"):
        _ = orchestrator.bank  # type: ignore[attr-defined]
