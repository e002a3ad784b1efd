"""What a fleet checks before it starts any actor, without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.commands.run import _fleet_spec
from orchestrator.preparation import prepare
from pipelines import fleet
from pipelines.actors import starting
from pipelines.cluster import Bundle, ClusterResources, NodeResources, RayHandle
from tests.helpers import features_experiment
from workers.errors import ClusterError


class Joined:
    """A cluster of one node."""

    messages = None

    def resources(self) -> ClusterResources:
        return ClusterResources((NodeResources("a", "host-a", 1),))


class Room:
    """Room that came, which others may have once it is released."""

    released = False

    def release(self) -> None:
        self.released = True


def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, waited: bool) -> list[str]:
    """Which storage was probed before the first actor would start."""
    probed: list[str] = []
    room = Room() if waited else None

    def no_actor(*_: Any, **__: Any) -> None:
        assert room is None or room.released, "actors find no room while it is kept"
        raise ClusterError("an actor would start now")

    def probe(storage: str) -> None:
        assert room is None or not room.released, "nodes may be gone"
        probed.append(storage)

    monkeypatch.setattr(fleet, "wait_for_resources", lambda *_, **__: room)
    monkeypatch.setattr(fleet, "check_shared_storage", probe)
    monkeypatch.setattr("workers.data_shard.data_shard_class", no_actor)
    spec = _fleet_spec(prepare(features_experiment(tmp_path)))
    said: list[str] = []
    with pytest.raises(ClusterError, match="an actor would start now"):
        fleet.Fleet(spec, cast(RayHandle, Joined()), notify=said.append)
    assert said[-1] == "starting actors"
    return probed


def test_the_start_of_actors_is_announced_with_the_backbone_where_one_is_loaded() -> None:
    assert starting("images") == "starting actors and loading the backbone"
    assert starting("features") == "starting actors"


def test_storage_is_probed_on_nodes_that_were_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert started(tmp_path, monkeypatch, waited=True) == [str(tmp_path / "storage")]


def test_storage_is_not_probed_twice_on_nodes_that_were_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert started(tmp_path, monkeypatch, waited=False) == []


def test_a_run_that_only_scores_waits_for_no_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Bundle] = []

    def wait(bundles: Sequence[Bundle], **_: Any) -> bool:
        waited.extend(bundles)
        raise ClusterError("enough")

    monkeypatch.setattr(fleet, "wait_for_resources", wait)
    wish = features_experiment(tmp_path, cluster={"trainers": 2, "cpus_per_trainer": 8})
    spec = _fleet_spec(prepare(wish))
    for learns, expected in ((True, {1.0, 8.0}), (False, {1.0})):
        waited.clear()
        with pytest.raises(ClusterError, match="enough"):
            fleet.Fleet(
                replace(spec, learns=learns), cast(RayHandle, Joined()), notify=lambda _: None
            )
        assert {bundle.cpus for bundle in waited} == expected
