"""What a run's evaluators predicted, `luca predict` and the Python API predict as well."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

import orchestrator
from orchestrator import results
from orchestrator.commands.run import run_experiment
from orchestrator.experiment_files import parse_experiment
from tests.helpers import features_experiment
from tests.orchestrator.commands.command_line import CommandLine
from tests.orchestrator.small_bank import write_pictures

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

FEW_RANDOM_FEATURES = {"lda_ridge": {"ridge": {"random_features": 32}}}

ROUNDING = 1e-6
"""Predictions are kept as float32, and modules are run in other blocks there than here."""


def last_predictions(summary: dict[str, Any], method: str) -> pa.Table:
    """A method's predictions after the last task, in the order of sample ids."""
    made = results.read_predictions(summary["run_dir"])
    last = pc.equal(made["after_task"], summary["tasks"] - 1)
    return made.filter(pc.and_(last, pc.equal(made["method"], method))).sort_by("sample")


def test_features(file: Path) -> torch.Tensor:
    """The test rows of an experiment's file, whose ids are their row numbers."""
    table = pq.read_table(file)
    rows = table.filter(pc.equal(table["split"], "test"))["feature"].combine_chunks()
    return torch.from_numpy(np.array(rows.flatten()).reshape(len(rows), -1))


test_features.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recipe": "tosca"},
        {"evaluation": {"combination": "hard"}},
        {"features": {"dtype": "float16"}},
        {"recipe": "refined", "evaluation": {"router_options": FEW_RANDOM_FEATURES}},
    ],
    ids=["local", "tosca", "hard", "float16", "refined"],
)
def test_features_are_predicted_as_the_evaluators_did(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    experiment = features_experiment(tmp_path, **changes)
    summary = run_experiment(experiment, console=False)
    features = test_features(tmp_path / "features.parquet")
    bank = orchestrator.open_bank(tmp_path / "storage", "tiny")
    assert bank.load().router == experiment.evaluation.routers[0]
    for router in {"lda", "entropy", experiment.evaluation.routers[0]}:
        made = bank.load(router=router)(features)
        expected = last_predictions(summary, router)
        # Class indices of the stream are those of the bank when all its classes are learned.
        assert made.class_index.tolist() == expected["predicted"].to_pylist()
        assert made.task_index.tolist() == expected["routed_task"].to_pylist()
        for ours, theirs in (
            (made.confidence, expected["confidence"]),
            (made.routing_confidence, expected["routing_confidence"]),
        ):
            np.testing.assert_allclose(ours.numpy(), theirs.to_numpy(), atol=ROUNDING)


def test_images_are_predicted_as_the_evaluators_did(typed: CommandLine, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures" / "train", each=8).parent
    write_pictures(pictures / "test", each=4, first=500)
    source = {"kind": "image_folder", "path": str(pictures)}
    stream = {"scenario": "class_incremental", "classes_per_task": 2, "source": source}
    experiment = features_experiment(tmp_path).model_dump(mode="json")
    experiment.update(stream=stream, name="colours")
    summary = run_experiment(parse_experiment(experiment), console=False)
    expected = last_predictions(summary, "lda")
    done = typed(
        *("predict", "--bank", "colours", "--storage", tmp_path / "storage"),
        *(pictures / "test", "--format", "csv"),
    )
    assert done.code == 0, done.err
    found = list(csv.DictReader(io.StringIO(done.out)))
    assert [f"test/{Path(row['id']).relative_to(pictures / 'test')}" for row in found] == (
        expected["sample"].to_pylist()
    )
    classes = orchestrator.open_bank(tmp_path / "storage", "colours").load().class_names
    assert [row["class"] for row in found] == [
        classes[i] for i in expected["predicted"].to_pylist()
    ]
    np.testing.assert_allclose(
        [float(row["confidence"]) for row in found], expected["confidence"].to_numpy(), rtol=1e-4
    )
