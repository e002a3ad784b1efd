"""Everything about a run that can be known, and refused, before Ray is joined or a backbone is loaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.experiment import Experiment
from orchestrator.run_folder import run_folder
from pipelines.cluster import check_job_storage
from pipelines.features import FeaturePlan
from pipelines.forking import refuse_unfit
from pipelines.recorded_backbone import READY_FEATURES
from pipelines.stream import Stream, Task, TaskDefinition, build_stream
from pipelines.unlearned import difference, refuse_unlearned, task_ids
from workers.errors import BankError, SettingsError, StorageError
from workers.modeling.backbone_check import check_buildable
from workers.storage.bank import Bank, BankVersion
from workers.storage.bank_changes import changes, sentences
from workers.storage.bank_json import plain
from workers.storage.filesystem import Storage


@dataclass(frozen=True)
class PreparedTask:
    """A task of the stream as the bank knows it.

    Attributes:
        id: the bank's name for it, by its place in the stream.
        new_classes: classes that no earlier task had.
    """

    id: str
    task: Task
    definition: TaskDefinition
    new_classes: tuple[int, ...]


@dataclass(frozen=True)
class Prepared:
    """A validated run.

    Attributes:
        learned: the first so many tasks are in the bank already.
        warnings: sentences a user should read before trusting a result.
        versions: version number by number of tasks, for those versions that hold a prefix of the stream.
        run_dir: folder of the run, on this machine.
    """

    experiment: Experiment
    storage: Storage
    stream: Stream
    plan: FeaturePlan
    tasks: tuple[PreparedTask, ...]
    bank: Bank
    head: BankVersion | None
    learned: int
    versions: Mapping[int, BankVersion]
    run_dir: Path
    warnings: tuple[str, ...] = ()

    def predictions_key(self, index: int, version_digest: str) -> str:
        """What the predictions after task ``index`` are made from: a version, and the tests of the tasks so far."""
        return f"{version_digest} {self._tests[index]}"

    @cached_property
    def _tests(self) -> tuple[str, ...]:
        digest, found = hashlib.blake2b(digest_size=16), []
        for prepared in self.tasks:
            digest.update(self.stream.tests_digest(prepared.task).encode())
            found.append(digest.hexdigest())
        return tuple(found)

    def describe_tasks(self) -> list[dict[str, Any]]:
        """Names, classes and sample counts of the tasks, as plain data."""
        return [
            {
                "name": p.task.name,
                "classes": [self.stream.classes[c] for c in p.task.classes],
                "train": len(p.task.train),
                "validation": len(p.task.validation),
                "test": len(p.task.test),
            }
            for p in self.tasks
        ]


def prepare(experiment: Experiment, *, dry: bool = False) -> Prepared:
    """List the samples, cut the stream, open storage and bank, and see what is learned already.

    Args:
        dry: leave a storage that is not there unmade.  The data's digests have nowhere to be kept then, and the run
            reads the data once more for them; a storage that is there keeps them, so that large data are read once.

    Raises:
        ClusterError: this is a Ray job, and the storage would be lost with it.
        StorageError: the storage cannot be written.
        DataError: the samples do not make the stream.
        BackboneError: there is no such backbone, no such weights file, or it gives no features of pictures.
        SettingsError: augmented views are asked of ready features, or they are too narrow for a module.
        BankError: the bank holds other tasks, or the same learned otherwise.
    """
    check_job_storage(experiment.storage)
    storage = Storage.open(experiment.storage)
    unmade = dry and storage.is_local and not os.path.lexists(storage.root)
    if unmade:
        _check_makeable(storage)
    else:
        storage.check_writable()
    experiment = _with_absolute_paths(experiment, storage)
    stream = _build_stream(experiment, storage, remember=not unmade)
    if experiment.features.views and stream.reader.kind == "features":
        raise SettingsError(
            f"features.views={experiment.features.views} needs pictures, and the source gives ready features: set "
            "features.views=0"
        )
    if stream.feature_width is not None:
        experiment.luca.ranks(stream.feature_width)
    tasks = _prepare_tasks(stream)
    bank = Bank.open_or_create(storage, experiment.bank_name)
    latest = bank.latest()
    head = None if latest is None else bank.load(latest)
    learned, warnings = 0, stream.warnings
    if head is not None:
        check_settings(head, experiment)
        _check_backbone_name(head, experiment, stream)
        _check_width(head, stream)
        learned, kept = check_prefix(head, tasks, keep=experiment.known_tasks == "keep")
        warnings = (*warnings, *kept)
        ids = task_ids(head, len(tasks))
        tasks = tuple(replace(task, id=name) for task, name in zip(tasks, ids, strict=True))
    return Prepared(
        experiment=experiment,
        storage=storage,
        stream=stream,
        plan=FeaturePlan(stream, experiment.features, seed=experiment.seed),
        tasks=tasks,
        bank=bank,
        head=head,
        learned=learned,
        versions={} if head is None else _versions(bank, head),
        run_dir=run_folder(experiment.run_id, storage),
        warnings=warnings,
    )


def prepare_evaluation(experiment: Experiment, ref: str) -> tuple[Prepared, BankVersion, list[int]]:
    """A run that only scores: the bank's version ``ref``, and the stream's tasks that it holds.

    Raises:
        BankError: no such bank or version, or it shares no task with this stream.
    """
    storage = Storage.open(experiment.storage)
    experiment = _with_absolute_paths(experiment, storage)
    version = Bank.open(storage, experiment.bank_name).load(ref)
    stream = _build_stream(experiment, storage)
    _check_backbone_name(version, experiment, stream)
    _check_width(version, stream)
    records = {record.name: record for record in version.tasks}
    shared, tasks = [], list(_prepare_tasks(stream))
    for position, task in enumerate(tasks):
        record = records.get(task.task.name)
        if record is not None and not difference(record, task.definition):
            shared.append(position)
            tasks[position] = replace(task, id=record.id)
    if not shared:
        raise BankError(
            f"version {version.version} of bank '{version.bank.name}' holds no task of this stream as it is "
            "defined here; give the experiment that the bank was made with"
        )
    prepared = Prepared(
        experiment=experiment,
        storage=storage,
        stream=stream,
        plan=FeaturePlan(stream, experiment.features, seed=experiment.seed),
        tasks=tuple(tasks),
        bank=version.bank,
        head=version,
        learned=len(version.tasks),
        versions={},
        run_dir=run_folder(experiment.run_id, storage),
    )
    return prepared, version, shared


def check_settings(head: BankVersion, experiment: Experiment) -> None:
    """Refuse to go on with a bank that was learned with other settings.

    Raises:
        BankError: lists the differences.
    """
    found = changes(head.settings, plain("settings", experiment.learning_identity()), "settings")
    if found:
        raise BankError(
            f"bank '{head.bank.name}' was learned with other settings ({sentences(found)}); use the old values, or "
            f"{_other_bank(head, experiment)}"
        )


def _other_bank(head: BankVersion, experiment: Experiment) -> str:
    """Where other settings can be used: in a fork only if its old modules and its new ones could predict together."""
    try:
        refuse_unfit(head, plain("settings", experiment.learning_identity()))
    except BankError:
        return "another bank (-o bank=NAME)"
    return (
        "another bank (-o bank=NAME), which can begin as a fork that goes on with the new ones "
        f"(`luca bank fork {head.bank.name} NAME --settings EXPERIMENT`)"
    )


def check_backbone(head: BankVersion, backbone: Mapping[str, Any]) -> None:
    """Refuse features of another backbone than the bank was learned from.

    Raises:
        BankError: lists the differences.
    """
    found = changes(head.backbone, plain("backbone", backbone), "backbone")
    if found:
        raise BankError(
            f"bank '{head.bank.name}' was learned on features of another backbone ({sentences(found)}); use that "
            "backbone, or another bank (-o bank=NAME)"
        )


def check_prefix(
    head: BankVersion, tasks: tuple[PreparedTask, ...], *, keep: bool = False
) -> tuple[int, tuple[str, ...]]:
    """How many of the stream's tasks the bank holds; it must hold the first ones, as they are now.

    With ``keep`` their samples may have changed since, as long as their classes have not; a warning says which did.

    Raises:
        BankError: a learned task is defined differently, or is no task of this stream, or the stream still brings
            what the bank has unlearned; says how.
    """
    refuse_unlearned(head, [task.definition for task in tasks])
    changed = []
    for position, record in enumerate(head.tasks):
        where = f"bank '{head.bank.name}' version {head.version}"
        if position >= len(tasks):
            raise BankError(
                f"{where} holds {len(head.tasks)} tasks and this stream has {len(tasks)}: the next one in the "
                f"bank is '{record.name}' ({_names(record.classes)}); use another bank (-o bank=NAME), or fork "
                "an earlier version (`luca bank fork`)"
            )
        found = difference(record, tasks[position].definition)
        only_samples = found and not difference(record, tasks[position].definition, samples=False)
        if only_samples and keep:
            changed.append(record.name)
        elif found:
            raise BankError(
                f"{where} has learned task {position} ('{record.name}') from other data than this stream gives "
                f"(first: the bank's, second: the stream's): {'; '.join(found)}; {_advice(bool(only_samples))}"
            )
    return len(head.tasks), (_kept(changed),) if changed else ()


def _advice(only_samples: bool) -> str:
    if only_samples:
        return (
            "known_tasks=keep leaves such tasks as they were learned and goes on; to learn them again, use another bank "
            "(-o bank=NAME)"
        )
    return (
        "keep the order of known classes with stream.class_order or scenario 'explicit' and add new ones behind, or use "
        "another bank (-o bank=NAME)"
    )


def _kept(names: Sequence[str]) -> str:
    return (
        f"the samples of {_names(tuple(names))} are others than when the bank learned them, and known_tasks=keep leaves "
        "the modules as they are: test and validation samples may be among those they were learned from"
    )


def _check_backbone_name(head: BankVersion, experiment: Experiment, stream: Stream) -> None:
    """Refuse another backbone by its name; its weights are compared when an actor has loaded them."""
    ready = stream.reader.kind == "features"
    name = READY_FEATURES if ready else experiment.backbone.name
    recorded = head.backbone.get("name", name)
    if recorded != name:
        raise BankError(
            f"bank '{head.bank.name}' was learned on features of {recorded!r}, not {name!r}: use that "
            "backbone, or another bank (-o bank=NAME)"
        )


def _check_width(head: BankVersion, stream: Stream) -> None:
    """Refuse ready features of another width than the bank was learned from, before their samples are compared."""
    width = head.backbone.get("width")
    if stream.feature_width is not None and width is not None and stream.feature_width != width:
        raise BankError(
            f"bank '{head.bank.name}' was learned on features of {width} numbers, and this source gives "
            f"{stream.feature_width}; give features of the same encoder, or use another bank (-o bank=NAME)"
        )


def _check_makeable(storage: Storage) -> None:
    """Refuse a local storage whose folder is not there and cannot be made, without making it.

    Raises:
        StorageError: where it would be made cannot be written.
    """
    parents = Path(storage.root).parents
    nearest = next(str(folder) for folder in parents if os.path.lexists(folder))
    try:
        Storage.open(nearest).check_writable()
    except StorageError as error:
        raise StorageError(f"{storage.describe()} cannot be made: {error}") from error


def _build_stream(experiment: Experiment, storage: Storage, *, remember: bool = True) -> Stream:
    """The stream; where it gives pictures, with a backbone that can be built for them."""
    index = str(storage.local_path("index")) if remember and storage.is_local else None
    stream = build_stream(experiment.stream, seed=experiment.seed, cache_dir=index)
    if stream.reader.kind == "images":
        check_buildable(experiment.backbone)
    return stream


def _with_absolute_paths(experiment: Experiment, storage: Storage) -> Experiment:
    """The experiment for actors, whose working directory is not the user's."""
    weights = experiment.backbone.weights
    if weights is not None and os.path.isfile(weights):
        weights = str(Path(weights).resolve())
    backbone = experiment.backbone.model_copy(update={"weights": weights})
    where = str(storage.local_path()) if storage.is_local else storage.uri
    return experiment.model_copy(update={"backbone": backbone, "storage": where})


def _versions(bank: Bank, head: BankVersion) -> dict[int, BankVersion]:
    """Versions that hold the first tasks of ``head``, by their number; the newest of equals."""
    records = [(record.id, record.content_digest) for record in head.tasks]
    found: dict[int, BankVersion] = {}
    for version in bank.load_all():
        tasks = [(record.id, record.content_digest) for record in version.tasks]
        if tasks == records[: len(tasks)]:
            found[len(tasks)] = version
    return found


def _prepare_tasks(stream: Stream) -> tuple[PreparedTask, ...]:
    seen: set[int] = set()
    prepared = []
    for task in stream.tasks:
        new = tuple(c for c in task.classes if c not in seen)
        seen.update(new)
        prepared.append(PreparedTask(f"task-{task.index:05d}", task, stream.definition(task), new))
    return tuple(prepared)


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
