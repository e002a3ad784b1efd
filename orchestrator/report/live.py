"""Keeps the report of a run that goes on up to date, as one more tracker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.tracking.events import Event, RunStarted, TaskEvaluated


class LiveReport:
    """Rebuilds the page after a task was evaluated, in at most a twentieth of the time.

    A run of quick tasks gets its page every few seconds rather than after every task, and a long run, whose page
    takes longer to build, less often.  After the last task nothing is built: the final report comes at once.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        at_least: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir = run_dir
        self._at_least = at_least
        self._clock = clock
        self._next = clock()
        self._last: int | None = None

    def handle(self, event: Event) -> None:
        """Rebuilds the page when it is due.

        Raises:
            LucaError: the run's files cannot be read, or the page cannot be written.
        """
        if isinstance(event, RunStarted):
            self._last = len(event.tasks) - 1
        if not isinstance(event, TaskEvaluated) or self._clock() < self._next:
            return
        if event.task == self._last:
            return
        from orchestrator.report.files import build_report

        began = self._clock()
        build_report(self._run_dir, final=False)
        ended = self._clock()
        self._next = ended + max(self._at_least, 19 * (ended - began))

    def close(self) -> None:
        """Nothing is kept."""
