"""`luca evaluate`: score a version of a bank on a stream's test samples, without learning and without Ray."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.experiment_files import load_experiment
from orchestrator.preparation import Prepared, check_backbone, prepare_evaluation
from workers.errors import BankError, FeatureCorruptionError
from workers.wording import plural

if TYPE_CHECKING:
    from workers.scored import Scored, TestPart
    from workers.storage.bank import BankVersion


def evaluate_command(source: str, overrides: Sequence[str], *, ref: str, as_json: bool) -> None:
    """Print accuracies of a version by router.

    Raises:
        BankError: there is no such version, or it holds no task of this stream.
    """
    experiment = load_experiment(source, overrides)
    prepared, version, indices = prepare_evaluation(experiment, ref)
    scored = score(prepared, version, indices)
    summary = summarise(prepared, version, scored)
    if as_json:
        json.dump(summary, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("router")
    table.add_column("accuracy %", justify="right")
    table.add_column("right task %", justify="right")
    for router, metrics in summary["metrics"].items():
        table.add_row(
            router,
            f"{100 * metrics['final_accuracy']:.1f}",
            f"{100 * metrics['routing_accuracy']:.1f}",
        )
    console = Console(highlight=False)
    console.print(heading(summary), markup=False, soft_wrap=True)
    console.print(table)


def heading(summary: Mapping[str, Any]) -> str:
    """Which version was scored, and on how many test samples of how many classes."""
    return (
        f"bank {summary['bank']} version {summary['version']}: {plural(summary['samples'], 'test sample')} of "
        f"{plural(summary['classes'], 'class', 'classes')}"
    )


def score(prepared: Prepared, version: BankVersion, indices: Sequence[int]) -> Scored:
    """Predictions for the test samples of the stream's tasks at ``indices``; features are made where missing.

    Raises:
        BankError: no task has test samples, or the bank was learned from another backbone.
    """
    from workers.bank_scoring import Scorer
    from workers.extraction import Extractor, PartRequest
    from workers.storage.features import FeatureCache

    e, stream = prepared.experiment, prepared.stream
    indices = [index for index in indices if len(prepared.tasks[index].task.test)]
    if not indices:
        raise BankError(
            f"the tasks that version {version.version} of bank '{version.bank.name}' holds have no test samples in "
            "this stream; mark some as test (`luca stream show` counts them)"
        )
    extractor = Extractor(
        reader=stream.reader,
        backbone=e.backbone if stream.reader.kind == "images" else None,
        settings=e.features,
        seed=e.seed,
        storage=prepared.storage,
        feature_width=stream.feature_width,
        device="auto",
    )
    check_backbone(version, extractor.backbone_info())
    cache, plan = FeatureCache(prepared.storage), prepared.plan
    parts = [p for index in indices for p in plan.parts_of(prepared.tasks[index].task.test)]
    for part in parts:
        if not cache.has(plan.key(part, 0, extractor.backbone_key)):
            extractor.extract(PartRequest(plan.samples_of(part)))
    scorer = Scorer(
        prepared.storage, version.bank.name, class_names=stream.classes, settings=e.scoring
    )
    tests = _parts(prepared, version, indices, extractor.backbone_key)
    try:
        return scorer.score(version.version, tests, e.scoring.reported_routers)
    except FeatureCorruptionError:
        for part in parts:
            extractor.extract(PartRequest(plan.samples_of(part)))
        return scorer.score(version.version, tests, e.scoring.reported_routers)


def _parts(
    prepared: Prepared, version: BankVersion, indices: Sequence[int], backbone: str
) -> list[TestPart]:
    """Test samples with the position of their task in the bank, which may lack tasks of the stream."""
    from workers.scored import TestPart

    position = {record.id: place for place, record in enumerate(version.tasks)}
    return [
        TestPart(
            position[prepared.tasks[index].id],
            prepared.plan.rows(prepared.tasks[index].task.test, backbone),
        )
        for index in indices
    ]


def summarise(prepared: Prepared, version: BankVersion, scored: Scored) -> dict[str, Any]:
    """What ``--json`` prints."""
    return {
        "name": prepared.experiment.name,
        "bank": version.bank.name,
        "version": version.version,
        "digest": version.digest,
        "samples": len(scored.label),
        "classes": len(np.unique(scored.label)),
        "metrics": {
            router: {
                "final_accuracy": float(np.mean(made.predicted == scored.label)),
                "routing_accuracy": float(np.mean(made.routed_task == scored.task)),
            }
            for router, made in scored.methods.items()
        },
    }
