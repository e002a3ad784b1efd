"""What orchestration costs: many tiny tasks, so that hardly anything but orchestration is left.

    python -m infra.benchmarks.orchestration --tasks 100 --nodes 2
    python -m infra.benchmarks.orchestration --tasks 1000 --parts-per-task 10 --tested 1    # 10,001 parts

Writes ready features of very small width, runs them as a stream of tasks on a local Ray or on simulated nodes,
and prints one JSON object: seconds to Ray, to the first commit and per task, and the driver's memory at
each tenth of the time.  With ``--parts-per-task`` the same samples are cut into more feature parts; with ``--tested``
only the first so many tasks have test samples, so that scoring does not grow with the tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WIDTH = 16


def write_stream(
    path: Path, *, classes: int, train: int, test: int, tested: int | None = None
) -> None:
    """Gaussian clusters, one a class, as a ready-features file; test samples of the first ``tested`` classes."""
    rng = np.random.default_rng(0)
    each = train + test
    features = rng.normal(size=(classes, 1, WIDTH)) * 3 + rng.normal(size=(classes, each, WIDTH))
    flat = pa.array(features.astype(np.float32).ravel())
    table = pa.table(
        {
            "feature": pa.FixedSizeListArray.from_arrays(flat, WIDTH),
            "label": np.repeat([f"c{c:05d}" for c in range(classes)], each),
            "split": np.tile(["train"] * train + ["test"] * test, classes),
        }
    )
    if tested is not None:
        kept = (np.arange(classes * each) // each < tested) | (np.array(table["split"]) == "train")
        table = table.filter(pa.array(kept))
    pq.write_table(table, path)


class Memory:
    """Samples this process's resident memory twice a second."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.samples.append(pages * os.sysconf("SC_PAGESIZE") / 2**20)


def experiment(folder: Path, arguments: argparse.Namespace, address: str | None) -> Any:
    from orchestrator.experiment_files import parse_experiment

    train = 8 * arguments.parts_per_task
    write_stream(
        folder / "stream.parquet",
        classes=arguments.tasks,
        train=train,
        test=2,
        tested=arguments.tested,
    )
    return parse_experiment(
        {
            "name": "orchestration",
            "storage": str(folder / "storage"),
            "stream": {
                "scenario": "class_incremental",
                "classes_per_task": 1,
                "shuffle_classes": False,
                "source": {"kind": "features", "path": str(folder / "stream.parquet")},
            },
            "luca": {"ratio": 8},
            "learning": {"epochs": 1, "l1": 0.0},
            "whitening": "none",
            "features": {"part_size": 8},
            "evaluation": {"routers": ["prototype"], "baselines": []},
            "tracking": {"console": "quiet", "wandb": {"mode": "disabled"}},
            "cluster": {
                "address": address,
                "shards": arguments.shards,
                "trainers": arguments.trainers,
                "evaluators": 1,
            },
        }
    )


def commits(folder: Path) -> list[float]:
    """Times at which versions appeared."""
    files = (folder / "storage" / "banks" / "orchestration" / "versions").glob("*.json")
    return sorted(file.stat().st_mtime for file in files)


def nodes(count: int) -> tuple[Any, str]:
    """A simulated cluster of ``count`` nodes and its address; none for a local start."""
    if not count:
        return None, "local"
    from ray.cluster_utils import Cluster

    arguments = {"num_cpus": 4, "object_store_memory": 200_000_000}
    cluster = Cluster(
        initialize_head=True, head_node_args={**arguments, "include_dashboard": False}
    )
    for _ in range(count - 1):
        cluster.add_node(**arguments)
    cluster.wait_for_nodes()
    return cluster, cluster.address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--parts-per-task", type=int, default=1)
    parser.add_argument("--tested", type=int, help="tasks with test samples; left out: all")
    parser.add_argument("--nodes", type=int, default=0, help="0: a local start")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--trainers", type=int, default=1)
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

    from orchestrator.commands.run import run_experiment

    folder = Path(tempfile.mkdtemp(prefix="luca-bench-"))
    cluster, address = nodes(arguments.nodes)
    try:
        described = experiment(folder, arguments, address)
        began = time.time()
        with Memory() as memory:
            run_experiment(described, console=False)
        ended = time.time()
        times = commits(folder)
    finally:
        if cluster is not None:
            cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    last = len(memory.samples) - 1
    tested = arguments.tasks if arguments.tested is None else arguments.tested
    print(
        json.dumps(
            {
                "tasks": arguments.tasks,
                "parts": arguments.tasks * arguments.parts_per_task + tested,
                "tested": tested,
                "nodes": arguments.nodes,
                "seconds": round(ended - began, 2),
                "seconds_to_first_commit": round(times[0] - began, 2),
                "milliseconds_per_task": round(1000 * (times[-1] - times[0]) / (len(times) - 1), 1),
                "seconds_after_last_commit": round(ended - times[-1], 2),
                "driver_mib": [round(memory.samples[i * last // 10]) for i in range(11)],
                "load_average": round(os.getloadavg()[0], 1),
            }
        )
    )


if __name__ == "__main__":
    main()
