"""Real Ray clusters on loopback, started and stopped by process id (``ray stop`` would stop every Ray)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import free_port

STORE = 100_000_000
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_MEMORY_MONITOR": "1",
    "WANDB_MODE": "offline",
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@dataclass
class Head:
    """A cluster made with ``ray start``; each process group is ours to end."""

    port: int
    dashboard_port: int | None
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    def start(
        self,
        *arguments: str,
        wrapper: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start the head or a node and wait until it says that it runs."""
        ray = str(Path(sys.executable).parent / "ray")
        log = self.folder / f"start-{len(self.processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*wrapper, ray, "start", "--block", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env={**os.environ, **ENVIRONMENT, **(environment or {})},
            )
        self.processes.append(process)
        deadline = time.monotonic() + 300
        while b"Ray runtime started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                text = log.read_text("utf-8", "replace")[-1500:]
                pytest.fail(f"ray start did not come up: {text}")
            time.sleep(0.2)
        return process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(4)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a node as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(15)

    def close(self) -> None:
        for process in reversed(self.processes):
            self.stop(process)
        shutil.rmtree(self.folder, ignore_errors=True)


def start_head(
    *,
    cpus: int = 2,
    gpus: int = 0,
    dashboard: bool = False,
    environment: dict[str, str] | None = None,
    autoscaling: Callable[[str], dict[str, Any]] | None = None,
) -> Head:
    """A head; ``autoscaling``: the autoscaler's configuration, given the head's address."""
    folder = Path(tempfile.mkdtemp(prefix="lt-", dir="/tmp"))
    head = Head(free_port(), free_port() if dashboard else None, folder)
    arguments = ["--head", f"--port={head.port}", f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
    arguments += [f"--object-store-memory={STORE}", f"--temp-dir={folder}/r"]
    arguments += [f"--include-dashboard={dashboard}"]
    if dashboard:
        arguments.append(f"--dashboard-port={head.dashboard_port}")
    arguments += [f"--dashboard-agent-listen-port={free_port()}"]
    if autoscaling is not None:
        file = folder / "autoscaling.yaml"
        file.write_text(json.dumps(autoscaling(head.address)))
        arguments.append(f"--autoscaling-config={file}")
    try:
        head.start(*arguments, environment=environment)
    except BaseException:
        head.close()
        raise
    return head


def add_node(
    head: Head, *, cpus: int, gpus: int = 0, wrapper: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    """One more node; its GPUs are simulated."""
    return head.start(
        f"--address={head.address}",
        f"--num-cpus={cpus}",
        f"--num-gpus={gpus}",
        f"--object-store-memory={STORE}",
        f"--dashboard-agent-listen-port={free_port()}",
        wrapper=wrapper,
    )


def can_unshare() -> bool:
    """Whether this machine lets a node have mounts of its own."""
    unshare = shutil.which("unshare")
    return (
        unshare is not None and not subprocess.run([unshare, "-m", "true"], check=False).returncode
    )


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {seconds} s")
        time.sleep(0.3)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """One ``ray start --head`` with a dashboard and two CPUs."""
    started = start_head(dashboard=True)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def bare_head() -> Iterator[Head]:
    """A head of the test's own that offers no CPUs, as on KubeRay; tests add nodes, and may lose them."""
    started = start_head(cpus=0)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="session", autouse=True)
def _no_other_ray() -> None:
    """The Ray of the tests before these would be used in place of theirs; nobody needs it any more (tests/conftest.py)."""
    import ray

    ray.shutdown()


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
