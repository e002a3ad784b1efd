"""From a sweep to a run: ``--from-sweep ID[:best|:smallest|:TRIAL]``."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from orchestrator.experiment_files import load_experiment
from orchestrator.sweep.opening import Sweep
from orchestrator.sweep.results import SweepResult
from orchestrator.sweep.running import sweep_folder
from orchestrator.yaml_text import parse_yaml
from pipelines.search.ledger import SweepLedger, TrialRecord
from workers.errors import SettingsError
from workers.storage.filesystem import Storage


def chosen_experiment(source: str, overrides: Sequence[str], wanted: str) -> Path:
    """The experiment file of a sweep's choice, ready to be run with the same overrides.

    Args:
        source: the experiment that was swept; it says where the sweep is stored.
        overrides: of this run.
        wanted: ``ID`` or ``ID:CHOICE``; an unambiguous beginning of the id will do.

    Raises:
        SettingsError: there is no such sweep or trial, or it was a sweep of another experiment.
    """
    given = load_experiment(source, overrides)
    storage = Storage.open(given.storage)
    name, _, choice = wanted.partition(":")
    sweep = open_sweep(storage, _find(storage, name), storage_uri=given.storage)
    if sweep.experiment.name != given.name:
        raise SettingsError(
            f"sweep {sweep.id} was of experiment {sweep.experiment.name!r}, not of {given.name!r}: name the "
            f"experiment that was swept (luca run EXPERIMENT --from-sweep {wanted})"
        )
    record = read_result(sweep, storage).pick(choice or "best")
    path = sweep_folder(sweep.id, storage) / "chosen" / f"{record.id}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sweep.chosen(record).to_yaml(), encoding="utf-8")
    return path


def open_sweep(storage: Storage, name: str, *, storage_uri: str) -> Sweep:
    """A sweep as its folder describes it, in the storage where it is found now."""
    file = f"sweeps/{name}/experiment.yaml"
    try:
        data = parse_yaml(storage.read_bytes(file))
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}; sweep again") from None
    if not isinstance(data, dict):
        raise SettingsError(f"{file}: it holds no mapping of settings; sweep again")
    opened = Sweep.from_data({**data, "storage": storage_uri}, where=f"sweep {name}")
    return Sweep(opened.data, opened.experiment, opened.space, name)


def read_result(sweep: Sweep, storage: Storage) -> SweepResult:
    """What is known of a sweep's trials."""
    records: list[TrialRecord] = list(SweepLedger(storage, sweep.directory).read().values())
    return SweepResult(
        id=sweep.id,
        name=sweep.experiment.name,
        records=records,
        tolerance=sweep.experiment.search.tolerance,
        tasks=max((record.tasks for record in records), default=0),
    )


def _find(storage: Storage, name: str) -> str:
    known = [
        entry.name
        for entry in storage.list("sweeps")
        if storage.exists(f"sweeps/{entry.name}/experiment.yaml")
    ]
    matching = [found for found in known if found == name] or [
        found for found in known if name and found.startswith(name)
    ]
    if len(matching) == 1:
        return matching[0]
    if not known:
        raise SettingsError(
            f"there is no sweep in {storage.describe()}: run `luca sweep EXPERIMENT` first, with the same storage"
        )
    if matching:
        raise SettingsError(f"{name!r} may mean several sweeps: {', '.join(matching)}")
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise SettingsError(
        f"there is no sweep {name!r} in {storage.describe()}: {hint}known are {', '.join(known)}"
    )
