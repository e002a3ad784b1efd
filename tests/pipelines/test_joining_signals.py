"""SIGTERM while Ray starts: Ray's own handler exits, and the caller's shall decide."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from pipelines.cluster.joining import _sigterm_kept


class Stopped(Exception):
    """What the caller's handler raises."""


@pytest.fixture
def handler() -> Iterator[object]:
    def stop(number: int, frame: object) -> None:
        raise Stopped(number)

    former = signal.signal(signal.SIGTERM, stop)
    yield stop
    signal.signal(signal.SIGTERM, former)


def test_an_exit_by_sigterm_is_handed_to_the_callers_handler(handler: object) -> None:
    with pytest.raises(Stopped), _sigterm_kept():
        signal.signal(signal.SIGTERM, lambda *_: None)  # as Ray does
        raise SystemExit(signal.SIGTERM.value)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_another_exit_passes_and_the_handler_comes_back(handler: object) -> None:
    with pytest.raises(SystemExit), _sigterm_kept():
        signal.signal(signal.SIGTERM, lambda *_: None)
        raise SystemExit(1)
    assert signal.getsignal(signal.SIGTERM) is handler
