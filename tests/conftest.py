"""What all tests share: a quiet environment, one Ray for those that ask for it, and none for the rest."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.update(
    OMP_NUM_THREADS="1",
    RAY_AUTH_MODE="disabled",
    RAY_USAGE_STATS_ENABLED="0",
    WANDB_MODE="offline",
    WANDB_SILENT="true",
    HF_HUB_OFFLINE="1",
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job starts with Ctrl-C ignored, and hands that on; tests send it on purpose.
    signal.signal(signal.SIGINT, signal.default_int_handler)

RAY_MARKS = {"ray", "cluster", "e2e", "chaos"}


@pytest.fixture(autouse=True)
def _no_ray_in_unit_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test that would start Ray fails at once instead of taking seconds."""
    if RAY_MARKS & {mark.name for mark in request.node.iter_markers()}:
        return
    import sys

    if "ray" in sys.modules:

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a unit test must not start Ray: mark it `ray`")

        monkeypatch.setattr("ray.init", refuse)


@pytest.fixture(autouse=True)
def _denormals_as_ieee_says() -> None:
    """Workers flush denormals for the whole process; in a test process that must not outlast the test."""
    import sys

    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[object]:
    """One local Ray for all tests marked ``ray``; more CPUs than cores, since actors mostly wait."""
    from pipelines.cluster import ClusterSettings, join_ray

    with join_ray(
        ClusterSettings(address="local", cpus=8, object_store_memory=300 * 2**20)
    ) as handle:
        yield handle


@pytest.fixture
def storage_uri(tmp_path: Path) -> str:
    """An empty storage."""
    return str(tmp_path / "storage")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: units, then those that need Ray, whole commands, kills, and clusters.

    Clusters come last, since they need a Ray of their own and so end the one that the others share.
    """
    order = ("ray", "e2e", "chaos", "cluster")

    def rank(item: pytest.Item) -> int:
        marks = {mark.name for mark in item.iter_markers()}
        return max((order.index(mark) + 1 for mark in order if mark in marks), default=0)

    items.sort(key=rank)
