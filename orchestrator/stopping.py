"""SIGTERM stops a command as Ctrl-C does: schedulers, `docker stop` and `ray job stop` send it."""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes of a command that was stopped by SIGINT or SIGTERM, as shells count them."""


class StopOnTerm:
    """While this context is open, SIGTERM raises KeyboardInterrupt in the main thread, once.

    A second SIGTERM ends the process at once.

    Attributes:
        received: whether SIGTERM came.
    """

    def __init__(self) -> None:
        self.received = False
        self._former: Any = None
        self._mine = threading.current_thread() is threading.main_thread()

    @property
    def code(self) -> int:
        """The exit code of a command that was stopped."""
        return TERMINATED if self.received else INTERRUPTED

    def __enter__(self) -> StopOnTerm:
        if self._mine:  # only the main thread may
            self._former = signal.signal(signal.SIGTERM, self._stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._mine:
            signal.signal(signal.SIGTERM, self._former or signal.SIG_DFL)

    def _stop(self, *_: object) -> None:
        self.received = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt
