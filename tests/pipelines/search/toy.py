"""A small stream of clustered features with its parts in the cache, as trials read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from orchestrator.sweep.opening import Sweep
from pipelines.features import FeaturePlan
from pipelines.search.data import SweepPlan
from pipelines.search.planning import needed_parts, rungs, sweep_stream
from pipelines.search.trial_report import TrialReport
from pipelines.search.trial_settings import TrialSettings
from pipelines.stream import Stream
from tests.helpers import features_experiment
from workers.extraction import Extractor, PartRequest
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings
from workers.storage.features import ready_key
from workers.storage.filesystem import Storage


def toy_sweep(folder: Path, **changes: Any) -> Sweep:
    """A sweep over three tasks of two classes; ``changes`` are keys of the experiment."""
    experiment = features_experiment(folder, **changes)
    return Sweep.from_data(yaml.safe_load(experiment.to_yaml()), where="tiny")


def extract(stream: Stream, plan: FeaturePlan, sweep: Sweep, *, test: bool = False) -> str:
    """Put the parts that trials need (and test parts) into the cache, and return the backbone's key."""
    e = sweep.experiment
    assert stream.feature_width is not None
    extractor = Extractor(
        reader=stream.reader,
        backbone=None,
        settings=e.features,
        seed=e.seed,
        storage=Storage.open(e.storage),
        feature_width=stream.feature_width,
        device="cpu",
    )
    key = ready_key(stream.feature_width, e.features.dtype)
    wanted = {part for part, _ in needed_parts(stream, plan, backbone=key, views=0)}
    if test:
        wanted |= {part for task in stream.tasks for part in plan.parts_of(task.test)}
    for part in wanted:
        extractor.extract(PartRequest(samples=plan.samples_of(part), view=0))
    return key


def toy_plan(sweep: Sweep) -> SweepPlan:
    """What trial processes of the sweep are told, with all parts cached."""
    streams = []
    for stream, plan, seed in sweep.streams():
        key = extract(stream, plan, sweep)
        streams.append(sweep_stream(stream, plan, backbone=key, seed=seed))
    return SweepPlan(
        storage=sweep.experiment.storage,
        streams=tuple(streams),
        views=0,
        rungs=rungs(sweep.experiment.search, len(streams[0].tasks)),
        check=sweep.experiment.stream.validation_fraction > 0,
    )


def trial_settings(**learning: Any) -> TrialSettings:
    """Settings of a quick trial."""
    return TrialSettings(
        luca=LucaSettings(ratio=4),
        learning=LearningSettings(**{"epochs": 3, **learning}),
        whitening="first_task",
        evaluation=EvaluationSettings(),
    )


def report(tasks: int, accuracy: float, nonzero: float = 100.0, *, of: int = 4) -> TrialReport:
    """A report of a trial that got ``accuracy`` right after so many tasks."""
    return TrialReport(tasks, (accuracy,), (accuracy * tasks / of,), nonzero, 200.0, 0.5)
