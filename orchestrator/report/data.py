"""Everything a report shows, read from the files in a run's folder and from nothing else.

So a report can be built again at any time, of a run that is still going on, has stopped, or was made by someone else.
What is missing is left out; what is damaged becomes a warning in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orchestrator import results
from orchestrator.report.methods import KIND_TITLES, TASKS_GIVEN, Method, describe
from orchestrator.report.story import Story, TaskFacts
from orchestrator.tracking.events import RunStarted
from orchestrator.tracking.jsonl import read_events
from workers.errors import CorruptionError, StorageError
from workers.storage.filesystem import Storage
from workers.wording import plural

_MOST_BINS, _FEWEST_BINS, _LEAST_IN_BIN = 15, 3, 10


@dataclass(frozen=True)
class Reliability:
    """Samples in bins of (nearly) equal size by confidence: mean confidence, accuracy and size of each bin."""

    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    samples: NDArray[np.int64]


@dataclass(frozen=True)
class MethodResult:
    """A method with all that its predictions say.  ``confusion`` [T, T]: samples of task i routed to task j."""

    method: Method
    counts: results.Counts
    metrics: Mapping[str, float]
    forgetting: NDArray[np.float64]
    confusion: NDArray[np.int64] | None
    reliability: Reliability | None

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.name


@dataclass(frozen=True)
class ReportData:
    """A run as its files tell it."""

    run: str
    name: str
    bank: str
    storage: str
    status: str
    started: datetime | None
    seconds: float | None
    version: int | None
    digest: str | None
    scenario: str | None
    tasks: tuple[TaskFacts, ...]
    learned: int
    methods: tuple[MethodResult, ...]
    primary: str | None
    stages: Mapping[str, float]
    cache: Mapping[str, Any]
    backbone_images: int | None
    parameters: Mapping[str, Any]
    warnings: tuple[str, ...]
    experiment_yaml: str
    test_samples: int
    resumed: bool = False
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tasks_given(self) -> bool:
        """Whether the stream tells evaluation the task of every test sample."""
        return self.scenario == TASKS_GIVEN

    @property
    def classes(self) -> int:
        """Classes of the tasks learned so far, a class that comes in several tasks counted once if named."""
        learned = self.tasks[: self.learned]
        names = {name for task in learned for name in task.class_names}
        return len(names) or sum(task.class_count for task in learned)

    def find(self, name: str | None) -> MethodResult | None:
        """The method of that name, if the run has it."""
        return next((m for m in self.methods if m.name == name), None)

    def of_kind(self, *kinds: str) -> tuple[MethodResult, ...]:
        """The methods of some kinds."""
        return tuple(m for m in self.methods if m.method.kind in kinds)


def load_report(run_dir: results.RunDir) -> ReportData:
    """Reads a run's folder.

    Raises:
        StorageError: there is no run in it.
        CorruptionError: its predictions or summary are damaged.
    """
    storage = Storage.open(run_dir)
    story = Story()
    if storage.is_local and storage.exists("events.jsonl"):
        try:
            shown = False  # a session that only showed a finished run again changed nothing
            for event in read_events(storage.local_path("events.jsonl")):
                if isinstance(event, RunStarted):
                    shown = bool(event.shown) and story.start is not None
                if not shown:
                    story.tell(event)
        except CorruptionError as error:
            story.warn(str(error))
    summary = _summary(run_dir, story)
    predictions = _predictions(run_dir)
    if story.start is None and not summary and predictions is None:
        raise StorageError(
            f"{storage.describe()} holds no run: give a folder that has events.jsonl or predictions"
        )
    yaml = storage.read_if_exists("experiment.yaml") or b""
    folder = storage.root.rpartition("/")[2]
    return _assemble(folder, story, summary, predictions, yaml.decode("utf-8", errors="replace"))


def data_from(summary: Mapping[str, Any], predictions: pa.Table | None) -> ReportData:
    """A report of what is at hand, without a folder: a summary as in ``summary.json``, and predictions."""
    return _assemble(str(summary.get("run", "")), Story(), summary, predictions, "")


def _assemble(
    folder: str,
    story: Story,
    summary: Mapping[str, Any],
    predictions: pa.Table | None,
    yaml: str,
) -> ReportData:
    start = story.start
    experiment: Mapping[str, Any] = start.experiment if start else {}
    scenario = _text(summary.get("scenario") or _dig(experiment, "stream", "scenario"))
    methods = _methods(predictions, summary.get("methods"), scenario)
    reached = max((m.counts.samples.shape[0] for m in methods), default=0)
    tasks = story.tasks(reached)
    warnings = dict.fromkeys([*story.warnings, *map(str, summary.get("warnings") or ())])
    finished = story.finish
    return ReportData(
        run=str(summary.get("run") or (start.run if start else folder)),
        name=str(summary.get("name") or (start.name if start else "")),
        bank=str(summary.get("bank") or (start.bank if start else "")),
        storage=start.storage if start else "",
        status=_status(story, summary, complete=0 < len(tasks) == reached),
        started=story.started,
        seconds=finished.seconds if finished else story.elapsed,
        version=summary.get("version", story.version),
        digest=summary.get("digest", story.digest),
        scenario=scenario,
        tasks=tasks,
        learned=reached,
        methods=methods,
        primary=_primary(methods, summary, experiment),
        stages=summary.get("seconds_by_stage") or story.stages,
        cache=summary.get("cache") or story.cache,
        backbone_images=summary.get("backbone_images", story.images),
        parameters=summary.get("parameters") or {},
        warnings=(*warnings, *_own_warnings(methods, story)),
        experiment_yaml=yaml,
        test_samples=_last_samples(methods),
        resumed=start.resumed if start else False,
        summary=summary,
    )


def _status(story: Story, summary: Mapping[str, Any], *, complete: bool) -> str:
    """How the run stands; the report is written just before a run says that it has finished."""
    if story.finish:
        return story.finish.status
    return str(
        summary.get("status")
        or ("finished" if "version" in summary and complete else "in progress")
    )


def _summary(run_dir: results.RunDir, story: Story) -> dict[str, Any]:
    """The summary; of one from before the last start only what does not change as a run goes on."""
    entry = Storage.open(run_dir).info("summary.json")
    if entry is None:
        return {}
    summary = results.read_summary(run_dir)
    if story.start is None or not entry.modified or entry.modified >= story.start.time:
        return summary
    return {key: summary[key] for key in ("methods", "primary", "scenario") if key in summary}


def _predictions(run_dir: results.RunDir) -> pa.Table | None:
    storage = Storage.open(run_dir)
    if not storage.exists("predictions.parquet") and not storage.list("predictions"):
        return None
    try:
        return results.read_predictions(run_dir, results.METRIC_COLUMNS)
    except CorruptionError:
        raise
    except StorageError:
        return None


def _methods(
    predictions: pa.Table | None, said: Mapping[str, Any] | None, scenario: str | None
) -> tuple[MethodResult, ...]:
    if predictions is None or predictions.num_rows == 0:
        return ()
    metrics = results.metrics_from_predictions(predictions)
    found = []
    for name, counts in results.count(predictions).items():
        last = results.rows_after(predictions, name)
        found.append(
            MethodResult(
                method=describe(name, said=said, scenario=scenario),
                counts=counts,
                metrics=metrics[name],
                forgetting=results.forgetting_by_task(counts),
                confusion=_confusion(last, counts.samples.shape[0]),
                reliability=reliability(last),
            )
        )
    kinds = list(KIND_TITLES)
    return tuple(sorted(found, key=lambda m: kinds.index(m.method.kind)))


def _confusion(last: results.LastRows, tasks: int) -> NDArray[np.int64] | None:
    routed = last.routed_task >= 0
    if not routed.any():
        return None
    cell = last.task[routed].astype(np.int64) * tasks + last.routed_task[routed]
    return np.bincount(cell, minlength=tasks * tasks).reshape(tasks, tasks)


def reliability(last: results.LastRows) -> Reliability | None:
    """The reliability diagram's points, in the 15 bins over which the expected calibration error is taken.

    Fewer bins where they would hold fewer than ten samples, since chance would make the line a zigzag; at least
    three.  None when the method gives no confidence.
    """
    known = np.isfinite(last.confidence)
    if not known.any():
        return None
    bins = min(_MOST_BINS, max(_FEWEST_BINS, int(known.sum()) // _LEAST_IN_BIN))
    confidence = last.confidence[known].astype(np.float64)
    # Samples of equal confidence share their mean correctness, so their order does not matter.
    unique, inverse, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
    hits = np.bincount(inverse, weights=last.right[known], minlength=len(unique))
    right = (hits / sizes)[inverse]
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return Reliability(
        confidence=np.array([confidence[part].mean() for part in parts]),
        accuracy=np.array([right[part].mean() for part in parts]),
        samples=np.array([len(part) for part in parts]),
    )


def _primary(
    methods: Sequence[MethodResult], summary: Mapping[str, Any], experiment: Mapping[str, Any]
) -> str | None:
    """The method that stands for the run: the one the run names, else the first router in the settings.

    Never the best one: that would choose by test data.
    """
    names = [m.name for m in methods]
    routers = _dig(experiment, "evaluation", "routers")
    wanted = [summary.get("primary"), _dig(experiment, "evaluation", "router")]
    if _dig(experiment, "stream", "scenario") == TASKS_GIVEN:
        wanted.insert(1, "oracle")
    wanted += routers if isinstance(routers, list) else []
    for name in wanted:
        if name in names and methods[names.index(name)].method.kind == "router":
            return str(name)
    for kind in ("router", "baseline", "order"):
        for m in methods:
            if m.method.kind == kind:
                return m.name
    return names[0] if names else None


def _own_warnings(methods: Iterable[MethodResult], story: Story) -> list[str]:
    out = []
    ordered = [m.name for m in methods if m.method.kind == "order"]
    if ordered:
        out.append(
            f"Dependent on the order of the test samples, since one module is chosen for a whole batch of "
            f"them: {', '.join(ordered)}. Shown for comparison with published figures only."
        )
    if story.skipped:
        some = ", ".join(story.skipped[:3]) + (", ..." if len(story.skipped) > 3 else "")
        out.append(f"left out: {plural(len(story.skipped), 'unreadable sample')} ({some})")
    return out


def _last_samples(methods: Sequence[MethodResult]) -> int:
    return max((int(m.counts.samples[-1].sum()) for m in methods), default=0)


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
