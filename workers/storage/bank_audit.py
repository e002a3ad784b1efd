"""Evidence that a bank keeps no sample and no feature of a sample.

Arrays of modules, heads and statistics have sizes that follow from the feature width and the number of classes.
Something kept per sample has a size that follows the number of samples.  The audit lists every array and looks for
the second kind: an axis, or a whole array, whose size is the same multiple of the same sample count in every task.
With few samples that can be chance, so arrays that have exactly the shape the caller expects are not compared.
The sample counts are those in the tasks' definitions (``counts``) and ``info["samples"]``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

from workers.storage.bank_json import JsonObject
from workers.storage.bank_manifest import TaskRecord
from workers.storage.bank_tensors import read_header, view
from workers.storage.bank_version import BankVersion

ROLES = ("module", "head", "statistics", "whitening")
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class TensorUse:
    """One array of a version; ``task`` is "" for a shared one, ``role`` the kind it is stored under."""

    task: str
    role: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Finding:
    """Something that could hold samples: which array or field, why it looks so, and what a user can do."""

    where: str
    what: str
    remedy: str = "luca writes nothing of the kind: find out what did, and until then guard the bank as the samples"

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True)
class AuditReport:
    """Every array of a version, the sample counts it was compared with, and what looks like kept samples."""

    bank: str
    version: int
    digest: str
    tensors: tuple[TensorUse, ...]
    samples: dict[str, dict[str, int]]
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing looks like kept samples."""
        return not self.findings

    def to_json(self) -> JsonObject:
        """For machines."""
        return {**asdict(self), "clean": self.clean}


def audit(
    version: BankVersion,
    *,
    width: int | None = None,
    roles: Collection[str] = ROLES,
    sizes: Iterable[int] = (),
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None,
) -> AuditReport:
    """Examines every array and every list of a version.

    ``width`` is the feature width (default: ``backbone["width"]``), ``roles`` the kinds of arrays that may be
    there, ``sizes`` further sizes that are known not to count samples (epochs, a projection's width), ``shapes`` by
    task and ``role/name`` the shapes that arrays have whatever the samples were.

    Raises:
        CorruptionError: an object cannot be read.
    """
    if width is None and isinstance(version.backbone.get("width"), int):
        width = version.backbone["width"]
    known = _known_sizes(version, width) | set(sizes)
    counts = {task.id: sample_counts(task) for task in version.tasks}
    measured = list(_measure(version, shapes or {}))
    findings = [
        Finding(_place(m.use), f"'{m.use.role}' is none of the roles {', '.join(roles)}")
        for m in measured
        if m.use.role not in roles
    ]
    findings += _uncounted(version, counts)
    classes = {task.id: len(task.classes) for task in version.tasks}
    for where, series in _series(version, measured).items():
        what = _follows_samples(series, counts, classes, known)
        if what is not None:
            findings.append(Finding(where, what))
    findings += _shared_following_samples(measured, counts, known)
    uses = tuple(m.use for m in measured)
    return AuditReport(
        version.bank.name, version.version, version.digest, uses, counts, tuple(findings)
    )


def sample_counts(task: TaskRecord) -> dict[str, int]:
    """How many samples a task had: in all, by split, and per class where all classes had equally many.

    ``definition["counts"]`` may be by class and split or by split and class.
    """
    by_split: dict[str, list[int]] = {}
    table = task.definition.get("counts")
    if isinstance(table, dict):
        for outer, row in table.items():
            for inner, value in row.items() if isinstance(row, dict) else ():
                split = outer if outer in _SPLITS and inner not in _SPLITS else inner
                if isinstance(value, int):
                    by_split.setdefault(split, []).append(value)
    counts = {split: sum(values) for split, values in by_split.items()}
    if by_split:
        counts["all splits"] = sum(counts.values())
    for split, values in by_split.items():
        if len(set(values)) == 1:
            counts[f"{split} of each class"] = values[0]
    if isinstance(task.info.get("samples"), int):
        counts["info.samples"] = task.info["samples"]
    return {name: value for name, value in counts.items() if value > 0}


