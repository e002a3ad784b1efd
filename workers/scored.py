"""What is asked of evaluators and what they answer.  NumPy and Arrow only: the driver never loads torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

    from workers.feature_rows import FeatureRows


@dataclass(frozen=True)
class TrainPart:
    """The training samples of a task and its classes (global indices)."""

    rows: FeatureRows
    classes: tuple[int, ...]


@dataclass(frozen=True)
class TestPart:
    """The samples of one task that a version is scored on.

    Attributes:
        task: position of the task in the bank.
        rows: where the features lie; labels are global class indices of the stream.
    """

    __test__ = False

    task: int
    rows: FeatureRows


@dataclass(frozen=True)
class MethodPredictions:
    """One method's predictions for n samples, as NumPy arrays (see ``orchestrator/results.py``).

    Attributes:
        predicted: class index in the stream, int64 [n].
        routed_task: task position, int64 [n], or None when the method does not route.
        confidence, routing_confidence, log_prob_true: float64 [n] or None.
    """

    predicted: NDArray[np.int64]
    routed_task: NDArray[np.int64] | None = None
    confidence: NDArray[np.float64] | None = None
    routing_confidence: NDArray[np.float64] | None = None
    log_prob_true: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Scored:
    """Predictions of several methods for the same samples.

    Attributes:
        task: true task position of each sample, int64 [n].
        sample: ids, string [n].
        label: true class index, int64 [n].
        methods: predictions by method name.
        module_scores: (module, test part) pairs that had to be computed.
    """

    task: NDArray[np.int64]
    sample: pa.Array
    label: NDArray[np.int64]
    methods: dict[str, MethodPredictions]
    seconds: float = field(default=0.0, compare=False)
    module_scores: int = field(default=0, compare=False)
