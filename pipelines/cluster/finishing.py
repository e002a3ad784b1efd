"""Finishes what must not be left half done, though an impatient Ctrl-C comes meanwhile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM)


def finish(action: Callable[[], None]) -> None:
    """Run ``action`` to its end; a first SIGINT or SIGTERM meanwhile waits until then, a second one does not.

    Ray that is stopped by half ends the whole process, without a word and with exit code 1.

    Raises:
        KeyboardInterrupt: there was such a signal, and its handler raises this.
    """
    if threading.current_thread() is not threading.main_thread():  # which no signal interrupts
        action()
        return
    former = {number: signal.getsignal(number) for number in _STOPPING}
    came: list[int] = []

    def handle(number: int, _: Any) -> None:
        came.append(number)
        if len(came) > 1:
            restore()
            signal.raise_signal(number)

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler or signal.SIG_DFL)

    for number in _STOPPING:
        signal.signal(number, handle)
    try:
        action()
    finally:
        restore()
    if came:
        signal.raise_signal(came[0])
