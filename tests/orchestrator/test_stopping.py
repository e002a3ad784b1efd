"""What stops a command, and with which exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import typer

from orchestrator.cli import guarded
from orchestrator.stopping import StopOnTerm


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(5)


def test_sigterm_ends_a_command_with_143_and_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cleaned: list[str] = []

    def command() -> None:
        try:
            send(signal.SIGTERM)
        finally:
            cleaned.append("up")

    assert guarded(command) == 143
    assert cleaned == ["up"]
    error = capsys.readouterr().err
    assert error.startswith("luca: interrupted; what was committed is safe")
    assert error.count("\n") == 1


def test_ctrl_c_ends_a_command_with_130_and_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert guarded(lambda: send(signal.SIGINT)) == 130
    assert capsys.readouterr().err.startswith("luca: interrupted")


def test_what_typer_makes_of_an_interrupt_is_one_as_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = typer.Typer()

    @app.command()
    def stuck() -> None:
        send(signal.SIGTERM)

    assert guarded(lambda: app(args=[], standalone_mode=False)) == 143
    assert "interrupted" in capsys.readouterr().err


def test_other_exit_codes_pass(capsys: pytest.CaptureFixture[str]) -> None:
    def leave() -> None:
        raise typer.Exit(1)

    assert guarded(leave) == 1
    assert guarded(lambda: None) == 0
    assert capsys.readouterr().err == ""


def test_the_former_handler_comes_back() -> None:
    former = signal.getsignal(signal.SIGTERM)
    with StopOnTerm():
        assert signal.getsignal(signal.SIGTERM) is not former
    assert signal.getsignal(signal.SIGTERM) is former


def test_a_second_sigterm_does_not_wait_for_the_clean_up() -> None:
    code = (
        "import os, signal, time\n"
        "from orchestrator.stopping import StopOnTerm\n"
        "with StopOnTerm():\n"
        "    try: os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)\n"
        "    finally: os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=25, check=False)
    assert done.returncode == -signal.SIGTERM


def test_a_command_in_another_thread_is_left_alone() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(guarded(lambda: 7)))
    thread.start()
    thread.join()
    assert codes == [7]
