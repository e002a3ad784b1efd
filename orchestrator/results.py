"""The tables in a run's folder: every prediction, the metrics that follow from them, and the summary.

Predictions are kept sample by sample, and every number of a report is computed from them and from nothing else, so a
table in a report can be checked, and a new metric can be had from an old run.  After each task its predictions
appear as one file of their own (``predictions/after-00003.parquet``), whole or not at all; at the end they are joined
into ``predictions.parquet``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from orchestrator.scores import (
    METRIC_COLUMNS,
    METRIC_SCHEMA,
    SCORED_COLUMNS,
    Counts,
    LastRows,
    accuracy_matrix,
    count,
    forgetting_by_task,
    method_names,
    metric_table,
    metrics_from_predictions,
    numbers,
    rows_after,
)
from orchestrator.tracking.events import json_value
from workers.errors import CorruptionError, StorageError
from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage
from workers.storage.sealed_parquet import seal_fault, sealed

__all__ = [
    "METRIC_COLUMNS",
    "METRIC_SCHEMA",
    "PREDICTION_SCHEMA",
    "SCORED_COLUMNS",
    "Counts",
    "LastRows",
    "PredictionRows",
    "RunDir",
    "accuracy_matrix",
    "consolidate_predictions",
    "count",
    "discard_damaged_predictions",
    "forgetting_by_task",
    "method_names",
    "metric_table",
    "metrics_from_predictions",
    "prediction_keys",
    "read_metrics",
    "read_predictions",
    "read_summary",
    "rows_after",
    "write_chunk",
    "write_metrics",
    "write_summary",
]

RunDir = str | os.PathLike[str]

PREDICTION_SCHEMA = pa.schema(
    [
        pa.field("method", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("after_task", pa.int32(), nullable=False),  # the last task learned
        pa.field("task", pa.int32(), nullable=False),  # the task that the sample belongs to
        pa.field("sample", pa.string(), nullable=False),
        pa.field("label", pa.int32(), nullable=False),  # class index in the stream
        pa.field("predicted", pa.int32(), nullable=False),  # class index in the stream
        pa.field("routed_task", pa.int32(), nullable=False),  # -1: the method does not route
        pa.field("confidence", pa.float32(), nullable=False),  # NaN: none
        pa.field("routing_confidence", pa.float32(), nullable=False),  # NaN: none
        pa.field("log_prob_true", pa.float32(), nullable=False),  # NaN: none
    ]
)

_KEY, _KEYS = b"luca.key", b"luca.keys"  # in the files' metadata: what predictions were made from
_CHUNK = re.compile(r"after-(\d+)\.parquet")


class PredictionRows:
    """Gathers predictions, method by method, into one table of :data:`PREDICTION_SCHEMA`."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []

    def add(
        self,
        *,
        method: str,
        after_task: int,
        task: ArrayLike,
        sample: Sequence[str] | pa.Array | pa.ChunkedArray,
        label: ArrayLike,
        predicted: ArrayLike,
        routed_task: ArrayLike | None = None,
        confidence: ArrayLike | None = None,
        routing_confidence: ArrayLike | None = None,
        log_prob_true: ArrayLike | None = None,
    ) -> None:
        """Adds n predictions of one method.

        Args:
            method: name of the router or baseline.
            after_task: index of the last task learned.
            task: true task index of each sample, int [n] (or one number for all).
            sample: ids of the samples, n strings.
            label: true class index, int [n].
            predicted: predicted class index, int [n].
            routed_task: chosen task index, int [n]; None: the method does not route.
            confidence: probability of the predicted class, float [n]; None: none.
            routing_confidence: probability of the chosen task, float [n]; None: none.
            log_prob_true: natural logarithm of the true class's probability, float [n]; None: none.

        Raises:
            ValueError: arrays of different lengths.
        """
        rows = len(sample)

        def column(values: ArrayLike | None, missing: float, dtype: Any) -> NDArray[Any]:
            array = np.asarray(missing if values is None else values, dtype=dtype)
            if array.ndim == 0:
                array = np.full(rows, array, dtype=dtype)
            if array.shape != (rows,):
                raise ValueError(f"{method}: an array of shape {array.shape} for {rows} samples")
            return array

        codes = pa.array(np.zeros(rows, dtype=np.int32))
        nan = float("nan")
        columns = [
            pa.DictionaryArray.from_arrays(codes, pa.array([method], pa.string())),
            column(after_task, 0, np.int32),
            column(task, 0, np.int32),
            sample.cast(pa.string())
            if isinstance(sample, (pa.Array, pa.ChunkedArray))
            else pa.array(sample, pa.string()),
            column(label, 0, np.int32),
            column(predicted, 0, np.int32),
            column(routed_task, -1, np.int32),
            column(confidence, nan, np.float32),
            column(routing_confidence, nan, np.float32),
            column(log_prob_true, nan, np.float32),
        ]
        self._tables.append(pa.table(columns, schema=PREDICTION_SCHEMA))

    def table(self) -> pa.Table:
        """Everything added, as one table."""
        if not self._tables:
            return PREDICTION_SCHEMA.empty_table()
        return pa.concat_tables(self._tables).unify_dictionaries()


