"""SIGTERM while Ray starts: Ray's own handler exits, and the caller's shall decide."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pipelines.cluster.joining import _sigterm_kept


class StoppedError(Exception):
    """What the caller's handler raises."""


@pytest.fixture
def handler() -> Iterator[object]:
    def stop(number: int, frame: object) -> None:
        raise StoppedError(number)

    former = signal.signal(signal.SIGTERM, stop)
    yield stop
    signal.signal(signal.SIGTERM, former)


def exit_while_joining(code: int) -> None:
    with _sigterm_kept():
        signal.signal(signal.SIGTERM, lambda *_: None)  # as Ray does
        raise SystemExit(code)


def test_an_exit_by_sigterm_is_handed_to_the_callers_handler(handler: object) -> None:
    with pytest.raises(StoppedError):
        exit_while_joining(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_another_exit_passes_and_the_handler_comes_back(handler: object) -> None:
    with pytest.raises(SystemExit):
        exit_while_joining(1)
    assert signal.getsignal(signal.SIGTERM) is handler
