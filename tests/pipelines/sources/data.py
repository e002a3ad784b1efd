"""Tiny real data for the tests of sources and streams."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from pydantic import TypeAdapter

from pipelines.sources import Listing, Source, SourceSettings, open_source
from pipelines.stream import Stream, StreamSettings, build_stream

_SOURCES: TypeAdapter[Any] = TypeAdapter(SourceSettings)
_STREAMS: TypeAdapter[Any] = TypeAdapter(StreamSettings)


def png(number: int) -> bytes:
    """A 4x4 greyscale PNG, different for every number."""
    pixels = np.random.RandomState(number).randint(0, 256, (4, 4)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_images(root: Path, counts: Mapping[str, int], *, first: int = 0) -> Path:
    """Folders below ``root`` with so many images each."""
    number = first
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for at in range(count):
            (root / folder / f"{at:03d}.png").write_bytes(png(number))
            number += 1
    return root


def feature_table(
    labels: Sequence[Any], splits: Sequence[str] | None = None, *, width: int = 6, **columns: Any
) -> pa.Table:
    """Random float16 features with labels, in the ready-features layout."""
    values = np.random.RandomState(len(labels)).randn(len(labels), width).astype(np.float16)
    data = {
        "feature": pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), width),
        "label": pa.array(labels),
        **columns,
    }
    if splits is not None:
        data["split"] = pa.array(splits)
    return pa.table(data)


def write_features(path: Path, classes: Sequence[Any], *, train: int = 4, test: int = 2) -> Path:
    """A Parquet file of features with so many training and test rows a class, classes interleaved."""
    rows = [(name, "train") for _ in range(train) for name in classes]
    rows += [(name, "test") for _ in range(test) for name in classes]
    pq.write_table(feature_table([row[0] for row in rows], [row[1] for row in rows]), path)
    return path


def source(*, cache_dir: Path | None = None, **settings: Any) -> Source:
    """A source from plain settings."""
    return open_source(
        _SOURCES.validate_python(
            {k: str(v) if isinstance(v, Path) else v for k, v in settings.items()}
        ),
        cache_dir=None if cache_dir is None else str(cache_dir),
    )


def listing(**settings: Any) -> Listing:
    """What a source lists."""
    return source(**settings).listing()


def stream(source: Mapping[str, Any], *, seed: int = 1993, **settings: Any) -> Stream:
    """A stream from plain settings."""
    given = {k: str(v) if isinstance(v, Path) else v for k, v in source.items()}
    return build_stream(_STREAMS.validate_python({**settings, "source": given}), seed=seed)


def stream_settings(**settings: Any) -> Any:
    """Validated settings of a stream."""
    return _STREAMS.validate_python(settings)


def groups(listed: Listing) -> dict[tuple[str, str, str], int]:
    """Numbers of samples by (split, domain, label)."""
    counts: dict[tuple[str, str, str], int] = {}
    for row in listed.samples.select(["split", "domain", "label"]).to_pylist():
        key = (row["split"], row["domain"], row["label"])
        counts[key] = counts.get(key, 0) + 1
    return counts


def class_names(built: Stream) -> list[list[str]]:
    """The class names of each task."""
    return [[built.classes[at] for at in task.classes] for task in built.tasks]


def ids(built: Stream, rows: Any) -> list[str]:
    """Sample ids of row numbers."""
    names: list[str] = built.samples["id"].take(pa.array(rows)).to_pylist()
    return names


def travelled(reader: Any) -> Any:
    """A reader as it arrives in another process."""
    return pickle.loads(pickle.dumps(reader))  # noqa: S301
