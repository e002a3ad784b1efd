"""Runs on a cluster that has too little room for them after they have begun: a lost node, and other work."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.run import run_experiment
from pipelines import fleet
from pipelines.cluster import watching
from tests.cluster.conftest import Head, add_node, can_unshare, wait_until
from tests.helpers import features_experiment
from workers.errors import ClusterError

pytestmark = pytest.mark.timeout(900)

HOLDER = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(num_cpus=3)
class Holder:
    def ready(self):
        return True

holder = Holder.remote()
ray.get(holder.ready.remote())
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(head: Head) -> Iterator[None]:
    """Other work that holds every CPU of the cluster."""
    command = [sys.executable, "-c", HOLDER, head.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            other.kill()


def test_a_run_whose_place_other_work_took_ends_in_one_sentence(
    bare_head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_node(bare_head, cpus=3)
    monkeypatch.setattr(watching, "PATIENCE_SECONDS", 5.0)

    def taken_meanwhile(*_: Any, **__: Any) -> None:
        """There was room a moment ago."""

    monkeypatch.setattr(fleet, "wait_for_resources", taken_meanwhile)
    wish = features_experiment(
        tmp_path, cluster={"address": bare_head.address, "wait_for_resources_seconds": 5.0}
    )
    with held(bare_head), pytest.raises(ClusterError) as caught:
        run_experiment(wish, console=False)
    assert "since other work runs there: the cluster has 3 CPUs, 0 free" in str(caught.value)
    assert not list(tmp_path.rglob("versions/*.json"))


def test_a_lost_node_that_nothing_replaces_ends_the_run_and_the_same_command_continues(
    bare_head: Head, tmp_path: Path
) -> None:
    node = add_node(bare_head, cpus=3)
    cluster = {"address": bare_head.address, "wait_for_resources_seconds": 5.0}
    wish = features_experiment(tmp_path, cluster=cluster, learning={"epochs": 4000})
    versions = tmp_path / "storage" / "banks" / "tiny" / "versions"

    def lose_the_node() -> None:
        deadline = time.monotonic() + 300
        while not list(versions.glob("*.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        bare_head.kill(node)

    loser = threading.Thread(target=lose_the_node)
    loser.start()
    with pytest.raises(ClusterError, match=r"a node was lost, and .*no room for 3 CPUs.*continues"):
        run_experiment(wish, console=False)
    loser.join()
    left = len(list(versions.glob("*.json")))
    assert 1 <= left < 3
    add_node(bare_head, cpus=3)
    assert run_experiment(wish, console=False)["tasks_learned"] == 3 - left


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a mount namespace")
def test_a_node_that_comes_later_without_the_storage_ends_the_run_before_it_learns(
    bare_head: Head, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    hide = f'mount -t tmpfs none {storage} && exec "$@"'
    comer = threading.Timer(
        5,
        lambda: add_node(bare_head, cpus=3, wrapper=("unshare", "-m", "sh", "-c", hide, "sh")),
    )
    comer.start()
    wish = features_experiment(tmp_path, cluster={"address": bare_head.address})
    with pytest.raises(ClusterError, match="is not visible on node"):
        run_experiment(wish, console=False)
    comer.join()
    assert not list(tmp_path.rglob("versions/*.json"))


WAITER = """
import sys
from pipelines.cluster import Bundle, ClusterSettings, join_ray, wait_for_resources

with join_ray(ClusterSettings(address=sys.argv[1])):
    wait_for_resources([Bundle(32), Bundle(32)], timeout=600, notify=lambda text: print(text, flush=True))
"""


def test_a_driver_that_is_killed_while_it_waits_asks_for_nothing_more(head: Head) -> None:
    """What it asked of an autoscaler would bring nodes that nobody uses."""
    from ray._raylet import GcsClient
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    client = GcsClient(head.address)

    def asked() -> list[int]:
        state = get_cluster_resource_state(client)
        assert not state.cluster_resource_constraints, "these stand until somebody asks otherwise"
        return [len(gang.requests) for gang in state.pending_gang_resource_requests]

    command = [sys.executable, "-c", WAITER, head.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as waiter:
        assert waiter.stdout is not None
        assert waiter.stdout.readline().startswith(b"waiting for 64 CPUs")
        wait_until(lambda: asked() == [2], 60, "the request")
        waiter.kill()
    wait_until(lambda: asked() == [], 60, "the end of the request")
