"""Streams and tasks as values: which samples come when, and what identifies a task that has been learned."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _quoted
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workers.wording import plural

if TYPE_CHECKING:
    import pyarrow as pa

    from workers.samples import SampleReader

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Task:
    """One task of a stream.

    Attributes:
        index: its place in the stream, from 0.
        name: unique in the stream.
        domain: the domain its samples come from, "" where domains mean nothing.
        classes: indices into ``Stream.classes`` of every class it trains on, ascending.
        train, validation, test: row numbers in ``Stream.samples``, int64 [n], ordered by class index, then id.
    """

    index: int
    name: str
    domain: str
    classes: tuple[int, ...]
    train: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True)
class TaskDefinition:
    """What a learned task was learned from; two tasks with equal definitions need learning once.

    Test samples are no part of it: they change what is measured, not what is learned.

    Attributes:
        classes: class names in stream order.
        counts: per class name, the numbers of training and validation samples.
        samples_digest: over split, class, id and content of every training and validation sample.
    """

    name: str
    domain: str
    classes: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]
    samples_digest: str

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and numbers."""
        return {**asdict(self), "classes": list(self.classes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TaskDefinition:
        """The inverse of ``to_json``."""
        return cls(
            name=data["name"],
            domain=data["domain"],
            classes=tuple(data["classes"]),
            counts={name: dict(counts) for name, counts in data["counts"].items()},
            samples_digest=data["samples_digest"],
        )

    @property
    def digest(self) -> str:
        """Hex of 16 bytes over all of the above."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def difference(self, other: TaskDefinition) -> list[str]:
        """One sentence for each way in which ``other`` differs; empty when they are equal."""
        found = []
        if self.name != other.name:
            found.append(f"the task is named {self.name!r}, the other {other.name!r}")
        if self.domain != other.domain:
            found.append(f"the domain is {self.domain!r}, the other's {other.domain!r}")
        for title, more, less in (
            ("only the first has", self.classes, other.classes),
            ("only the second has", other.classes, self.classes),
        ):
            extra = [name for name in more if name not in less]
            if extra:
                found.append(f"{title} the classes {', '.join(repr(name) for name in extra)}")
        if set(self.classes) == set(other.classes) and self.classes != other.classes:
            found.append("the same classes stand in another order")
        for name in self.classes:
            mine, theirs = self.counts.get(name, {}), other.counts.get(name)
            if theirs is not None and dict(mine) != dict(theirs):
                found.append(f"class {name!r} has {_spoken(mine)}, the other {_spoken(theirs)}")
        if not found and self.samples_digest != other.samples_digest:
            found.append("the samples' ids or contents differ, though classes and counts agree")
        return found


def _spoken(counts: Mapping[str, int]) -> str:
    return f"{counts.get('train', 0):,} training and {plural(counts.get('validation', 0), 'validation sample')}"


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in the order they arrive, over one table of samples.

    Attributes:
        scenario: its name, such as "class_incremental".
        classes: class names in the order in which tasks bring them.
        samples: table of ``pipelines.sources.SAMPLE_SCHEMA``, sorted by id.
        labels: class index of every row of ``samples``, int64 [n].
        feature_width: d of ready features, None for images.
        warnings: sentences a user should read before trusting a result.
        task_known: evaluation is told the task of every test sample (task-incremental).
    """

    scenario: str
    classes: tuple[str, ...]
    tasks: tuple[Task, ...]
    samples: pa.Table
    labels: NDArray[np.int64]
    reader: SampleReader
    feature_width: int | None = None
    warnings: tuple[str, ...] = ()
    task_known: bool = False

    def definition(self, task: Task) -> TaskDefinition:
        """What identifies ``task`` once it is learned."""
        names = tuple(self.classes[index] for index in task.classes)
        trained, validated = (
            Counter(self.labels[rows].tolist()) for rows in (task.train, task.validation)
        )
        return TaskDefinition(
            name=task.name,
            domain=task.domain,
            classes=names,
            counts={
                name: {"train": trained[index], "validation": validated[index]}
                for name, index in zip(names, task.classes, strict=True)
            },
            samples_digest=self._samples_digest(train=task.train, validation=task.validation),
        )

    @property
    def digest(self) -> str:
        """Hex of 16 bytes over every task's definition and test samples, in order."""
        digest = blake2b(json.dumps(self.classes).encode(), digest_size=16)
        for task in self.tasks:
            digest.update(self.definition(task).digest.encode())
            digest.update(self.tests_digest(task).encode())
        return digest.hexdigest()

    def tests_digest(self, task: Task) -> str:
        """Hex of 16 bytes over class, id and content of the task's test samples."""
        return self._samples_digest(test=task.test)

    def _samples_digest(self, **splits: Rows) -> str:
        """Over a line of JSON a sample, [split, class, id, content], put together by hand: there may be millions."""
        digest = blake2b(digest_size=16)
        for split, rows in splits.items():
            chosen = self.samples.take(rows)
            columns = [chosen[name].to_pylist() for name in ("label", "id", "content")]
            lines = [
                f"[{_quoted(split)},{_quoted(label)},{_quoted(name)},{_quoted(content)}]\n"
                for label, name, content in zip(*columns, strict=True)
            ]
            digest.update("".join(lines).encode())
        return digest.hexdigest()
