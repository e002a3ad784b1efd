"""Parquet, Arrow and Feather files of encoded images: a binary column, or Hugging Face's struct of bytes and path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from pipelines.sources.base import Source
from pipelines.sources.columns import TableFile, table_file
from pipelines.sources.files import absolute, check_content, content_digest
from pipelines.sources.index import DigestIndex
from pipelines.sources.table import Listing
from pipelines.sources.tabular import TabularSettings, list_tables, refuse_nulls
from workers.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


class ParquetSettings(TabularSettings):
    """Files whose rows hold encoded images (PNG, JPEG, ...) and labels."""

    kind: Literal["parquet"]
    image_column: str | None = Field(
        default=None, description="column of images; left out: the only one that can hold them"
    )


@dataclass(frozen=True)
class ImageTableReader:
    """Reads encoded images out of table files.

    Attributes:
        root: the URI whose file system opens the locations.
        column: the images' column.
    """

    root: str
    column: str
    kind: Literal["images"] = "images"

    def read(self, samples: pa.Table) -> list[bytes | Image]:
        """Encoded images, in the order of the rows of ``samples``."""
        images: list[bytes | Image] = [b""] * samples.num_rows
        locations = samples["location"].to_numpy()
        rows = samples["row"].to_numpy()
        for location in dict.fromkeys(locations.tolist()):
            mine = np.flatnonzero(locations == location)
            file = table_file(self.root, location, "")
            for positions, values in file.select(self.column, rows[mine]):
                encoded = encoded_images(location, self.column, values).to_pylist()
                for position, image in zip(mine[positions].tolist(), encoded, strict=True):
                    check_content(samples, position, image)
                    images[position] = image
        return images


class ParquetSource(Source):
    """Lists the rows of table files with encoded images."""

    settings: ParquetSettings

    def reader(self) -> ImageTableReader:
        self.listing()
        return ImageTableReader(root=absolute(self._root), column=self._column)

    def _list(self) -> Listing:
        tables = list_tables(self.settings, payload=self._find_column)
        self._root, self._column = tables.root, tables.payload
        return tables.listing([self._digests(rows.file, len(rows.ids)) for rows in tables.rows])

    def _find_column(self, file: TableFile) -> str:
        if self.settings.image_column is not None:
            return self.settings.image_column
        schema = file.schema()
        able: list[str] = [field.name for field in schema if holds_images(field.type)]
        if len(able) == 1:
            return able[0]
        found = "none can" if not able else f"{', '.join(able)} can"
        raise DataError(
            f"{file.entry.location!r}: which column holds the images? Of {', '.join(schema.names)}, {found}; "
            "set source.image_column to a column of binary or struct<bytes, path>"
        )

    def _digests(self, file: TableFile, count: int) -> list[str]:
        location, column = file.entry.location, self._column

        def compute() -> tuple[list[str], str]:
            digests: list[str] = []
            for offset, values in file.chunks(column):
                images = encoded_images(location, column, values, first_row=offset)
                digests += [content_digest(image.as_buffer()) for image in images]
            return digests, ""

        index = DigestIndex(self._cache_dir, f"images {location} {column}")
        return index.of_rows(file.entry, count, compute)[0]


def holds_images(kind: pa.DataType) -> bool:
    """Whether a column of this type can hold encoded images: binary, or a struct with such a field ``bytes``."""
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and holds_images(field.type) for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def encoded_images(where: str, column: str, values: pa.Array, *, first_row: int = 0) -> pa.Array:
    """A column's images as a binary array.

    Raises:
        DataError: the type cannot hold images, or an image is null or has no bytes.
    """
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if not holds_images(values.type):
        raise DataError(
            f"{where!r}: column {column!r} is {values.type}; encoded images are binary or struct<bytes, path> "
            "(for paths of image files use source.kind: manifest)"
        )
    refuse_nulls(where, column, values, first_row=first_row)
    if pa.types.is_struct(values.type):
        values = pc.struct_field(values, "bytes")
        refuse_nulls(where, f"{column}.bytes", values, first_row=first_row)
    empty = pc.indices_nonzero(pc.equal(pc.binary_length(values), 0))
    if len(empty):
        raise DataError(
            f"{where!r}: column {column!r} holds an empty image (0 bytes) in row "
            f"{first_row + empty[0].as_py()} (counted from 0)"
        )
    return values
