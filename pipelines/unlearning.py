"""Taking a task or a class out of a bank: what goes, what stays as if it had never been there, what is refused.

With objective ``local`` a task shares nothing with the others: its module, head and statistics go, and the rest is what
it would have been without it, to the last bit.  A class leaves exactly from the statistics and from its head; the
module of its task was learned with it and stays.  A shared head and a whitening are sums of many tasks: nothing leaves
those exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pipelines.unlearned import WITHOUT
from workers.errors import BankError

if TYPE_CHECKING:
    from workers.storage.bank import BankVersion
    from workers.storage.bank_draft import SharedUpdate, TaskDraft
    from workers.storage.bank_manifest import TaskRecord
    from workers.storage.bank_tensors import Arrays
    from workers.storage.bank_writer import BankWriter

_KINDS = frozenset({"module", "head", "statistics"})


@dataclass(frozen=True)
class Unlearning:
    """What is taken out of a version, and what a user must know of it.

    Attributes:
        before: number of the version it is taken out of.
        tasks: ids of the tasks that go whole.
        sliced: ids of the tasks that stay without a class.
        classes: classes that no task has any more.
        exact: whether the rest is as if it had never been there.
        notes: what is not exact, and what else follows; sentences.
    """

    before: int
    tasks: tuple[str, ...]
    sliced: tuple[str, ...]
    classes: tuple[str, ...]
    exact: bool
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}


def unlearn_task(
    writer: BankWriter, task: str, *, approximate: bool = False
) -> tuple[BankVersion, Unlearning]:
    """A new version without a task, given by its id or its name.

    ``approximate`` accepts traces in a shared head.

    Raises:
        BankError: there is no such task, or it cannot be taken out; the bank is as it was.
        BankLockedError: somebody else is writing.
    """
    head = _head(writer)
    record = find_task(head, task)
    what = f"task '{record.name}' ({record.id})"
    notes = _shared_notes(head, what, (record,), approximate) if len(head.tasks) > 1 else ()
    version = writer.unlearn_task(record.id, reshare=_reshare)
    return version, _outcome(head, version, notes=notes)


def unlearn_class(
    writer: BankWriter, name: str, *, approximate: bool = False
) -> tuple[BankVersion, Unlearning]:
    """A new version without a class; a task that has no other class goes whole.

    Raises:
        BankError: there is no such class, or it cannot be taken out; the bank is as it was.
        BankLockedError: somebody else is writing.
    """
    head = _head(writer)
    having = tuple(record for record in head.tasks if name in record.classes)
    if not having:
        raise BankError(
            f"version {head.version} of bank '{head.bank.name}' has no class '{name}'; it has: {_some(head.classes)}"
        )
    what = f"class '{name}'"
    sliced = tuple(record for record in having if len(record.classes) > 1)
    rest = sliced or having != head.tasks
    notes = _shared_notes(head, what, having, approximate) if rest else ()
    for record in sliced:
        notes += _class_notes(head, record, name)
    version = writer.unlearn_class(name, without_class=_without_class, reshare=_reshare)
    return version, _outcome(head, version, sliced=sliced, notes=notes)


def find_task(version: BankVersion, task: str) -> TaskRecord:
    """A task by its id or its name.

    Raises:
        BankError: there is none, or several have that name.
    """
    record = version.find(task)
    if record is not None:
        return record
    named = [each for each in version.tasks if each.name == task]
    if len(named) == 1:
        return named[0]
    where = f"version {version.version} of bank '{version.bank.name}'"
    if named:
        raise BankError(
            f"{where} has {len(named)} tasks named '{task}': say which by its id: {_some([t.id for t in named])}"
        )
    there = _some([f"{each.id} ('{each.name}')" for each in version.tasks])
    raise BankError(f"{where} has no task '{task}'; it has: {there}")


# -- what is refused ---------------------------------------------------------------------------------------------


def _shared_notes(
    head: BankVersion, what: str, having: Sequence[TaskRecord], approximate: bool
) -> tuple[str, ...]:
    """What stays of it in arrays that all tasks share; nothing with objective ``local`` and no whitening of it.

    Raises:
        BankError: the whitening was computed from it, or the head is shared and ``approximate`` is not set.
    """
    if "whitening" in head.manifest.shared and head.tasks[0] in having:
        raise BankError(
            f"{what} cannot be unlearned from bank '{head.bank.name}': the whitening through which every module reads "
            "its features was computed from the first task (whitening: first_task); learn another bank from a stream "
            "without it (`luca run ... -o bank=NAME`)"
        )
    if _objective(head) == "local":
        return ()
    meaning = (
        "the rows of its classes leave the shared head, but the rows that stay, and the modules learned after it, were "
        "trained beside them and keep its influence"
    )
    if approximate:
        return (f"approximate: {meaning}",)
    earlier = _version_before(head, having)
    exact = (
        f"roll back to version {earlier}, from before it was learned (`luca bank rollback {head.bank.name} {earlier}`), "
        "which is exact"
        if earlier is not None
        else "learn another bank from a stream without it (`luca run ... -o bank=NAME`), which is exact"
    )
    raise BankError(
        f"{what} cannot be taken out of bank '{head.bank.name}' exactly: with objective 'unified' one head was trained "
        f"on all tasks together; {exact}, or accept with --approximate that {meaning}"
    )


def _version_before(head: BankVersion, having: Sequence[TaskRecord]) -> int | None:
    """The newest version of the same settings that holds all tasks but the last, if it is the last that shall go."""
    if len(having) != 1 or having[0] != head.tasks[-1] or len(head.tasks) == 1:
        return None
    rest = [task.content_digest for task in head.tasks[:-1]]
    found = [
        version.version
        for version in head.bank.load_all()
        if version.settings == head.settings
        and [task.content_digest for task in version.tasks] == rest
    ]
    return found[-1] if found else None


def _objective(version: BankVersion) -> str:
    learning = version.settings.get("learning")
    objective = learning.get("objective") if isinstance(learning, dict) else None
    if objective not in ("local", "unified"):
        raise BankError(
            f"the settings of bank '{version.bank.name}' do not say with which objective it was learned, so what its "
            "tasks share is unknown and nothing can be unlearned"
        )
    return str(objective)


def _class_notes(head: BankVersion, record: TaskRecord, name: str) -> tuple[str, ...]:
    """What stays of a class in its task, and what its task loses with it.

    Raises:
        BankError: the task's statistics were summed over all its classes, or hold arrays that nobody knows.
    """
    if unknown := sorted(set(record.objects) - _KINDS):
        raise BankError(
            f"task '{record.name}' holds {unknown[0]}, which this program cannot take a class out of: unlearn the "
            f"whole task (`luca bank unlearn {head.bank.name} --task {record.id}`)"
        )
    statistics = head.arrays(record, "statistics") if "statistics" in record.objects else {}
    if statistics and statistics["gram"].shape[0] == 1:
        raise BankError(
            f"class '{name}' cannot be taken out of task '{record.name}': its statistics keep one Gram matrix for all "
            f"its classes (evaluation.statistics.granularity: task); unlearn the whole task (`luca bank unlearn "
            f"{head.bank.name} --task {record.id}`), or learn the bank with granularity 'class'"
        )
    notes = [
        f"statistics and head row are gone exactly, but the module of task '{record.name}' (and the head rows of its "
        f"other classes) were learned with '{name}' and keep its influence; unlearn the task and learn it again "
        "without the class to remove that too"
    ]
    if "projected.gram" in statistics:
        notes.append(
            f"random-feature statistics of task '{record.name}' are dropped, because they are one sum over its "
            "classes: routers 'ridge' and 'lda_ridge' then work with random_features 0 only; to learn further tasks, fork "
            "the bank with that setting (`luca bank fork ... --settings ...`)"
        )
    return tuple(notes)


# -- what is done ------------------------------------------------------------------------------------------------


def _without_class(draft: TaskDraft, name: str) -> TaskDraft:
    """The task as it is stored without one of its classes."""
    import numpy as np

    from workers.modeling.statistics import TaskStatistics

    position = draft.classes.index(name)
    rows = np.arange(len(draft.classes)) != position
    arrays: dict[str, Arrays] = {kind: dict(value) for kind, value in draft.arrays.items()}
    if "head" in arrays:
        arrays["head"]["weight"] = arrays["head"]["weight"][rows]
    if "statistics" in arrays:
        sums = TaskStatistics.from_arrays(arrays["statistics"]).without_class(position)
        arrays["statistics"] = sums.to_arrays()
    classes = tuple(each for each in draft.classes if each != name)
    definition = dict(draft.definition)
    counts = dict(definition.get("counts", {}))
    lost = counts.pop(name, {})
    definition |= {
        "classes": [each for each in definition.get("classes", classes) if each != name],
        "counts": counts,
        WITHOUT: [*definition.get(WITHOUT, []), name],
    }
    info = dict(draft.info)
    if isinstance(info.get("samples"), int) and isinstance(lost, Mapping):
        info["samples"] -= int(lost.get("train", 0))
    return replace(draft, classes=classes, definition=definition, arrays=arrays, info=info)


def _reshare(old: BankVersion, rest: tuple[TaskRecord, ...]) -> SharedUpdate:
    """The shared arrays without the rows of classes that no task has any more; none when no task is left."""
    if not rest:
        return dict.fromkeys(old.manifest.shared)
    if "head" not in old.manifest.shared:
        return {}
    head = old.shared["head"]
    place = {name: row for row, name in enumerate(old.classes)}
    names = dict.fromkeys(name for record in rest for name in record.classes)
    return {"head": {**head, "weight": head["weight"][[place[name] for name in names]]}}


def _outcome(
    before: BankVersion,
    after: BankVersion,
    *,
    sliced: Sequence[TaskRecord] = (),
    notes: Sequence[str],
) -> Unlearning:
    left = set(after.classes)
    return Unlearning(
        before=before.version,
        tasks=tuple(task.id for task in before.tasks if after.find(task.id) is None),
        sliced=tuple(task.id for task in sliced),
        classes=tuple(name for name in before.classes if name not in left),
        exact=not notes,
        notes=tuple(notes),
    )


def _head(writer: BankWriter) -> BankVersion:
    head = writer.head()
    if head is None:
        raise BankError(f"bank '{writer.bank.name}' has no version yet")
    return head


def _some(names: Sequence[str], limit: int = 20) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more if names else "none"
