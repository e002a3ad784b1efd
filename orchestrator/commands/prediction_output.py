"""Predictions written as they come: a table, CSV or JSON lines on standard output, or a file that appears whole."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from orchestrator.commands.text import printable
from workers.errors import SettingsError, StorageError

if TYPE_CHECKING:
    from pipelines.prediction import Predicted

COLUMNS = ("id", "class", "confidence", "task", "routing_confidence")
"""``id``: the path of an image file, or a row's id (file:row without an id column)."""

TextFormat = Literal["table", "csv", "jsonl"]
SUFFIXES = (".csv", ".jsonl", ".parquet")


class PredictionWriter(Protocol):
    """Takes predictions batch by batch."""

    def write(self, ids: list[str], predicted: Predicted) -> None:
        """Writes one batch."""

    def close(self) -> None:
        """Writes what is still to be written; leaves the file open."""


class CsvWriter:
    """CSV with a header line; UTF-8, quoted where needed."""

    def __init__(self, file: IO[str]) -> None:
        self._csv = csv.writer(file, lineterminator="\n")
        self._csv.writerow(COLUMNS)

    def write(self, ids: list[str], predicted: Predicted) -> None:
        """Writes one batch."""
        for name, label, confidence, task, routing in _rows(ids, predicted):
            self._csv.writerow((name, label, f"{confidence:.6g}", task, f"{routing:.6g}"))

    def close(self) -> None:
        """Nothing is left to write."""


class JsonLinesWriter:
    """One JSON object a line, with every digit."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, ids: list[str], predicted: Predicted) -> None:
        """Writes one batch."""
        for row in _rows(ids, predicted):
            line = json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False)
            self._file.write(f"{line}\n")

    def close(self) -> None:
        """Nothing is left to write."""


class TableWriter:
    """Aligned columns for people; widths are those of the first batch, so that rows appear as they come."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._widths: list[int] | None = None

    def write(self, ids: list[str], predicted: Predicted) -> None:
        """Writes one batch."""
        rows = [
            (
                printable(name),
                printable(label),
                f"{confidence:.3f}",
                printable(task),
                f"{routing:.3f}",
            )
            for name, label, confidence, task, routing in _rows(ids, predicted)
        ]
        if self._widths is None:
            titles = tuple(name.replace("_", " ") for name in COLUMNS)
            self._widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
            self._line(titles)
        for row in rows:
            self._line(row)
        self._file.flush()

    def _line(self, row: tuple[str, ...]) -> None:
        assert self._widths is not None
        cells = (cell.ljust(width) for cell, width in zip(row, self._widths, strict=True))
        self._file.write(f"{'  '.join(cells).rstrip()}\n")

    def close(self) -> None:
        """Nothing is left to write."""


class ParquetWriter:
    """Parquet with one row group a few thousand rows."""

    _ROWS = 8192

    def __init__(self, path: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        text, number = pa.string(), pa.float64()
        schema = pa.schema(list(zip(COLUMNS, (text, text, number, text, number), strict=True)))
        self._writer = pq.ParquetWriter(path, schema)
        self._schema = schema
        self._held: list[Any] = []
        self._count = 0

    def write(self, ids: list[str], predicted: Predicted) -> None:
        """Writes one batch, or holds it until a row group is full."""
        import pyarrow as pa

        values = (
            ids,
            predicted.classes,
            predicted.confidence.numpy(),
            predicted.tasks,
            predicted.routing_confidence.numpy(),
        )
        self._held.append(pa.record_batch([pa.array(v) for v in values], schema=self._schema))
        self._count += len(ids)
        if self._count >= self._ROWS:
            self._flush()

    def close(self) -> None:
        """Writes the last row group and the footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held).combine_chunks())
        self._held, self._count = [], 0


def text_writer(kind: TextFormat, file: IO[str]) -> PredictionWriter:
    """A writer of text to an open file."""
    writers: dict[TextFormat, Callable[[IO[str]], PredictionWriter]] = {
        "table": TableWriter,
        "csv": CsvWriter,
        "jsonl": JsonLinesWriter,
    }
    return writers[kind](file)


@contextlib.contextmanager
def writing_to(path: str) -> Iterator[PredictionWriter]:
    """A writer to a local file that appears under its name when all is written, or not at all.

    Raises:
        SettingsError: the name ends in something else than .csv, .jsonl or .parquet.
        StorageError: the file cannot be written.
    """
    target = Path(path).expanduser()
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise SettingsError(f"--output {path!r}: end it in {', '.join(SUFFIXES)} to say its format")
    if os.path.isdir(target):
        raise StorageError(f"--output {path!r} is a folder: name a file")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    with _explained(path):
        temporary.touch(exist_ok=False)
    try:
        if suffix == ".parquet":
            parquet = ParquetWriter(str(temporary))
            yield _Explained(path, parquet)
        else:
            with open(temporary, "w", encoding="utf-8", newline="") as file:
                kind: TextFormat = "csv" if suffix == ".csv" else "jsonl"
                yield _Explained(path, text_writer(kind, file))
        with _explained(path):
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


class _Explained:
    """A writer whose faults say which file cannot be written."""

    def __init__(self, path: str, writer: PredictionWriter) -> None:
        self._path, self._writer = path, writer

    def write(self, ids: list[str], predicted: Predicted) -> None:
        with _explained(self._path):
            self._writer.write(ids, predicted)

    def close(self) -> None:
        with _explained(self._path):
            self._writer.close()


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(
            f"--output {path!r} cannot be written: {reason}; nothing was left there"
        ) from error


def _rows(ids: list[str], predicted: Predicted) -> Iterator[tuple[str, str, float, str, float]]:
    return zip(
        ids,
        predicted.classes,
        predicted.confidence.tolist(),
        predicted.tasks,
        predicted.routing_confidence.tolist(),
        strict=True,
    )
