"""`luca`: the command line.  Commands import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from orchestrator.commands.bank.app import bank
from orchestrator.stopping import INTERRUPTED, StopOnTerm
from workers.errors import LucaError, one_line
from workers.imports import spare_pandas

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
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan and start nothing.  A storage that does not exist is not made; one that does keeps "
            "the digests of the data, so that the run does not read them again.",
        ),
    ] = False,
    from_sweep: Annotated[
        str | None,
        typer.Option(
            metavar="ID[:best|:smallest|:TRIAL]",
            help="With settings that a sweep of this experiment found.",
        ),
    ] = None,
) -> None:
    """Learn a stream of tasks into a bank and score it.  The same command continues where it stopped."""
    if from_sweep is not None:
        from orchestrator.commands.sweep import run_from_sweep

        run_from_sweep(experiment, override or [], from_sweep, as_json=as_json, dry_run=dry_run)
        return
    from orchestrator.commands.run import run_command

    run_command(experiment, override or [], as_json=as_json, dry_run=dry_run)


@app.command()
def sweep(
    experiment: ExperimentArgument = "demo",
    override: OverrideOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search settings on validation samples and cached features.  The same command continues where it stopped."""
    from orchestrator.commands.sweep import sweep_command

    sweep_command(experiment, override or [], as_json=as_json)


@app.command()
def submit(
    experiment: ExperimentArgument = "demo",
    override: OverrideOption = None,
    address: Annotated[
        str | None, typer.Option(help="The cluster's dashboard, http://HEAD:8265.")
    ] = None,
    working_dir: Annotated[
        str | None, typer.Option(help="A folder to upload, in which the job starts.")
    ] = None,
    submission_id: Annotated[
        str | None, typer.Option(help="Name of the job; a running one is followed, not repeated.")
    ] = None,
    follow: Annotated[bool, typer.Option(help="Print the log until the job ends.")] = True,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Pass on a variable of this shell; repeatable."),
    ] = None,
) -> None:
    """Run an experiment as a job of a Ray cluster.  Submitting again resumes."""
    from orchestrator.submit import submit as submit_job

    submitted = submit_job(
        experiment,
        override or [],
        address=address,
        working_dir=working_dir,
        submission_id=submission_id,
        follow=follow,
        variables=env or [],
        say=lambda text: typer.echo(text, err=True),
        write=lambda text: typer.echo(text, nl=False),
    )
    raise typer.Exit(submitted.exit_code)


@app.command()
def manifests(
    experiment: ExperimentArgument,
    output: Annotated[str, typer.Argument(help="Folder for the files.")],
    settings: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Image, node groups, storage, secrets (YAML); left out, or keys left out: the defaults.",
        ),
    ] = None,
    override: OverrideOption = None,
) -> None:
    """Write KubeRay manifests for an experiment: RayJob, RayCluster, storage, Kueue overlay."""
    from orchestrator.experiment_files import load_experiment
    from orchestrator.manifests import (
        ManifestSettings,
        load_manifest_settings,
        outside_mounts,
        write_manifests,
    )

    loaded = load_experiment(experiment, override or [])
    found = ManifestSettings() if settings is None else load_manifest_settings(settings)
    source = settings or "the default settings"
    for path in write_manifests(loaded, found, output, source=source):
        typer.echo(str(path))
    for sentence in outside_mounts(loaded, found):
        typer.echo(f"luca: {one_line(sentence)}", err=True)


@app.command()
def evaluate(
    experiment: ExperimentArgument = "demo",
    override: OverrideOption = None,
    version: Annotated[
        str, typer.Option("--version", metavar="NUMBER|TAG", help="Which version of the bank.")
    ] = "latest",
    as_json: JsonOption = False,
) -> None:
    """Score a version of the experiment's bank on its test samples, without learning."""
    from orchestrator.commands.evaluate import evaluate_command

    evaluate_command(experiment, override or [], ref=version, as_json=as_json)


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="A run's folder, or its id.")],
    storage: Annotated[str, typer.Option("--storage", help="Where runs lie.")] = "luca-storage",
) -> None:
    """Write the report of a run again from its files, and print its tables."""
    from orchestrator.commands.report import report_command

    report_command(run, storage=storage)


