"""TensorBoard files, read back."""

from __future__ import annotations

import math
import struct
from pathlib import Path

from orchestrator.tracking import (
    RunStarted,
    StageProgress,
    TaskEvaluated,
    TaskLearned,
    TrackingSettings,
    VersionCommitted,
    build_trackers,
)
from orchestrator.tracking.tensorboard import TensorboardTracker


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by tag, from TensorBoard's record format: length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_losses_metrics_and_parameters_are_written(tmp_path):
    tracker = TensorboardTracker(tmp_path)
    tracker.handle(RunStarted("r", "n", "b", "s", [], {"seed": 1}))
    tracker.handle(StageProgress("features", 3, 10, "tasks", 1200.0, "images"))
    tracker.handle(TaskLearned(1, "t", 2.0, 10, [0.5, 0.25], 100, 40))
    tracker.handle(VersionCommitted(1, "b", 7, "d", 0.1))
    tracker.handle(TaskEvaluated(1, 7, {"lda": {"accuracy": 0.75, "x": math.nan}}, 0.1))
    tracker.close()
    found = scalars(tmp_path / "tensorboard")
    assert found["loss/task-001"] == [(1, 0.5), (2, 0.25)]
    assert found["accuracy/lda"] == [(1, 0.75)]
    assert found["parameters/nonzero"] == [(1, 40.0)]
    assert found["bank/version"] == [(1, 7.0)]
    assert found["rate/features_images_per_second"] == [(3, 1200.0)]
    assert "x/lda" not in found


def test_a_task_found_in_the_bank_has_no_losses(tmp_path):
    tracker = TensorboardTracker(tmp_path)
    tracker.handle(TaskLearned(0, "t", 0.0, 10, [0.5], 100, 40, cached=True))
    tracker.close()
    assert set(scalars(tmp_path / "tensorboard")) == {"parameters/stored", "parameters/nonzero"}


def test_it_is_off_unless_asked_for(tmp_path):
    settings = TrackingSettings(console="quiet", wandb={"mode": "disabled"})
    with build_trackers(settings, tmp_path) as trackers:
        trackers.handle(RunStarted("r", "n", "b", "s", [], {}))
    assert not (tmp_path / "tensorboard").exists()
