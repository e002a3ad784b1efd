"""Runs mirrored to W&B: offline without a key, read back without network, never in the run's way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from orchestrator import results
from orchestrator.report import build_report
from orchestrator.tracking import (
    CompositeTracker,
    Event,
    Notice,
    RunFinished,
    RunStarted,
    TaskEvaluated,
    TrackingSettings,
    VersionCommitted,
    WandbSettings,
    build_trackers,
    read_events,
)
from orchestrator.tracking.wandb_session import wandb_id
from orchestrator.tracking.wandb_tracker import WandbTracker, has_credentials, wanted_mode
from tests.orchestrator.streams import make_run

KEY = "k" * 40


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass

    @property
    def notices(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Notice)]


def mirror(run_dir: Path, events: list[Event], **settings) -> Recorder:
    """Sends events through a composite with a W&B tracker, as a run does."""
    recorder = Recorder()
    composite = CompositeTracker([recorder])
    options = WandbSettings(**{"init_timeout": 2, "finish_timeout": 2} | settings)
    composite.add(WandbTracker(options, run_dir, notify=composite.notify))
    with composite:
        for event in events:
            composite.handle(event)
    return recorder


def records(run_dir: Path) -> list[dict]:
    """What W&B's own reader finds in the run's offline logs, oldest first."""
    found = []
    for log in sorted((run_dir / "wandb").glob("offline-run-*/run-*.wandb")):
        done = subprocess.run(
            [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log.parent)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        found += [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    return found


def history(found: list[dict]) -> list[dict]:
    return [record["history"]["item"] for record in found if record["type"] == "history"]


def summary(found: list[dict]) -> dict:
    merged: dict = {}
    for record in found:
        if record["type"] == "summary":
            merged |= record["summary"]["update"]
    return merged


def table(run_dir: Path, found: list[dict], name: str) -> list[dict]:
    (path,) = {item[f"{name}.path"] for item in history(found) if f"{name}.path" in item}
    (file,) = (run_dir / "wandb").glob(f"offline-run-*/files/{path}")
    data = json.loads(file.read_text())
    return [dict(zip(data["columns"], row, strict=True)) for row in data["data"]]


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """A whole run recorded offline, and what is read back of it."""
    run_dir = make_run(tmp_path_factory.mktemp("runs") / "r", tasks=3)
    build_report(run_dir)
    events = list(read_events(run_dir / "events.jsonl"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("NETRC", str(run_dir / "no-netrc"))
        patch.setenv("HOME", str(run_dir))
        recorder = mirror(run_dir, events, group="a group", tags=["one"])
        return run_dir, records(run_dir), recorder


def test_without_a_key_the_run_is_recorded_offline_and_says_how_to_send_it(offline):
    run_dir, _, recorder = offline
    (folder,) = (run_dir / "wandb").glob("offline-run-*")
    assert recorder.notices == [f"W&B records offline; send it later with: wandb sync {folder}"]


def test_final_numbers_are_those_of_the_report(offline):
    run_dir, found, _ = offline
    expected = results.metrics_from_predictions(results.read_predictions(run_dir))
    rows = {row.pop("method"): row for row in table(run_dir, found, "tables/metrics")}
    kinds = {method: row.pop("kind") for method, row in rows.items()}
    assert (kinds["oracle"], kinds["batch_entropy"]) == ("upper bound", "order")
    assert {
        m: {k: v for k, v in row.items() if v is not None} for m, row in rows.items()
    } == expected
    flat = summary(found)
    for method, metrics in expected.items():
        for name, value in metrics.items():
            assert flat[f"final/{method}/{name}"] == pytest.approx(value, abs=1e-12)


def test_the_accuracy_matrix_is_that_of_the_report(offline):
    run_dir, found, _ = offline
    predictions = results.read_predictions(run_dir)
    rows = table(run_dir, found, "tables/accuracy_matrix")
    for method in results.method_names(predictions):
        matrix = np.full((3, 3), np.nan)
        for row in rows:
            if row["method"] == method:
                matrix[row["after task"], row["on task"]] = row["accuracy"]
        assert np.array_equal(matrix, results.accuracy_matrix(predictions, method), equal_nan=True)


def test_curves_go_by_task_and_epoch(offline):
    _, found, _ = offline
    items = history(found)
    accuracy = [(i["task"], i["accuracy/lda"]) for i in items if "accuracy/lda" in i]
    assert accuracy == [(0, 0.75), (1, 0.75), (2, 0.75)]
    losses = [(i["learning/epoch"], i["learning/loss"]) for i in items if "learning/loss" in i]
    assert [epoch for epoch, _ in losses] == list(range(1, 61))
    assert losses[0][1] == 1.5
    steps = {
        record["metric"]["name"]: record["metric"].get("step_metric")
        for record in found
        if record["type"] == "metric"
    }
    assert steps["accuracy/lda"] == "task"
    assert steps["learning/loss"] == "learning/epoch"


def test_tasks_are_a_table(offline):
    run_dir, found, _ = offline
    rows = table(run_dir, found, "tables/tasks")
    assert [row["name"] for row in rows] == ["task-000", "task-001", "task-002"]
    assert rows[1]["non-zero parameters"] == 41_900


def test_the_heatmap_is_logged_as_an_image(offline):
    run_dir, found, _ = offline
    assert any("images/accuracy_matrix._type" in item for item in history(found))
    assert list((run_dir / "wandb").glob("offline-run-*/files/media/images/images/*.png"))


def test_bank_versions_are_artefacts_with_our_version_as_alias(offline):
    _, found, _ = offline
    versions = [
        r["artifact"] for r in found if r["type"] == "artifact" and r["artifact"]["type"] == "bank"
    ]
    assert [set(v["aliases"]) for v in versions] == [
        {f"version-{number}", "latest"} for number in (1, 2, 3)
    ]
    assert {v["name"] for v in versions} == {"bank-made-up"}
    assert json.loads(versions[2]["metadata"])["digest"] == f"{2:064x}"


def test_run_config_group_and_end_are_recorded(offline):
    _, found, _ = offline
    (run,) = [record["run"] for record in found if record["type"] == "run"]
    assert run["run_id"] == "made-up-0123456789"
    assert run["run_group"] == "a group"
    assert run["config"]["update"]["stream"] == {"scenario": "class_incremental"}
    assert run["config"]["update"]["run"]["bank"] == "made-up"
    assert summary(found)["status"] == "finished"
    assert [r["exit"].get("exit_code", 0) for r in found if r["type"] == "exit"] == [0]


def start(run: str = "r1", **experiment) -> RunStarted:
    return RunStarted(run, "n", "bank", "s3://user:hunter2@bucket/x", [], experiment)


def test_a_resumed_run_continues_the_same_wandb_run(tmp_path):
    mirror(tmp_path, [start(), TaskEvaluated(0, 1, {"lda": {"accuracy": 0.5}}, 0.1)])
    time.sleep(1.1)  # W&B names the folder of a session by the second
    events = [start(), TaskEvaluated(1, 2, {"lda": {"accuracy": 0.75}}, 0.1)]
    mirror(tmp_path, [*events, RunFinished("finished", 1.0)])
    found = records(tmp_path)
    assert [record["run"]["run_id"] for record in found if record["type"] == "run"] == ["r1", "r1"]
    assert all(record["run"]["resume"] for record in found if record["type"] == "run")
    accuracy = [(i["task"], i["accuracy/lda"]) for i in history(found) if "accuracy/lda" in i]
    assert accuracy == [(0, 0.5), (1, 0.75)]


def test_a_run_that_failed_is_marked_as_failed(tmp_path):
    mirror(tmp_path, [start(), RunFinished("failed", 1.0, error="the disk is full")])
    found = records(tmp_path)
    assert summary(found)["status"] == "failed"
    assert summary(found)["error"] == "the disk is full"
    assert [record["exit"]["exit_code"] for record in found if record["type"] == "exit"] == [1]


class BlackHole:
    """A server that takes connections, counts them and never answers."""

    def __enter__(self) -> BlackHole:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self) -> None:
        try:
            while True:
                self.connections.append(self._socket.accept()[0])
        except OSError:
            return

    def __exit__(self, *exc: object) -> None:
        for connection in self.connections:
            connection.close()
        self._socket.close()


SCRIPT = """
import json, sys, time
from pathlib import Path
from orchestrator.tracking import CompositeTracker, RunFinished, TaskEvaluated, WandbSettings
from orchestrator.tracking.wandb_tracker import WandbTracker
from tests.orchestrator.test_tracking_wandb import Recorder, start

