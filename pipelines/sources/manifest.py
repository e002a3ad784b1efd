"""A list of image files with their labels, instead of folders: CSV, TSV or a table file.

Columns ``path``, ``label`` and, where wanted, ``split`` and ``domain``.  Paths are relative to the manifest's folder
(or to ``root``), absolute, or URIs.
"""

from __future__ import annotations

import posixpath
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pydantic import Field

from pipelines.sources.base import DataPath, Source, SplitSettings
from pipelines.sources.columns import table_file
from pipelines.sources.files import (
    FileEntry,
    absolute,
    is_remote,
    kind_of,
    locate,
    missing_message,
    public_uri,
    read_bytes,
    stat_file,
)
from pipelines.sources.image_folder import ImageFileReader, refuse_empty
from pipelines.sources.index import DigestIndex
from pipelines.sources.table import Listing, make_listing
from pipelines.sources.tabular import find_column, number_or_text, refuse_nulls
from workers.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]*")


class ManifestSettings(SplitSettings):
    """A CSV, TSV, Parquet, Arrow or Feather file that lists images."""

    kind: Literal["manifest"]
    path: DataPath = Field(description="the list")
    root: str | None = Field(
        default=None, description="folder of relative paths; left out: the list's own folder"
    )
    path_column: str = "path"
    label_column: str = "label"
    split_column: str | None = Field(
        default=None, description="column of splits; left out: 'split' where there is one"
    )
    domain_column: str | None = Field(
        default=None, description="column of domains; left out: 'domain' where there is one"
    )


class ManifestSource(Source):
    """Lists the images that a manifest names; an image's id is its path as written there."""

    settings: ManifestSettings

    def reader(self) -> ImageFileReader:
        return ImageFileReader(root=absolute(self._base))

    @property
    def _base(self) -> str:
        return self.settings.root if self.settings.root is not None else self.settings.path

    def _list(self) -> Listing:
        path = self.settings.path
        kind = kind_of(path)
        if kind == "missing":
            raise DataError(missing_message(path, what="manifest file"))
        if kind == "folder":
            raise DataError(
                f"{public_uri(path)!r} is a folder; a manifest is a CSV or table file that lists images "
                "(for class folders use source.kind: image_folder)"
            )
        location = locate(path)
        table = self._read(location)
        paths = _column(location, table, self.settings.path_column, "path_column")
        labels = _column(location, table, self.settings.label_column, "label_column")
        files = self._files(location, paths)
        refuse_empty(files)
        classes = sorted(set(labels))
        if self._numbered(table) or all(_WHOLE_NUMBER.fullmatch(label) for label in classes):
            classes.sort(key=int)
        return make_listing(
            where=location,
            ids=[file.relative for file in files],
            labels=labels,
            domains=self._optional(location, table, self.settings.domain_column, "domain"),
            splits=self._optional(location, table, self.settings.split_column, "split"),
            contents=DigestIndex(self._cache_dir, f"manifest {location}").of_files(
                self._base, files
            ),
            locations=[file.location for file in files],
            rows=[-1] * len(files),
            classes=classes,
            plan=self.settings.split_plan,
        )

    def _read(self, location: str) -> pa.Table:
        name = location.lower()
        if name.endswith((".csv", ".tsv", ".txt")):
            return read_csv(
                location,
                read_bytes(self.settings.path, location),
                delimiter="," if name.endswith(".csv") else "\t",
            )
        file = table_file(self.settings.path, location, "")
        return file.read(file.schema().names)

    def _numbered(self, table: pa.Table) -> bool:
        return bool(pa.types.is_integer(table[self.settings.label_column].type))

    def _optional(
        self, location: str, table: pa.Table, column: str | None, usual: str
    ) -> list[str]:
        if column is None and usual not in table.column_names:
            return [""] * table.num_rows
        return _column(location, table, column or usual, f"{usual}_column")

    def _files(self, location: str, paths: Sequence[str]) -> list[FileEntry]:
        """Where the images are, with size and time.

        Raises:
            DataError: a path is empty, or its file is missing.
        """
        if "" in paths:
            raise DataError(f"{location!r}: the path in row {paths.index('')} is empty")
        root = locate(self.settings.root) if self.settings.root else posixpath.dirname(location)
        places = []
        for path in paths:
            if is_remote(path):
                places.append(path)
            elif is_remote(root):
                places.append(f"{root}/{path.lstrip('/')}")
            else:
                places.append(posixpath.normpath(posixpath.join(root, path)))

        def entry(at: int) -> FileEntry:
            try:
                return stat_file(self._base, places[at], paths[at])
            except DataError as error:
                raise DataError(f"{location!r} row {at} (counted from 0): {error}") from error

        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(entry, range(len(paths)), chunksize=256))


def read_csv(location: str, data: bytes, *, delimiter: str) -> pa.Table:
    """A CSV as text columns, so that labels such as 007 or NA stay what they are; a byte-order mark is skipped.

    Raises:
        DataError: it is no CSV, or no UTF-8.
    """
    from pyarrow import csv

    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{location!r} is a CSV in UTF-16: save it as UTF-8")
    head = data.split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
    names = [name.strip().strip('"') for name in head.split(delimiter)]
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            parse_options=csv.ParseOptions(delimiter=delimiter),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
        return table.rename_columns([name.strip() for name in table.column_names])
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = "its first line is other text" if isinstance(error, UnicodeError) else error
        raise DataError(f"{location!r} cannot be read as CSV in UTF-8: {reason}") from error


def _column(location: str, table: pa.Table, name: str, setting: str) -> list[str]:
    find_column(location, table.column_names, name, f"source.{setting}")
    refuse_nulls(location, name, table[name])
    return number_or_text(location, table[name])
