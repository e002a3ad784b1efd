"""Metrics of continual learning; each name fixes one definition.

Libraries use the same names for different formulas.  Here a[i, j] is the accuracy on the test samples of task j
after task i was learned, deciding among all classes seen by then; n_j is the number of task j's test samples; T
is the number of tasks, counted from 0.  Accuracies are fractions.  Nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workers.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Metric:
    """A number, or the reason why there is none.

    Attributes:
        value: The number, or None.
        reason: Why it is undefined; empty when it is defined.
    """

    value: float | None
    reason: str = ""


@dataclass(frozen=True)
class AccuracyMatrix:
    """Accuracies of all tasks after each task.

    Attributes:
        values: a, float64 [T, T]; NaN where task j was not scored after task i (usually above the
            diagonal).
        counts: n, int64 [T].
    """

    values: NDArray[np.float64]
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        tasks = len(self.counts)
        if tasks == 0 or self.values.shape != (tasks, tasks):
            raise DataError(
                f"accuracy matrix: values of shape {self.values.shape} do not fit {tasks} tasks; "
                "a square matrix with a row and a column a task is needed."
            )
        if np.isnan(self.values[np.tril_indices(tasks)]).any():
            raise DataError(
                "accuracy matrix: a task has no accuracy after a task that was learned later; score "
                "every task seen after every task."
            )
        if (np.asarray(self.counts) <= 0).any():
            raise DataError("accuracy matrix: a task has no test samples; give every task some.")

    @property
    def tasks(self) -> int:
        """Number of tasks T."""
        return len(self.counts)


def accuracy(predicted: NDArray[Any], true: NDArray[Any]) -> float:
    """Share of samples whose predicted class is the true one (top-1)."""
    if len(predicted) == 0 or len(predicted) != len(true):
        raise DataError(
            f"accuracy: {len(predicted)} predictions and {len(true)} labels; as many of each, and at "
            "least one, are needed."
        )
    return float(np.mean(np.asarray(predicted) == np.asarray(true)))


def accuracy_after_each_task(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """A_i = sum over j <= i of n_j a[i, j] / sum over j <= i of n_j, float64 [T].

    The top-1 accuracy over the test samples of all classes seen after task i.
    """
    return np.array(
        [
            np.average(matrix.values[i, : i + 1], weights=matrix.counts[: i + 1])
            for i in range(matrix.tasks)
        ]
    )


def average_incremental_accuracy(matrix: AccuracyMatrix) -> float:
    """Mean over i of A_i, the sample-weighted accuracy over all classes seen after task i.

    iCaRL, Rebuffi et al., CVPR 2017; "average accuracy" in PILOT.
    """
    return float(np.mean(accuracy_after_each_task(matrix)))


def final_accuracy(matrix: AccuracyMatrix) -> float:
    """A_{T-1}: sample-weighted top-1 over all classes after the last task."""
    return float(accuracy_after_each_task(matrix)[-1])


def task_weighted_average_accuracy(matrix: AccuracyMatrix) -> float:
    """Mean over tasks j of a[T-1, j], each task counting the same.

    ACC of Lopez-Paz and Ranzato, NeurIPS 2017 (GEM); Renate's average accuracy.
    """
    return float(np.mean(matrix.values[-1]))


def forgetting_per_task(matrix: AccuracyMatrix) -> NDArray[np.float64]:
    """f_j = max over j <= i < T-1 of a[i, j], minus a[T-1, j], for every task j < T-1, float64 [T-1].

    Chaudhry et al., ECCV 2018; negative where the last task made an older one better than ever.
    """
    last = matrix.tasks - 1
    return np.array(
        [np.max(matrix.values[j:last, j]) - matrix.values[last, j] for j in range(last)]
    )


def forgetting(matrix: AccuracyMatrix) -> Metric:
    """Mean over tasks j < T-1 of `forgetting_per_task` (Chaudhry et al., ECCV 2018)."""
    return _mean_over_older(forgetting_per_task(matrix))


def forgetting_from_peak(matrix: AccuracyMatrix) -> Metric:
    """Mean over j < T-1 of max over j <= i <= T-1 of a[i, j], minus a[T-1, j]; never negative.

    The variant of PILOT and Mammoth: the row of the last task takes part in the maximum.
    """
    last = matrix.tasks - 1
    return _mean_over_older(
        np.array([np.max(matrix.values[j:, j]) - matrix.values[last, j] for j in range(last)])
    )


def forgetting_from_learned(matrix: AccuracyMatrix) -> Metric:
    """Mean over j < T-1 of a[j, j] - a[T-1, j].

    The variant of Avalanche: measured from the accuracy right after the task was learned; minus
    `backward_transfer`.
    """
    diagonal = np.diag(matrix.values)[:-1]
    return _mean_over_older(diagonal - matrix.values[-1, :-1])


def backward_transfer(matrix: AccuracyMatrix) -> Metric:
    """Mean over j < T-1 of a[T-1, j] - a[j, j] (Lopez-Paz and Ranzato, NeurIPS 2017)."""
    diagonal = np.diag(matrix.values)[:-1]
    return _mean_over_older(matrix.values[-1, :-1] - diagonal)


def forward_transfer(
    matrix: AccuracyMatrix, untrained: NDArray[np.float64] | None = None
) -> Metric:
    """Mean over j > 0 of a[j-1, j] - b_j, b_j the untrained model's accuracy on task j.

    Lopez-Paz and Ranzato, NeurIPS 2017.  Undefined where a task was not scored before it was learned:
    in a class-incremental stream classes that were never seen cannot be predicted.

    Args:
        matrix: Accuracies, with those just above the diagonal.
        untrained: b, float64 [T].
    """
    if matrix.tasks < 2:
        return Metric(None, "there is only one task")
    ahead = np.diag(matrix.values, k=1)
    if np.isnan(ahead).any():
        return Metric(
            None,
            "classes that were not seen yet cannot be predicted, so tasks have no score before",
        )
    if untrained is None:
        return Metric(None, "the accuracy of the untrained model was not measured")
    return Metric(float(np.mean(ahead - np.asarray(untrained)[1:])))


def routing_accuracy(chosen: NDArray[Any], true: NDArray[Any]) -> float:
    """Share of samples for which the module of their own task was chosen."""
    return accuracy(chosen, true)


def expected_calibration_error(
    confidence: NDArray[Any], correct: NDArray[Any], *, bins: int = 15
) -> float:
    """Sum over equal-mass bins of |bin| / n * |mean correctness - mean confidence|.

    Samples are sorted by confidence and cut into ``bins`` runs whose sizes differ by at most one (Nguyen
    and O'Connor, EMNLP 2015; Roelofs et al., AISTATS 2022).  Samples of equal confidence share their mean
    correctness, so the value does not depend on the order of the samples.
    """
    scores = np.asarray(confidence, dtype=np.float64)
    hits = np.asarray(correct, dtype=np.float64)
    if len(scores) == 0 or len(scores) != len(hits) or not np.isfinite(scores).all():
        raise DataError(
            f"calibration error: {len(scores)} confidences and {len(hits)} outcomes; as many finite "
            "ones of each, and at least one, are needed."
        )
    unique, inverse, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    shared = np.bincount(inverse, weights=hits, minlength=len(unique)) / sizes
    order = np.argsort(scores, kind="stable")
    scores, hits = scores[order], shared[inverse[order]]
    parts = zip(np.array_split(scores, bins), np.array_split(hits, bins), strict=True)
    gaps = [
        len(part) * abs(float(np.mean(hit) - np.mean(part))) for part, hit in parts if len(part)
    ]
    return float(sum(gaps) / len(scores))


def negative_log_likelihood(label_log_prob: NDArray[Any]) -> float:
    """Mean over samples of -log p(true class | x), in nats; infinite where one was held impossible."""
    values = np.asarray(label_log_prob, dtype=np.float64)
    if len(values) == 0 or np.isnan(values).any():
        raise DataError(
            "negative log-likelihood: log-probabilities of the true classes are missing or NaN."
        )
    return float(-np.mean(values))


def gap_to_joint(joint_accuracy: float, method_accuracy: float) -> float:
    """Accuracy of joint training on the same features minus that of the method; both on all classes."""
    return float(joint_accuracy - method_accuracy)


def summary(
    matrix: AccuracyMatrix, untrained: NDArray[np.float64] | None = None
) -> dict[str, Metric]:
    """All metrics of the matrix by the name of the function that defines them."""
    return {
        "final_accuracy": Metric(final_accuracy(matrix)),
        "average_incremental_accuracy": Metric(average_incremental_accuracy(matrix)),
        "task_weighted_average_accuracy": Metric(task_weighted_average_accuracy(matrix)),
        "forgetting": forgetting(matrix),
        "forgetting_from_peak": forgetting_from_peak(matrix),
        "forgetting_from_learned": forgetting_from_learned(matrix),
        "backward_transfer": backward_transfer(matrix),
        "forward_transfer": forward_transfer(matrix, untrained),
    }


def _mean_over_older(values: NDArray[np.float64]) -> Metric:
    if len(values) == 0:
        return Metric(None, "there is only one task, so nothing older could be forgotten")
    return Metric(float(np.mean(values)))
