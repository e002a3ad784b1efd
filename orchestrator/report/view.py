"""The words and cells of a report, the same for the page and for the terminal.

Numbers are rounded here, when they are printed, and nowhere before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.report.data import MethodResult, ReportData
from orchestrator.report.methods import KIND_TITLES
from orchestrator.report.story import TaskFacts
from orchestrator.scores import is_joint
from orchestrator.tracking.console import duration
from workers.wording import fixed, plural

if TYPE_CHECKING:
    from typing import TypeGuard

_ROW_CLASS = {"upper bound": "bound", "lower bound": "bound", "order": "order"}
_ROUTED = ("router", "order")  # decide without being told the task, the oracle aside
_LONG = 15  # tasks from which the table of steps is folded away


@dataclass(frozen=True)
class Column:
    """A column of the main table: which metric, and how it is printed."""

    metric: str
    title: str
    unit: str
    scale: float = 100.0
    digits: int = 1


COLUMNS = (
    Column("final_accuracy", "final accuracy", "%"),
    Column("average_incremental_accuracy", "average incremental", "%"),
    Column("forgetting", "forgetting", "points"),
    Column("routing_accuracy", "right task chosen", "%"),
    Column("gap_to_joint", "gap to joint", "points"),
    Column("expected_calibration_error", "calibration error", "points"),
    Column("negative_log_likelihood", "log loss", "nats", 1.0, 3),
)
"""The main table."""

MORE_COLUMNS = (
    Column("task_weighted_average_accuracy", "mean over tasks", "%"),
    Column("backward_transfer", "backward transfer", "points"),
    Column("forward_transfer", "forward transfer", "points"),
    Column("forgetting_from_peak", "forgetting from peak", "points"),
    Column("forgetting_from_learned", "forgetting from learned", "points"),
)
"""What others call by the same names, under names of their own."""

GLOSSARY = (
    (
        "final accuracy",
        "share of all test samples classified rightly after the last task, deciding among all classes; "
        "every sample counts the same",
    ),
    (
        "average incremental",
        "mean over the steps of the sample-weighted accuracy over all classes seen by then",
    ),
    (
        "mean over tasks",
        "mean over the tasks of the accuracy on each task after the last one (ACC of GEM; Renate)",
    ),
    (
        "forgetting",
        "mean over all tasks but the last of the best accuracy before the last step minus the final one "
        "(Chaudhry et al. 2018); negative where tasks improved",
    ),
    (
        "backward transfer",
        "mean over all tasks but the last of the final accuracy minus that right after learning the task "
        "(Lopez-Paz and Ranzato 2017)",
    ),
    (
        "right task chosen",
        "share of test samples for which the module of their own task was chosen",
    ),
    (
        "gap to joint",
        "final accuracy of the best classifier trained on all tasks at once, on the same features, minus "
        "the method's",
    ),
    (
        "calibration error",
        "expected calibration error over 15 bins of equally many samples: how far confidence and accuracy "
        "are apart",
    ),
    ("log loss", "mean negative natural logarithm of the probability given to the true class"),
    (
        "upper bound",
        "uses what a deployed model cannot know (the task of a sample, or all data at once); not a result",
    ),
    (
        "test-order dependent",
        "averages over batches of a test set that is ordered by class, as published figures do; not a result",
    ),
)


@dataclass(frozen=True)
class Row:
    """One method's row; a None cell has no value."""

    name: str
    mark: str
    note: str
    css: str
    cells: tuple[str | None, ...]


@dataclass(frozen=True)
class Group:
    """Rows of one kind of method."""

    kind: str
    title: str
    rows: tuple[Row, ...]


def columns(data: ReportData, among: Sequence[Column] = COLUMNS) -> tuple[Column, ...]:
    """The columns for which some method has a value; of a single task, routing says nothing."""
    return tuple(
        c
        for c in among
        if any(value_of(m, c) is not None for m in data.methods)
        and (data.learned > 1 or c.metric != "routing_accuracy")
    )


def groups(data: ReportData, shown: Sequence[Column] | None = None) -> tuple[Group, ...]:
    """The main table: methods by kind, results first and bounds last."""
    shown = columns(data) if shown is None else shown
    out = []
    for kind, title in KIND_TITLES.items():
        rows = tuple(
            _row(data, m, [_cell(data, m, column) for column in shown]) for m in data.of_kind(kind)
        )
        if rows:
            out.append(Group(kind, title, rows))
    return tuple(out)


