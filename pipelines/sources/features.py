"""Ready features: any encoder's embeddings (images, text, audio, tables), one row a sample; no backbone is needed.

Columns: ``feature`` fixed_size_list<float16|float32> (a plain list of equal lengths also serves, float64 is read as
float32), ``label`` text or whole number, ``split`` train or test; optional ``domain`` and ``id``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sources.base import Source
from pipelines.sources.columns import TableFile, table_file
from pipelines.sources.files import absolute, check_content, content_digest
from pipelines.sources.index import DigestIndex
from pipelines.sources.table import Listing
from pipelines.sources.tabular import TabularSettings, list_tables, refuse_nulls
from workers.errors import DataError
from workers.wording import plural

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FeaturesSettings(TabularSettings):
    """Parquet, Arrow or Feather files of ready features; width and type are those of the file."""

    kind: Literal["features"]
    feature_column: str = "feature"


@dataclass(frozen=True)
class FeatureReader:
    """Reads feature rows.

    Attributes:
        root: the URI whose file system opens the locations.
        column: the feature's column.
        width: d.
        dtype: "float16" or "float32".
    """

    root: str
    column: str
    width: int
    dtype: str
    kind: Literal["features"] = "features"

    def read(self, samples: pa.Table) -> NDArray[np.floating[Any]]:
        """Features [n, d] in the order of the rows of ``samples``."""
        out = np.empty((samples.num_rows, self.width), dtype=self.dtype)
        locations = samples["location"].to_numpy()
        rows = samples["row"].to_numpy()
        for location in dict.fromkeys(locations.tolist()):
            mine = np.flatnonzero(locations == location)
            file = table_file(self.root, location, "")
            for positions, values in file.select(self.column, rows[mine]):
                out[mine[positions]] = feature_matrix(location, self.column, values)
        for position in range(len(out)):
            check_content(samples, position, out[position])
        return out


class FeaturesSource(Source):
    """Lists the rows of feature files; every value is checked once, when it is listed."""

    settings: FeaturesSettings

    def reader(self) -> FeatureReader:
        width = self.listing().feature_width
        if width is None:
            raise DataError("the listing of ready features has no width")
        return FeatureReader(
            root=absolute(self._root),
            column=self.settings.feature_column,
            width=width,
            dtype=self._dtype,
        )

    def _list(self) -> Listing:
        tables = list_tables(self.settings, payload=lambda _: self.settings.feature_column)
        self._root = tables.root
        shapes: dict[tuple[int, str], str] = {}
        contents = []
        for rows in tables.rows:
            width, dtype, digests = self._scan(rows.file, len(rows.ids))
            shapes.setdefault((width, dtype), rows.file.entry.location)
            contents.append(digests)
        if len(shapes) > 1:
            (one, first), (two, second) = list(shapes.items())[:2]
            raise DataError(
                f"{first!r} holds features of {one[0]} {one[1]}, {second!r} of {two[0]} {two[1]}; "
                "all files must agree"
            )
        ((width, self._dtype),) = shapes
        return tables.listing(contents, feature_width=width)

    def _scan(self, file: TableFile, count: int) -> tuple[int, str, list[str]]:
        """Width, type and content digests of a file's features."""
        column = self.settings.feature_column
        location = file.entry.location

        def compute() -> tuple[list[str], str]:
            digests: list[str] = []
            width, dtype = 0, ""
            for offset, values in file.chunks(column):
                matrix = feature_matrix(location, column, values, first_row=offset)
                if offset and matrix.shape[1] != width:
                    raise _unequal(location, column, offset, width, matrix.shape[1])
                width, dtype = matrix.shape[1], matrix.dtype.name
                digests += [content_digest(row) for row in matrix]
            return digests, f"{width} {dtype}"

        index = DigestIndex(self._cache_dir, f"features {location} {column}")
        digests, note = index.of_rows(file.entry, count, compute)
        width, dtype = note.split()
        return int(width), dtype, digests


def feature_matrix(
    where: str, column: str, values: pa.Array, *, first_row: int = 0
) -> NDArray[np.floating[Any]]:
    """A list column as an array [n, d], float16 or float32, C-contiguous.

    Raises:
        DataError: the type is not a list of floats, lengths differ, or a value is null, NaN or infinite.
    """
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind = values.type
    fixed = pa.types.is_fixed_size_list(kind)
    if not (fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not (
        pa.types.is_floating(kind.value_type)
    ):
        raise DataError(
            f"{where!r}: column {column!r} is {kind}; features are fixed_size_list<float16> or <float32>"
        )
    refuse_nulls(where, column, values, first_row=first_row)
    if fixed:
        width = kind.list_size
    else:
        lengths = pc.list_value_length(values).to_numpy()
        width = int(lengths[0]) if len(lengths) else 0
        other = np.flatnonzero(lengths != width)
        if len(other):
            raise _unequal(where, column, first_row + int(other[0]), width, int(lengths[other[0]]))
    if width == 0:
        raise DataError(f"{where!r}: column {column!r} holds features of width 0")
    flat = values.flatten()
    if flat.null_count:
        at = first_row + pc.indices_nonzero(pc.is_null(flat))[0].as_py() // width
        raise DataError(f"{where!r}: column {column!r} holds a null in row {at} (counted from 0)")
    numbers = flat.to_numpy(zero_copy_only=False).reshape(len(values), width)
    if numbers.dtype == np.float64:
        with np.errstate(over="ignore"):
            numbers = numbers.astype(np.float32)
    finite = np.isfinite(numbers).all(axis=1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        value = numbers[bad[0]][~np.isfinite(numbers[bad[0]])][0]
        more = f" and {plural(len(bad) - 1, 'more row')}" if len(bad) > 1 else ""
        raise DataError(
            f"{where!r}: column {column!r} holds {value} in row {first_row + bad[0]}{more} (counted from 0); "
            "features must be finite"
        )
    return np.ascontiguousarray(numbers)


def _unequal(where: str, column: str, row: int, width: int, other: int) -> DataError:
    return DataError(
        f"{where!r}: column {column!r} has {other} values in row {row} and {width} before; all must be equal"
    )
