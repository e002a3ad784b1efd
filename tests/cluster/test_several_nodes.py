"""Several nodes, simulated on one machine: placement, waiting for nodes, and storage that is not shared."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.cluster import (
    ActorPlan,
    ClusterSettings,
    check_shared_storage,
    join_ray,
    plan_actors,
    wait_for_resources,
)
from tests.cluster.conftest import Head, add_node, can_unshare, start_head, wait_until
from workers.errors import ClusterError

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def three() -> Iterator[Head]:
    """A head without CPUs, a CPU node and a node with a (simulated) GPU, as on KubeRay."""
    head = start_head(cpus=0)
    try:
        add_node(head, cpus=3)
        add_node(head, cpus=2, gpus=1)
        yield head
    finally:
        head.close()


def joined(head: Head, nodes: int, **settings: Any) -> Any:
    handle = join_ray(ClusterSettings(address=head.address, **settings))
    wait_until(lambda: len(handle.resources().nodes) == nodes, 200, f"{nodes} nodes")
    return handle


def make_where() -> Callable[[], Any]:
    class Where:
        """Reports where it runs; pickled by value."""

        def here(self) -> tuple[str, list[int], str | None]:
            import os

            import ray

            context = ray.get_runtime_context()
            return context.get_node_id(), ray.get_gpu_ids(), os.environ.get("OMP_NUM_THREADS")

    return Where


def start(plan: ActorPlan) -> dict[str, list[tuple[str, list[int], str | None]]]:
    import ray

    cls = make_where()
    actors = {
        role.role: [
            ray.remote(cls).options(**plan.options(role.role)).remote() for _ in range(role.count)
        ]
        for role in plan.roles
    }
    return {
        name: ray.get([a.here.remote() for a in group], timeout=300)
        for name, group in actors.items()
    }


def test_actors_run_where_the_plan_puts_them(three: Head) -> None:
    settings = ClusterSettings(cpus_per_trainer=2)
    with joined(three, 3) as handle:
        resources = handle.resources()
        plan = plan_actors(settings, resources)
        wait_for_resources(plan.bundles(), timeout=0, notify=print)
        places = start(plan)
    gpu_node = next(n.id for n in resources.nodes if n.gpus)
    empty = next(n.id for n in resources.nodes if not n.cpus)
    assert [p[0] for p in places["shard"]] == [gpu_node]
    assert [p[1] for p in places["shard"]] == [[0]]
    assert [p[2] for p in places["trainer"]] == ["2"]
    everywhere = [p[0] for group in places.values() for p in group]
    assert empty not in everywhere
    assert len(set(everywhere)) == 2


def test_shards_share_a_gpu_by_fractions(three: Head) -> None:
    settings = ClusterSettings(shards=2, gpus_per_shard=0.5)
    with joined(three, 3) as handle:
        places = start(plan_actors(settings, handle.resources()))
    assert [p[1] for p in places["shard"]] == [[0], [0]]


def test_cpu_shards_are_spread_over_nodes(three: Head) -> None:
    settings = ClusterSettings(shards=3, gpus_per_shard=0)
    with joined(three, 3) as handle:
        places = start(plan_actors(settings, handle.resources()))
    assert len(Counter(p[0] for p in places["shard"])) == 2


def test_a_missing_gpu_is_waited_for_and_the_wait_ends_in_one_sentence(three: Head) -> None:
    settings = ClusterSettings(gpus_per_shard=1, shards=2)
    said: list[str] = []
    with joined(three, 3) as handle:
        plan = plan_actors(settings, handle.resources())
        with pytest.raises(ClusterError, match="s for 1 GPU: the cluster has 1"):
            wait_for_resources(plan.bundles(), timeout=3, notify=said.append)
    assert len(said) == 1
    assert said[0].startswith("waiting for 1 GPU: the cluster has 1")


def test_a_node_that_comes_ends_the_wait_and_one_that_goes_is_seen() -> None:
    head = start_head(cpus=2)
    try:
        with joined(head, 1) as handle:
            plan = plan_actors(ClusterSettings(gpus_per_shard=1, shards=1), handle.resources())
            comer: list[Any] = []
            timer = threading.Timer(2, lambda: comer.append(add_node(head, cpus=2, gpus=1)))
            timer.start()
            said: list[str] = []
            wait_for_resources(plan.bundles(), timeout=200, notify=said.append)
            assert said[0] == "waiting for 1 GPU: the cluster has 0"
            timer.join()
            assert handle.resources().gpus == 1
            head.stop(comer[0])
            wait_until(lambda: handle.resources().gpus == 0, 200, "the loss of the node")
    finally:
        head.close()


def test_storage_that_every_node_sees_is_accepted(three: Head, tmp_path: Path) -> None:
    with joined(three, 3):
        assert check_shared_storage(str(tmp_path / "store")) == 3
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a mount namespace")
def test_storage_that_one_node_does_not_see_is_refused_before_work_starts(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    head = start_head(cpus=1)
    try:
        hide = f'mount -t tmpfs none {store} && exec "$@"'
        add_node(head, cpus=1, wrapper=("unshare", "-m", "sh", "-c", hide, "sh"))
        with (
            joined(head, 2),
            pytest.raises(ClusterError, match=r"is not visible on node .*s3://") as caught,
        ):
            check_shared_storage(str(store))
        assert "\n" not in str(caught.value)
    finally:
        head.close()
    assert list(store.iterdir()) == []