def step_rows(data: ReportData) -> tuple[Row, ...]:
    """Accuracy over all classes seen after each task, in per cent, a row a method."""
    return tuple(
        _row(
            data,
            m,
            [percent(v) if np.isfinite(v) else None for v in m.counts.seen_accuracy.tolist()],
        )
        for m in data.methods
    )


def steps_are_long(data: ReportData) -> bool:
    """Whether there are too many steps for a table that is read at once."""
    return data.learned > _LONG


def value_of(m: MethodResult, column: Column) -> float | None:
    """A method's value for a column, unrounded; bounds have no gap to a bound."""
    if column.metric == "gap_to_joint" and m.method.kind == "upper bound":
        return None
    return m.metrics.get(column.metric)


def joint_bound(data: ReportData) -> MethodResult | None:
    """The better of the classifiers trained on all tasks' data at once, if the run has one for its last task."""
    joint = [
        m for m in data.of_kind("upper bound") if is_joint(m.name) and "final_accuracy" in m.metrics
    ]
    return max(joint, key=lambda m: m.metrics["final_accuracy"], default=None)


def among(data: ReportData, m: MethodResult | None) -> str:
    """Among which classes a method decides."""
    told = (
        m is not None
        and data.tasks_given
        and (m.name.startswith("oracle") or m.method.kind not in _ROUTED)
    )
    return (
        "among the classes of their own task, which is given" if told else "among all classes seen"
    )


def headline(data: ReportData) -> list[str]:
    """What happened, in sentences."""
    primary = data.find(data.primary)
    if primary is None or not data.learned:
        return ["No task has been evaluated yet."]
    m = primary.metrics
    tasks = plural(data.learned, "task")
    of = f" of {len(data.tasks)}" if len(data.tasks) > data.learned else ""
    out = [
        f"After {tasks}{of} with {plural(data.classes, 'class', 'classes')}, {percent(m['final_accuracy'])} % of the "
        f"{data.test_samples:,} test samples are classified rightly {among(data, primary)}, by "
        f"{primary.method.title}" + (f" ({primary.method.note})." if primary.method.note else ".")
    ]
    if data.learned > 1:
        out.append(_over_time(m))
    out.append(_bounds(data, primary))
    return [sentence for sentence in out if sentence]


def _over_time(m: Mapping[str, float]) -> str:
    parts = []
    if "average_incremental_accuracy" in m:
        parts.append(
            f"Averaged over the steps it was {percent(m['average_incremental_accuracy'])} %"
        )
    if "forgetting" in m:
        lost = round(100 * m["forgetting"], 1)
        verb = "lost" if lost >= 0 else "gained"
        parts.append(
            f"earlier tasks have {verb} {abs(lost):.1f} points on average since their best"
        )
    return "; ".join(parts) + "." if parts else ""


def _bounds(data: ReportData, primary: MethodResult) -> str:
    parts = []
    routing = primary.metrics.get("routing_accuracy")
    if routing is not None and not _task_is_given(data, primary):
        parts.append(f"The right task is chosen for {percent(routing)} % of the samples")
    oracle = next((m for m in data.of_kind("upper bound") if m.name.startswith("oracle")), None)
    if oracle and "final_accuracy" in oracle.metrics:
        parts.append(
            f"told the true task, the modules would reach {percent(oracle.metrics['final_accuracy'])} %"
        )
    joint = joint_bound(data)
    if joint:
        parts.append(
            f"trained on all tasks at once, {joint.name} reaches "
            f"{percent(joint.metrics['final_accuracy'])} % on the same features"
        )
    text = "; ".join(parts)
    bounds = [m for m in (oracle, joint) if m]
    if text and bounds:
        text += " (an upper bound)" if len(bounds) == 1 else " (both are upper bounds)"
    return text[:1].upper() + text[1:] + "." if text else ""


def cards(data: ReportData) -> list[dict[str, str]]:
    """The few numbers that come first."""
    primary = data.find(data.primary)
    if primary is None:
        return []
    out = []
    for metric in (
        "final_accuracy",
        "average_incremental_accuracy",
        "forgetting",
        "routing_accuracy",
    ):
        column = next(c for c in COLUMNS if c.metric == metric)
        value = value_of(primary, column)
        if value is None or (metric == "routing_accuracy" and _task_is_given(data, primary)):
            continue
        out.append(
            {
                "value": fixed(column.scale * value, column.digits),
                "unit": column.unit,
                "label": f"{column.title}, {primary.method.title}",
            }
        )
    if data.seconds is not None:
        amount, unit = clock(data.seconds)
        label = "since the run was last started" if data.resumed else "whole run"
        out.append({"value": amount, "unit": unit, "label": label})
    return out


