"""`luca bank` commands that write: tags, new versions, new banks, files that leave and enter, clearing up."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.commands.bank.naming import open_bank, open_version, program
from orchestrator.commands.bank.output import console, print_json, table
from orchestrator.commands.text import human_bytes, plural
from workers.errors import SettingsError, StorageError
from workers.storage.bank import LATEST
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    from workers.storage.bank import Bank
    from workers.storage.bank_gc import GcReport
    from workers.storage.bank_version import BankVersion


def tag_command(storage: str, name: str, ref: str, tag: str, *, as_json: bool) -> None:
    """Point a tag at a version; one that exists is moved."""
    bank = open_bank(storage, name)
    with BankWriter(bank, code=program()) as writer:
        before = bank.refs().get(tag)
        version = writer.tag(tag, ref)
    moved = "" if before in (None, version) else f" (was {before})"
    _done(
        {"bank": bank.name, "tag": tag, "version": version, "before": before},
        f"{bank.name}@{tag} is version {version}{moved}",
        as_json=as_json,
    )


def untag_command(storage: str, name: str, tag: str, *, as_json: bool) -> None:
    """Remove a tag; its version stays."""
    bank = open_bank(storage, name)
    with BankWriter(bank, code=program()) as writer:
        before = bank.refs().get(tag)
        writer.untag(tag)
    _done(
        {"bank": bank.name, "tag": tag, "before": before},
        f"tag {tag} of bank {bank.name} is gone; version {before} stays",
        as_json=as_json,
    )


def rollback_command(storage: str, name: str, ref: str, *, as_json: bool) -> None:
    """Make a new version with an old one's content."""
    bank = open_bank(storage, name)
    old = bank.load(ref)
    with BankWriter(bank, code=program()) as writer:
        before = bank.latest()
        version = writer.rollback(old.version)
    text = f"bank {bank.name}: version {version.version} has the content of version {old.version}"
    if version.version == before:
        text = (
            f"bank {bank.name}: version {before} has the content of version {old.version} already"
        )
    _done({**_made(version), "content_of": old.version}, text, as_json=as_json)


