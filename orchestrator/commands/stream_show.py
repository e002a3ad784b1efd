"""`luca stream show`: the tasks of an experiment, without touching a backbone, a bank or Ray."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.commands.text import aligned, plural, printable, shortened
from orchestrator.experiment_files import load_experiment
from pipelines.stream import build_stream, describe
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    from pipelines.stream import StreamSummary


def show_stream(source: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Print the tasks, their classes and counts, the warnings and the digest of an experiment's stream.

    Content digests are remembered in the experiment's storage, where the run will find them.

    Raises:
        SettingsError: the experiment is wrong, or contradicts the data.
        DataError: the samples do not make the stream.
    """
    experiment = load_experiment(source, overrides)
    storage = Storage.open(experiment.storage)
    index = str(storage.local_path("index")) if storage.is_local else None
    summary = describe(build_stream(experiment.stream, seed=experiment.seed, cache_dir=index))
    if as_json:
        print(
            json.dumps(
                {"name": experiment.name, "seed": experiment.seed, **summary.to_json()}, indent=2
            )
        )
    else:
        print(_text(experiment.name, experiment.seed, summary))


def _text(name: str, seed: int, summary: StreamSummary) -> str:
    kind = summary.kind
    if summary.feature_width is not None:
        kind = f"features of width {summary.feature_width}"
    domains = any(task.domain for task in summary.tasks)
    titles = [
        "task",
        *(["domain"] if domains else []),
        "train",
        "validation",
        "test",
        "new",
        "classes",
    ]
    rows: list[list[object]] = []
    seen: set[str] = set()
    for task in summary.tasks:
        new = len(set(task.classes) - seen)
        seen.update(task.classes)
        rows.append(
            [
                printable(task.name),
                *([printable(task.domain)] if domains else []),
                task.train,
                task.validation,
                task.test,
                new,
                shortened(task.classes),
            ]
        )
    lines = [
        f"{name}: {summary.scenario}, seed {seed}; {plural(len(summary.classes), 'class', 'classes')} in "
        f"{plural(len(summary.tasks), 'task')}; {kind}",
        "",
        aligned(titles, rows),
        "",
        *(f"warning: {printable(warning)}" for warning in summary.warnings),
        f"digest {summary.digest}",
    ]
    return "\n".join(lines)