# -- files -----------------------------------------------------------------------------------------------------


def write_chunk(
    run_dir: RunDir, after_task: int, rows: PredictionRows | pa.Table, *, key: str = ""
) -> str:
    """Writes the predictions made after ``after_task``, replacing those of an earlier attempt.

    Args:
        run_dir: the run's folder (or URI).
        after_task: the last task learned.
        rows: its predictions.
        key: says what the predictions were made from, for :func:`prediction_keys`; a digest, say.

    Returns:
        The file's path relative to the run's folder.

    Raises:
        StorageError: the file cannot be written.
        ValueError: a row is of another ``after_task``.
    """
    table = rows.table() if isinstance(rows, PredictionRows) else rows
    table = table.cast(PREDICTION_SCHEMA)
    if np.any(numbers(table, "after_task") != after_task):
        raise ValueError(f"rows of another task among those after task {after_task}")
    path = f"predictions/after-{after_task:05d}.parquet"
    _write_table(run_dir, path, table.replace_schema_metadata({_KEY: key.encode()}))
    return path


def prediction_keys(run_dir: RunDir) -> dict[int, str]:
    """What the predictions that are there were made from (the ``key`` of :func:`write_chunk`), by ``after_task``.

    Predictions in a damaged file count as absent, so that they are made again.
    """
    storage = Storage.open(run_dir)
    keys: dict[int, str] = {}
    with suppress(CorruptionError):
        keys = _joined_keys(storage)
    for task, path in _chunks(storage).items():
        keys.pop(task, None)
        with suppress(CorruptionError):
            keys[task] = _chunk_key(storage, path)
    return keys


def discard_damaged_predictions(run_dir: RunDir) -> None:
    """Removes predictions that count as absent, before they are made again.

    Raises:
        StorageError: a file cannot be removed.
    """
    storage = Storage.open(run_dir)
    joined = ["predictions.parquet"] if storage.exists("predictions.parquet") else []
    for path in [*joined, *_chunks(storage).values()]:
        try:
            _metadata(storage, path)
        except CorruptionError:
            storage.delete(path)


def consolidate_predictions(run_dir: RunDir) -> None:
    """Joins the chunks into ``predictions.parquet`` and removes them.  A crash on the way loses nothing.

    Raises:
        StorageError: the files cannot be written.
    """
    storage = Storage.open(run_dir)
    chunks = _chunks(storage)
    if not chunks:
        return
    made_from = {task: _chunk_key(storage, path) for task, path in chunks.items()}
    keys = json.dumps({**_joined_keys(storage), **made_from}).encode()
    table = read_predictions(run_dir).replace_schema_metadata({_KEYS: keys})
    _write_table(run_dir, "predictions.parquet", table)
    for path in chunks.values():
        storage.delete(path)


def read_predictions(run_dir: RunDir, columns: Sequence[str] | None = None) -> pa.Table:
    """All predictions of a run so far, in order of ``after_task``; a chunk replaces what was joined before it.

    Raises:
        StorageError: the run's folder has none, or they cannot be read.
        CorruptionError: a file is not Parquet, or not as it was written.
    """
    storage = Storage.open(run_dir)
    chunks = _chunks(storage)
    tables = []
    wanted = list(columns) if columns is not None else PREDICTION_SCHEMA.names
    if storage.exists("predictions.parquet"):
        read = sorted({*wanted, "after_task"}, key=PREDICTION_SCHEMA.names.index)
        joined = _read_table(storage, "predictions.parquet", read)
        if chunks:
            joined = joined.filter(pa.array(~np.isin(numbers(joined, "after_task"), list(chunks))))
        tables.append(joined.select(wanted))
    tables += [_read_table(storage, chunks[task], wanted) for task in sorted(chunks)]
    if not tables:
        raise StorageError(
            f"{storage.describe()} holds no predictions; give the folder of a run that has evaluated a task"
        )
    return pa.concat_tables(tables).unify_dictionaries()


