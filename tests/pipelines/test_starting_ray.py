"""A Ray that cannot be started or joined ends in one sentence, whatever it raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.cluster import ClusterSettings, join_ray
from pipelines.cluster import joining as module
from workers.errors import ClusterError


class StoppedError(Exception):
    """What a signal's handler raises."""


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_ADDRESS", module.JOB_CONFIG_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "new_session_folder", lambda: tmp_path / "session")
    monkeypatch.setattr(module, "check_reachable", lambda *_, **__: None)
    monkeypatch.setattr(module, "check_speaks_grpc", lambda *_, **__: None)


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def init(**_: object) -> None:
        raise error

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Exception("The current node timed out during startup. This could"), "is very busy: run"),
        (Exception("something else."), "a local Ray cannot be started: something else$"),
        (RuntimeError("no socket\nmore"), "a local Ray cannot be started: no socket$"),
    ],
)
def test_a_local_ray_that_does_not_start_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, words: str
) -> None:
    (tmp_path / "session").mkdir()
    failing(monkeypatch, error)
    with pytest.raises(ClusterError, match=words):
        join_ray(ClusterSettings(address="local"))
    assert not (tmp_path / "session").exists()


def test_a_cluster_that_cannot_be_joined_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, Exception("the node is gone."))
    with pytest.raises(ClusterError, match="head:6379 cannot be joined: the node is gone"):
        join_ray(ClusterSettings(address="head:6379"))


@pytest.mark.parametrize("address", ["local", "head:6379"])
def test_what_a_signals_handler_raises_meanwhile_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    failing(monkeypatch, StoppedError())
    with pytest.raises(StoppedError):
        join_ray(ClusterSettings(address=address))
