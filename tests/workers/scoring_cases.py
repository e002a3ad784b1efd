"""Features of small tasks, for the tests of scoring."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from workers.feature_rows import FeatureRows
from workers.storage.features import FeatureCache, PartKey

WIDTH, ROWS = 12, 10


def rows(cache: FeatureCache, task: int, split: str) -> FeatureRows:
    """Two classes of a task as one part."""
    rng = np.random.default_rng([task, len(split)])
    centres = np.random.default_rng(task).normal(size=(2, WIDTH)) * 2
    labels = np.repeat([2 * task, 2 * task + 1], ROWS)
    features = centres[labels - 2 * task] + rng.normal(size=(2 * ROWS, WIDTH))
    ids = [f"{split}-{task}-{i}" for i in range(2 * ROWS)]
    key = PartKey(backbone="ready", part=f"{task:02d}{split:0>30}", view=0)
    cache.write(key, ids, features.astype(np.float32))

    return FeatureRows(
        keys=(key,),
        sizes=np.array([2 * ROWS]),
        part=np.zeros(2 * ROWS, dtype=np.int64),
        row=np.arange(2 * ROWS),
        labels=labels,
        ids=pa.array(ids),
    )
