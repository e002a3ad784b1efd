"""What people see while a run goes on."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from orchestrator.tracking import (
    Notice,
    RunFinished,
    RunStarted,
    StageProgress,
    TaskEvaluated,
    TaskLearned,
    TrackingSettings,
    build_trackers,
)
from orchestrator.tracking.console import (
    PlainConsoleTracker,
    RichConsoleTracker,
    console_tracker,
    duration,
    progress_line,
)

START = RunStarted(
    run="r1",
    name="demo",
    bank="b",
    storage="s",
    tasks=[{"name": f"task {i}", "train": 600, "test": 100} for i in range(10)],
    experiment={},
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_progress_line_reads_as_documented():
    event = StageProgress("features", 3, 10, "tasks", 1200.0, "images")
    assert progress_line(event) == "features  3/10 tasks  1,200 images/s"


def test_plain_lines_come_at_the_start_the_end_and_now_and_then():
    out = io.StringIO()
    tracker = PlainConsoleTracker(out, every=3600)
    for done in range(101):
        tracker.handle(StageProgress("features", done, 100, "images"))
    tracker.handle(StageProgress("features", 100, 100, "images"))
    tracker.handle(StageProgress("learning", 0, 10))
    assert out.getvalue().splitlines() == [
        "features  0/100 images",
        "features  100/100 images",
        "learning  0/10 tasks",
    ]


def test_plain_lines_follow_the_clock():
    out = io.StringIO()
    tracker = PlainConsoleTracker(out, every=0)
    for done in range(5):
        tracker.handle(StageProgress("features", done, 100, "images"))
    assert len(out.getvalue().splitlines()) == 5


@pytest.mark.parametrize("make", [PlainConsoleTracker, RichConsoleTracker])
def test_the_story_of_a_run_is_told(make):
    out = io.StringIO()
    tracker = make(out)
    tracker.handle(START)
    tracker.handle(StageProgress("features", 3, 10, "tasks", 1200.0))
    tracker.handle(TaskLearned(0, "task 0", 1.5, 10, [0.1], 10, 5))
    tracker.handle(TaskEvaluated(0, 1, {"oracle": {"accuracy": 1}, "lda": {"accuracy": 0.751}}, 0))
    tracker.handle(Notice("warning", "the disk [bold] is nearly full"))
    tracker.handle(RunFinished("finished", 63.2))
    tracker.close()
    text = out.getvalue()
    assert "run r1 starts: 10 tasks, 6,000 training and 1,000 test samples" in text
    assert (
        "task 1/10 'task 0' learned in 1.5 s; bank version 1: lda 75.1 %, oracle (upper bound) 100.0 %"
        in text
    )
    assert "warning: the disk [bold] is nearly full" in text
    assert "finished after 1 min 03 s" in text


def test_bars_are_for_terminals_only():
    assert isinstance(console_tracker("auto", io.StringIO()), PlainConsoleTracker)
    assert isinstance(console_tracker("auto", Terminal()), RichConsoleTracker)
    assert isinstance(console_tracker("plain", Terminal()), PlainConsoleTracker)


@pytest.mark.parametrize("mode", ["rich", "plain"])
def test_nothing_goes_to_standard_output(mode, tmp_path, capsys):
    settings = TrackingSettings(console=mode, wandb={"mode": "disabled"})
    with build_trackers(settings, tmp_path) as trackers:
        trackers.handle(START)
        trackers.handle(StageProgress("features", 1, 2))
        print("the answer")
        trackers.handle(RunFinished("stopped", 1.0))
    captured = capsys.readouterr()
    assert captured.out == "the answer\n"
    assert "run r1" in captured.err


def test_a_terminal_without_unicode_still_gets_its_lines():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    PlainConsoleTracker(out).handle(Notice("info", "classe été"))
    assert raw.getvalue() == b"classe \\xe9t\\xe9\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.042, "0.042 s"), (1.5, "1.5 s"), (12.4, "12 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_durations_are_written_for_people(seconds, text):
    assert duration(seconds) == text


def test_a_run_of_one_task_is_counted_as_one():
    out = io.StringIO()
    one = replace(START, tasks=[{"name": "task 0", "train": 1000, "test": 1}])
    PlainConsoleTracker(out).handle(one)
    assert "starts: 1 task, 1,000 training and 1 test sample, bank 'b'" in out.getvalue()
