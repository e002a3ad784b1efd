"""`luca bank list`, `show` and `diff`: what banks there are, what is in one, what changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from orchestrator.commands.bank.naming import open_version
from orchestrator.commands.bank.output import (
    ago,
    console,
    flat,
    listed,
    pairs,
    print_facts,
    print_json,
    shown,
    table,
    when,
)
from orchestrator.commands.text import human_bytes, plural, shortened
from pipelines.forking import learned_with
from pipelines.unlearned import METRIC, Unlearned, unlearned
from workers.errors import LucaError
from workers.storage.bank import LATEST
from workers.storage.bank_inspect import VersionSummary, diff, history, list_banks
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    from workers.storage.bank_changes import Change
    from workers.storage.bank_inspect import BankSummary, VersionDiff
    from workers.storage.bank_version import BankVersion

_COUNTS = ("version", "tasks", "classes", "size")
_TASKS_SHOWN = 20
_VERSIONS_SHOWN = 10
_SETTINGS_SHOWN = (
    "seed",
    "luca.flow",
    "luca.ratio",
    "learning.objective",
    "learning.epochs",
    "learning.learning_rate",
    "learning.l1",
    "whitening",
    "statistics.granularity",
    "statistics.random_features",
)


def list_command(storage: str, *, as_json: bool) -> None:
    """Print every bank of a storage; a damaged one is listed with what is wrong."""
    opened = Storage.open(storage)
    banks = list_banks(opened)
    if as_json:
        found = {"storage": opened.describe(), "banks": [bank.to_json() for bank in banks]}
        print_json(found)
        return
    out = console()
    if not banks:
        out.print(f"no banks in {opened.describe()}: `luca run` makes one", soft_wrap=True)
        return
    titles = ("bank", "version", "tasks", "classes", "size", "made", "tags", "state")
    out.print(table(titles, map(_bank_row, banks), numbers=_COUNTS, whole=("made",)))


def _bank_row(bank: BankSummary) -> tuple[object, ...]:
    tags = ", ".join(f"{name} ({version})" for name, version in sorted(bank.tags.items()))
    latest = bank.latest
    state = bank.problem or ("" if bank.owner is None else f"being written by {bank.owner}")
    if latest is None:
        return (bank.name, None, None, None, None, None, tags, state)
    size = human_bytes(latest.bytes)
    made = ago(latest.created)
    return (bank.name, latest.version, latest.tasks, latest.classes, size, made, tags, state)


# -- show ----------------------------------------------------------------------------------------------------------


def show_command(storage: str, name: str, *, everything: bool, as_json: bool) -> None:
    """Print a version: where it comes from, its tasks, its metrics, and the history around it."""
    version = open_version(storage, name)
    refs = version.bank.refs()
    tags = sorted(tag for tag, to in refs.items() if to == version.version)
    owner = version.bank.owner()
    past, gone, problem = _history(version)
    if as_json:
        print_json(
            {
                **version.to_json(),
                "tags": tags,
                "owner": None if owner is None else str(owner),
                "unlearned": [item.to_json() for item in gone],
                "history": [line.to_json() for line in past],
            }
        )
        return
    out = console()
    counts, manifest = version.manifest.counts, version.manifest
    out.print(
        f"bank {version.bank.name}, version {version.version}"
        + (f" ({', '.join(tags)})" if tags else f" (latest is {refs.get(LATEST)})"),
        style="bold",
    )
    holds = (
        plural(counts["tasks"], "task"),
        plural(counts["classes"], "class", "classes"),
        human_bytes(counts["bytes"]),
    )
    print_facts(
        out,
        [
            ("digest", version.digest),
            ("made", f"{when(manifest.created)} by {_writer(version)}"),
            ("by", manifest.operation + _origin(version)),
            ("holds", ", ".join(holds)),
            *listed("backbone", flat(version.backbone)),
            *listed("settings", _chosen(version)),
            *(("", f"but {ids} with {way}") for way, ids in _other_settings(version)),
            ("", "(--json shows all)"),
            ("shared", ", ".join(_shared(version))),
            *(("unlearned", f"{item}, in version {item.version}") for item in gone),
            ("writing now", owner),
            *((f"metric {key}", shown(value)) for key, value in _metrics(version)),
        ],
    )
    if version.tasks:
        out.print(_tasks_table(version, everything))
    rest = len(version.tasks) - _TASKS_SHOWN
    if rest > 0 and not everything:
        out.print(f"and {plural(rest, 'more task')} (--all shows them)")
    out.print(_history_table(past if everything else past[-_VERSIONS_SHOWN:]))
    if len(past) > _VERSIONS_SHOWN and not everything:
        out.print(f"and {plural(len(past) - _VERSIONS_SHOWN, 'older version')} (--all shows them)")
    if problem:
        out.print(f"the history cannot be read: {problem}", soft_wrap=True)


def _history(
    version: BankVersion,
) -> tuple[tuple[VersionSummary, ...], tuple[Unlearned, ...], str]:
    """The bank's versions, what was unlearned, and why they cannot be told.

    An old damaged version must not hide a new sound one.
    """
    try:
        return history(version.bank), unlearned(version), ""
    except LucaError as error:
        return (), (), str(error)


def _tasks_table(version: BankVersion, everything: bool) -> Any:
    tasks = version.tasks if everything else version.tasks[:_TASKS_SHOWN]
    domains = any(task.domain for task in tasks)
    titles = ["id", "name", *(["domain"] if domains else []), "classes", "", "samples"]
    titles += ["parameters", "not 0", "size"]
    rows = []
    for task in tasks:
        info = task.info
        rows.append(
            (
                task.id,
                task.name,
                *([task.domain] if domains else []),
                len(task.classes),
                shortened(task.classes, room=40),
                info.get("samples"),
                info.get("stored_parameters"),
                info.get("nonzero_parameters"),
                human_bytes(task.size),
            )
        )
    numbers = ("classes", "samples", "parameters", "not 0", "size")
    return table(titles, rows, numbers=numbers, whole=("id",))


def _history_table(past: Iterable[VersionSummary]) -> Any:
    rows = [
        (
            line.version,
            line.operation,
            line.tasks,
            line.classes,
            human_bytes(line.bytes),
            ago(line.created),
            line.digest[:12],
            ", ".join(sorted(line.tags)),
        )
        for line in past
    ]
    titles = ("version", "by", "tasks", "classes", "size", "made", "digest", "tags")
    return table(titles, rows, numbers=_COUNTS, whole=("made", "digest"))


def _other_settings(version: BankVersion) -> list[tuple[str, str]]:
    """Other settings than the version's, and the tasks that were learned with them."""
    ways: dict[str, list[str]] = {}
    for task in version.tasks:
        other = learned_with(task)
        if other:
            ways.setdefault(pairs(sorted(other.items())), []).append(task.id)
    return [(way, shortened(ids)) for way, ids in ways.items()]