def fork_command(
    storage: str,
    source: str,
    name: str,
    *,
    settings: str | None,
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Start a new bank from a version, with its own history and, when asked, other settings from here on."""
    from pipelines.forking import LEARNED_WITH, fork

    if overrides and settings is None:
        raise SettingsError(
            "-o changes an experiment: name it with --settings, as in --settings demo -o learning.l1=0.001"
        )
    version = open_version(storage, source)
    identity = None
    if settings is not None:
        from orchestrator.experiment_files import load_experiment

        identity = load_experiment(settings, overrides).learning_identity()
    made = fork(version, name, settings=identity, code=program())
    where = f"{version.bank.name} version {version.version}"
    told = [f"bank {made.bank.name}: version {made.version} has the content of {where}"]
    other = any(LEARNED_WITH in task.info for task in made.tasks)
    if settings is not None:
        told.append(
            "further tasks are learned with the new settings, its tasks keep theirs (`luca bank show`)"
            if other
            else "these are the settings its tasks were learned with already"
        )
    given = "".join(f" -o {override}" for override in overrides)
    told.append(f"go on with: luca run {settings or 'EXPERIMENT'}{given} -o bank={made.bank.name}")
    _done({**_made(made), "source": made.manifest.origin}, *told, as_json=as_json)


def unlearn_command(
    storage: str,
    name: str,
    *,
    task: str | None,
    label: str | None,
    approximate: bool,
    as_json: bool,
) -> None:
    """Make a new version without a task or a class."""
    if (task is None) == (label is None):
        raise SettingsError("say what to unlearn: either --task ID_OR_NAME or --class NAME")
    from pipelines.unlearning import unlearn_class, unlearn_task

    bank = open_bank(storage, name)
    with BankWriter(bank, code=program()) as writer:
        if task is not None:
            version, outcome = unlearn_task(writer, task, approximate=approximate)
        else:
            version, outcome = unlearn_class(writer, str(label), approximate=approximate)
    told = [f"bank {bank.name}: version {version.version} is without {_gone(outcome.to_json())}"]
    if outcome.exact:
        told.append("exact: the rest is as if it had never been there")
    told += [*outcome.notes, _still_there(bank, outcome.before)]
    _done({**_made(version), **outcome.to_json()}, *told, as_json=as_json)


def _gone(outcome: dict[str, Any]) -> str:
    parts = []
    if outcome["tasks"]:
        parts.append(plural(len(outcome["tasks"]), "task") + f" ({', '.join(outcome['tasks'])})")
    if outcome["classes"]:
        names = ", ".join(outcome["classes"][:10])
        count = len(outcome["classes"])
        parts.append(
            plural(count, "class", "classes") + f" ({names}{' ...' if count > 10 else ''})"
        )
    return " and ".join(parts)


def _still_there(bank: Bank, before: int) -> str:
    tags = sorted(tag for tag, to in bank.refs().items() if to <= before and tag != LATEST)
    tagged = f" (and move or remove the tags that point there: {', '.join(tags)})" if tags else ""
    return (
        f"older versions still hold it: `luca bank gc {bank.name} --keep-versions 1 --yes` erases them{tagged}; cached "
        "features and past runs' predictions in the storage are no part of a bank"
    )


# -- files ---------------------------------------------------------------------------------------------------------


def export_command(storage: str, name: str, file: str, *, force: bool, as_json: bool) -> None:
    """Write a version into one file."""
    from dataclasses import replace

    from pipelines.unlearned import carried, unlearned
    from workers.storage.bank_copy import export_version

    version = open_version(storage, name)
    if os.path.isdir(file):
        raise StorageError(f"{file} is a folder: give the name of a file to write")
    if os.path.exists(file) and not force:
        raise StorageError(f"{file} exists already: give another name, or --force to replace it")
    memory = version.manifest.with_metrics(carried(unlearned(version)))
    size = export_version(replace(version, manifest=memory), file)
    _done(
        {**_made(version), "file": os.path.abspath(file), "bytes": size},
        f"{file}: bank {version.bank.name} version {version.version}, {human_bytes(size)}; "
        f"luca bank import {file} NAME makes a bank of it",
        as_json=as_json,
    )


def import_command(storage: str, file: str, name: str | None, *, as_json: bool) -> None:
    """Make a bank of an exported file, of which nothing is believed before it is checked."""
    from workers.storage.bank_copy import import_version

    opened = Storage.open(storage)
    version = import_version(opened, file, name, code=program())
    counts = version.manifest.counts
    _done(
        {**_made(version), "source": version.manifest.origin},
        f"bank {version.bank.name}: version {version.version}, {plural(counts['tasks'], 'task')}, "
        f"{plural(counts['classes'], 'class', 'classes')}; every digest is right",
        as_json=as_json,
    )


# -- clearing up ---------------------------------------------------------------------------------------------------


def gc_command(
    storage: str, name: str, *, keep_versions: int | None, yes: bool, as_json: bool
) -> None:
    """Remove what no kept version needs, or say what would go."""
    from workers.storage.bank_gc import collect_garbage

    bank = open_bank(storage, name)
    if yes and keep_versions is not None:
        _keep_memory(bank)
    report = collect_garbage(bank, dry_run=not yes, keep_versions=keep_versions)
    if as_json:
        print_json(report.to_json())
        return
    _print_gc(report, bank, keep_versions)


def _keep_memory(bank: Bank) -> None:
    """Note with the newest version what the bank has unlearned, before the versions that tell go."""
    from pipelines.unlearned import METRIC, carried, unlearned

    head = bank.load()
    memory = carried(unlearned(head))
    if memory and METRIC not in head.metrics:
        with BankWriter(bank, code=program()) as writer:
            writer.annotate(memory, head.version)


def _print_gc(report: GcReport, bank: Bank, keep_versions: int | None) -> None:
    out = console()
    if not report.removed:
        out.print(f"bank {bank.name}: nothing to remove")
    else:
        files, sizes = Counter[str](), Counter[str]()
        for removal in report.removed:
            files[removal.why] += 1
            sizes[removal.why] += removal.size
        rows = [(_KINDS[why], files[why], human_bytes(sizes[why])) for why in files]
        rows.append(("together", len(report.removed), human_bytes(report.bytes)))
        out.print(table(("what", "files", "size"), rows, numbers=("files", "size")))
    kept = f"{plural(len(report.kept_versions), 'version')} kept: {_spans(report.kept_versions)}"
    if keep_versions is None:
        kept += "; --keep-versions N lets older ones go that no tag points to"
    out.print(kept, soft_wrap=True)
    if report.removed and report.dry_run:
        out.print("nothing was removed yet: --yes removes it for good", soft_wrap=True)


_KINDS = {
    "version": "manifests and notes of versions",
    "object": "objects that no kept version needs",
    "temporary": "half-written files",
}


def _spans(numbers: Sequence[int]) -> str:
    """Rising numbers with runs drawn together: 1-3, 7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


# -- telling -------------------------------------------------------------------------------------------------------


def _made(version: BankVersion) -> dict[str, Any]:
    return {"bank": version.bank.name, "version": version.version, "digest": version.digest}


def _done(value: dict[str, Any], *sentences: str, as_json: bool) -> None:
    if as_json:
        print_json(value)
        return
    out = console()
    for sentence in sentences:
        out.print(sentence, soft_wrap=True)
