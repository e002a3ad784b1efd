"""What table sources share: which files, which columns, and labels, splits and domains out of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from pipelines.sources.base import DataPaths, SplitSettings
from pipelines.sources.columns import TABLE_SUFFIXES, TableFile, table_file
from pipelines.sources.files import (
    FileEntry,
    is_remote,
    kind_of,
    locate,
    missing_message,
    public_uri,
    walk,
)
from pipelines.sources.splits import split_of_file
from pipelines.sources.table import Listing, make_listing
from workers.errors import DataError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class TabularSettings(SplitSettings):
    """Settings of a source that lists rows of Parquet, Arrow or Feather files."""

    path: DataPaths = Field(description="a file, several files, or a folder of files")
    test_path: str | list[str] | None = Field(
        default=None,
        description="files whose rows are all test samples; the rows of path are then all training samples",
    )
    label_column: str = "label"
    label_names: list[str] | None = Field(
        default=None, description="class names of whole-number labels, in their order"
    )
    split_column: str | None = Field(
        default=None, description="column of splits; left out: 'split' where there is one"
    )
    domain_column: str | None = Field(
        default=None, description="column of domains; left out: 'domain' where there is one"
    )
    id_column: str | None = Field(
        default=None, description="column of unique ids; left out: 'id' where there is one"
    )


@dataclass(frozen=True)
class Tables:
    """All files of a source, without their payload.

    Attributes:
        root: the URI whose file system opens the files.
        payload: the payload's column.
    """

    settings: TabularSettings
    root: str
    payload: str
    rows: tuple[Rows, ...]

    def listing(
        self, contents: Sequence[list[str]], *, feature_width: int | None = None
    ) -> Listing:
        """The listing, given the content digests of every file's rows."""
        parts = self.rows
        locations = [part.file.entry.location for part in parts]
        return make_listing(
            where=locations[0]
            if len(parts) == 1
            else f"{locations[0]} and {len(parts) - 1} more files",
            ids=[name for part in parts for name in part.ids],
            labels=[name for part in parts for name in part.labels],
            domains=[name for part in parts for name in part.domains],
            splits=[name for part in parts for name in part.splits],
            contents=[digest for digests in contents for digest in digests],
            locations=[part.file.entry.location for part in parts for _ in part.ids],
            rows=[row for part in parts for row in range(len(part.ids))],
            classes=canonical_classes(parts),
            plan=self.settings.split_plan,
            feature_width=feature_width,
        )


@dataclass(frozen=True)
class Rows:
    """The rows of one file, without their payload.

    Attributes:
        integer: the labels are whole numbers; ``names`` then holds their names where they have any.
    """

    file: TableFile
    ids: list[str]
    labels: list[str]
    splits: list[str]
    domains: list[str]
    integer: bool
    names: tuple[str, ...] | None


def list_tables(settings: TabularSettings, *, payload: Callable[[TableFile], str]) -> Tables:
    """Everything but the payload of every file of a source.

    Args:
        payload: finds the payload's column in the first file; the others must have the same.

    Raises:
        DataError: a file, folder or column is missing, or a column's values are not what they must be.
        SettingsError: the settings contradict the files.
    """
    files, splits = _table_files(settings)
    column = payload(files[0])
    return Tables(
        settings=settings,
        root=files[0].root,
        payload=column,
        rows=tuple(
            _read_rows(file, settings, split=split, payload=column)
            for file, split in zip(files, splits, strict=True)
        ),
    )


def _table_files(settings: TabularSettings) -> tuple[list[TableFile], list[str]]:
    """The files in order, and for each the split that its place says ("" when it says none).

    Raises:
        DataError: a file or folder is missing, or a folder holds no table.
    """
    train = _expand(settings.path)
    test = _expand(settings.test_path) if settings.test_path is not None else []
    files = [table_file(root, location, "") for root, location in (*train, *test)]
    names = _relative_names([file.entry.location for file in files])
    named = [
        TableFile(
            file.root,
            FileEntry(name, file.entry.location, file.entry.size, file.entry.mtime_ns),
        )
        for file, name in zip(files, names, strict=True)
    ]
    if len({file.root.split("://")[0] for file in files if is_remote(file.root)}) > 1:
        raise SettingsError("stream.source: all files must lie on one file system")
    if len({file.entry.location for file in named}) < len(named):
        raise SettingsError("stream.source: a file is listed twice in path and test_path")
    if test:
        return named, ["train"] * len(train) + ["test"] * len(test)
    stems = [split_of_file(name.rpartition("/")[2]) for name in names]
    return named, stems if all(stems) else [""] * len(stems)


def _expand(paths: str | list[str]) -> list[tuple[str, str]]:
    """(root, location) of every file that paths name."""
    found: list[tuple[str, str]] = []
    for path in [paths] if isinstance(paths, str) else paths:
        kind = kind_of(path)
        if kind == "missing":
            raise DataError(missing_message(path, what="file or folder"))
        if kind == "file":
            found.append((path, locate(path)))
            continue
        inside = [
            file.location
            for file in walk(path).files
            if file.relative.lower().endswith(TABLE_SUFFIXES)
        ]
        if not inside:
            raise DataError(
                f"{public_uri(path)}: no {', '.join(TABLE_SUFFIXES)} file in this folder"
            )
        found += [(path, location) for location in inside]
    return found


