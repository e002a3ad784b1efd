"""Events of a run and the trackers that show and keep them: console, JSON lines, W&B, TensorBoard."""

from orchestrator.tracking.events import (
    Event,
    Notice,
    PartExtracted,
    RunFinished,
    RunStarted,
    StageProgress,
    TaskEvaluated,
    TaskLearned,
    VersionCommitted,
    event_from_json,
)
from orchestrator.tracking.jsonl import JsonlTracker, read_events
from orchestrator.tracking.tracker import (
    CompositeTracker,
    Tracker,
    TrackingSettings,
    WandbSettings,
    build_trackers,
)

__all__ = [
    "CompositeTracker",
    "Event",
    "JsonlTracker",
    "Notice",
    "PartExtracted",
    "RunFinished",
    "RunStarted",
    "StageProgress",
    "TaskEvaluated",
    "TaskLearned",
    "Tracker",
    "TrackingSettings",
    "VersionCommitted",
    "WandbSettings",
    "build_trackers",
    "event_from_json",
    "read_events",
]
