"""Evaluation after task t costs O(t) module scores: counted while streams of 10, 20 and 40 tasks go by."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from infra.benchmarks.measure import Row, one_thread

STREAMS = (10, 20, 40)


def run(*, long: bool) -> list[Row]:
    """Counts (module, test part) pairs that had to be computed, and the last evaluation's time."""
    one_thread()
    rows = []
    for tasks in (*STREAMS, 200) if long else STREAMS:
        with tempfile.TemporaryDirectory(prefix="luca-bench-") as folder:
            counts, seconds = _stream(Path(folder), tasks)
        every = tasks * (tasks + 1) * (2 * tasks + 1) // 6
        rows.append(
            Row(
                f"module scores of the last evaluation of {tasks} tasks",
                counts[-1],
                "pairs",
                aim=2 * tasks - 1,
                note=f"{sum(counts)} in all, {every} when every version scores everything anew; the last "
                f"evaluation took {1000 * seconds[-1]:.0f} ms, the middle one {1000 * seconds[tasks // 2]:.0f} ms",
            )
        )
    return rows


def _stream(folder: Path, tasks: int) -> tuple[list[int], list[float]]:
    """Learns and scores a stream of tiny tasks; pairs and seconds of each evaluation."""
    from infra.benchmarks.in_process import Stages
    from infra.benchmarks.orchestration import write_stream

    write_stream(folder / "stream.parquet", classes=2 * tasks, train=8, test=4)
    stages = Stages.of(
        folder / "storage",
        {
            "stream": {
                "scenario": "class_incremental",
                "classes_per_task": 2,
                "source": {"kind": "features", "path": str(folder / "stream.parquet")},
            },
            "luca": {"ratio": 8},
            "learning": {"epochs": 1},
            "whitening": "none",
        },
    )
    registry, scorer = stages.registry(), stages.scorer()
    counts, seconds = [], []
    for task in stages.tasks:
        for split in ("train", "test"):
            stages.extract(task, split)
        version = stages.commit(registry, task, *stages.learn(task))
        began = time.process_time()
        counts.append(stages.score(scorer, version.version, task, ("lda", "entropy")).module_scores)
        seconds.append(time.process_time() - began)
    registry.close()
    return counts, seconds
