"""Learning one task from its feature rows: the module, its head, the statistics routers need.

A pure function of the request and the features, so that any trainer, at any time and after any crash, gives
the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workers.feature_rows import OpenRows, open_rows
from workers.learned import Arrays, LearnedArrays, LearnInfo, LearnRequest
from workers.modeling.learner import (
    Execution,
    UnifiedHead,
    learn_local,
    learn_unified,
)
from workers.modeling.luca import nonzero_count, parameter_count
from workers.modeling.sparse import encode
from workers.modeling.statistics import TaskStatistics
from workers.modeling.whitening import Whitening
from workers.storage.features import FeatureCache, PartKey

if TYPE_CHECKING:
    import pyarrow as pa


def fit_whitening(
    cache: FeatureCache, request: LearnRequest, tables: Mapping[PartKey, pa.Table] | None = None
) -> Arrays:
    """The stream's whitening, from the first task's training samples alone."""
    data = open_rows(cache, request.rows, tables=tables)
    statistics = TaskStatistics.from_features(
        data.features,
        np.searchsorted(request.classes, data.labels),
        classes=len(request.classes),
        granularity="task",
    )
    return Whitening.from_statistics(statistics).to_arrays()


def learn_task(
    cache: FeatureCache,
    request: LearnRequest,
    *,
    whitening: Arrays | None = None,
    previous_head: Arrays | None = None,
    tables: Mapping[PartKey, pa.Table] | None = None,
    execution: Execution | None = None,
) -> tuple[LearnInfo, LearnedArrays]:
    """Learn a task.

    Args:
        cache: where feature parts lie.
        request: what to learn.
        whitening: the stream's whitening, or None.
        previous_head: the head left by the previous task (unified objective).
        tables: parts at hand already.
        execution: device, and this worker's share when several learn the task together; None: this CPU.

    Raises:
        DataError: features are not finite or missing.
        CorruptionError: a feature part does not match its checksum.
    """
    import torch

    started = time.perf_counter()
    data = open_rows(cache, request.rows, tables=tables)
    white = Whitening.from_arrays(whitening) if whitening is not None else None
    test_view = WhitenedView(data, white)
    views = [
        WhitenedView(open_rows(cache, request.rows, view=v, tables=tables), white)
        for v in range(1, request.views + 1)
    ] or [test_view]
    local = request.learning.objective == "local"
    common: dict[str, Any] = {
        "luca": request.luca,
        "learning": request.learning,
        "seed": request.seed,
        "task_key": request.task,
        "test_view": test_view,
        "check": _check(cache, request, white, tables),
        "execution": execution,
    }
    if local:
        labels = torch.from_numpy(np.searchsorted(request.classes, data.labels))
        learned = learn_local(views, labels, classes=len(request.classes), **common)
    else:
        before = _head_from(previous_head) if previous_head is not None else None
        learned = learn_unified(
            views,
            torch.from_numpy(data.labels),
            new_classes=request.new_classes,
            previous=before,
            **common,
        )
    module = {name: value.numpy() for name, value in learned.module.items()}
    encoded = encode(module)
    head = {"weight": learned.head.numpy(), "scale": learned.scale.numpy()}
    statistics = _statistics(data, request, white).to_arrays()
    objects = {"module": encoded, "statistics": statistics}
    if local:
        objects["head"] = head
    info = LearnInfo(
        task=request.task,
        samples=len(data.labels),
        steps=learned.steps,
        losses=tuple(learned.losses),
        stored_parameters=parameter_count(learned.module),
        nonzero_parameters=nonzero_count(learned.module),
        dense_bytes=sum(a.nbytes for a in module.values()),
        stored_bytes=sum(a.nbytes for a in encoded.values()),
        threshold=learned.threshold,
        seconds=time.perf_counter() - started,
    )
    return info, LearnedArrays(objects, None if local else head)


class WhitenedView:
    """Feature rows as a learner reads them: gathered in float32 and whitened when the stream says so."""

    def __init__(self, data: OpenRows, whitening: Whitening | None) -> None:
        self._features = data.features
        self._whitening = whitening

    def __len__(self) -> int:
        return len(self._features)

    def gather(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Features [k, d] of the given rows."""
        import torch

        features = self._features.gather(rows)
        if self._whitening is None:
            return features
        return self._whitening.apply(torch.from_numpy(features)).numpy()


def _check(
    cache: FeatureCache,
    request: LearnRequest,
    whitening: Whitening | None,
    tables: Mapping[PartKey, pa.Table] | None,
) -> tuple[WhitenedView, Any] | None:
    """Held-out samples for the accuracy check of a magnitude threshold; without any, training samples serve."""
    import torch

    if request.learning.threshold is None or request.validation is None:
        return None
    held_out = open_rows(cache, request.validation, tables=tables)
    labels = held_out.labels
    if request.learning.objective == "local":
        labels = np.searchsorted(request.classes, labels)
    return WhitenedView(held_out, whitening), torch.from_numpy(labels)


def _statistics(
    data: OpenRows, request: LearnRequest, whitening: Whitening | None
) -> TaskStatistics:
    """Sums over the raw features; random features see whitened ones, as at prediction."""
    return TaskStatistics.from_features(
        data.features,
        np.searchsorted(request.classes, data.labels),
        classes=len(request.classes),
        granularity=request.evaluation.statistics.granularity,
        projection=request.evaluation.projection(
            width=data.features.width, seed=request.seed, whitening=whitening
        ),
    )


def _head_from(arrays: Arrays) -> UnifiedHead:
    import torch

    return UnifiedHead(
        weight=torch.from_numpy(np.array(arrays["weight"])),
        scale=torch.from_numpy(np.array(arrays["scale"])),
    )
