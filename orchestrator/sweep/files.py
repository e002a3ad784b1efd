"""What a sweep leaves in its folder: the page, figures, tables, and chosen settings as experiment files.

sweeps/<id>/sweep.html  pareto.png importance.png trials.png  trials.csv  results.json  best.yaml smallest.yaml
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from orchestrator.sweep.opening import Sweep
from orchestrator.sweep.page import render_sweep
from orchestrator.sweep.results import SweepResult
from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage

PAGE = "sweep.html"


def write_sweep(sweep: Sweep, result: SweepResult, storage: Storage) -> str:
    """Write a sweep's files from its result.

    Returns:
        Where the page is, for people.

    Raises:
        StorageError: they cannot be written.
    """
    from orchestrator.sweep.plots import draw_sweep

    def put(name: str, content: bytes | str) -> None:
        data = content.encode() if isinstance(content, str) else content
        write_atomic(storage, f"{sweep.directory}/{name}", data)

    pictures: dict[str, str] = {}
    for plot in draw_sweep(result):
        pictures[plot.name] = plot.svg()
        put(f"{plot.name}.png", plot.png())
    put("trials.csv", _csv(result))
    chosen = {"best.yaml": result.best, "smallest.yaml": result.smallest}
    experiments = {
        name: sweep.chosen(record).to_yaml()
        for name, record in chosen.items()
        if record is not None
    }
    for name, text in experiments.items():
        put(name, text)
    details = {
        **result.to_json(),
        "smallest": None if result.smallest is None else result.smallest.id,
        "importance": result.importance,
        "about": dict(result.about),
        "records": [record.to_json() for record in result.records],
    }
    put("results.json", json.dumps(details, indent=1))
    files = [*(f"{name}.png" for name in pictures), "trials.csv", "results.json"]
    page = render_sweep(result, pictures, best=experiments.get("best.yaml", ""), files=files)
    write_atomic(
        storage, f"{sweep.directory}/{PAGE}", page.encode("utf-8", errors="xmlcharrefreplace")
    )
    return storage.describe(f"{sweep.directory}/{PAGE}")


def _csv(result: SweepResult) -> str:
    keys = list(dict.fromkeys(key for record in result.records for key in record.settings))
    front = {record.id for record in result.pareto}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            *("trial", "published", "status", "pareto", "tasks", "validation_accuracy", "spread"),
            *("nonzero_parameters", "stored_parameters", "seconds", *keys, "error"),
        ]
    )
    for record in result.records:
        writer.writerow(
            [
                record.id,
                record.published,
                record.status,
                record.id in front,
                record.tasks,
                record.validation_accuracy,
                record.spread,
                record.nonzero_parameters,
                record.stored_parameters,
                record.seconds,
                *(_cell(record.settings.get(key)) for key in keys),
                record.error,
            ]
        )
    return out.getvalue()


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value
