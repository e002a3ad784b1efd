"""Small real streams for tests of the pipeline: clustered ready-made features, written as Parquet; and a free port."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.experiment import Experiment, merge
from orchestrator.experiment_files import parse_experiment


def write_features(
    path: Path,
    *,
    classes: int = 6,
    width: int = 16,
    train: int = 20,
    test: int = 10,
    seed: int = 0,
    spread: float = 1.0,
) -> Path:
    """Gaussian clusters as a ready-features file; class ``c03`` always has the same samples."""
    labels, splits, features = [], [], []
    for c in range(classes):
        rng = np.random.default_rng([seed, c])
        centre = rng.normal(size=width) * 3
        features.append(centre + spread * rng.normal(size=(train + test, width)))
        labels += [f"c{c:02d}"] * (train + test)
        splits += ["train"] * train + ["test"] * test
    flat = pa.array(np.concatenate(features).astype(np.float32).ravel())
    table = pa.table(
        {
            "feature": pa.FixedSizeListArray.from_arrays(flat, width),
            "label": labels,
            "split": splits,
        }
    )
    pq.write_table(table, path)
    return path


def features_experiment(folder: Path, **changes: Any) -> Experiment:
    """An experiment over :func:`write_features`, quick and quiet."""
    path = folder / "features.parquet"
    if not path.exists():
        write_features(path)
    base: dict[str, Any] = {
        "name": "tiny",
        "storage": str(folder / "storage"),
        "stream": {
            "scenario": "class_incremental",
            "classes_per_task": 2,
            "source": {"kind": "features", "path": str(path)},
        },
        "luca": {"ratio": 4},
        "learning": {"epochs": 3},
        "features": {"part_size": 8},
        "tracking": {"console": "quiet", "wandb": {"mode": "disabled"}},
        "evaluation": {"baselines": ["simplecil"]},
        "cluster": {"shards": 1, "trainers": 1, "evaluators": 1},
    }
    return parse_experiment(merge(base, changes))


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