@app.command()
def predict(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Images, folders of images (searched to the bottom), or Parquet/Arrow files of features or images."
        ),
    ],
    bank: Annotated[str, typer.Option("--bank", "-b", metavar="NAME[@TAG|@VERSION]")],
    storage: Annotated[
        str, typer.Option("--storage", help="The storage of the run that made the bank.")
    ] = "luca-storage",
    output: Annotated[
        str | None,
        typer.Option(help="A .csv, .jsonl or .parquet file, which appears whole or not at all."),
    ] = None,
    text_format: Annotated[
        str | None, typer.Option("--format", help="On standard output: table, csv or jsonl.")
    ] = None,
    router: Annotated[
        str | None, typer.Option(help="How tasks are chosen; left out: as the run's first router.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples at a time.")] = 64,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Name unreadable images and go on.")
    ] = False,
    backbone: Annotated[
        str | None, typer.Option(help="Another name of the backbone that the bank recorded.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="The backbone's weights file, where its name does not say.")
    ] = None,
    device: Annotated[str, typer.Option(help="Of the backbone: cpu, cuda or auto.")] = "auto",
    feature_column: Annotated[str, typer.Option(help="Column of ready features.")] = "feature",
    image_column: Annotated[
        str | None, typer.Option(help="Column of encoded images; left out: seen from the types.")
    ] = None,
) -> None:
    """Predict class, task and confidences of images or features with a version of a bank."""
    from orchestrator.commands.predict import predict_command

    predict_command(
        bank,
        paths,
        storage=storage,
        output=output,
        text_format=text_format,
        router=router,
        batch_size=batch_size,
        skip_unreadable=skip_unreadable,
        backbone=backbone,
        weights=weights,
        device=device,
        feature_column=feature_column,
        image_column=image_column,
    )


@app.command()
def init(
    path: Annotated[
        str,
        typer.Argument(
            help="A folder of images, a Parquet/Arrow file of images or features, a CSV that lists images, or CIFAR."
        ),
    ],
    output: Annotated[
        str | None, typer.Option(help="The experiment file; left out: named after the data.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Left out: a published ViT-B, or the embedded one offline.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented experiment file for your own data."""
    from orchestrator.commands.init import init_command

    init_command(path, output=output, backbone=backbone, force=force)


@app.command()
def doctor(
    experiment: ExperimentArgument = "demo",
    override: OverrideOption = None,
    as_json: JsonOption = False,
    start_ray: Annotated[bool, typer.Option("--ray", help="Really join or start Ray.")] = False,
) -> None:
    """Check environment, storage, weights, W&B and Ray, and say what to do.  Exit code 1: something is wrong."""
    from orchestrator.commands.doctor import doctor_command

    raise typer.Exit(
        doctor_command(experiment, override or [], start_ray=start_ray, as_json=as_json)
    )


@app.command()
def schema() -> None:
    """Print the JSON schema of the experiment, for editors."""
    from orchestrator.commands.schema import print_schema

    print_schema()


stream = typer.Typer(help="Look at the tasks of an experiment.", no_args_is_help=True)
app.add_typer(stream, name="stream")
app.add_typer(bank, name="bank")


@stream.command("show")
def stream_show(
    experiment: ExperimentArgument,
    override: OverrideOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print tasks, classes, counts and digest, without touching a backbone or a bank."""
    from orchestrator.commands.stream_show import show_stream

    show_stream(experiment, override or [], as_json=as_json)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: user mistakes end in one sentence and exit code 2, Ctrl-C in 130, SIGTERM in 143."""
    spare_pandas()
    sys.exit(guarded(lambda: app(args=arguments, standalone_mode=False)))


def guarded(command: Callable[[], Any]) -> int:
    """Run a command and turn its end into an exit code and, for a mistake, one sentence on stderr."""
    _standard_streams()
    with StopOnTerm() as stop:
        try:
            result = command()
            sys.stdout.flush()
        except typer.Exit as error:
            if error.exit_code != INTERRUPTED:  # what Typer makes of Ctrl-C
                return int(error.exit_code)
            return _stopped(stop)
        except _USAGE_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
            else:
                print(f"luca: {_usage(error)}", file=sys.stderr)
            return 2
        except (typer.Abort, KeyboardInterrupt):
            return _stopped(stop)
        except LucaError as error:
            print(f"luca: {error}", file=sys.stderr)
            return 2
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except OSError as error:
            return _full(error)
        if result == INTERRUPTED:
            return _stopped(stop)
        return result if isinstance(result, int) else 0


def _stopped(stop: StopOnTerm) -> int:
    sentence = "interrupted; what was committed is safe, and the same command continues"
    print(f"luca: {sentence}", file=sys.stderr)
    return stop.code


def _standard_streams() -> None:
    """Streams that the caller has closed (`>&-`) swallow what is written to them."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the program runs
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _full(error: OSError) -> int:
    """A disk that fills up while output is written, as a sentence; anything else is a fault of the program.

    Raises:
        OSError: it is anything else.
    """
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        raise error
    where = error.filename or "standard output"
    reason = one_line(str(error.strerror)).lower()
    print(f"luca: {where} cannot be written: {reason}; free some space", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 2


def _usage(error: Any) -> str:
    """What is wrong with a command line, as one sentence."""
    found = one_line(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{found}; see {context.command_path} --help" if context is not None else found


if __name__ == "__main__":
    main()
