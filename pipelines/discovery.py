"""What lies at a path that nobody has described yet: which source reads it, with which settings, and what it holds.

Looks at names, folders and label columns only, so that a look costs no reading of images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.sources import open_source
from pipelines.sources.cifar import CifarSettings
from pipelines.sources.columns import TABLE_SUFFIXES, TableFile
from pipelines.sources.features import FeaturesSettings
from pipelines.sources.files import (
    Tree,
    absolute,
    kind_of,
    locate,
    missing_message,
    public_uri,
    read_bytes,
    stat_file,
    walk,
)
from pipelines.sources.image_folder import split_images
from pipelines.sources.layout import Layout, Place
from pipelines.sources.manifest import read_csv
from pipelines.sources.parquet import ParquetSettings, holds_images
from pipelines.sources.table import Listing, make_listing
from pipelines.sources.tabular import find_column, list_tables
from workers.errors import DataError

if TYPE_CHECKING:
    from pipelines.sources.files import FileEntry

_LIST_SUFFIXES = (".csv", ".tsv", ".txt")
_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path")
_LABELS = (
    "label",
    "class",
    "target",
    "category",
    "fine_label",
    "labels",
    "class_name",
    "species",
    "y",
)
_FEATURES = ("feature", "features", "embedding", "embeddings", "vector", "emb", "x")


@dataclass(frozen=True)
class Discovery:
    """What was found.

    Attributes:
        source: settings of a source, as an experiment file says them.
        listing: ids, labels, domains and splits; its contents are no digests, since nothing was read.
        own_split: the data say themselves which samples are for test.
        remarks: sentences about how ambiguous data were understood.
    """

    source: dict[str, Any]
    listing: Listing
    own_split: bool
    remarks: tuple[str, ...] = field(default=())

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains, sorted; empty when samples have none."""
        names = sorted(self.listing.samples["domain"].unique().to_pylist())
        return () if names == [""] else tuple(names)


def discover(path: str) -> Discovery:
    """Look at a folder or file and say how it is read.

    Raises:
        DataError: there is nothing at the path, or nothing that a source could read; says what would be.
    """
    kind = kind_of(path)
    if kind == "missing":
        raise DataError(missing_message(path, what="file or folder"))
    if kind == "folder":
        return _folder(path, walk(path))
    name = path.partition("?")[0].lower()
    if name.endswith(_ARCHIVES):
        return _cifar(path)
    if name.endswith(_LIST_SUFFIXES):
        return _manifest(path, _read_list(path))
    if name.endswith(TABLE_SUFFIXES):
        return _tables(path, TableFile(path, stat_file(path, locate(path), "")))
    raise DataError(
        f"{public_uri(path)!r} is no kind of file that samples are read from: give a folder of images (one folder a "
        "class), a Parquet or Arrow file of images or features, a CSV that lists images, or a CIFAR archive"
    )


# -- folders -------------------------------------------------------------------------------------------------


def _folder(path: str, tree: Tree) -> Discovery:
    names = {file.relative.rpartition("/")[2] for file in tree.files}
    if {"data_batch_1", "batches.meta"} <= names or {"train", "test", "meta"} <= names:
        return _cifar(path)
    images, others = split_images(tree.files)
    tables = [file for file in others if file.relative.lower().endswith(TABLE_SUFFIXES)]
    lists = [file for file in others if file.relative.lower().endswith(_LIST_SUFFIXES)]
    if images:
        try:
            return _images(path, tree, images)
        except DataError:
            for file in lists:
                table = _try(lambda file=file: _read_list(file.location))  # type: ignore[misc]
                if table is not None and _first(table.column_names, _PATHS) is not None:
                    return _manifest(file.location, table)
            raise
    if tables:
        return _tables(path, TableFile(path, tables[0]))
    raise DataError(
        f"{public_uri(path)!r} holds neither images nor Parquet or Arrow files nor CIFAR's: expected "
        f"{public_uri(path).rstrip('/')}/<class>/<image>"
    )


def _images(path: str, tree: Tree, images: list[FileEntry]) -> Discovery:
    """A folder of images: the first reading of its folders that gives every image a place."""
    where = public_uri(path)
    source: dict[str, Any] = {"kind": "image_folder", "path": absolute(path)}
    readings: list[tuple[dict[str, Any], str]] = [
        ({}, ""),
        (
            {"domain_folders": True},
            "the upper folders hold the same class folders and are taken as domains",
        ),
        (
            {"merge_subfolders": True},
            "folders inside class folders are taken as parts of their class",
        ),
    ]
    first: DataError | None = None
    for settings, remark in readings:
        layout = Layout(where=where, folders=tree.folders, **settings)
        try:
            places = layout.places(images)
        except DataError as error:
            first = first or error
            continue
        if settings.get("domain_folders") and not _classes_recur(places):
            continue
        listing = _facts(where, [i.relative for i in images], places=places)
        own = any(place.split for place in places)
        return Discovery({**source, **settings}, listing, own, (remark,) if remark else ())
    assert first is not None
    raise first