def _relative_names(locations: Sequence[str]) -> list[str]:
    """Names of files below the folder they have in common; a file alone needs none."""
    if len(locations) == 1:
        return [""]
    parts = [location.split("/") for location in locations]
    depth = 0
    while all(len(part) > depth + 1 and part[depth] == parts[0][depth] for part in parts):
        depth += 1
    return ["/".join(part[depth:]) for part in parts]


def _read_rows(file: TableFile, settings: TabularSettings, *, split: str, payload: str) -> Rows:
    """Everything about a file's rows but their payload.

    Args:
        split: the split that the file's place says; a split column must then not be named.
        payload: the payload's column, which must exist.

    Raises:
        DataError: a column is missing or has the wrong type, or holds nulls.
    """
    where = file.entry.location
    schema = file.schema()
    wanted = {
        "label": settings.label_column,
        "split": settings.split_column or ("split" if "split" in schema.names else None),
        "domain": settings.domain_column or ("domain" if "domain" in schema.names else None),
        "id": settings.id_column or ("id" if "id" in schema.names else None),
    }
    if split:
        if settings.split_column is not None:
            raise SettingsError(
                f"stream.source.split_column is {settings.split_column!r}, but {where!r} has its split from "
                "test_path or its name; leave one of them out"
            )
        wanted["split"] = None
    columns = {role: name for role, name in wanted.items() if name is not None}
    for role, name in (("payload", payload), *columns.items()):
        if name not in schema.names:
            setting = "image_column or feature_column" if role == "payload" else f"{role}_column"
            raise DataError(
                f"{where!r}: no column {name!r}; it has {', '.join(schema.names)} (source.{setting})"
            )
    table = file.read(list(dict.fromkeys(columns.values())))
    count = table.num_rows
    if count == 0:
        raise DataError(f"{where!r}: the file has no rows")
    for name in table.column_names:
        refuse_nulls(where, name, table[name])
    labels, integer, names = _labels(where, table, schema, settings)
    prefix = f"{file.entry.relative}/" if file.entry.relative else ""
    return Rows(
        file=file,
        ids=number_or_text(where, table[columns["id"]])
        if "id" in columns
        else [f"{prefix}{row:08d}" for row in range(count)],
        labels=labels,
        splits=number_or_text(where, table[columns["split"]])
        if "split" in columns
        else [split] * count,
        domains=number_or_text(where, table[columns["domain"]])
        if "domain" in columns
        else [""] * count,
        integer=integer,
        names=names,
    )


def canonical_classes(rows: Sequence[Rows]) -> list[str]:
    """Every class in the order that published permutations start from: numbers by value, names sorted.

    Raises:
        DataError: some files number their classes and others name them.
    """
    labels = {label for part in rows for label in part.labels}
    numbered = {part.integer for part in rows}
    if len(numbered) > 1 or len({part.names for part in rows}) > 1:
        raise DataError(
            f"{rows[0].file.entry.location!r} and the other files label their rows differently "
            "(numbers, names, or other names); use one kind"
        )
    if not rows[0].integer:
        return sorted(labels)
    if rows[0].names is not None:
        return [name for name in rows[0].names if name in labels]
    return sorted(labels, key=int)


def refuse_nulls(where: str, name: str, column: Any, *, first_row: int = 0) -> None:
    """Raise a DataError that names the rows of a column's nulls, if it has any."""
    if column.null_count:
        rows = pc.indices_nonzero(pc.is_null(column)).to_pylist()
        shown = ", ".join(str(first_row + row) for row in rows[:5])
        more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
        raise DataError(
            f"{where!r}: column {name!r} is null in row{'s' if len(rows) > 1 else ''} {shown}{more} (counted from 0)"
        )


def number_or_text(where: str, column: pa.ChunkedArray) -> list[str]:
    """A column of text or whole numbers as text.

    Raises:
        DataError: it is of another type.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)
    ):
        raise DataError(
            f"{where!r}: a column of {column.type} where text or whole numbers are expected"
        )
    return [str(value) for value in column.to_pylist()]


def _labels(
    where: str, table: pa.Table, schema: pa.Schema, settings: TabularSettings
) -> tuple[list[str], bool, tuple[str, ...] | None]:
    column = table[settings.label_column]
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if settings.label_names is not None:
            raise SettingsError(
                f"stream.source.label_names is set, but the labels of {where!r} are text already; leave it out"
            )
        return column.to_pylist(), False, None
    if not pa.types.is_integer(kind):
        raise DataError(
            f"{where!r}: column {settings.label_column!r} is {column.type}; labels are text or whole numbers"
        )
    names = settings.label_names or _class_label_names(schema, settings.label_column)
    numbers = column.to_pylist()
    if names is None:
        return [str(number) for number in numbers], True, None
    if len(set(names)) < len(names):
        raise DataError(f"{where!r}: the names of the labels are not unique")
    low, high = min(numbers), max(numbers)
    if low < 0 or high >= len(names):
        wrong = low if low < 0 else high
        raise DataError(
            f"{where!r}: label {wrong} in row {numbers.index(wrong)} has no name; there are {len(names)} names"
        )
    return [names[number] for number in numbers], True, tuple(names)


def _class_label_names(schema: pa.Schema, column: str) -> list[str] | None:
    """The names in Hugging Face's schema metadata, if the column is a ``ClassLabel`` there."""
    try:
        info = json.loads((schema.metadata or {})[b"huggingface"])
        names = info["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return [str(name) for name in names] if isinstance(names, list) else None
