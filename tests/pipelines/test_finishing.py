"""What is finished though Ctrl-C comes meanwhile."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from orchestrator.stopping import StopOnTerm
from pipelines.cluster.finishing import finish


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_waits_for_the_end(number: signal.Signals) -> None:
    done: list[str] = []

    def action() -> None:
        os.kill(os.getpid(), number)
        done.append("to the end")

    with StopOnTerm() as stop:
        with pytest.raises(KeyboardInterrupt):
            finish(action)
        assert stop.received == (number is signal.SIGTERM)
    assert done == ["to the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_is_obeyed_at_once() -> None:
    done: list[str] = []

    def action() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        done.append("to the end")

    with pytest.raises(KeyboardInterrupt):
        finish(action)
    assert done == []


def test_what_goes_wrong_in_it_is_told() -> None:
    def action() -> None:
        raise OSError("would not stop")

    with pytest.raises(OSError, match="would not stop"):
        finish(action)


def test_outside_the_main_thread_it_is_simply_called() -> None:
    threads: list[threading.Thread] = []
    caller = threading.Thread(
        target=lambda: finish(lambda: threads.append(threading.current_thread()))
    )
    caller.start()
    caller.join()
    assert threads == [caller]
