"""A run on a cluster that has no nodes for it: Ray's autoscaler adds them, and takes them back afterwards.

The autoscaler is Ray's own; only its provider is a simulation, which starts nodes as processes on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.autoscaler._private.fake_multi_node.node_provider import (
    FAKE_HEAD_NODE_ID,
    FakeMultiNodeProvider,
)

from orchestrator.commands.run import run_experiment
from pipelines.cluster import ClusterSettings, join_ray
from tests.cluster.conftest import STORE, Head, start_head, wait_until
from tests.helpers import features_experiment

pytestmark = pytest.mark.timeout(900)

ENVIRONMENT = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
}


EMPTY_LISTS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
)


def configuration(address: str) -> dict[str, Any]:
    """Up to two nodes of two CPUs, given back after some seconds without work."""
    return {
        "cluster_name": "simulated",
        "max_workers": 2,
        "idle_timeout_minutes": 0.1,
        "provider": {
            "type": "external",
            "module": f"{FakeMultiNodeProvider.__module__}.{FakeMultiNodeProvider.__name__}",
            "gcs_address": address,
            "launch_multiple": True,
            "head_node_id": FAKE_HEAD_NODE_ID,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
            "two": {
                "resources": {"CPU": 2, "object_store_memory": STORE},
                "node_config": {},
                "min_workers": 0,
                "max_workers": 2,
            },
        },
        "head_node_type": "ray.head.default",
        "auth": {},
        "upscaling_speed": 1.0,
        # Ray's own defaults for this provider are not in its wheel.
        **{key: [] for key in EMPTY_LISTS},
        **{key: {} for key in ("docker", "file_mounts")},
    }


@pytest.fixture
def growing_head() -> Iterator[Head]:
    """A head without CPUs whose cluster grows and shrinks with what is asked of it."""
    started = start_head(cpus=0, environment=ENVIRONMENT, autoscaling=configuration)
    try:
        yield started
    finally:
        started.close()


def test_nodes_come_for_a_run_and_go_after_it(
    growing_head: Head, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = {"address": growing_head.address, "wait_for_resources_seconds": 400.0}
    wish = features_experiment(tmp_path, cluster=cluster, tracking={"console": "plain"})
    assert run_experiment(wish)["tasks_learned"] == 3
    assert "waiting for 3 CPUs: the cluster has 0" in capfd.readouterr().err
    with join_ray(ClusterSettings(address=growing_head.address)) as handle:
        assert handle.resources().cpus <= 4
        wait_until(lambda: handle.resources().cpus == 0, 200, "the nodes' leave")
