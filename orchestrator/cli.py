"""`luca`: the command line.  Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from workers.errors import LucaError

app = typer.Typer(
    name="luca",
    help="Continual learning on frozen [CLS] features: a stream of tasks, learned by a pipeline of Ray actors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# Typer brings its own copy of click in some versions; the common base of its usage errors serves all.
_USAGE_ERROR: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

ExperimentArgument = Annotated[
    str, typer.Argument(help="A preset's name or the path of an experiment file (YAML).")
]
OverrideOption = Annotated[
    list[str] | None,
    typer.Option(
        "--override", "-o", metavar="KEY=VALUE", help="Override a field; dotted keys; repeatable."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output at the end.")
]


@app.callback()
def _luca() -> None:
    """Continual learning on frozen [CLS] features, with Ray."""


@app.command()
def run(
    experiment: ExperimentArgument = "demo",
    override: OverrideOption = None,
    as_json: JsonOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and start nothing.")
    ] = False,
) -> None:
    """Learn a stream of tasks into a bank and score it.  The same command continues where it stopped."""
    from orchestrator.commands.run import run_command

    run_command(experiment, override or [], as_json=as_json, dry_run=dry_run)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: user mistakes end in one sentence and exit code 2, an interrupt in 130."""
    sys.exit(guarded(lambda: app(args=arguments, standalone_mode=False)))


def guarded(command: Callable[[], Any]) -> int:
    """Run a command and turn its end into an exit code and, for a mistake, one sentence on stderr."""
    try:
        result = command()
    except typer.Exit as error:
        return int(error.exit_code)
    except _USAGE_ERROR as error:
        error.show()
        return 2
    except (typer.Abort, KeyboardInterrupt):
        sentence = "interrupted; what was committed is safe, and the same command continues"
        print(f"luca: {sentence}", file=sys.stderr)
        return 130
    except LucaError as error:
        print(f"luca: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