recorder = Recorder()
composite = CompositeTracker([recorder])
settings = WandbSettings(init_timeout=2, finish_timeout=2)
composite.add(WandbTracker(settings, Path(sys.argv[1]), notify=composite.notify))
began = time.monotonic()
composite.handle(start())
composite.handle(TaskEvaluated(0, 1, {"lda": {"accuracy": 0.5}}, 0.1))
composite.handle(RunFinished("finished", 1.0))
took = time.monotonic() - began
composite.close()
print(json.dumps({"handled in": str(took), "notices": " ".join(recorder.notices)}))
"""


def in_a_process(run_dir: Path, **environment: str) -> dict[str, str]:
    """Mirrors a small run in a process of its own (W&B reads its environment once), and what was told there."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(run_dir)],
        env=os.environ | environment,
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


FAULT = """
import sys
from pathlib import Path
import ray  # whose own hook prints the traceback as well
from orchestrator.tracking import RunFinished, TrackingSettings, build_trackers
from tests.orchestrator.test_tracking_wandb import start

with build_trackers(TrackingSettings(console="quiet"), Path(sys.argv[1])) as trackers:
    trackers.handle(start())
    trackers.handle(RunFinished("failed", 1.0))
assert any(Path(sys.argv[1]).glob("wandb/offline-run-*"))
raise ZeroDivisionError("a fault of the program")
"""