def _metrics(version: BankVersion) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in flat(version.metrics) if key != METRIC]


def _chosen(version: BankVersion) -> list[tuple[str, Any]]:
    leaves = dict(flat(version.settings))
    return [(key, leaves[key]) for key in _SETTINGS_SHOWN if key in leaves]


def _shared(version: BankVersion) -> list[str]:
    refs = version.manifest.shared.items()
    return [f"{kind} ({human_bytes(ref.size)})" for kind, ref in sorted(refs)]


def _writer(version: BankVersion) -> str:
    writer = version.manifest.writer
    run = f", run {writer['run']}" if writer.get("run") else ""
    return f"{writer.get('user', '?')}@{writer.get('host', '?')}{run}"


def _origin(version: BankVersion) -> str:
    origin = version.manifest.origin
    return f" (digest there {str(origin.get('digest'))[:12]})" if origin else ""


# -- diff ----------------------------------------------------------------------------------------------------------


def diff_command(storage: str, name: str, before: str, after: str, *, as_json: bool) -> None:
    """Print what differs between two versions; ``after`` may be of another bank, as NAME@VERSION."""
    old = open_version(storage, f"{name}@{before}")
    new = open_version(storage, after if "@" in after else f"{name}@{after}")
    found = diff(old, new)
    if as_json:
        print_json(found.to_json())
        return
    out = console()
    for title, side in (("from", found.before), ("to", found.after)):
        out.print(
            f"{title:>4}  {side['bank']} version {side['version']}, digest {side['digest'][:16]}"
        )
    if found.same_content:
        out.print("same content: every prediction is the same")
    rows = _diff_rows(found)
    if rows:
        out.print(table(("what", "field", "before", "after"), rows))


def _diff_rows(found: VersionDiff) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    rows += [("task removed", task, "there", "") for task in found.tasks_removed]
    rows += [("task added", task, "", "there") for task in found.tasks_added]
    for task in found.tasks_changed:
        rows += [("task changed", f"{task.task} {c.path}", *_sides(c)) for c in task.definition]
        if task.arrays:
            rows.append(("task changed", f"{task.task} arrays", ", ".join(task.arrays), "others"))
    if found.tasks_reordered:
        rows.append(("tasks", "order", "", "another"))
    rows += [("class removed", name, "there", "") for name in found.classes_removed]
    rows += [("class added", name, "", "there") for name in found.classes_added]
    rows += [("shared", kind, "", "others") for kind in found.shared]
    for what, group in (
        ("backbone", found.backbone),
        ("settings", found.settings),
        ("metrics", found.metrics),
    ):
        rows += [(what, change.path, *_sides(change)) for change in group]
    return rows


def _sides(change: Change) -> tuple[str, str]:
    return shown(change.before), shown(change.after)
