"""Samples without labels: what a prediction is asked for, found below paths and read in bounded batches.

Image files, table files of encoded images and table files of ready features, told apart by what they are.  Nothing is
listed twice and nothing is held whole but names, so a folder of any size streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pipelines.sources.columns import TABLE_SUFFIXES, TableFile, table_file
from pipelines.sources.features import feature_matrix
from pipelines.sources.files import (
    FileEntry,
    is_remote,
    kind_of,
    locate,
    missing_message,
    public_uri,
    read_bytes,
    stat_file,
    walk,
)
from pipelines.sources.image_folder import hidden_note, split_images
from pipelines.sources.parquet import encoded_images, holds_images
from pipelines.sources.tabular import number_or_text
from workers.errors import DataError
from workers.wording import plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class PictureBatch:
    """Some images.

    Attributes:
        ids: one a picture.
        reads: gives a picture's encoded bytes; raises a DataError when its file cannot be read.
    """

    ids: list[str]
    reads: list[Callable[[], bytes]]


@dataclass(frozen=True)
class FeatureBatch:
    """Some ready features, [n, d] of float16 or float32."""

    ids: list[str]
    where: str
    features: NDArray[np.floating[Any]]


@dataclass(frozen=True)
class ImageFiles:
    """Image files below one path; ``names`` are the paths as the user writes them."""

    root: str
    entries: tuple[FileEntry, ...]
    names: tuple[str, ...]
    kind: Literal["images"] = "images"

    def batches(self, size: int) -> Iterator[PictureBatch]:
        """The images in order, at most ``size`` at a time; nothing is read yet."""
        for start in range(0, len(self.entries), size):
            chosen = self.entries[start : start + size]
            yield PictureBatch(
                list(self.names[start : start + size]),
                [partial(read_bytes, self.root, entry.location) for entry in chosen],
            )


@dataclass(frozen=True)
class TableRows:
    """Rows of one Parquet, Arrow or Feather file.

    Attributes:
        name: the file as the user writes it; rows without an ``id`` column are called ``name:row``.
        width: d where the file's schema says it.
    """

    file: TableFile
    name: str
    column: str
    kind: Literal["images", "features"]
    has_ids: bool
    width: int | None = None

    def batches(self, size: int) -> Iterator[PictureBatch | FeatureBatch]:
        """The rows in order, at most ``size`` at a time.

        Raises:
            DataError: a row is null, not finite or of another width than the first one's.
        """
        ids = self._ids()
        where = self.file.entry.location
        for offset, chunk in self.file.chunks(self.column):
            for start in range(0, len(chunk), size):
                values, first = chunk.slice(start, size), offset + start
                names = ids(first, len(values))
                if self.kind == "features":
                    matrix = feature_matrix(where, self.column, values, first_row=first)
                    yield FeatureBatch(names, self.name, matrix)
                else:
                    images = encoded_images(where, self.column, values, first_row=first)
                    yield PictureBatch(names, [partial(_bytes_of, image) for image in images])

    def _ids(self) -> Callable[[int, int], list[str]]:
        if not self.has_ids:
            return lambda first, count: [f"{self.name}:{first + at}" for at in range(count)]
        where = self.file.entry.location
        given = number_or_text(where, self.file.read(["id"])["id"])
        return lambda first, count: given[first : first + count]


Input = ImageFiles | TableRows


def find_inputs(
    paths: Sequence[str], *, feature_column: str = "feature", image_column: str | None = None
) -> tuple[list[Input], list[str]]:
    """What paths hold, in their order, and sentences about what was left out.

    Args:
        paths: image files, table files, or folders of them (searched to the bottom), local or URIs.
        feature_column: a table with this column holds ready features; other tables hold encoded images.
        image_column: the images' column; None takes the only one that can hold them.

    Raises:
        DataError: a path is missing, holds nothing to predict, or a table has no such column.
    """
    inputs: list[Input] = []
    notes: list[str] = []
    for path in paths:
        _check_text(path)
        kind = kind_of(path)
        if kind == "missing":
            raise DataError(missing_message(path, what="file or folder"))
        if kind == "folder":
            inputs += _in_folder(path, notes, feature_column, image_column)
            continue
        entry = stat_file(path, locate(path), public_uri(path))
        if path.partition("?")[0].lower().endswith(TABLE_SUFFIXES):
            inputs.append(_table(path, entry, public_uri(path), feature_column, image_column))
        else:
            inputs.append(ImageFiles(path, (entry,), (public_uri(path),)))
    return _joined(inputs), notes


def _check_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"the name {path!r} is not valid UTF-8: rename it") from error


def _in_folder(
    path: str, notes: list[str], feature_column: str, image_column: str | None
) -> list[Input]:
    tree = walk(path)
    images, others = split_images(tree.files)
    tables = [file for file in others if file.relative.lower().endswith(TABLE_SUFFIXES)]
    where = public_uri(path)
    if not images and not tables:
        holds = plural(len(others), "other file") if others else "nothing"
        raise DataError(f"no image and no Parquet or Arrow file below {where!r}; it holds {holds}")
    left = len(others) - len(tables)
    if left:
        notes.append(f"{where}: left out {plural(left, 'file')}, neither image nor table")
    notes += hidden_note(where, tree)
    prefix = where.rstrip("/")
    found: list[Input] = []
    if images:
        names = tuple(f"{prefix}/{image.relative}" for image in images)
        found.append(ImageFiles(path, tuple(images), names))
    for file in tables:
        name = f"{prefix}/{file.relative}"
        found.append(_table(path, file, name, feature_column, image_column))
    return found


def _table(
    root: str, entry: FileEntry, name: str, feature_column: str, image_column: str | None
) -> TableRows:
    file = table_file(root, entry.location, name)
    schema = file.schema()
    has_ids = "id" in schema.names
    if feature_column in schema.names and image_column is None:
        kind = schema.field(feature_column).type
        width = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        return TableRows(file, name, feature_column, "features", has_ids, width)
    able = [f.name for f in schema if image_column in (None, f.name) and holds_images(f.type)]
    if len(able) != 1:
        found = f"{len(able)} columns hold images ({', '.join(able)})" if able else "none of images"
        raise DataError(
            f"{name!r} has no column {feature_column!r} of features and {found}; it has "
            f"{', '.join(schema.names)}: name the column with --feature-column or --image-column"
        )
    return TableRows(file, name, able[0], "images", has_ids)


def _bytes_of(image: pa.Scalar) -> bytes:
    data: bytes = image.as_py()
    return data


def _joined(inputs: Sequence[Input]) -> list[Input]:
    """Single image files one after the other as one input, so that they share batches."""
    joined: list[Input] = []
    for item in inputs:
        last = joined[-1] if joined else None
        local = isinstance(item, ImageFiles) and not is_remote(item.root)
        if local and isinstance(last, ImageFiles) and not is_remote(last.root):
            assert isinstance(item, ImageFiles)
            joined[-1] = ImageFiles(last.root, last.entries + item.entries, last.names + item.names)
        else:
            joined.append(item)
    return joined
