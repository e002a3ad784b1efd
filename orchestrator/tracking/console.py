"""Progress for people, always on standard error: bars on a terminal, sparse plain lines elsewhere.

Standard output is left to what other programs read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TextIO

from orchestrator.tracking.events import (
    Event,
    Notice,
    RunFinished,
    RunStarted,
    StageProgress,
    TaskEvaluated,
    TaskLearned,
)
from workers.wording import plural

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from orchestrator.tracking.tracker import Tracker

_MOST_METHODS = 4  # accuracies named on a task's line; the rest is in the table at the end


def console_tracker(
    mode: Literal["auto", "rich", "plain"] = "auto", stream: TextIO | None = None
) -> Tracker:
    """The console tracker for ``stream`` (default: standard error)."""
    stream = stream or sys.stderr
    if mode == "rich" or (mode == "auto" and stream.isatty()):
        return RichConsoleTracker(stream)
    return PlainConsoleTracker(stream)


class PlainConsoleTracker:
    """One line an occasion: at a stage's first and last state, and every few seconds in between."""

    def __init__(self, stream: TextIO | None = None, *, every: float = 5.0) -> None:
        self._stream = stream or sys.stderr
        self._every = every
        self._printed: dict[str, tuple[float, int, int]] = {}
        self._story = _Story()

    def handle(self, event: Event) -> None:
        """Prints the event's line, if it has one now."""
        if isinstance(event, StageProgress):
            if self._is_due(event):
                self._print(progress_line(event))
            return
        line = self._story.line(event)
        if line:
            self._print(line)

    def close(self) -> None:
        """Nothing is kept."""

    def _is_due(self, event: StageProgress) -> bool:
        now = time.monotonic()
        last = self._printed.get(event.stage)
        state = (event.done, event.total)
        if last is not None:
            due = now - last[0] >= self._every or event.done >= event.total
            if not due or last[1:] == state:
                return False
        self._printed[event.stage] = (now, *state)
        return True

    def _print(self, line: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        safe = line.encode(encoding, errors="backslashreplace").decode(encoding)
        self._stream.write(safe + "\n")
        self._stream.flush()


class RichConsoleTracker:
    """A bar for each stage, with the tasks' lines scrolling above."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(
            file=stream or sys.stderr, force_terminal=True, highlight=False, markup=False
        )
        self._progress: Progress = Progress(
            TextColumn("{task.description:<12}", markup=False, style="bold"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            refresh_per_second=4,
        )
        self._bars: dict[str, TaskID] = {}
        self._story = _Story()

    def handle(self, event: Event) -> None:
        """Moves a bar or prints the event's line above the bars."""
        if isinstance(event, StageProgress):
            self._move(event)
            return
        line = self._story.line(event)
        if line:
            from rich.text import Text

            style = "yellow" if isinstance(event, Notice) and event.level == "warning" else ""
            if isinstance(event, (RunStarted, RunFinished)):
                style = "bold"
            self._console.print(Text(line, style=style), soft_wrap=True)
        if isinstance(event, RunFinished):
            self._progress.stop()

    def close(self) -> None:
        """Takes the bars off the screen."""
        self._progress.stop()

    def _move(self, event: StageProgress) -> None:
        if event.stage not in self._bars:
            self._bars[event.stage] = self._progress.add_task(event.stage, total=None, state="")
            self._progress.start()
        bar = self._bars[event.stage]
        self._progress.update(bar, completed=event.done, total=event.total, state=_state(event))
        if event.done >= event.total:
            self._progress.stop_task(bar)


class _Story:
    """The line that an event deserves, given those before it."""

    def __init__(self) -> None:
        self._tasks: list[Mapping[str, object]] = []
        self._scenario: str | None = None
        self._learned: dict[int, TaskLearned] = {}

    def line(self, event: Event) -> str | None:
        if isinstance(event, RunStarted):
            self._tasks = list(event.tasks)
            self._scenario = event.scenario
            train = sum(_count(task.get("train")) for task in event.tasks)
            test = sum(_count(task.get("test")) for task in event.tasks)
            verb = "continues" if event.resumed else "starts"
            return (
                f"run {event.run} {verb}: {plural(len(event.tasks), 'task')}, {train:,} training and "
                f"{plural(test, 'test sample')}, bank {event.bank!r} in {event.storage}"
            )
        if isinstance(event, TaskLearned):
            self._learned[event.task] = event
            return None
        if isinstance(event, TaskEvaluated):
            return self._evaluated(event)
        if isinstance(event, Notice):
            return f"warning: {event.message}" if event.level == "warning" else event.message
        if isinstance(event, RunFinished):
            return f"{event.status} after {duration(event.seconds)}"
        return None

    def _evaluated(self, event: TaskEvaluated) -> str:
        of = f"/{len(self._tasks)}" if self._tasks else ""
        learned = self._learned.get(event.task)
        name = learned.name if learned else ""
        if not name and event.task < len(self._tasks):
            name = str(self._tasks[event.task].get("name", ""))
        how = ""
        if learned:
            how = (
                " found in the bank"
                if learned.cached
                else f" learned in {duration(learned.seconds)}"
            )
        scores = _scores(event.metrics, self._scenario)
        more = f", and {len(scores) - _MOST_METHODS} more" if len(scores) > _MOST_METHODS else ""
        told = ", ".join(scores[:_MOST_METHODS]) + more
        title = f"task {event.task + 1}{of}" + (f" {name!r}" if name else "")
        return f"{title}{how}; bank version {event.version}" + (f": {told}" if told else "")


def _scores(metrics: Mapping[str, Mapping[str, float]], scenario: str | None) -> list[str]:
    """Each method's accuracy; results first, and bounds and order dependence marked as such."""
    from orchestrator.report.methods import KIND_TITLES, describe

    kinds = list(KIND_TITLES)
    methods = sorted(
        (describe(name, scenario=scenario) for name in metrics), key=lambda m: kinds.index(m.kind)
    )
    values = {
        m: metrics[m.name].get("accuracy", metrics[m.name].get("final_accuracy")) for m in methods
    }
    return [f"{m.title} {100 * value:.1f} %" for m, value in values.items() if value is not None]


def progress_line(event: StageProgress) -> str:
    """A stage's state in one line: ``features  3/10 tasks  1,200 images/s``."""
    return f"{event.stage}  {_state(event)}"


def duration(seconds: float) -> str:
    """``0.42 s``, ``12 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _state(event: StageProgress) -> str:
    text = f"{event.done:,}/{event.total:,} {event.unit}"
    if event.rate is not None:
        amount = f"{event.rate:,.0f}" if event.rate >= 10 else f"{event.rate:.2g}"
        text += f"  {amount} {event.rate_unit or event.unit}/s"
    return text


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
