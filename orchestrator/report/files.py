"""Everything a report leaves in the run's folder: the page, its figures as PNG, its tables as CSV, the metrics."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator import results
from orchestrator.report.data import ReportData, load_report
from orchestrator.report.html import render
from workers.errors import StorageError
from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage

PAGE = "report.html"
_QUICK_PLOTS = ("accuracy_over_tasks", "accuracy_matrix")


def build_report(
    run_dir: results.RunDir, *, final: bool = True, seconds: Callable[[], float] | None = None
) -> Path | str:
    """Writes a run's report from its files alone, and returns where the page is.

    Args:
        run_dir: the run's folder (or URI).
        final: False while the run goes on: only the page, with its two main figures, which takes a fraction
            of a second.
        seconds: asked for the run's duration when the page is all that is left to do, since most of what a report
            takes is its figures; None: what the run's log says.

    Raises:
        StorageError: there is no run in the folder, or it cannot be written.
        CorruptionError: the run's predictions or summary are damaged.
    """
    from orchestrator.report.plots import draw

    storage = Storage.open(run_dir)
    data = load_report(run_dir)
    only = None if final else _QUICK_PLOTS
    pictures: dict[str, str] = {}
    files: list[str] = []
    for plot in draw(data, only=only):
        pictures[plot.name] = plot.svg()
        if final:
            files.append(f"{plot.name}.png")
            write_atomic(storage, files[-1], plot.png())
    if final:
        for name, rows in tables(data).items():
            files.append(name)
            write_atomic(storage, name, _csv(rows))
        if data.methods:
            predictions = results.read_predictions(run_dir, results.METRIC_COLUMNS)
            results.write_metrics(run_dir, results.metric_table(predictions))
            files.append("metrics.parquet")
    if seconds is not None:
        data = replace(data, seconds=seconds())
    page = render(data, pictures, files)
    write_atomic(storage, PAGE, page.encode("utf-8", errors="xmlcharrefreplace"))
    try:
        return storage.local_path(PAGE)
    except StorageError:
        return storage.describe(PAGE)


def tables(data: ReportData) -> dict[str, Iterable[tuple[Any, ...]]]:
    """The CSV files by name, each with its header as the first row.  Tasks are counted from 0; shares are fractions."""
    found: dict[str, Iterable[tuple[Any, ...]]] = {"tasks.csv": _tasks(data)}
    if data.methods:
        found["metrics.csv"] = _metrics(data)
        found["accuracy_matrix.csv"] = _matrix(data)
        found["routing_confusion.csv"] = _confusion(data)
        found["reliability.csv"] = _reliability(data)
    return found


def _tasks(data: ReportData) -> Iterator[tuple[Any, ...]]:
    yield (
        *("task", "name", "classes", "train", "validation", "test", "seconds", "last_loss"),
        *("stored_parameters", "nonzero_parameters"),
    )
    for t in data.tasks:
        yield (
            *(
                t.index,
                t.name,
                t.class_count,
                t.train,
                t.validation,
                t.test,
                t.seconds,
                t.last_loss,
            ),
            *(t.stored, t.nonzero),
        )


def _metrics(data: ReportData) -> Iterator[tuple[Any, ...]]:
    names = list(dict.fromkeys(name for m in data.methods for name in m.metrics))
    yield ("method", "kind", *names)
    for m in data.methods:
        yield (m.name, m.method.kind, *(m.metrics.get(name) for name in names))


def _matrix(data: ReportData) -> Iterator[tuple[Any, ...]]:
    yield ("method", "kind", "after_task", "on_task", "samples", "right", "accuracy")
    for m in data.methods:
        accuracy = m.counts.accuracy
        for after, on in zip(*np.nonzero(m.counts.samples), strict=True):
            samples, right = m.counts.samples[after, on], m.counts.right[after, on]
            yield (m.name, m.method.kind, after, on, samples, right, float(accuracy[after, on]))


def _confusion(data: ReportData) -> Iterator[tuple[Any, ...]]:
    yield ("method", "kind", "true_task", "chosen_task", "samples")
    for m in data.methods:
        if m.confusion is not None:
            for true, chosen in zip(*np.nonzero(m.confusion), strict=True):
                yield (m.name, m.method.kind, true, chosen, m.confusion[true, chosen])


def _reliability(data: ReportData) -> Iterator[tuple[Any, ...]]:
    yield ("method", "kind", "bin", "samples", "mean_confidence", "accuracy")
    for m in data.methods:
        if m.reliability is not None:
            r = m.reliability
            points = zip(
                r.samples.tolist(), r.confidence.tolist(), r.accuracy.tolist(), strict=True
            )
            for number, point in enumerate(points):
                yield (m.name, m.method.kind, number, *point)


def _csv(rows: Iterable[tuple[Any, ...]]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_harmless(value) for value in row] for row in rows)
    return out.getvalue().encode("utf-8", errors="backslashreplace")


def _harmless(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value