def _classes_recur(places: Sequence[Place]) -> bool:
    """Whether upper folders are domains rather than classes: most class names stand in more than one of them."""
    domains: dict[str, set[str]] = {}
    for place in places:
        domains.setdefault(place.label, set()).add(place.domain)
    return 2 * sum(len(found) > 1 for found in domains.values()) >= len(domains)


def _cifar(path: str) -> Discovery:
    source = CifarSettings(kind="cifar", path=absolute(path))
    listing = open_source(source).listing()
    remark = "CIFAR-100's 20 superclasses are read with labels: coarse"
    return Discovery(
        {"kind": "cifar", "path": absolute(path)},
        listing,
        own_split=True,
        remarks=(remark,) if len(listing.classes) > 10 else (),
    )


# -- tables and lists ----------------------------------------------------------------------------------------


def _tables(path: str, file: TableFile) -> Discovery:
    """Parquet, Arrow or Feather: of ready features, of images, or a list of image files."""
    schema = file.schema()
    where = public_uri(path)
    label = _label_column(where, schema.names)
    source: dict[str, Any] = {"path": absolute(path)}
    if label != "label":
        source["label_column"] = label
    features = [f.name for f in schema if _is_vector(f.type)]
    images = [f.name for f in schema if holds_images(f.type)]
    feature = _first(features, _FEATURES) or (features[0] if len(features) == 1 else None)
    if feature is not None:
        source = {"kind": "features", **source}
        if feature != "feature":
            source["feature_column"] = feature
        return _table_facts(source, FeaturesSettings.model_validate(source), feature)
    if images:
        source = {"kind": "parquet", **source}
        if len(images) > 1:
            source["image_column"] = _first(images, ("image", "img", "picture")) or images[0]
        column = source.get("image_column", images[0])
        return _table_facts(source, ParquetSettings.model_validate(source), column)
    if _first(schema.names, _PATHS) is not None and kind_of(path) == "file":
        return _manifest(path, file.read(schema.names))
    raise DataError(
        f"{where!r} has no column of features (lists of floats), of encoded images (binary, or struct<bytes, path>) or "
        f"of image paths ({', '.join(_PATHS[:3])}, ...); it has {', '.join(schema.names)}"
    )


def _table_facts(source: dict[str, Any], settings: Any, payload: str) -> Discovery:
    tables = list_tables(settings, payload=lambda _: payload)
    ids = [[f"{part.file.entry.relative}/{name}" for name in part.ids] for part in tables.rows]
    listing = tables.listing(ids, feature_width=_width(tables.rows[0].file, payload))
    own = any(word for part in tables.rows for word in part.splits)
    return Discovery(source, listing, own)


def _manifest(path: str, table: pa.Table) -> Discovery:
    where = public_uri(path)
    names = table.column_names
    column = _first(names, _PATHS)
    if column is None:
        raise DataError(
            f"{where!r} has no column of image paths ({', '.join(_PATHS[:3])}, ...); it has {', '.join(names)}"
        )
    label = _label_column(where, names)
    source: dict[str, Any] = {"kind": "manifest", "path": absolute(path)}
    if column != "path":
        source["path_column"] = column
    if label != "label":
        source["label_column"] = label
    texts = {}
    for name in dict.fromkeys(names):
        find_column(where, names, name, "source.path_column and source.label_column")
        texts[name] = [str(v) for v in table[name].to_pylist()]
    places = [
        Place(split, domain, name)
        for split, domain, name in zip(
            texts.get("split", [""] * len(table)),
            texts.get("domain", [""] * len(table)),
            texts[label],
            strict=True,
        )
    ]
    return Discovery(source, _facts(where, texts[column], places=places), "split" in names)


def _read_list(path: str) -> pa.Table:
    """A CSV or TSV as columns of text."""
    tabbed = not path.partition("?")[0].lower().endswith(".csv")
    data = read_bytes(path, locate(path))
    return read_csv(public_uri(path), data, delimiter="\t" if tabbed else ",")


def _facts(where: str, ids: Sequence[str], *, places: Sequence[Place]) -> Listing:
    return make_listing(
        where=where,
        ids=ids,
        labels=[place.label for place in places],
        domains=[place.domain for place in places],
        splits=[place.split for place in places],
        contents=ids,
        locations=ids,
        rows=[-1] * len(ids),
    )


def _label_column(where: str, names: Sequence[str]) -> str:
    found = _first(names, _LABELS)
    if found is None:
        raise DataError(
            f"{where!r} has no column of labels ({', '.join(_LABELS[:4])}, ...); it has {', '.join(names)}: write the "
            "experiment with source.label_column"
        )
    return found


def _first(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """The first wanted name that is there, whatever its case."""
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in wanted if name in lower), None)


def _is_vector(kind: pa.DataType) -> bool:
    lists = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    return any(test(kind) for test in lists) and pa.types.is_floating(kind.value_type)


def _width(file: TableFile, column: str) -> int | None:
    kind = file.schema().field(column).type
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    if not _is_vector(kind):
        return None
    for _, values in file.chunks(column):
        if len(values) and values[0].is_valid:
            return len(values[0])
    return None


def _try(read: Callable[[], pa.Table]) -> pa.Table | None:
    try:
        return read()
    except DataError:
        return None