def _known_sizes(version: BankVersion, width: int | None) -> set[int]:
    """Sizes that have nothing to do with samples: from the width, the classes and the settings of learning."""
    known = {0, 1, len(version.classes)}
    numbers = set(_numbers({key: v for key, v in version.settings.items() if key != "stream"}))
    known |= numbers | {number * (number + 1) // 2 for number in numbers}
    if width is not None:
        known |= {width, width * width, width * (width + 1) // 2}
        known |= {width // number for number in numbers if number > 0}
    return known


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


@dataclass(frozen=True)
class _Measured:
    use: TensorUse
    free: bool
    """True where the size is explained: by the expected shape, or a sparse array's values by the bits of its mask."""


def _measure(
    version: BankVersion, shapes: Mapping[str, Mapping[str, tuple[int, ...]]]
) -> Iterator[_Measured]:
    for role, ref in version.manifest.shared.items():
        yield from _measure_object(version, "", role, ref.digest, {})
    for task in version.tasks:
        for role, ref in task.objects.items():
            yield from _measure_object(version, task.id, role, ref.digest, shapes.get(task.id, {}))


def _measure_object(
    version: BankVersion,
    task: str,
    role: str,
    digest: str,
    shapes: Mapping[str, tuple[int, ...]],
) -> Iterator[_Measured]:
    where = version.bank.storage.describe(version.bank.objects.path(digest))
    data = version.bank.objects.read(digest)
    infos = {info.name: info for info in read_header(data, where)}
    for name, info in infos.items():
        mask = (
            infos.get(name.removesuffix("#values") + "#mask") if name.endswith("#values") else None
        )
        bits = int(np.unpackbits(view(data, mask)).sum()) if mask is not None else -1
        use = TensorUse(task, role, name, info.dtype, info.shape, info.size)
        expected = shapes.get(f"{role}/{name}")
        yield _Measured(use, free=info.shape == (bits,) or info.shape == expected)


def _place(use: TensorUse) -> str:
    return f"{use.task or 'shared'}/{use.role}/{use.name}"


def _series(version: BankVersion, measured: list[_Measured]) -> dict[str, dict[str, int]]:
    """Sizes by what they belong to, then by task: each axis, each whole array, each list in a record."""
    series: dict[str, dict[str, int]] = {}
    for m in measured:
        if m.free or not m.use.task:
            continue
        for axis, size in enumerate(m.use.shape):
            series.setdefault(f"{m.use.role}/{m.use.name} axis {axis}", {})[m.use.task] = size
        if len(m.use.shape) > 1:
            series.setdefault(f"{m.use.role}/{m.use.name} in all", {})[m.use.task] = prod(
                m.use.shape
            )
    for task in version.tasks:
        for field, record in (("definition", task.definition), ("info", task.info)):
            for path, length in _lists(record, field):
                series.setdefault(path, {})[task.id] = length
    return series


def _lists(value: Any, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _lists(item, f"{path}.{key}")
    elif isinstance(value, list):
        yield path, len(value)
        for item in value:
            yield from _lists(item, f"{path}[]")


def _follows_samples(
    series: Mapping[str, int],
    counts: Mapping[str, Mapping[str, int]],
    classes: Mapping[str, int],
    known: Collection[int],
) -> str | None:
    """Says so when the sizes are one whole multiple of one sample count in every task, and nothing explains them."""
    if all(_explained(size, classes[task], known) for task, size in series.items()):
        return None
    for name in sorted({name for task in series for name in counts[task]}):
        if not all(name in counts[task] for task in series):
            continue
        ratios = {size / counts[task][name] for task, size in series.items()}
        if len(ratios) != 1 or not (ratio := ratios.pop()).is_integer() or ratio < 1:
            continue
        varied = len({counts[task][name] for task in series}) > 1
        if varied or ratio == 1 or int(ratio) in known:
            times = "" if ratio == 1 else f"{int(ratio)} times "
            return f"its size is {times}the number of samples ({name}) in {_tasks(len(series))}"
    return None


def _shared_following_samples(
    measured: Iterable[_Measured], counts: Mapping[str, Mapping[str, int]], known: Collection[int]
) -> Iterator[Finding]:
    """Shared arrays are compared with the sample counts of each task and of all together."""
    numbers: dict[int, str] = {}
    for name in sorted({name for of_task in counts.values() for name in of_task}):
        total = sum(of_task.get(name, 0) for of_task in counts.values())
        numbers[total] = f"all tasks, {name}"
        for task, of_task in counts.items():
            numbers.setdefault(of_task.get(name, 0), f"{task}, {name}")
    for m in measured:
        if m.use.task or m.free:
            continue
        for axis, size in enumerate(m.use.shape):
            if size in numbers and size not in known:
                what = f"its size is the number of samples ({numbers[size]})"
                yield Finding(f"{_place(m.use)} axis {axis}", what)


def _explained(size: int, classes: int, known: Collection[int]) -> bool:
    return size in known or any(size == classes * factor for factor in known)


def _tasks(number: int) -> str:
    return "the only task" if number == 1 else f"each of {number} tasks"


def _uncounted(version: BankVersion, counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    for task in version.tasks:
        if not counts[task.id]:
            yield Finding(
                task.id,
                "its definition has no sample counts, so its sizes cannot be compared with them",
            )
