"""The original python archives of CIFAR-10 and CIFAR-100 (Krizhevsky 2009), packed or extracted.

The files are pickles.  They are read without running any code in them: an unpickler that knows no class and no
function but five stand-ins, which collect the pieces of numpy arrays as plain data.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from pipelines.sources.base import DataPath, Source
from pipelines.sources.files import (
    FileEntry,
    absolute,
    check_content,
    content_digest,
    is_remote,
    kind_of,
    locate,
    missing_message,
    read_bytes,
    stat_file,
    walk,
)
from pipelines.sources.table import Listing, make_listing
from workers.errors import DataError
from workers.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray
    from PIL.Image import Image

_LARGEST_MEMBER = 512 * 1024 * 1024


class CifarSettings(Settings):
    """``cifar-10-python.tar.gz`` or ``cifar-100-python.tar.gz``, or the folder that one was extracted to."""

    kind: Literal["cifar"]
    path: DataPath = Field(description="the archive or the folder")
    labels: Literal["fine", "coarse"] = Field(
        default="fine", description="CIFAR-100: its 100 classes or its 20 superclasses"
    )


@dataclass(frozen=True)
class _Layout:
    """The files of one of the two data sets and the keys inside them."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: Mapping[str, str]
    names: Mapping[str, str]


_LAYOUTS = (
    _Layout(
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        meta="batches.meta",
        labels={"fine": "labels"},
        names={"fine": "label_names"},
    ),
    _Layout(
        train=("train",),
        test=("test",),
        meta="meta",
        labels={"fine": "fine_labels", "coarse": "coarse_labels"},
        names={"fine": "fine_label_names", "coarse": "coarse_label_names"},
    ),
)
_NAMES = frozenset(name for each in _LAYOUTS for name in (*each.train, *each.test, each.meta))


@dataclass(frozen=True)
class CifarReader:
    """Reads images out of the archive or folder, which a process keeps decoded (under 200 MB)."""

    path: str
    kind: Literal["images"] = "images"

    def read(self, samples: pa.Table) -> list[bytes | Image]:
        """RGB PIL images of 32x32."""
        from PIL.Image import fromarray

        files = _load(self.path)
        images: list[bytes | Image] = []
        for position, (location, row) in enumerate(
            zip(samples["location"].to_pylist(), samples["row"].to_pylist(), strict=True)
        ):
            name = location.rpartition("::")[2].rpartition("/")[2]
            if name not in files or "data" not in files[name]:
                raise DataError(f"{location!r} is gone; start the run again")
            pixels = files[name]["data"][row]
            check_content(samples, position, pixels)
            images.append(
                fromarray(np.ascontiguousarray(pixels.reshape(3, 32, 32).transpose(1, 2, 0)))
            )
        return images


class CifarSource(Source):
    """Lists CIFAR-10 or CIFAR-100, whichever the path holds; classes in the order of their numbers."""

    settings: CifarSettings

    def reader(self) -> CifarReader:
        return CifarReader(path=absolute(self.settings.path))

    def _list(self) -> Listing:
        path, wanted = self.settings.path, self.settings.labels
        where = locate(path)
        files = _load(path)
        layout = _layout_of(where, files)
        if wanted not in layout.labels:
            raise DataError(
                f"{where!r} is CIFAR-10, which has no {wanted} labels; set source.labels: fine"
            )
        names = _names(where, files[layout.meta], layout.names[wanted])
        ids: list[str] = []
        labels: list[str] = []
        splits: list[str] = []
        contents: list[str] = []
        locations: list[str] = []
        rows: list[int] = []
        for split, members in (("train", layout.train), ("test", layout.test)):
            for member in members:
                pixels, targets = _batch(where, member, files[member], layout.labels[wanted])
                if max(targets) >= len(names) or min(targets) < 0:
                    raise DataError(
                        f"{where!r}: {member} has labels beyond the {len(names)} names of {layout.meta}"
                    )
                ids += [f"{member}/{row:05d}" for row in range(len(targets))]
                labels += [names[target] for target in targets]
                splits += [split] * len(targets)
                contents += [content_digest(row) for row in pixels]
                locations += [files[member]["location"]] * len(targets)
                rows += range(len(targets))
        return make_listing(
            where=where,
            ids=ids,
            labels=labels,
            domains=[""] * len(ids),
            splits=splits,
            contents=contents,
            locations=locations,
            rows=rows,
            classes=names,
        )


def _layout_of(where: str, files: Mapping[str, Any]) -> _Layout:
    for layout in _LAYOUTS:
        if layout.train[0] in files or layout.test[0] in files:
            missing = [
                name for name in (*layout.train, *layout.test, layout.meta) if name not in files
            ]
            if missing:
                raise DataError(f"{where!r}: the file {missing[0]!r} is missing")
            return layout
    raise DataError(
        f"{where!r}: neither CIFAR-10 (data_batch_1, ...) nor CIFAR-100 (train, test, meta) in its python version"
    )


