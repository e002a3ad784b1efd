"""What `luca submit` decides on this side, against a client that only remembers."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import orchestrator.submit
from orchestrator.cli import app, guarded
from orchestrator.job_agent import submit_when_ready
from orchestrator.submit import (
    _copy_log,
    _package,
    _start,
    dashboard_address,
    entrypoint,
    follow_job,
    passed_variables,
    submit,
)
from workers.errors import ClusterError, SettingsError


@dataclass
class Job:
    submission_id: str
    status: str
    entrypoint: str = "run"
    message: str = ""
    driver_exit_code: int | None = None


@dataclass
class Client:
    jobs: list[Job] = field(default_factory=list)
    pieces: list[list[str]] = field(default_factory=list)
    submitted: list[dict[str, Any]] = field(default_factory=list)

    def list_jobs(self) -> list[Job]:
        return self.jobs

    def submit_job(self, **arguments: Any) -> str:
        self.submitted.append(arguments)
        return arguments["submission_id"] or "raysubmit_1"

    def get_job_info(self, name: str) -> Job:
        return next(job for job in self.jobs if job.submission_id == name)

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        for piece in self.pieces.pop(0):
            if piece == "broken":
                raise RuntimeError("connection closed")
            yield piece


def test_relative_storage_is_refused_before_anything_is_contacted() -> None:
    with pytest.raises(ClusterError, match="storage=/shared/luca"):
        submit("demo", ["storage=here"], address="http://127.0.0.1:9")


def test_an_unreachable_dashboard_is_one_sentence() -> None:
    with pytest.raises(ClusterError, match="no dashboard") as caught:
        submit("demo", ["storage=/x"], address="http://127.0.0.1:9")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (None, {}, "http://127.0.0.1:8265"),
        ("head:8265", {}, "http://head:8265"),
        (
            "https://ray.example.org/",
            {"RAY_API_SERVER_ADDRESS": "http://x:1"},
            "https://ray.example.org",
        ),
        (None, {"RAY_API_SERVER_ADDRESS": "http://x:1"}, "http://x:1"),
        (None, {"RAY_ADDRESS": "http://y:2"}, "http://y:2"),
        (None, {"RAY_ADDRESS": "10.0.0.1:6379"}, "http://127.0.0.1:8265"),
    ],
)
def test_the_dashboard_is_found(
    given: str | None, environment: dict[str, str], expected: str
) -> None:
    assert dashboard_address(given, environment) == expected


@pytest.mark.parametrize("address", ["ray://head:10001", "ftp://head", "http://"])
def test_what_is_no_dashboard_address_is_refused(address: str) -> None:
    with pytest.raises(ClusterError, match="8265"):
        dashboard_address(address, {})


def test_secrets_stay_here_unless_named() -> None:
    shell = {"WANDB_MODE": "online", "WANDB_API_KEY": "s", "WANDB_DIR": "/x", "HOME": "/root"}
    assert passed_variables(shell, []) == {"WANDB_MODE": "online"}
    assert passed_variables(shell, ["WANDB_API_KEY"])["WANDB_API_KEY"] == "s"


def test_a_named_variable_that_is_not_set_is_refused() -> None:
    with pytest.raises(SettingsError, match="AWS_PROFILE"):
        passed_variables({}, ["AWS_PROFILE"])


def test_overrides_reach_the_job_whatever_they_contain() -> None:
    command = entrypoint("my exp.yaml", ["storage=/a b", "stream.class_order=[a, 'b']"])
    assert shlex.split(command)[3:] == [
        "run", "my exp.yaml", "-o", "storage=/a b", "-o", "stream.class_order=[a, 'b']",
    ]  # fmt: skip


@dataclass
class Remembering(Client):
    """A cluster that runs what it is given, for ever or until it is asked how the job is."""

    def submit_job(self, **arguments: Any) -> str:
        name = super().submit_job(**arguments)
        self.jobs.append(Job(name, "RUNNING", arguments["entrypoint"]))
        return name

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        self.get_job_info(name).status = "SUCCEEDED"
        yield f"log of {name}"


def test_the_command_that_is_printed_follows_the_job_when_it_is_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses: list[str] = []
    client = Remembering()

    def connect(url: str, seconds: float) -> Client:
        addresses.append(url)
        return client

    monkeypatch.setattr(orchestrator.submit, "connect", connect)
    monkeypatch.setenv("MY_NAME", "x")
    folder = tmp_path / "my work"
    folder.mkdir()
    (folder / "e.yaml").write_text(
        "name: mine\nstream: {scenario: class_incremental, classes_per_task: 2, source: {kind: demo}}\n"
    )
    words = ["submit", str(folder / "e.yaml"), "-o", "storage=/shared/a b", "-o", "seed=3"]
    words += ["--address", "head:8265", "--working-dir", str(folder), "--env", "MY_NAME"]
    assert guarded(lambda: app(args=[*words, "--no-follow"], standalone_mode=False)) == 0
    (hint,) = re.findall("to follow it: (.*)", capsys.readouterr().err)
    pasted = shlex.split(hint)
    assert pasted[0] == "luca"
    assert guarded(lambda: app(args=pasted[1:], standalone_mode=False)) == 0
    shown = capsys.readouterr()
    assert (shown.out, len(client.submitted)) == ("log of raysubmit_1", 1)
    assert "is running already" in shown.err
    assert addresses == ["http://head:8265"] * 2


def test_an_experiment_file_travels_alone_without_a_working_directory(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine")
    (tmp_path / "large.bin").write_bytes(b"0" * 100)
    with _package(str(file), None) as (folder, source):
        assert folder is not None
        assert source == "mine.yaml"
        assert [entry.name for entry in folder.iterdir()] == ["mine.yaml"]
    assert not folder.exists()


def test_an_experiment_outside_the_working_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine")
    (tmp_path / "sub").mkdir()
    with pytest.raises(SettingsError, match="not inside"), _package(str(file), tmp_path / "sub"):
        pass
    with _package(str(file), tmp_path) as (folder, source):
        assert (folder, source) == (tmp_path, "mine.yaml")


def test_a_running_job_of_that_name_is_not_started_twice() -> None:
    client = Client([Job("a", "RUNNING")])
    assert _start(client, "run", "a", {}, print) == ("a", True)
    assert client.submitted == []


def test_a_running_job_with_another_command_is_refused() -> None:
    with pytest.raises(ClusterError, match="ray job stop a"):
        _start(Client([Job("a", "PENDING", "other")]), "run", "a", {}, print)


@pytest.mark.parametrize("status", ["FAILED", "STOPPED", "SUCCEEDED"])
def test_a_job_that_ended_is_followed_by_the_next_number(status: str) -> None:
    client = Client([Job("a", "FAILED"), Job("a-2", status)])
    assert _start(client, "run", "a", {}, print) == ("a-3", False)


@dataclass
class Starting(Client):
    """A cluster whose job agent comes after so many tries."""

    refusals: int = 0
    words: str = "500: No available agent to submit job, please try again later."

    def submit_job(self, **arguments: Any) -> str:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError(f"Request failed with status code {self.words}")
        return super().submit_job(**arguments)


def test_a_cluster_that_has_no_job_agent_yet_is_tried_again() -> None:
    said: list[str] = []
    client = Starting(refusals=3)
    waits: list[float] = []
    name = submit_when_ready(
        client, say=said.append, sleep=waits.append, submission_id="a", entrypoint="run"
    )
    assert name == "a"
    assert len(client.submitted) == 1
    assert len(waits) == 3
    assert said == ["waiting for the cluster's agent that starts jobs"]


def test_a_cluster_that_gets_no_job_agent_is_one_sentence_with_the_cure() -> None:
    client = Starting(refusals=100)
    with pytest.raises(
        ClusterError, match=r"port 52365.*--dashboard-agent-listen-port 52399"
    ) as caught:
        submit_when_ready(client, say=print, patience=0, submission_id="a")
    assert "\n" not in str(caught.value)


def test_a_job_that_is_refused_for_another_reason_is_not_tried_again() -> None:
    client = Starting(refusals=100, words="500: runtime_env is too large.")
    with pytest.raises(ClusterError, match=r"not accepted.*runtime_env is too large"):
        _start(client, "run", "a", {}, print)
    assert client.refusals == 99


def test_a_broken_log_connection_repeats_nothing() -> None:
    written: list[str] = []
    client = Client([Job("a", "SUCCEEDED")], [["one ", "tw", "broken"], ["one ", "two ", "three"]])
    with pytest.raises(RuntimeError):
        asyncio.run(_copy_log(client, "a", written.append, skip=0))
    done = "".join(written)
    asyncio.run(_copy_log(client, "a", written.append, skip=len(done)))
    assert "".join(written) == "one two three"


@pytest.mark.parametrize(
    ("status", "driver", "expected"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 2, 2),
        ("FAILED", None, 1),
        ("FAILED", -9, 1),
        ("STOPPED", None, 143),
    ],
)
def test_the_exit_code_is_the_runs_own(status: str, driver: int | None, expected: int) -> None:
    client = Client([Job("a", status, driver_exit_code=driver)], [["log"]])
    written: list[str] = []
    done = follow_job(client, "a", "http://h", say=lambda _: None, write=written.append)
    assert (done.exit_code, done.status) == (expected, status)
    assert written == ["log"]
