"""Task-incremental streams: evaluation is told the task of every test sample, and what is not told it says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from orchestrator import results
from orchestrator.report.data import data_from
from orchestrator.report.tables import print_report
from orchestrator.tracking import RunStarted, TaskEvaluated
from orchestrator.tracking.console import _Story
from tests.helpers import features_experiment, write_features
from tests.orchestrator import in_process
from tests.orchestrator.in_process import Events, InProcess
from tests.orchestrator.streams import write_predictions
from tests.workers.storage.bank_cases import quick_disk  # noqa: F401

pytestmark = pytest.mark.usefixtures("quick_disk")

TOLD = ("oracle", "simplecil", "joint_linear")
SETTINGS = {"routers": ["lda"], "baselines": ["simplecil", "joint_linear"]}


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes) -> InProcess:
    in_process.without_ray(monkeypatch)
    write_features(folder / "features.parquet", spread=6.0)
    stream = {"scenario": "task_incremental", "validation_fraction": 0.2}
    changes = {"evaluation": SETTINGS, **changes, "stream": stream}
    return InProcess.run(features_experiment(folder, **changes), evaluators=1, events=Events())


@pytest.mark.parametrize("recipe", ["local", "tosca"])
def test_what_is_told_the_task_decides_among_its_classes(tmp_path, monkeypatch, recipe):
    done = run(tmp_path, monkeypatch, recipe=recipe)
    rows = results.read_predictions(done.prepared.run_dir).to_pandas()
    outside = rows[rows["predicted"] // 2 != rows["task"]]
    assert set(rows["method"]) == {"lda", *TOLD}
    assert set(outside["method"]) == {"lda"}
    last = rows[rows["after_task"] == 2]
    right = (last["predicted"] == last["label"]).groupby(last["method"], observed=True).mean()
    assert min(right[name] for name in TOLD) > right["lda"] + 0.05
    sure = np.exp(last["log_prob_true"]) >= 0.5 - 1e-6
    assert (sure == (last["predicted"] == last["label"]))[last["method"] == "simplecil"].all()


def test_where_the_task_is_not_told_the_same_methods_decide_among_all_classes(
    tmp_path, monkeypatch
):
    in_process.without_ray(monkeypatch)
    write_features(tmp_path / "features.parquet", spread=6.0)
    experiment = features_experiment(tmp_path, evaluation=SETTINGS)
    assert experiment.scoring is experiment.evaluation
    done = InProcess.run(experiment, evaluators=1, events=Events())
    rows = results.read_predictions(done.prepared.run_dir).to_pandas()
    outside = rows[rows["predicted"] // 2 != rows["task"]]
    assert set(outside["method"]) == {"lda", "simplecil", "joint_linear"}


def test_the_gate_judges_the_router_that_is_told_the_task(tmp_path, monkeypatch):
    done = run(tmp_path, monkeypatch, gate={"min_accuracy": 0.0})
    version = done.prepared.bank.load("production")
    assert version.metrics["validation"]["router"] == "oracle"


def test_the_told_router_leads_whatever_the_settings_name(tmp_path):
    stream = {"scenario": "task_incremental"}
    for routers in (["lda"], ["entropy", "oracle"], ["oracle", "lda"]):
        e = features_experiment(tmp_path, stream=stream, evaluation={"routers": routers})
        others = [name for name in routers if name != "oracle"]
        assert e.scoring.routers == ("oracle", *others)
        assert e.scoring.router_options.oracle.own_classes_only
        assert e.evaluation.routers == tuple(routers)
        assert type(e).model_validate(e.model_dump(mode="json")) == e


def test_tables_and_lines_take_the_told_router_for_a_result(tmp_path):
    write_predictions(tmp_path, tasks=2)
    predictions = results.read_predictions(tmp_path, results.METRIC_COLUMNS)
    data = data_from({"scenario": "task_incremental", "primary": "oracle"}, predictions)
    assert data.primary == "oracle"
    console = Console(width=200, record=True)
    print_report(data, console)
    text = " ".join(console.export_text().split())
    assert "The stream gives the task of every sample" in text
    assert "Upper bounds, never results: joint_linear" in text
    story = _Story()
    experiment = {"stream": {"scenario": "task_incremental"}}
    story.line(RunStarted("r", "r", "b", "s", [{"name": "one"}], experiment))
    line = story.line(TaskEvaluated(0, 1, {"oracle": {"accuracy": 0.5}}, 0.1))
    assert "oracle 50.0 %" in line
    assert "upper bound" not in line