def write_metrics(run_dir: RunDir, metrics: pa.Table) -> None:
    """Writes ``metrics.parquet``, a table of :data:`METRIC_SCHEMA`."""
    _write_table(run_dir, "metrics.parquet", metrics.cast(METRIC_SCHEMA))


def read_metrics(run_dir: RunDir) -> pa.Table:
    """Reads ``metrics.parquet``."""
    return _read_table(Storage.open(run_dir), "metrics.parquet", METRIC_SCHEMA.names)


def write_summary(run_dir: RunDir, summary: Mapping[str, Any]) -> None:
    """Writes ``summary.json``; NaN becomes null."""
    text = json.dumps(json_value(summary), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(
        Storage.open(run_dir), "summary.json", text.encode("utf-8", errors="backslashreplace")
    )


def read_summary(run_dir: RunDir) -> dict[str, Any]:
    """Reads ``summary.json``.

    Raises:
        StorageError: there is none.
        CorruptionError: it is not a JSON object.
    """
    storage = Storage.open(run_dir)
    try:
        data = json.loads(storage.read_bytes("summary.json"))
    except (ValueError, RecursionError) as error:
        raise CorruptionError(
            f"{storage.describe('summary.json')} is not JSON; run the same command again to rewrite it"
        ) from error
    if not isinstance(data, dict):
        raise CorruptionError(f"{storage.describe('summary.json')} is not a JSON object")
    for key, kind in _SUMMARY.items():
        if not isinstance(data.get(key), (kind, NoneType)):
            raise CorruptionError(
                f"{storage.describe('summary.json')}: {key} is {data[key]!r:.50}, which no run writes; run the "
                "same command again to rewrite it"
            )
    return data


_SUMMARY: dict[str, type] = {
    **dict.fromkeys(("run", "name", "bank", "digest", "scenario", "primary"), str),
    **dict.fromkeys(("version", "backbone_images"), int),
    **dict.fromkeys(("methods", "metrics", "cache", "parameters", "seconds_by_stage"), dict),
    "warnings": list,
}
"""Of what type a summary's entries are, where a report relies on it."""


# -- helpers ---------------------------------------------------------------------------------------------------


def _joined_keys(storage: Storage) -> dict[int, str]:
    if not storage.exists("predictions.parquet"):
        return {}
    joined = json.loads(_metadata(storage, "predictions.parquet").get(_KEYS, b"{}"))
    return {int(task): str(key) for task, key in joined.items()}


def _chunk_key(storage: Storage, path: str) -> str:
    return _metadata(storage, path).get(_KEY, b"").decode()


def _metadata(storage: Storage, path: str) -> dict[bytes, bytes]:
    try:
        return pq.read_schema(_sound(storage, path)).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise _damaged(storage, path, str(error)) from error


def _damaged(storage: Storage, path: str, fault: str) -> CorruptionError:
    return CorruptionError(
        f"{storage.describe(path)} is not a readable Parquet file ({fault.splitlines()[0]}); "
        "remove it and run the same command again"
    )


def _chunks(storage: Storage) -> dict[int, str]:
    """Chunk files by ``after_task``."""
    found = {}
    for entry in storage.list("predictions"):
        match = _CHUNK.fullmatch(entry.name)
        if match:
            found[int(match[1])] = entry.path
    return found


def _write_table(run_dir: RunDir, path: str, table: pa.Table) -> None:
    write_atomic(Storage.open(run_dir), path, sealed(table))


def _read_table(storage: Storage, path: str, columns: Sequence[str]) -> pa.Table:
    try:
        table = pq.read_table(_sound(storage, path), columns=list(columns))
        return table.replace_schema_metadata(None)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(storage, path, str(error)) from error


def _sound(storage: Storage, path: str) -> pa.BufferReader:
    """A file's bytes, which match their checksum.

    Raises:
        CorruptionError: they do not.
    """
    buffer = storage.open_mmap(path).read_buffer()
    fault = seal_fault(buffer)
    if fault is not None:
        raise _damaged(storage, path, fault)
    return pa.BufferReader(buffer)
