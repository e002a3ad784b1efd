"""What a bank has unlearned, so that no run learns it again by mistake, and how a bank goes on afterwards.

A bank's history says it: a version that lacks a task or a class of its parent was made by unlearning.  Where history
is cut (``gc``, a fork, an export) the same is carried on as the metric ``unlearned`` of a version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from workers.errors import BankError, CorruptionError
from workers.storage.bank_json import is_text

if TYPE_CHECKING:
    from pipelines.stream import TaskDefinition
    from workers.storage.bank import Bank, BankVersion
    from workers.storage.bank_manifest import TaskRecord

METRIC = "unlearned"
WITHOUT = "without"
"""Field of a task's definition: classes it was learned with and that were unlearned since."""

_MALFORMED = f"metric '{METRIC}' of the bank is not what this program writes: fork or import the bank again from a sound one"
_NUMBERED = re.compile(r"task-([0-9]+)")


@dataclass(frozen=True)
class Unlearned:
    """A task, or classes of one, that a bank does not hold any more.

    Attributes:
        bank, version: the first version without it.
        classes: what went: all classes of the task when ``whole``.
        samples_digest: of the samples that the task was learned from, as in its definition.
    """

    bank: str
    version: int
    task: str
    domain: str
    classes: tuple[str, ...]
    whole: bool
    samples_digest: str

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in self.classes[:5])
        if len(self.classes) > 5:
            names += f" and {len(self.classes) - 5} more"
        if self.whole:
            return f"task '{self.task}' ({names})"
        return f"class {names} of task '{self.task}'"

    def to_json(self) -> dict[str, Any]:
        """Plain values, as they stand in a version's metrics."""
        return {**asdict(self), "classes": list(self.classes)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Unlearned:
        """The inverse of ``to_json``.

        Raises:
            CorruptionError: it is something else.
        """
        try:
            item = cls(**{**value, "classes": tuple(value["classes"])})
        except (TypeError, KeyError) as error:
            raise CorruptionError(_MALFORMED) from error
        texts = (item.bank, item.task, item.domain, item.samples_digest, *item.classes)
        if not all(map(is_text, texts)) or not isinstance(item.version, int):
            raise CorruptionError(_MALFORMED)
        return item


def unlearned(version: BankVersion) -> tuple[Unlearned, ...]:
    """What was unlearned on the way to this version's content, the latest first.

    Follows a rollback to the version whose content it took, so that what it brought back does not count.

    Raises:
        CorruptionError: a manifest that is there cannot be read.
    """
    bank = version.bank
    found: list[Unlearned] = []
    manifest = version.manifest
    while True:
        recorded = manifest.metrics.get(METRIC)
        if isinstance(recorded, list):
            found += [Unlearned.from_json(value) for value in recorded]
            break
        number = manifest.parent
        if manifest.operation.startswith("rollback") and manifest.origin is not None:
            number = manifest.origin["version"]
        if number is None or not 0 < number < manifest.version:
            break
        if not bank.storage.exists(bank.manifest_path(number)):
            break
        if manifest.operation.startswith("unlearn"):
            found += _lost(bank, number, manifest.version)
        manifest = bank.read_manifest(number)
    held = {(task.definition.get("samples_digest"), task.classes) for task in version.tasks}
    return tuple(
        item
        for item in dict.fromkeys(found)
        if not any(
            digest == item.samples_digest and set(item.classes) <= set(classes)
            for digest, classes in held
        )
    )


def _lost(bank: Bank, before: int, after: int) -> list[Unlearned]:
    """What the version ``after`` lacks of the version ``before``."""
    kept = {task.id: set(task.classes) for task in bank.load(after).tasks}
    lost = []
    for task in bank.load(before).tasks:
        gone = tuple(name for name in task.classes if name not in kept.get(task.id, ()))
        if gone:
            lost.append(
                Unlearned(
                    bank=bank.name,
                    version=after,
                    task=task.name,
                    domain=task.domain,
                    classes=gone,
                    whole=task.id not in kept,
                    samples_digest=str(task.definition.get("samples_digest", "")),
                )
            )
    return lost


# -- a run on a bank that has unlearned --------------------------------------------------------------------------


def refuse_unlearned(head: BankVersion, definitions: Iterable[TaskDefinition]) -> None:
    """Refuse a stream that still brings the very samples of something the bank has unlearned.

    Other samples may be learned under the same names: that is how wrong labels are put right.

    Raises:
        BankError: says what was unlearned, when, and what to do.
    """
    gone = unlearned(head)
    brought = {each.samples_digest: set(each.classes) for each in definitions} if gone else {}
    for item in gone:
        if brought.get(item.samples_digest, set()) & set(item.classes):
            raise BankError(
                f"{item} was unlearned (bank '{item.bank}', version {item.version}) and this stream still has its "
                "samples: list the tasks and classes to keep, and new ones behind them, with scenario 'explicit' and "
                f"unlisted: leave_out; to have it back, roll bank '{head.bank.name}' back or fork a version that "
                "still holds it (`luca bank show`)"
            )


def difference(record: TaskRecord, now: TaskDefinition, *, samples: bool = True) -> list[str]:
    """How a stream's task differs from a learned one, as sentences; empty when the bank has it.

    ``samples=False`` compares name, domain and classes alone.  Where a class of the task was unlearned, the rest is
    compared by names and counts alone: the digest of the samples covers those of the class too, and cannot be had
    without them.
    """
    from pipelines.stream import TaskDefinition

    known = TaskDefinition.from_json(record.definition)
    if not samples:
        now = replace(now, samples_digest=known.samples_digest, counts=known.counts)
    if record.definition.get(WITHOUT):
        now = replace(now, samples_digest=known.samples_digest)
    return known.difference(now)


def task_ids(head: BankVersion | None, count: int) -> tuple[str, ...]:
    """The bank's ids of a stream's tasks: those of the tasks it has, then numbers that it does not use.

    In a bank that has unlearned nothing a task's number is its place in the stream.
    """
    known = [record.id for record in head.tasks[:count]] if head is not None else []
    numbers = [int(match[1]) for name in known if (match := _NUMBERED.fullmatch(name))]
    first = max([len(known) - 1, *numbers]) + 1
    return (*known, *(f"task-{first + i:05d}" for i in range(count - len(known))))


def carried(items: Sequence[Unlearned]) -> dict[str, Any]:
    """Metrics that keep the memory of what was unlearned where history ends; empty when there is nothing."""
    return {METRIC: [item.to_json() for item in items]} if items else {}