def _names(where: str, meta: Mapping[str, Any], key: str) -> list[str]:
    names = meta.get(key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{where!r}: its meta file has no {key}")
    return names


def _batch(
    where: str, member: str, content: Mapping[str, Any], key: str
) -> tuple[NDArray[np.uint8], list[int]]:
    pixels, targets = content.get("data"), content.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise DataError(f"{where!r}: {member} has no 'data' of n x 3072 bytes")
    if not isinstance(targets, list) or len(targets) != len(pixels) or not targets:
        raise DataError(
            f"{where!r}: {member} needs one of {key!r} for each of its {len(pixels)} images"
        )
    return pixels, targets


def _load(path: str) -> dict[str, dict[str, Any]]:
    """Every file of the data set by name, each with its content and its ``location``."""
    kind = kind_of(path)
    if kind == "missing":
        raise DataError(missing_message(path, what="archive or folder"))
    if kind == "file":
        return _load_archive(path, stat_file(path, locate(path), ""))
    return _load_folder(
        path,
        tuple(file for file in walk(path).files if file.relative.rpartition("/")[2] in _NAMES),
    )


@lru_cache(maxsize=1)
def _load_folder(path: str, files: tuple[FileEntry, ...]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        name = file.relative.rpartition("/")[2]
        _add(found, name, file.location, read_bytes(path, file.location))
    return found


@lru_cache(maxsize=1)
def _load_archive(path: str, file: FileEntry) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    location = file.location
    try:
        with _open(path, location) as source, tarfile.open(fileobj=source) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                content = archive.extractfile(member) if name in _NAMES else None
                if content is not None:
                    if member.size > _LARGEST_MEMBER:
                        raise DataError(f"{location!r}: {name} is larger than any file of CIFAR")
                    _add(found, name, f"{location}::{name}", content.read())
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        reason = "neither tar nor compressed tar" if "\n" in str(error) else str(error)
        raise DataError(f"{location!r} cannot be read as a tar archive: {reason}") from error
    return found


def _add(found: dict[str, dict[str, Any]], name: str, location: str, data: bytes) -> None:
    if name in found:
        raise DataError(f"{location!r}: a second {name!r}; point source.path at one data set")
    found[name] = {**_unpickle(location, data), "location": location}


def _open(path: str, location: str) -> Any:
    if is_remote(location):
        return io.BytesIO(read_bytes(path, location))
    return open(location, "rb")


class _Stand:
    """Stands in for a class or function that a pickle names; it can be called, and nothing else."""

    __slots__ = ("_build",)

    def __init__(self, build: Any) -> None:
        self._build = build

    def __call__(self, *args: Any) -> Any:
        return self._build(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a pickle must not change what it calls")


class _Type:
    """A numpy dtype in a pickle: its code alone."""

    def __init__(self, code: str, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment: bytes have none."""


class _Array:
    """A numpy array in a pickle: its shape, type and bytes."""

    def __init__(self, *_: Any) -> None:
        self.pieces: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        self.pieces = tuple(state)[1:]

    @classmethod
    def from_buffer(cls, data: Any, kind: Any, shape: Any, order: Any) -> _Array:
        array = cls()
        array.pieces = (shape, kind, order == "F", data)
        return array

    def to_numpy(self) -> NDArray[np.uint8]:
        shape, kind, fortran, data = self.pieces
        if not isinstance(kind, _Type) or kind.code not in ("u1", "|u1") or fortran:
            raise pickle.UnpicklingError("an array that is not of bytes in C order")
        raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
        return np.frombuffer(raw, dtype=np.uint8).reshape(tuple(int(size) for size in shape))


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


class _PlainUnpickler(pickle.Unpickler):
    """Knows containers, numbers, text, and stand-ins for numpy's arrays of bytes."""

    def find_class(self, module: str, name: str) -> Any:
        package = module.replace("numpy._core", "numpy.core")
        known = {
            ("numpy", "ndarray"): lambda *_: _Array(),
            ("numpy", "dtype"): _Type,
            ("numpy.core.multiarray", "_reconstruct"): _Array,
            ("numpy.core.numeric", "_frombuffer"): _Array.from_buffer,
            ("_codecs", "encode"): _encode,
        }
        if (package, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which CIFAR files do not")
        return _Stand(known[package, name])


def _unpickle(location: str, data: bytes) -> dict[str, Any]:
    """A batch or meta file as a dictionary of arrays, lists and text.

    Raises:
        DataError: it is no pickle of plain data.
    """
    try:
        content = _PlainUnpickler(io.BytesIO(data), encoding="latin1").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it holds a {type(content).__name__}, not a dictionary")
        return {_plain(key): _plain(value) for key, value in content.items()}
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        AttributeError,
        EOFError,
        ImportError,
        LookupError,
        MemoryError,
        TypeError,
        ValueError,
    ) as error:
        raise DataError(f"{location!r} is no file of CIFAR's python version: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.to_numpy()
    if isinstance(value, bytes):
        return value.decode("latin1")
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
