"""Events, the log on disk, and several trackers as one."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tracking import (
    CompositeTracker,
    Event,
    JsonlTracker,
    Notice,
    PartExtracted,
    RunFinished,
    RunStarted,
    StageProgress,
    TaskEvaluated,
    TaskLearned,
    TrackingSettings,
    VersionCommitted,
    build_trackers,
    event_from_json,
    read_events,
)
from orchestrator.tracking.events import EVENTS, json_value
from workers.errors import CorruptionError, DataError, StorageError

EXAMPLES: list[Event] = [
    RunStarted(
        run="r1",
        name="demo",
        bank="b",
        storage="s",
        tasks=[{"name": "t", "classes": ["ä", "<b>"], "train": 3, "validation": 0, "test": 1}],
        experiment={"seed": 1993, "stream": {"scenario": "class_incremental"}},
        resumed=True,
    ),
    StageProgress("features", 3, 10, "tasks", 1200.5, "images"),
    PartExtracted(0, "ab12", 512, 500, False, 1.5, ["a.jpg"]),
    TaskLearned(0, "t", 1.25, 40, [0.5, 0.25], 149808, 120000, False),
    VersionCommitted(0, "b", 1, "f" * 64, 0.01),
    TaskEvaluated(0, 1, {"lda": {"accuracy": 0.75}}, 0.3),
    Notice("warning", "a\nb"),
    RunFinished("failed", 63.0, {"version": 1}, "no module was learned"),
]


class Recorder:
    def __init__(self, fail_on: type[Event] | None = None) -> None:
        self.events: list[Event] = []
        self.closed = 0
        self._fail_on = fail_on

    def handle(self, event: Event) -> None:
        if self._fail_on and isinstance(event, self._fail_on):
            raise OSError("no route to host")
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.name_in_log)
def test_every_event_survives_json(event):
    data = json.loads(json.dumps(event.to_json(), allow_nan=False))
    assert list(data)[:2] == ["event", "time"]
    back = event_from_json(data)
    assert back.to_json() == event.to_json()
    assert abs(back.time - event.time) < 1e-5


def test_examples_cover_every_kind_of_event():
    assert {type(event) for event in EXAMPLES} == set(EVENTS.values())


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.name_in_log)
def test_events_cannot_be_changed(event):
    with pytest.raises(FrozenInstanceError):
        setattr(event, fields(event)[0].name, None)


def test_numbers_that_json_lacks_become_null():
    data = TaskEvaluated(
        0, 1, {"lda": {"nll": math.inf, "ece": math.nan, "accuracy": np.float32(0.5)}}, 0.0
    ).to_json()
    assert data["metrics"]["lda"] == {"nll": None, "ece": None, "accuracy": 0.5}


def test_arrays_sets_and_objects_become_plain_json():
    value = json_value({"a": np.arange(3), "b": {2, 1}, "c": (1, np.int64(2)), "d": object})
    assert json.loads(json.dumps(value)) == {
        "a": [0, 1, 2],
        "b": [1, 2],
        "c": [1, 2],
        "d": str(object),
    }


def test_a_newer_logs_extra_fields_are_ignored():
    data = EXAMPLES[-2].to_json() | {"colour": "red"}
    assert event_from_json(data).to_json() == EXAMPLES[-2].to_json()


@pytest.mark.parametrize("data", [{}, {"event": "nonsense"}, {"event": "notice", "level": "info"}])
def test_an_event_that_cannot_be_read_is_refused(data):
    with pytest.raises(DataError):
        event_from_json(data)


def test_a_number_that_is_text_is_refused():
    data = PartExtracted(0, "a", 1, 1, cached=False, seconds=0.5).to_json()
    for wrong in ({"seconds": "0.5"}, {"seconds": None}, {"rows": [1]}, {"skipped": 3}):
        with pytest.raises(DataError, match=next(iter(wrong))):
            event_from_json(data | wrong)


# -- the log ---------------------------------------------------------------------------------------------------


def test_the_log_reads_back_what_was_written(tmp_path):
    log = JsonlTracker(tmp_path / "run" / "events.jsonl")
    for event in EXAMPLES:
        log.handle(event)
    log.close()
    back = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert [event.to_json() for event in back] == [event.to_json() for event in EXAMPLES]


def test_each_event_is_on_disk_when_handle_returns(tmp_path):
    path = tmp_path / "events.jsonl"
    log = JsonlTracker(path)
    log.handle(EXAMPLES[0])
    assert [event.name_in_log for event in read_events(path)] == ["run_started"]
    log.close()


def test_progress_is_thinned_out_but_keeps_first_and_last(tmp_path):
    path = tmp_path / "events.jsonl"
    log = JsonlTracker(path)
    for done in range(1001):
        log.handle(StageProgress("features", done, 1000, "images"))
    log.close()
    done = [event.done for event in read_events(path) if isinstance(event, StageProgress)]
    assert done[0] == 0
    assert done[-1] == 1000
    assert len(done) < 50


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(min_value=1, max_value=10_000))
def test_a_log_torn_at_any_byte_is_read_and_continued(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    log = JsonlTracker(path)
    for event in EXAMPLES:
        log.handle(event)
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: cut % len(whole)])
    complete = path.read_bytes().count(b"\n")
    assert len(list(read_events(path))) == complete
    log = JsonlTracker(path)
    log.handle(Notice("info", "again"))
    log.close()
    back = list(read_events(path))
    assert len(back) == complete + 1
    assert back[-1].message == "again"


def test_a_torn_line_longer_than_a_block_is_cut_off(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(json.dumps(Notice("info", "one").to_json()).encode() + b"\n" + b"x" * 200_000)
    JsonlTracker(path).close()
    assert [event.message for event in read_events(path)] == ["one"]


def test_a_broken_line_in_the_middle_is_reported_with_its_number(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "no\n' + json.dumps(Notice("info", "one").to_json()) + "\n")
    with pytest.raises(CorruptionError, match="line 1"):
        list(read_events(path))


@pytest.mark.parametrize("line", ['"text"', "[1]", "7", "[" * 100_000])
def test_a_line_that_is_no_object_is_reported_with_its_number(tmp_path, line):
    path = tmp_path / "events.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(CorruptionError, match="line 1"):
        list(read_events(path))


def test_a_log_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        JsonlTracker(tmp_path / "file" / "events.jsonl")


def test_text_that_is_not_unicode_does_not_break_the_log(tmp_path):
    path = tmp_path / "events.jsonl"
    log = JsonlTracker(path)
    log.handle(Notice("warning", "image \udcff.jpg"))
    log.close()
    assert len(list(read_events(path))) == 1


# -- several trackers as one -----------------------------------------------------------------------------------


def test_a_tracker_that_raises_is_reported_once_and_left_out():
    bad, good = Recorder(fail_on=TaskLearned), Recorder()
    composite = CompositeTracker([good, bad])
    for event in (EXAMPLES[1], EXAMPLES[3], EXAMPLES[3], EXAMPLES[5]):
        composite.handle(event)
    notices = [event for event in good.events if isinstance(event, Notice)]
    assert [notice.level for notice in notices] == ["warning"]
    assert "no route to host" in notices[0].message
    assert len(good.events) == 5
    assert bad.events == [EXAMPLES[1]]
    assert bad.closed == 1


def test_two_trackers_failing_on_the_same_event_do_not_fail_the_run():
    trackers = [Recorder(fail_on=Event), Recorder(fail_on=Event), Recorder()]
    composite = CompositeTracker(trackers)
    composite.handle(EXAMPLES[0])
    assert [type(event) for event in trackers[2].events].count(Notice) == 2


def test_trackers_are_closed_from_the_last_to_the_first_and_only_once():
    order: list[str] = []

    class Closing(Recorder):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def close(self) -> None:
            order.append(self.name)
            if self.name == "b":
                raise OSError("full")

    first = Closing("a")
    composite = CompositeTracker([first, Closing("b"), Closing("c")])
    composite.close()
    composite.close()
    assert order == ["c", "b", "a"]
    assert any("full" in event.message for event in first.events)


def test_an_interrupt_is_not_swallowed():
    class Interrupted(Recorder):
        def handle(self, event: Event) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CompositeTracker([Interrupted()]).handle(EXAMPLES[0])


def test_a_run_always_has_its_log(tmp_path):
    settings = TrackingSettings(console="quiet", wandb={"mode": "disabled"})
    with build_trackers(settings, tmp_path / "runs" / "r1") as trackers:
        trackers.handle(EXAMPLES[0])
    assert len(list(read_events(tmp_path / "runs" / "r1" / "events.jsonl"))) == 1


def test_a_resumed_run_appends_to_its_log(tmp_path):
    settings = TrackingSettings(console="quiet", wandb={"mode": "disabled"})
    for _ in range(2):
        with build_trackers(settings, tmp_path) as trackers:
            trackers.handle(EXAMPLES[0])
    assert len(list(read_events(tmp_path / "events.jsonl"))) == 2
