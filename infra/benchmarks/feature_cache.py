"""The feature cache: throughput against plain Arrow, a trainer's memory on 2 million rows, float16 against float32."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from infra.benchmarks.measure import Row, Timing, interleaved, one_thread, ratio

ROWS = 2_000_000
PART, WIDTH = 512, 768


def run(*, long: bool) -> list[Row]:
    """Throughput, memory, and the two dtypes."""
    one_thread()
    with tempfile.TemporaryDirectory(prefix="luca-bench-") as folder:
        return [
            *_throughput(Path(folder), parts=60 if long else 24, rounds=9 if long else 5),
            *_memory(Path(folder), width=384 if long else 64, batch=4800),
            *_dtypes(Path(folder), per_class=200 if long else 40),
        ]


def _throughput(folder: Path, *, parts: int, rounds: int) -> list[Row]:
    import pyarrow as pa

    from workers.storage.features import FeatureCache, PartKey
    from workers.storage.filesystem import Storage

    features = np.random.default_rng(0).standard_normal((PART, WIDTH)).astype(np.float32)
    ids = pa.array([f"sample/{i:06d}.png" for i in range(PART)])
    keys = [PartKey("bench-float32", f"{i:032x}") for i in range(parts)]
    cache = FeatureCache(Storage.open(str(folder / "cache")))
    plain = folder / "plain"
    plain.mkdir()
    column = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), WIDTH)
    table = pa.table({"id": ids, "feature": column})
    size = parts * features.nbytes

    def write_cache() -> None:
        for key in keys:
            cache.write(key, ids, features)

    def write_plain(*, sync: bool) -> None:
        for i in range(parts):
            path = plain / f"{i}.arrow.part"
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            if sync:
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
            path.rename(plain / f"{i}.arrow")
            if sync:
                descriptor = os.open(plain, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    def read_cache() -> None:
        for key in keys:
            cache.read(key).features.sum()

    def read_plain() -> None:
        for i in range(parts):
            with pa.memory_map(str(plain / f"{i}.arrow")) as file:
                column = pa.ipc.open_file(file).read_all()["feature"].combine_chunks()
                column.flatten().to_numpy().sum()

    writes = interleaved(
        {
            "cache": write_cache,
            "synced": lambda: write_plain(sync=True),
            "unsynced": lambda: write_plain(sync=False),
        },
        rounds=rounds,
    )
    first = []
    for _ in range(rounds):  # each part was just written anew, so it is verified again
        write_cache()
        first.append(interleaved({"cache": read_cache, "plain": read_plain}, rounds=1, warm=False))
    fresh = statistics.median(r["plain"].wall[0] / r["cache"].wall[0] for r in first)
    again = interleaved({"cache": read_cache, "plain": read_plain}, rounds=rounds)

    def speed(timing: Timing) -> str:
        return f"{size / timing.wall_seconds / 2**20:,.0f} MiB/s"

    return [
        Row(
            "write, cache over plain Arrow, equally durable",
            ratio(writes["synced"], writes["cache"], wall=True),
            aim=0.9,
            least=True,
            note=f"{speed(writes['cache'])} with checksum and NaN check; plain with file and folder synced "
            f"{speed(writes['synced'])}, without {speed(writes['unsynced'])}; parts of {PART} x {WIDTH}",
        ),
        Row(
            "read and sum, cache over plain Arrow",
            ratio(again["plain"], again["cache"], wall=True),
            aim=0.9,
            least=True,
            note=f"{speed(again['cache'])} mapped; plain {speed(again['plain'])}",
        ),
        Row(
            "the same, first read in a process (checksum verified)",
            fresh,
            note="the whole part is hashed once a process",
        ),
    ]


def _memory(folder: Path, *, width: int, batch: int) -> list[Row]:
    """Learns one epoch of one task of 2 million rows in a process of its own."""
    from workers.storage.features import FeatureCache, PartKey
    from workers.storage.filesystem import Storage

    cache = FeatureCache(Storage.open(str(folder / "large")))
    rng = np.random.default_rng(0)
    block = rng.standard_normal((50_000, width)).astype(np.float32)
    for i in range(ROWS // len(block)):
        names = [f"{i:03d}/{row:06d}" for row in range(len(block))]
        cache.write(PartKey("bench-float32", f"{i:032x}"), names, block)
    command = [
        sys.executable,
        "-m",
        "infra.benchmarks.feature_cache",
        "--learn",
        str(folder / "large"),
    ]
    finished = subprocess.run(
        [*command, str(ROWS // len(block)), str(batch)], capture_output=True, text=True, check=True
    )
    found = json.loads(finished.stdout.splitlines()[-1])
    return [
        Row(
            f"peak anonymous memory of learning from {ROWS:,} rows",
            found["peak"] / 1e6,
            "MB",
            aim=500,
            note=f"d={width}: {ROWS * width * 4 / 1e9:.1f} GB of features mapped; {found['before'] / 1e6:.0f} MB "
            f"before learning; {found['steps'] * batch / found['seconds'] / 1e3:,.0f} thousand rows/s in one epoch "
            f"with batches of {batch}",
        )
    ]


def _learn(folder: str, parts: int, batch: int) -> dict[str, Any]:
    """In the trainer's process: one epoch and the router's sums over all rows."""
    import torch

    from workers.modeling.learner import learn_local
    from workers.modeling.learning_settings import LearningSettings
    from workers.modeling.luca_settings import LucaSettings
    from workers.modeling.statistics import TaskStatistics
    from workers.storage.features import FeatureCache, FeatureSet, PartKey
    from workers.storage.filesystem import Storage

    one_thread()
    cache = FeatureCache(Storage.open(folder))
    with _peak_anonymous() as peak:
        opened = [cache.read(PartKey("bench-float32", f"{i:032x}")) for i in range(parts)]
        features = FeatureSet.concatenate(opened)
        labels = np.arange(len(features), dtype=np.int64) % 10
        before, began = max(peak), time.perf_counter()
        learned = learn_local(
            [features],
            torch.from_numpy(labels),
            classes=10,
            luca=LucaSettings(),
            learning=LearningSettings(epochs=1, batch_size=batch),
            seed=0,
            task_key="t",
        )
        seconds = time.perf_counter() - began
        TaskStatistics.from_features(features, labels, classes=10, granularity="task")
        time.sleep(0.1)
    return {"peak": max(peak), "before": before, "seconds": seconds, "steps": learned.steps}


class _peak_anonymous:  # noqa: N801 - used as a context
    """Samples this process's anonymous resident memory fifty times a second; gives the list of bytes."""

    def __enter__(self) -> list[int]:
        self.seen = [_anonymous()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.seen.append(_anonymous())

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self.seen.append(_anonymous())


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _dtypes(folder: Path, *, per_class: int) -> list[Row]:
    """The demo learned and scored from a float32 and from a float16 cache."""
    found: dict[str, dict[str, Any]] = {}
    for dtype in ("float32", "float16"):
        from infra.benchmarks.in_process import Stages

        stages = Stages.of(
            folder / dtype,
            {
                "stream": {
                    "scenario": "class_incremental",
                    "classes_per_task": 2,
                    "source": {"kind": "demo"},
                    "max_train_per_class": per_class,
                    "max_test_per_class": max(20, per_class // 2),
                },
                "features": {"dtype": dtype},
            },
        )
        for task in stages.tasks:
            for split in ("train", "test"):
                stages.extract(task, split)
        registry, scorer = stages.registry(), stages.scorer()
        began = time.process_time()
        for task in stages.tasks:
            version = stages.commit(registry, task, *stages.learn(task))
        learning = time.process_time() - began
        scored = stages.score(scorer, version.version, stages.tasks[-1], ("lda",))
        registry.close()
        made = scored.methods["lda"]
        found[dtype] = {
            "bytes": stages.cache.size().bytes,
            "seconds": learning,
            "accuracy": float((made.predicted == scored.label).mean()),
            "predicted": made.predicted,
        }
    whole, half = found["float32"], found["float16"]
    changed = int((whole["predicted"] != half["predicted"]).sum())
    return [
        Row(
            "size of a float16 cache over float32",
            half["bytes"] / whole["bytes"],
            note="the demo's features",
        ),
        Row("learning time from float16 over float32", half["seconds"] / whole["seconds"]),
        Row(
            "accuracy, float16 minus float32",
            100 * (half["accuracy"] - whole["accuracy"]),
            "points",
            note=f"router lda; {100 * whole['accuracy']:.2f} % in float32; {changed} of "
            f"{len(whole['predicted'])} predictions differ",
        ),
    ]


def _arguments() -> Iterator[str]:
    yield from sys.argv[sys.argv.index("--learn") + 1 :]


if __name__ == "__main__":
    where, count, size = _arguments()
    print(json.dumps(_learn(where, int(count), int(size))))
