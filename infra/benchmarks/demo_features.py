"""Features of the demo's images in any number of views, and what they cost."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class DemoFeatures:
    """The demo's samples.

    Attributes:
        views: [n, 192] float32 of each view, the test view first; augmented views of test samples are zero.
        labels, split: of every sample.
        seconds: CPU seconds of extracting each view, decoding and writing the cache included.
        size: bytes in the cache of each view.
        images: pictures through the backbone for each view.
    """

    views: tuple[NDArray[np.float32], ...]
    labels: tuple[str, ...]
    split: tuple[str, ...]
    seconds: tuple[float, ...]
    size: tuple[int, ...]
    images: tuple[int, ...]


def demo_features(views: int = 0, *, per_class: int | None = None) -> DemoFeatures:
    """Extracts the demo's features in this process, on one thread.

    Args:
        views: augmented views beside the test view.
        per_class: at most so many training samples of a class; all when left out.
    """
    from infra.benchmarks.in_process import Stages
    from workers.extraction import PartRequest
    from workers.feature_rows import open_rows

    with tempfile.TemporaryDirectory(prefix="luca-bench-") as folder:
        stages = Stages.of(
            Path(folder),
            {
                "stream": {
                    "scenario": "class_incremental",
                    "classes_per_task": 2,
                    "source": {"kind": "demo"},
                    "max_train_per_class": per_class,
                },
                "backbone": {"name": "demo_vit"},
                "features": {"views": views},
            },
        )
        plan, stream = stages.prepared.plan, stages.prepared.stream
        samples = len(stream.labels)
        split: list[str] = stream.samples["split"].to_pylist()
        taken = np.zeros(samples, dtype=bool)
        found, seconds, size, images = [], [], [], []
        for view in range(views + 1):
            began, written, passed = time.process_time(), 0, 0
            features = np.zeros((samples, 192), dtype=np.float32)
            for task in stages.prepared.tasks:
                for rows in (task.task.train, task.task.test) if view == 0 else (task.task.train,):
                    for part in plan.parts_of(rows):
                        done = stages.extractor.extract(PartRequest(plan.samples_of(part), view))
                        passed += done.images
                        written += done.stored_bytes
            seconds.append(time.process_time() - began)
            for task in stages.prepared.tasks:
                for rows in (task.task.train, task.task.test) if view == 0 else (task.task.train,):
                    data = open_rows(
                        stages.cache, plan.rows(rows, stages.extractor.backbone_key), view=view
                    )
                    features[rows] = data.features.gather(np.arange(len(rows)))
                    taken[rows] = True
            found.append(features)
            size.append(written)
            images.append(passed)
        return DemoFeatures(
            views=tuple(features[taken] for features in found),
            labels=tuple(
                stream.classes[label]
                for label, kept in zip(stream.labels, taken, strict=True)
                if kept
            ),
            split=tuple(one for one, kept in zip(split, taken, strict=True) if kept),
            seconds=tuple(seconds),
            size=tuple(size),
            images=tuple(images),
        )
