"""The commands of `luca bank` and their options; each imports its work when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

bank = typer.Typer(
    help="Look at module banks and look after them: versions, tags, forks, exports, checks.",
    no_args_is_help=True,
)

_StorageOption = Annotated[
    str, typer.Option("--storage", metavar="DIR", help="A folder or URI, as in the experiment.")
]
_JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="A bank's name.")]
_Version = Annotated[
    str, typer.Argument(metavar="NAME[@TAG|@VERSION]", help="A version; left out: the latest.")
]
_Ref = Annotated[str, typer.Argument(metavar="REF", help="A version's number, a tag, or latest.")]
_STORAGE = "luca-storage"


@bank.command("list")
def list_(storage: _StorageOption = _STORAGE, as_json: _JsonOption = False) -> None:
    """List the banks of a storage."""
    from orchestrator.commands.bank.reading import list_command

    list_command(storage, as_json=as_json)


@bank.command()
def show(
    name: _Version,
    everything: Annotated[bool, typer.Option("--all", help="Every task and version.")] = False,
    storage: _StorageOption = _STORAGE,
    as_json: _JsonOption = False,
) -> None:
    """Show a version: origin, tasks, settings, metrics, and the bank's history."""
    from orchestrator.commands.bank.reading import show_command

    show_command(storage, name, everything=everything, as_json=as_json)


@bank.command()
def diff(
    name: _Name,
    before: Annotated[str, typer.Argument(metavar="A", help="A version's number or tag.")],
    after: Annotated[
        str, typer.Argument(metavar="B", help="Another; OTHER@REF compares with another bank.")
    ],
    storage: _StorageOption = _STORAGE,
    as_json: _JsonOption = False,
) -> None:
    """Say what differs between two versions."""
    from orchestrator.commands.bank.reading import diff_command

    diff_command(storage, name, before, after, as_json=as_json)


@bank.command()
def tag(
    name: _Name,
    ref: _Ref,
    tag: Annotated[str, typer.Argument(metavar="TAG", help="Such as production.")],
    storage: _StorageOption = _STORAGE,
    as_json: _JsonOption = False,
) -> None:
    """Give a version a name; a tag that exists moves."""
    from orchestrator.commands.bank.changing import tag_command

    tag_command(storage, name, ref, tag, as_json=as_json)


@bank.command()
def untag(
    name: _Name,
    tag: Annotated[str, typer.Argument(metavar="TAG")],
    storage: _StorageOption = _STORAGE,
    as_json: _JsonOption = False,
) -> None:
    """Remove a tag; its version stays."""
    from orchestrator.commands.bank.changing import untag_command

    untag_command(storage, name, tag, as_json=as_json)


@bank.command()
def rollback(
    name: _Name, ref: _Ref, storage: _StorageOption = _STORAGE, as_json: _JsonOption = False
) -> None:
    """Make a new version with the content of an old one; history is kept."""
    from orchestrator.commands.bank.changing import rollback_command

    rollback_command(storage, name, ref, as_json=as_json)


@bank.command()
def fork(
    source: _Version,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name of the new bank.")],
    settings: Annotated[
        str | None,
        typer.Option(
            "--settings", metavar="EXPERIMENT", help="Learn further tasks as this experiment says."
        ),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--override", "-o", metavar="KEY=VALUE", help="Changes that experiment."),
    ] = None,
    storage: _StorageOption = _STORAGE,
    as_json: _JsonOption = False,
) -> None:
    """Start a new bank from a version, to go on with other tasks or other settings."""
    from orchestrator.commands.bank.changing import fork_command

    fork_command(storage, source, new, settings=settings, overrides=override or [], as_json=as_json)


@bank.command()
def unlearn(
    name: _Name,
    task: Annotated[str | None, typer.Option("--task", metavar="ID|NAME")] = None,
    label: Annotated[str | None, typer.Option("--class", metavar="NAME")] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Accept traces in a head shared by all tasks.")
    ] = False,
    storage: _StorageOption = _STORAGE,
    as_json: _JsonOption = False,
) -> None:
    """Make a new version without a task or a class.

    A task whose head is its own goes whole: the rest is as if it had never been there. A class leaves its head and
    the statistics, but the module of its task was trained with it and stays. The command says which holds.
    """
    from orchestrator.commands.bank.changing import unlearn_command

    unlearn_command(storage, name, task=task, label=label, approximate=approximate, as_json=as_json)


@bank.command()
def verify(name: _Name, storage: _StorageOption = _STORAGE, as_json: _JsonOption = False) -> None:
    """Check every file against its digest; exit code 1 when something is wrong."""
    from orchestrator.commands.bank.checking import verify_command

    if not verify_command(storage, name, as_json=as_json):
        raise typer.Exit(1)


@bank.command()
def audit(name: _Version, storage: _StorageOption = _STORAGE, as_json: _JsonOption = False) -> None:
    """Show that no sample is kept: every array and what its size follows; exit code 1 when one could be told."""
    from orchestrator.commands.bank.checking import audit_command

    if not audit_command(storage, name, as_json=as_json):
        raise typer.Exit(1)


@bank.command()
def gc(
    name: _Name,
    keep_versions: Annotated[
        int | None,
        typer.Option(
            min=1, help="Keep the newest N and all tagged versions; left out: every version."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove; else only say what would go.")
    ] = False,
    storage: _StorageOption = _STORAGE,
    as_json: _JsonOption = False,
) -> None:
    """Say, or with --yes remove, what no version needs; nothing that a tag reaches ever goes."""
    from orchestrator.commands.bank.changing import gc_command

    gc_command(storage, name, keep_versions=keep_versions, yes=yes, as_json=as_json)


@bank.command()
def export(
    name: _Version,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Such as demo.safetensors.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    storage: _StorageOption = _STORAGE,
    as_json: _JsonOption = False,
) -> None:
    """Write a version into one safetensors file."""
    from orchestrator.commands.bank.changing import export_command

    export_command(storage, name, file, force=force, as_json=as_json)


@bank.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE")],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Left out: the name in the file.")
    ] = None,
    storage: _StorageOption = _STORAGE,
    as_json: _JsonOption = False,
) -> None:
    """Make a bank of an exported file, after checking every digest."""
    from orchestrator.commands.bank.changing import import_command

    import_command(storage, file, name, as_json=as_json)