def facts(data: ReportData) -> list[tuple[str, str, str]]:
    """Label, value and CSS class of what stands under the title."""
    out = [("", data.status, f"status {data.status.split()[0]}"), ("run", data.run, "")]
    if data.bank:
        version = f", version {data.version}" if data.version is not None else ""
        out.append(("bank", f"{data.bank}{version}", ""))
    if data.scenario:
        out.append(("scenario", data.scenario.replace("_", "-"), ""))
    if data.started:
        out.append(("started", f"{data.started:%Y-%m-%d %H:%M} UTC", ""))
    if data.seconds is not None:
        out.append(("took", duration(data.seconds), ""))
    return out


def costs(data: ReportData) -> list[tuple[str, str]]:
    """Images, cache and parameters, as label and value."""
    out = []
    if data.backbone_images is not None:
        out.append(("images through the backbone", f"{data.backbone_images:,}"))
    hits, misses = data.cache.get("hits"), data.cache.get("misses")
    if isinstance(hits, int) and isinstance(misses, int) and hits + misses:
        share = percent(hits / (hits + misses))
        text = f"{hits:,} of {hits + misses:,} feature parts were there already ({share} %)"
        for key, what in (("bytes", ""), ("bytes_written", " written")):
            if _is_number(size := data.cache.get(key)):
                text += f"; {size_text(size)}{what}"
        out.append(("feature cache", text))
    stored = data.parameters.get("stored", _total(data.tasks, "stored"))
    nonzero = data.parameters.get("nonzero", _total(data.tasks, "nonzero"))
    if _is_number(stored) and stored:
        text = f"{stored:,} stored"
        if _is_number(nonzero):
            text += f", {nonzero:,} not zero ({percent(nonzero / stored)} %)"
        out.append(("module parameters", text))
    dense, sparse = data.parameters.get("dense_bytes"), data.parameters.get("stored_bytes")
    if _is_number(sparse) and sparse:
        text = size_text(sparse) + (f" ({size_text(dense)} if dense)" if _is_number(dense) else "")
        out.append(("modules on disk", text))
    return out


def task_cells(task: TaskFacts) -> tuple[str | None, ...]:
    """A task's cells: train, validation, test, seconds, last loss, stored, non-zero in per cent."""
    whole = [f"{v:,}" if v is not None else None for v in (task.train, task.validation, task.test)]
    return (
        *whole,
        fixed(task.seconds, 1) if task.seconds is not None else None,
        fixed(task.last_loss, 3) if task.last_loss is not None else None,
        f"{task.stored:,}" if task.stored is not None else None,
        percent(task.density) if task.density is not None else None,
    )


def class_list(task: TaskFacts, most: int = 12) -> str:
    """The task's class names, the first few of many."""
    if not task.class_names:
        return plural(task.class_count, "class", "classes") if task.class_count else ""
    more = len(task.class_names) - most
    return ", ".join(task.class_names[:most]) + (f", and {more} more" if more > 0 else "")


def percent(share: float) -> str:
    """A share in per cent with one digit."""
    return fixed(100 * share, 1)


def clock(seconds: float) -> tuple[str, str]:
    """A time in few characters and its unit: ("42", "s"), ("3:20", "min"), ("2:05", "h")."""
    whole = round(seconds)
    if whole < 60:
        amount, _, unit = duration(seconds).partition(" ")
        return amount, unit
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}", "min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}", "h"


def size_text(size: float) -> str:
    """Bytes for people: 512 B, 3.4 kB, 12.0 MB, ..."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _row(data: ReportData, m: MethodResult, cells: Sequence[str | None]) -> Row:
    css = _ROW_CLASS.get(m.method.kind, "primary" if m.name == data.primary else "")
    return Row(m.name, m.method.mark, m.method.note, css, tuple(cells))


def _cell(data: ReportData, m: MethodResult, column: Column) -> str | None:
    if column.metric == "routing_accuracy" and _task_is_given(data, m):
        return "given"
    value = value_of(m, column)
    return None if value is None else fixed(column.scale * value, column.digits)


def _task_is_given(data: ReportData, m: MethodResult) -> bool:
    """Whether choosing the right task is no achievement."""
    return m.name.startswith("oracle") or data.learned == 1


def _total(tasks: Sequence[TaskFacts], what: str) -> int | None:
    values = [getattr(task, what) for task in tasks]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
