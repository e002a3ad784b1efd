"""Scenarios through the whole pipeline: several domains of the same classes, tasks that evaluation is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator import results
from orchestrator.commands.run import run_experiment
from orchestrator.experiment import Experiment, merge
from orchestrator.experiment_files import parse_experiment
from tests.helpers import features_experiment, write_features

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def write_domains(path: Path, *, classes: int = 3, domains: int = 3, width: int = 16) -> None:
    """The same classes in several domains; a domain moves all its features by an offset of its own."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, width)) * 2
    rows: list[dict[str, Any]] = []
    for d in range(domains):
        offset = rng.normal(size=width) * 6
        for c in range(classes):
            for i in range(30):
                rows.append(
                    {
                        "feature": (centres[c] + offset + rng.normal(size=width)).astype(
                            np.float32
                        ),
                        "label": f"class {c}",
                        "domain": f"domain {d}",
                        "split": "test" if i % 3 == 0 else "train",
                    }
                )
    table = pa.table(
        {
            "feature": pa.array([r["feature"] for r in rows], pa.list_(pa.float32(), width)),
            **{name: [r[name] for r in rows] for name in ("label", "domain", "split")},
        }
    )
    pq.write_table(table, path)


def _domain_experiment(folder: Path, **changes: Any) -> Experiment:
    data = features_experiment(folder).model_dump(mode="json")
    data["stream"] = {
        "scenario": "domain_incremental",
        "source": {"kind": "features", "path": str(folder / "features.parquet")},
    }
    return parse_experiment(merge(data, changes))


def test_a_prediction_is_a_class_whichever_domains_module_made_it(tmp_path: Path) -> None:
    write_domains(tmp_path / "features.parquet")
    summary = run_experiment(_domain_experiment(tmp_path), console=False)
    assert summary["tasks_learned"] == 3
    assert summary["metrics"]["lda"]["final_accuracy"] > 0.9
    assert summary["metrics"]["oracle"]["final_accuracy"] > 0.9
    predictions = results.read_predictions(summary["run_dir"])
    assert set(np.asarray(predictions["label"])) == {0, 1, 2}
    assert set(np.asarray(predictions["predicted"])) <= {0, 1, 2}
    assert set(np.asarray(predictions["task"])) == {0, 1, 2}


def test_the_published_recipe_meets_known_classes_again(tmp_path: Path) -> None:
    write_domains(tmp_path / "features.parquet")
    experiment = _domain_experiment(tmp_path, learning={"objective": "unified"}, whitening="none")
    summary = run_experiment(experiment, console=False)
    assert summary["metrics"]["lda"]["final_accuracy"] > 0.8


def test_told_the_task_the_headline_is_the_router_that_is_told_it(tmp_path: Path) -> None:
    write_features(tmp_path / "features.parquet", spread=6.0)
    changes = {
        "stream": {"scenario": "task_incremental"},
        "evaluation": {"routers": ["lda"], "baselines": ["joint_linear"]},
    }
    summary = run_experiment(features_experiment(tmp_path, **changes), console=False)
    metrics = summary["metrics"]
    assert summary["primary"] == "oracle"
    assert metrics["oracle"]["routing_accuracy"] == 1.0
    assert metrics["oracle"]["final_accuracy"] > metrics["lda"]["final_accuracy"] + 0.1
    assert abs(metrics["oracle"]["gap_to_joint"]) < 0.2
    report = Path(summary["report"]).read_text()
    assert "among the classes of their own task, which is given, by oracle" in report
