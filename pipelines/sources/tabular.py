"""What table sources share: which files, which columns, and labels, splits and domains out of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from pipelines.sources.base import DataPaths, SplitSettings
from pipelines.sources.columns import TABLE_SUFFIXES, TableFile
from pipelines.sources.files import (
    is_remote,
    kind_of,
    locate,
    missing_message,
    public_uri,
    stat_file,
    walk,
)
from pipelines.sources.splits import split_of_file, split_word
from pipelines.sources.table import Listing, make_listing
from workers.errors import DataError, SettingsError
from workers.wording import plural

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
            else f"{locations[0]} and {plural(len(parts) - 1, 'more file')}",
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
    files = _table_files(settings)
    splits = _splits_of_places(settings, files)
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


def _table_files(settings: TabularSettings) -> list[TableFile]:
    """The files in order.

    Their names become part of the samples' ids, so that a list or folder may grow and old ids stay; a file given
    alone needs none.

    Raises:
        DataError: a file or folder is missing, or a folder holds no table.
        SettingsError: a file is named twice.
    """
    alone = isinstance(settings.path, str) and settings.test_path is None
    found = [
        *_expand(settings.path, alone=alone, test=False),
        *(_expand(settings.test_path, alone=False, test=True) if settings.test_path else []),
    ]
    locations = [file.entry.location for file in found]
    if len(set(locations)) < len(locations):
        raise SettingsError("stream.source: a file is named twice in path and test_path")
    if len({file.root.split("://")[0] for file in found if is_remote(file.root)}) > 1:
        raise SettingsError("stream.source: all files must lie on one file system")
    if len({file.entry.relative for file in found}) == len(found):
        return found
    return [
        replace(file, entry=replace(file.entry, relative=name))
        for file, name in zip(found, _below_common_folder(locations), strict=True)
    ]


def _expand(paths: str | list[str], *, alone: bool, test: bool) -> list[TableFile]:
    """Every file that paths name; files of a folder are named by their place in it."""
    found: list[TableFile] = []
    for path in [paths] if isinstance(paths, str) else paths:
        kind = kind_of(path)
        if kind == "missing":
            raise DataError(missing_message(path, what="file or folder"))
        if kind == "file":
            location = locate(path)
            name = "" if alone else location.rpartition("/")[2]
            found.append(TableFile(path, stat_file(path, location, name), test_only=test))
            continue
        inside = [
            TableFile(path, file, test_only=test)
            for file in walk(path).files
            if file.relative.lower().endswith(TABLE_SUFFIXES)
        ]
        if not inside:
            raise DataError(
                f"{public_uri(path)}: no {', '.join(TABLE_SUFFIXES)} file in this folder"
            )
        found += inside
    return found


def _below_common_folder(locations: Sequence[str]) -> list[str]:
    parts = [location.split("/") for location in locations]
    depth = 0
    while all(len(part) > depth + 1 and part[depth] == parts[0][depth] for part in parts):
        depth += 1
    return ["/".join(part[depth:]) for part in parts]


def _splits_of_places(settings: TabularSettings, files: Sequence[TableFile]) -> list[str]:
    """The split that test_path says of each file, else the one its name begins with if all names do, else ""."""
    if settings.test_path is not None:
        return ["test" if file.test_only else "train" for file in files]
    named = [split_of_file(file.entry.location.rpartition("/")[2]) for file in files]
    return named if all(named) else [""] * len(named)


def _read_rows(file: TableFile, settings: TabularSettings, *, split: str, payload: str) -> Rows:
    """Everything about a file's rows but their payload.

    Args:
        split: the split that the file's place says, "" if none; a split column must agree with test_path, and
            overrules a mere file name.
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
    columns = {role: name for role, name in wanted.items() if name is not None}
    for role, name in (("payload", payload), *columns.items()):
        setting = "image_column or feature_column" if role == "payload" else f"{role}_column"
        find_column(where, schema.names, name, f"source.{setting}")
    table = file.read(list(dict.fromkeys(columns.values())))
    count = table.num_rows
    if count == 0:
        raise DataError(f"{where!r}: the file has no rows")
    for name in table.column_names:
        refuse_nulls(where, name, table[name])
    labels, integer, names = _labels(where, table, schema, settings)
    splits = (
        number_or_text(where, table[columns["split"]]) if "split" in columns else [split] * count
    )
    if settings.test_path is not None:
        other = sorted({word for word in splits if split_word(word) != split})
        if other:
            raise SettingsError(
                f"stream.source.test_path makes {where!r} {split} samples, but its column {columns['split']!r} "
                f"says {other[0]!r}; leave test_path out, or drop the column"
            )
    prefix = f"{file.entry.relative}/" if file.entry.relative else ""
    return Rows(
        file=file,
        ids=number_or_text(where, table[columns["id"]])
        if "id" in columns
        else [f"{prefix}{row:08d}" for row in range(count)],
        labels=labels,
        splits=splits,
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


def find_column(where: str, names: Sequence[str], wanted: str, setting: str) -> None:
    """Raise a DataError unless exactly one column has the wanted name."""
    if wanted not in names:
        raise DataError(f"{where!r}: no column {wanted!r}; it has {', '.join(names)} ({setting})")
    if names.count(wanted) > 1:
        raise DataError(
            f"{where!r}: {names.count(wanted)} columns are named {wanted!r}; rename all but one, or name "
            f"another one with {setting}"
        )


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
    return [str(value) for value in _values(where, column)]


def _values(where: str, column: pa.ChunkedArray) -> list[Any]:
    """A column's values as Python's; Arrow does not look whether text that a file brings is UTF-8."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError as error:
        raise DataError(f"{where!r}: a column of text is not UTF-8 ({error.reason})") from error


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
        return _values(where, column), False, None
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
            f"{where!r}: label {wrong} in row {numbers.index(wrong)} has no name, of "
            f"{plural(len(names), 'name')}"
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
