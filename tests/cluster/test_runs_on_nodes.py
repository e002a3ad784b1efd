"""Whole runs on several simulated nodes, one of them lost on the way: the bank is that of a laptop."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.run import run_experiment
from orchestrator.experiment import Experiment
from tests.cluster.conftest import STORE, Head, add_node
from tests.helpers import features_experiment
from workers.errors import ClusterError
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage

pytestmark = pytest.mark.timeout(900)

EPOCHS = 4000
"""Enough for a task to take a second or two, so that a node can be lost in the middle."""


def experiment(folder: Path, **cluster: Any) -> Experiment:
    folder.mkdir()
    return features_experiment(
        folder, cluster={"object_store_memory": STORE, **cluster}, learning={"epochs": EPOCHS}
    )


def digest(folder: Path) -> str:
    return Bank.open(Storage.open(str(folder / "storage")), "tiny").load("latest").digest


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the bank that a local start learns."""
    folder = tmp_path_factory.mktemp("laptop") / "run"
    run_experiment(experiment(folder, address="local", cpus=2), console=False)
    return digest(folder)


def test_two_nodes_learn_the_bank_of_one(bare_head: Head, laptop: str, tmp_path: Path) -> None:
    for _ in range(2):
        add_node(bare_head, cpus=3)
    wish = experiment(tmp_path / "run", address=bare_head.address, shards=2, trainers=2)
    run_experiment(wish, console=False)
    assert digest(tmp_path / "run") == laptop


def test_a_node_lost_in_the_middle_costs_time_and_nothing_else(
    bare_head: Head, laptop: str, tmp_path: Path
) -> None:
    nodes = [add_node(bare_head, cpus=6) for _ in range(2)]
    wish = experiment(tmp_path / "run", address=bare_head.address, shards=2, trainers=2)
    versions = tmp_path / "run" / "storage" / "banks" / "tiny" / "versions"
    lost = threading.Event()

    def lose_a_node() -> None:
        deadline = time.monotonic() + 120
        while not list(versions.glob("*.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        bare_head.kill(nodes[0])
        lost.set()

    loser = threading.Thread(target=lose_a_node)
    loser.start()
    run_experiment(wish, console=False)
    loser.join()
    assert lost.is_set()
    assert digest(tmp_path / "run") == laptop


def test_a_run_that_waits_in_vain_leaves_no_version(bare_head: Head, tmp_path: Path) -> None:
    add_node(bare_head, cpus=2)
    wish = experiment(
        tmp_path / "run",
        address=bare_head.address,
        gpus_per_shard=1.0,
        wait_for_resources_seconds=3.0,
    )
    with pytest.raises(ClusterError, match="for 1 GPU: the cluster has 0"):
        run_experiment(wish, console=False)
    assert not list((tmp_path / "run").rglob("versions/*.json"))