def test_a_fault_of_the_program_is_printed_once(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FAULT, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.count("ZeroDivisionError: a fault of the program") == 1
    assert done.stderr.count("Traceback") == 1


def test_an_offline_run_opens_no_connection(tmp_path):
    with BlackHole() as server:
        in_a_process(tmp_path, WANDB_BASE_URL=server.url)  # with the goodbye at exit
        assert server.connections == []
    assert any(record["type"] == "exit" for record in records(tmp_path))


def test_with_a_key_and_a_dead_server_the_run_goes_on_and_is_recorded_offline(
    tmp_path, monkeypatch
):
    with BlackHole() as server:
        told = in_a_process(tmp_path, WANDB_BASE_URL=server.url, WANDB_API_KEY=KEY)
        assert server.connections
    assert float(told["handled in"]) < 1.0
    assert "could not be reached" in told["notices"]
    found = records(tmp_path)
    assert [item["accuracy/lda"] for item in history(found) if "accuracy/lda" in item] == [0.5]
    assert summary(found)["status"] == "finished"


def test_no_secret_is_written_anywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    settings = TrackingSettings(console="quiet", tensorboard=True)
    experiment = {"cluster": {"auth_token": "hunter2"}, "aws_secret_access_key": "hunter2"}
    with build_trackers(settings, tmp_path) as trackers:
        trackers.handle(start(**experiment))
        trackers.handle(VersionCommitted(0, "bank", 1, "d", 0.1))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        data = path.read_bytes()
        assert KEY.encode() not in data, path
        assert b"hunter2" not in data, path


def test_a_broken_wandb_costs_a_notice_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    recorder = mirror(tmp_path, [start(), RunFinished("finished", 1.0)])
    assert len(recorder.notices) == 1
    assert "wandb" in recorder.notices[0]
    assert isinstance(recorder.events[-1], Notice | RunFinished)


def test_online_without_a_key_asks_nothing_and_says_what_to_do(tmp_path):
    recorder = mirror(tmp_path, [start()], mode="online")
    assert any("wandb login" in message for message in recorder.notices)
    assert records(tmp_path)


def test_bank_files_are_mirrored_when_asked_for(tmp_path):
    from workers.storage.bank import Bank
    from workers.storage.bank_writer import BankWriter, TaskDraft
    from workers.storage.filesystem import Storage

    storage = Storage.open(tmp_path / "storage")
    draft = TaskDraft(
        id="task-0",
        name="task 0",
        domain="",
        classes=("a", "b"),
        definition={},
        arrays={"module": {"norm.weight": np.ones(4, np.float32)}},
        info={},
    )
    with BankWriter(Bank(storage, "bank")) as writer:
        writer.begin({"name": "x"}, {"flow": "tosca"})
        version = writer.commit(draft)
    events = [
        RunStarted("r1", "n", "bank", str(tmp_path / "storage"), [], {}),
        VersionCommitted(0, "bank", version.version, version.digest, 0.1),
    ]
    recorder = mirror(tmp_path / "run", events, artifacts="files")
    assert not [message for message in recorder.notices if "failed" in message]
    (artefact,) = [r["artifact"] for r in records(tmp_path / "run") if r["type"] == "artifact"]
    digest = version.tasks[0].objects["module"].digest
    names = {entry["path"] for entry in artefact["manifest"]["contents"]}
    assert f"objects/{digest}" in names
    assert any(name.startswith("versions/") for name in names)


# -- choices made without W&B ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "a/b?c#d%e:f", "x" * 200, "", "été", "..", "\udcff"])
def test_ids_are_such_as_wandb_takes(name):
    assert 0 < len(wandb_id(name)) <= 64
    assert not set(wandb_id(name)) & set("/\\#?%: ")


def test_different_names_have_different_ids():
    names = ["a/b", "a?b", "a-b", "x" * 70, "x" * 71]
    assert len({wandb_id(name) for name in names}) == len(names)


def test_a_key_in_the_environment_or_in_netrc_means_online(monkeypatch, tmp_path):
    assert wanted_mode(WandbSettings()) == "offline"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password x\n")
    assert has_credentials()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_credentials()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert wanted_mode(WandbSettings()) == "online"


def test_the_environment_decides_only_where_the_settings_do_not(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wanted_mode(WandbSettings()) == "disabled"
    assert wanted_mode(WandbSettings(mode="online")) == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert wanted_mode(WandbSettings()) == "offline"


def test_a_disabled_tracker_does_not_import_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setitem(sys.modules, "wandb", None)
    recorder = mirror(tmp_path, [start(), RunFinished("finished", 1.0)])
    assert recorder.notices == []
    assert not (tmp_path / "wandb").exists()


def test_the_environment_is_as_before_when_the_run_is_over(tmp_path):
    before = dict(os.environ)
    mirror(tmp_path, [start()])
    assert {k: v for k, v in os.environ.items() if k.startswith("WANDB")} == {
        k: v for k, v in before.items() if k.startswith("WANDB")
    }
