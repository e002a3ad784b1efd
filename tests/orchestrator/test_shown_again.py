"""What a run and the same command a second time leave: one duration everywhere, and no record of nothing."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.run import run_experiment
from orchestrator.report import build_report
from orchestrator.tracking import RunFinished, read_events
from orchestrator.tracking.console import duration
from tests.helpers import features_experiment
from tests.orchestrator import in_process
from tests.workers.storage.bank_cases import quick_disk  # noqa: F401

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    in_process.commands_without_ray(monkeypatch)


def run(folder: Path, **changes: Any) -> dict[str, Any]:
    return run_experiment(features_experiment(folder, **changes))


def test_console_report_log_and_summary_say_one_duration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label in ("whole run", "since the run was last started"):
        summary = run(tmp_path, tracking={"console": "plain"})
        seconds = summary["seconds_by_stage"]["total"]
        folder = Path(summary["run_dir"])
        kept = json.loads((folder / "summary.json").read_text())["seconds_by_stage"]
        assert kept == summary["seconds_by_stage"]
        *_, last = read_events(folder / "events.jsonl")
        assert isinstance(last, RunFinished)
        assert last.seconds == seconds
        text = duration(seconds)
        (folder / "predictions.parquet").unlink()  # so that there is something to do again
        assert capsys.readouterr().err.splitlines()[-1] == f"finished after {text}"
        page = re.sub("<.*?>", "", Path(summary["report"]).read_text())
        assert f"took {text}" in page
        amount, _, unit = text.partition(" ")
        assert f"{amount} {unit}{label}" in page


def test_a_run_that_is_shown_again_goes_on_saying_what_it_took(tmp_path: Path) -> None:
    first = run(tmp_path)
    kept = Path(first["run_dir"], "summary.json")
    written, page = json.loads(kept.read_text()), Path(first["report"]).read_text()
    second = run(tmp_path)
    assert (first["tasks_learned"], second["tasks_learned"]) == (3, 0)
    assert second["seconds_by_stage"]["total"] != first["seconds_by_stage"]["total"]
    assert json.loads(kept.read_text()) == written
    took = re.search("took.{0,80}", re.sub("<.*?>", "", page))
    assert took
    for _ in range(2):
        assert took[0] in re.sub("<.*?>", "", Path(first["report"]).read_text())
        assert "whole run" in Path(first["report"]).read_text()
        build_report(first["run_dir"])


def test_a_summary_of_another_version_says_nothing_of_this_one(tmp_path: Path) -> None:
    summary = run(tmp_path)
    kept = Path(summary["run_dir"], "summary.json")
    for text in (json.dumps({**summary, "digest": "0" * 64}), "{", None):
        kept.unlink() if text is None else kept.write_text(text)
        again = run(tmp_path)
        assert again["tasks_learned"] == 0
        assert json.loads(kept.read_text())["seconds_by_stage"] == again["seconds_by_stage"]


def recorded(summary: dict[str, Any]) -> int:
    folder = Path(summary["run_dir"])
    assert list(folder.glob("tensorboard/*"))
    return len(list(folder.glob("wandb/offline-run-*")))


def test_a_finished_run_that_is_shown_again_is_not_recorded_again(tmp_path: Path) -> None:
    quiet = {"console": "quiet", "tensorboard": True}
    tracking = {**quiet, "wandb": {"mode": "offline"}}
    summary = run(tmp_path, tracking=tracking)
    files = list(Path(summary["run_dir"]).glob("tensorboard/*"))
    assert (recorded(summary), summary["tasks_learned"]) == (1, 3)
    assert recorded(run(tmp_path, tracking=tracking)) == 1
    assert list(Path(summary["run_dir"]).glob("tensorboard/*")) == files
    other = {**quiet, "wandb": {"mode": "offline", "project": "another"}}
    assert recorded(run(tmp_path, tracking=other)) == 2


def test_what_is_new_or_was_never_recorded_to_its_end_is_recorded(tmp_path: Path) -> None:
    tracking = {"console": "quiet", "tensorboard": True, "wandb": {"mode": "disabled"}}
    assert recorded(run(tmp_path, tracking=tracking)) == 0
    tracking["wandb"] = {"mode": "offline"}
    summary = run(tmp_path, tracking=tracking)
    assert recorded(summary) == 1
    (Path(summary["run_dir"]) / "predictions.parquet").unlink()
    time.sleep(1.1)  # W&B names the folder of a session by the second
    assert recorded(run(tmp_path, tracking=tracking)) == 2
    (Path(summary["run_dir"]) / "wandb" / "recorded.json").write_text("{")
    time.sleep(1.1)
    assert recorded(run(tmp_path, tracking=tracking)) == 3
