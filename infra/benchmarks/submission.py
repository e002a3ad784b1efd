"""From `luca submit` to the first task: a job on a Ray head that is started here, on loopback.

    python -m infra.benchmarks.submission

Prints one JSON object: seconds from the command to the accepted job, to the driver's start, to the first task's version
and to the job's end, for jobs one after the other (Ray prepares the first one's environment from nothing).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.benchmarks.orchestration import commits, experiment

STORE = 200_000_000
START_SECONDS = 180.0


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def ray_head(folder: Path) -> Iterator[str]:
    """A head with a dashboard and four CPUs; yields the dashboard's URL.  Ended by its process group.

    Raises:
        RuntimeError: it does not come up; the message ends with what it said.
    """
    dashboard = free_port()
    log = folder / "head.log"
    ray = str(Path(sys.executable).parent / "ray")
    command = [ray, "start", "--head", "--block", f"--port={free_port()}", "--num-cpus=4"]
    command += ["--include-dashboard=true", f"--dashboard-port={dashboard}"]
    command += [f"--dashboard-agent-listen-port={free_port()}", f"--object-store-memory={STORE}"]
    command += [f"--temp-dir={folder}/ray", "--disable-usage-stats"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PATH": path},
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while b"Ray runtime started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text("utf-8", "replace")[-1500:])
            time.sleep(0.1)
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)


def job(folder: Path, url: str, tasks: int) -> dict[str, float]:
    """One job, in a folder of its own: seconds from the command to each stage."""
    from orchestrator.submit import submit

    folder.mkdir()
    sizes = argparse.Namespace(tasks=tasks, tested=None, parts_per_task=1, shards=1, trainers=1)
    described = experiment(folder, sizes, address=None)
    file = folder / "stream.yaml"
    file.write_text(described.to_yaml())
    accepted: list[float] = []
    began = time.time()
    done = submit(
        str(file),
        address=url,
        say=lambda _: accepted.append(time.time()),
        write=lambda _: None,
    )
    ended = time.time()
    if done.exit_code:
        raise RuntimeError(f"the job ended with {done.exit_code}: {done.message[-500:]}")
    (started,) = folder.glob("storage/runs/*/experiment.yaml")
    return {
        "accepted": round(accepted[0] - began, 2),
        "driver": round(started.stat().st_mtime - began, 2),
        "first_version": round(commits(folder)[0] - began, 2),
        "end": round(ended - began, 2),
    }


def measure(*, jobs: int = 2, tasks: int = 3) -> list[dict[str, Any]]:
    """Seconds of each job on one head."""
    folder = Path(
        tempfile.mkdtemp(prefix="luca-job-", dir="/tmp")
    )  # Ray's sockets want a short path
    try:
        with ray_head(folder) as url:
            return [job(folder / f"job-{number}", url, tasks) for number in range(jobs)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=3)
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    measured = measure(jobs=arguments.jobs, tasks=arguments.tasks)
    print(json.dumps({"jobs": measured, "load_average": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
