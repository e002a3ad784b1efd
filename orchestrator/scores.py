"""Numbers from stored predictions: counts, accuracy matrices and every metric, and from nothing else.

The definitions are those of ``workers.modeling.metrics``; a metric that the predictions do not determine is left
out rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from workers.modeling.metrics import AccuracyMatrix

SCORED_COLUMNS = ("method", "after_task", "task", "label", "predicted", "routed_task")
"""What :func:`count` needs of the predictions; the rest need not be read."""

METRIC_COLUMNS = (*SCORED_COLUMNS, "confidence", "log_prob_true")
"""What :func:`metrics_from_predictions` needs of the predictions."""

METRIC_SCHEMA = pa.schema(
    [
        pa.field("method", pa.string(), nullable=False),
        pa.field("after_task", pa.int32(), nullable=False),
        pa.field("on_task", pa.int32(), nullable=False),  # -1: over all tasks seen
        pa.field("metric", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Counts:
    """How often one method was right, by (last task learned, task of the sample); int64 [T, T] each.

    ``routed`` counts the samples for which the method chose a task, ``routed_right`` those with the right one.
    """

    samples: NDArray[np.int64]
    right: NDArray[np.int64]
    routed: NDArray[np.int64]
    routed_right: NDArray[np.int64]

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """a[i, j]: accuracy on task j after learning task i, float64 [T, T]; NaN where nothing was scored."""
        return _ratio(self.right, self.samples)

    @property
    def seen_accuracy(self) -> NDArray[np.float64]:
        """Sample-weighted accuracy over all tasks scored after each task, float64 [T]."""
        return _ratio(self.right.sum(axis=1), self.samples.sum(axis=1))

    @property
    def routing_accuracy(self) -> NDArray[np.float64]:
        """Share of samples routed to their own task, over all tasks after each task, float64 [T]."""
        return _ratio(self.routed_right.sum(axis=1), self.routed.sum(axis=1))


def method_names(predictions: pa.Table) -> list[str]:
    """The methods in a table of predictions, in order of their first appearance."""
    codes, names = method_codes(predictions)
    present, first = np.unique(codes, return_index=True)
    return [names[code] for code in present[np.argsort(first, kind="stable")]]


def count(predictions: pa.Table) -> dict[str, Counts]:
    """Counts of every method, from a table that holds at least :data:`SCORED_COLUMNS`."""
    codes, names = method_codes(predictions)
    after, task = numbers(predictions, "after_task"), numbers(predictions, "task")
    tasks = int(max(after.max(initial=-1), task.max(initial=-1))) + 1
    cell = (codes.astype(np.int64) * tasks + after) * tasks + task
    right = numbers(predictions, "label") == numbers(predictions, "predicted")
    routed = numbers(predictions, "routed_task")

    def tally(rows: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        chosen = cell if rows is None else cell[rows]
        shape = (len(names), tasks, tasks)
        return np.bincount(chosen, minlength=int(np.prod(shape))).reshape(shape)

    tallies = tally(None), tally(right), tally(routed >= 0), tally((routed == task) & (routed >= 0))
    return {
        name: Counts(*(t[names.index(name)] for t in tallies)) for name in method_names(predictions)
    }


def accuracy_matrix(predictions: pa.Table, method: str) -> NDArray[np.float64]:
    """a[i, j]: accuracy of a method on task j after learning task i, float64 [T, T]; NaN where not scored.

    Raises:
        KeyError: no prediction of that method.
    """
    return count(predictions)[method].accuracy


@dataclass(frozen=True)
class LastRows:
    """A method's predictions after the last task for which it has any; arrays [n]."""

    after_task: int
    task: NDArray[np.int32]
    label: NDArray[np.int32]
    predicted: NDArray[np.int32]
    routed_task: NDArray[np.int32]
    confidence: NDArray[np.float32]
    log_prob_true: NDArray[np.float32]

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether each prediction is right."""
        return np.equal(self.label, self.predicted)


def rows_after(predictions: pa.Table, method: str, after_task: int | None = None) -> LastRows:
    """A method's predictions after one task, by default the last for which it has any.

    Args:
        predictions: a table that holds at least :data:`METRIC_COLUMNS`.
        method: its name.
        after_task: which; None: the last.

    Raises:
        KeyError: no prediction of that method.
    """
    codes, names = method_codes(predictions)
    if method not in names:
        raise KeyError(method)
    mine = codes == names.index(method)
    after = numbers(predictions, "after_task")
    last = int(after[mine].max()) if after_task is None else after_task
    chosen = mine & (after == last)
    columns = [name for name in METRIC_COLUMNS if name not in ("method", "after_task")]
    return LastRows(last, **{name: numbers(predictions, name)[chosen] for name in columns})


def metrics_from_predictions(
    predictions: pa.Table, methods: Sequence[str] | None = None
) -> dict[str, dict[str, float]]:
    """Every metric of every method, by the definitions of ``workers.modeling.metrics``.

    A metric that the predictions do not determine is left out: those over all tasks need predictions
    after every task, calibration needs confidences, routing needs routed tasks.

    Args:
        predictions: a table that holds at least :data:`METRIC_COLUMNS`.
        methods: which; None: all.
    """
    counts = count(predictions)
    joint = [method for method in counts if is_joint(method)]
    found = {
        method: _metrics(counts[method], rows_after(predictions, method))
        for method in dict.fromkeys([*(counts if methods is None else methods), *joint])
    }
    _add_gaps(found, {method: found[method] for method in joint})
    return {method: found[method] for method in (counts if methods is None else methods)}


def metric_table(predictions: pa.Table) -> pa.Table:
    """The metrics in long form, :data:`METRIC_SCHEMA`: after each task on each task and over all, and at the end."""
    rows: list[tuple[str, int, int, str, float]] = []
    final = metrics_from_predictions(predictions)
    every = count(predictions)
    gaps = gaps_to_joint(every)
    for method, counts in every.items():
        over_all = {"accuracy": counts.seen_accuracy, "routing_accuracy": counts.routing_accuracy}
        if method in gaps:  # the last one is among the final metrics
            over_all["gap_to_joint"] = gaps[method][:-1]
        for name, values in over_all.items():
            rows += [(method, i, -1, name, v) for i, v in enumerate(values) if np.isfinite(v)]
        by_task = {
            "accuracy": counts.accuracy,
            "routing_accuracy": _ratio(counts.routed_right, counts.routed),
        }
        for name, matrix in by_task.items():
            rows += [
                (method, i, j, name, v) for (i, j), v in np.ndenumerate(matrix) if np.isfinite(v)
            ]
        last = len(counts.samples) - 1
        rows += [
            (method, last, j, "forgetting", v)
            for j, v in enumerate(forgetting_by_task(counts))
            if np.isfinite(v)
        ]
        rows += [(method, last, -1, name, value) for name, value in final[method].items()]
    columns = list(zip(*rows, strict=True)) or [()] * len(METRIC_SCHEMA)
    return pa.table(
        [
            pa.array(column, field.type)
            for column, field in zip(columns, METRIC_SCHEMA, strict=True)
        ],
        schema=METRIC_SCHEMA,
    )


def gaps_to_joint(counts: Mapping[str, Counts]) -> dict[str, NDArray[np.float64]]:
    """Accuracy of the better classifier trained on all tasks so far at once, minus a method's, after each task.

    Returns:
        float64 [T] a method, NaN after tasks for which either was not scored; the joint classifiers have no gap.
    """
    joint = [found.seen_accuracy for method, found in counts.items() if is_joint(method)]
    if not joint:
        return {}
    bound = np.fmax.reduce(joint)
    return {
        method: bound - found.seen_accuracy
        for method, found in counts.items()
        if not is_joint(method)
    }


def forgetting_by_task(counts: Counts) -> NDArray[np.float64]:
    """Forgetting of each task, float64 [T]; NaN for the last task, and for all when a step was not scored."""
    from workers.modeling import metrics

    out = np.full(len(counts.samples), np.nan)
    matrix = _full_matrix(counts)
    if matrix is not None:
        out[:-1] = metrics.forgetting_per_task(matrix)
    return out


def _full_matrix(counts: Counts) -> AccuracyMatrix | None:
    """The matrix, when every task was scored after every task from its own on."""
    from workers.modeling.metrics import AccuracyMatrix

    values = counts.accuracy
    if not len(values) or np.isnan(values[np.tril_indices(len(values))]).any():
        return None
    return AccuracyMatrix(values=values, counts=counts.samples[-1])


def _metrics(counts: Counts, last: LastRows) -> dict[str, float]:
    """The metrics of one method; those after the last task only if it was scored then."""
    from workers.modeling import metrics

    found: dict[str, float] = {}
    matrix = _full_matrix(counts)
    if matrix is not None:
        summary = metrics.summary(matrix)
        found = {name: metric.value for name, metric in summary.items() if metric.value is not None}
    if last.after_task != len(counts.samples) - 1:
        return found
    if matrix is None:
        found["final_accuracy"] = metrics.accuracy(last.predicted, last.label)
        if np.isfinite(counts.accuracy[-1]).all():
            found["task_weighted_average_accuracy"] = float(np.mean(counts.accuracy[-1]))
    routed = last.routed_task >= 0
    if routed.any():
        found["routing_accuracy"] = metrics.routing_accuracy(
            last.routed_task[routed], last.task[routed]
        )
    if np.isfinite(last.confidence).all():
        found["expected_calibration_error"] = metrics.expected_calibration_error(
            last.confidence, last.right
        )
    if not np.isnan(last.log_prob_true).any():
        found["negative_log_likelihood"] = metrics.negative_log_likelihood(last.log_prob_true)
    return found


def _add_gaps(found: dict[str, dict[str, float]], joint: dict[str, dict[str, float]]) -> None:
    """Adds ``gap_to_joint``, to the better of the classifiers trained on all tasks at once."""
    from workers.modeling import metrics

    bounds = [m["final_accuracy"] for m in joint.values() if "final_accuracy" in m]
    for method, own in found.items():
        if bounds and "final_accuracy" in own and not is_joint(method):
            own["gap_to_joint"] = metrics.gap_to_joint(max(bounds), own["final_accuracy"])


def is_joint(method: str) -> bool:
    """Whether a method is one trained on all tasks' data at once."""
    return method.startswith("joint_")


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    out = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=out, where=whole > 0)
    return out


def numbers(table: pa.Table, column: str) -> NDArray[Any]:
    """A column of numbers as an array."""
    return table.column(column).to_numpy()  # type: ignore[no-any-return]


def method_codes(predictions: pa.Table) -> tuple[NDArray[np.int32], list[str]]:
    """Codes int32 [n] and the names they stand for."""
    column = predictions.column("method").unify_dictionaries()
    if column.num_chunks == 0:
        return np.zeros(0, dtype=np.int32), []
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks])
    return codes, column.chunk(0).dictionary.to_pylist()
