"""Samples to feature parts: how a stream is cut for the backbone, and what each task then reads.

Parts are runs of samples of one class, domain and split.  They do not know tasks: another class order,
another number of classes per task or another method reads the same parts, and the backbone rests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workers.feature_rows import FeatureRows
from workers.storage.features import FeatureSettings, PartKey, part_digest

if TYPE_CHECKING:
    import pyarrow as pa

    from pipelines.stream import Stream


@dataclass(frozen=True)
class Part:
    """At most ``part_size`` samples of one class, domain and split: ``rows`` of the stream's table."""

    rows: NDArray[np.int64]


class FeaturePlan:
    """The parts of a stream and where each sample lies in them.

    A part's key is a digest of its samples' ids and contents, so equal samples have equal parts,
    whichever stream they came in.
    """

    def __init__(self, stream: Stream, settings: FeatureSettings, *, seed: int) -> None:
        self._stream = stream
        self._settings = settings
        self._seed = seed
        samples = len(stream.labels)
        self.parts: list[Part] = []
        self._names: dict[tuple[int, bool], str] = {}
        self._part_of = np.full(samples, -1, dtype=np.int64)
        self._row_of = np.full(samples, -1, dtype=np.int64)
        for group in _groups(stream):
            for start in range(0, len(group), settings.part_size):
                rows = group[start : start + settings.part_size]
                self._part_of[rows] = len(self.parts)
                self._row_of[rows] = np.arange(len(rows))
                self.parts.append(Part(rows))

    def parts_of(self, rows: NDArray[np.int64]) -> list[int]:
        """Positions in ``parts`` that hold the given samples, ascending."""
        return [int(p) for p in np.unique(self._part_of[rows])]

    def key(self, part: int, view: int, backbone: str) -> PartKey:
        """The cache key of a part as seen by a backbone (``backbone``: its cache key) in a view."""
        augmented = view > 0
        name = self._names.get((part, augmented))
        if name is None:
            samples = self.samples_of(part)
            name = part_digest(samples, view=view, seed=self._seed)
            self._names[part, augmented] = name
        return PartKey(backbone=backbone, part=name, view=view)

    def samples_of(self, part: int) -> pa.Table:
        """The samples of a part, in order."""
        return self._stream.samples.take(self.parts[part].rows)

    def rows(self, rows: NDArray[np.int64], backbone: str) -> FeatureRows:
        """What to tell an actor that shall read the features of these samples, in this order."""
        positions = self.parts_of(rows)
        place = np.full(len(self.parts), -1, dtype=np.int64)
        place[positions] = np.arange(len(positions))
        return FeatureRows(
            keys=tuple(self.key(p, 0, backbone) for p in positions),
            sizes=np.array([len(self.parts[p].rows) for p in positions], dtype=np.int64),
            part=place[self._part_of[rows]],
            row=self._row_of[rows],
            labels=self._stream.labels[rows],
            ids=self._stream.samples["id"].take(rows).combine_chunks(),
            augmented=tuple(self.key(p, 1, backbone) for p in positions if self._settings.views),
            tolerance=self._settings.tolerate_unreadable,
        )


def _groups(stream: Stream) -> Iterator[NDArray[np.int64]]:
    """The samples that the stream uses, by class, domain and split, each group in order of sample id."""
    used = np.unique(
        np.concatenate([np.concatenate([t.train, t.validation, t.test]) for t in stream.tasks])
    )
    samples = stream.samples
    ids = samples["id"].take(used).to_numpy(zero_copy_only=False).astype(str)
    domains = samples["domain"].take(used).to_numpy(zero_copy_only=False).astype(str)
    splits = samples["split"].take(used).to_numpy(zero_copy_only=False).astype(str)
    labels = stream.labels[used]
    order = np.lexsort((ids, splits, domains, labels))
    changed = (
        (labels[order][1:] != labels[order][:-1])
        | (domains[order][1:] != domains[order][:-1])
        | (splits[order][1:] != splits[order][:-1])
    )
    yield from np.split(used[order], np.flatnonzero(changed) + 1)
