"""Several Ray nodes on this machine, any of which can be lost with all that runs there."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.chaos.processes import actors, descendants
from tests.helpers import free_port

NODE = {"num_cpus": 8, "object_store_memory": 100_000_000}


class SimulatedCluster:
    """A head that holds nothing but the driver, and worker nodes with CPUs."""

    def __init__(self, *, nodes: int = 2) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            shutdown_at_exit=True,
            head_node_args={"num_cpus": 0, "object_store_memory": NODE["object_store_memory"]},
        )
        self._nodes: list[Any] = []
        for _ in range(nodes):
            self.add()

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return str(self._cluster.address)

    def add(self) -> None:
        """One more worker node."""
        self._nodes.append(self._cluster.add_node(dashboard_agent_listen_port=free_port(), **NODE))

    def lose(self, rng: random.Random) -> str:
        """Kill a node that has actors, the more the likelier, and start another one."""
        loads = {i: self._on(node) for i, node in enumerate(self._nodes)}
        busy = [i for i, there in loads.items() for _ in there]
        number = rng.choice(busy or list(loads))
        self._cluster.remove_node(self._nodes.pop(number), allow_graceful=False)
        self.add()
        return "+".join(sorted(loads[number]))

    def close(self) -> None:
        """Stop every node."""
        self._cluster.shutdown()

    def _on(self, node: Any) -> list[str]:
        """Kinds of the actors that run on a node: those below its raylet."""
        (raylet,) = node.all_processes["raylet"]
        here = {one.pid for one in descendants(raylet.process.pid)}
        kinds = ("shard", "trainer", "registry", "evaluator")
        return [k for k in kinds for one in actors(os.getpid(), k) if one.pid in here]


@contextmanager
def simulated_cluster(*, nodes: int = 2) -> Iterator[SimulatedCluster]:
    """A cluster with a folder of its own for Ray's sessions."""
    folder = tempfile.mkdtemp(prefix="lc-", dir="/tmp")
    former = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = folder
    try:
        cluster = SimulatedCluster(nodes=nodes)
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        if former is None:
            os.environ.pop("RAY_TMPDIR", None)
        else:
            os.environ["RAY_TMPDIR"] = former
        shutil.rmtree(folder, ignore_errors=True)
