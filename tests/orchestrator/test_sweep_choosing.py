"""``--from-sweep``: which sweep, which trial, which experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.experiment_files import load_experiment
from orchestrator.sweep.choosing import chosen_experiment
from orchestrator.sweep.opening import PUBLISHED, Sweep
from pipelines.search.ledger import SweepLedger, TrialRecord
from workers.errors import SettingsError
from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage

SWEPT = ("learning.epochs=3", "search.space.learning.l1={low: 1e-5, high: 1e-2}")


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """A storage with a sweep of the demo in it, as the sweep would leave it."""
    uri = str(tmp_path / "storage")
    opened = Storage.open(uri)
    sweep = Sweep.of("demo", [*SWEPT, f"storage={uri}"])
    write_atomic(opened, f"{sweep.directory}/experiment.yaml", sweep.to_yaml().encode())
    ledger = SweepLedger(opened, sweep.directory)
    for number, (accuracy, nonzero) in enumerate([(0.8, 400), (0.85, 300), (0.849, 20)]):
        ledger.put(
            TrialRecord(
                number=number,
                settings=PUBLISHED if number == 0 else {"learning.l1": number / 1000},
                digest=str(number),
                published=number == 0,
                status="finished",
                tasks=10,
                validation_accuracy=accuracy,
                accuracies=(accuracy,),
                nonzero_parameters=nonzero,
            )
        )
    return uri


def sweep_id(uri: str) -> str:
    return Sweep.of("demo", [*SWEPT, f"storage={uri}"]).id


@pytest.mark.parametrize(
    ("choice", "l1"), [("", 0.001), (":best", 0.001), (":smallest", 0.002), (":t002", 0.002)]
)
def test_a_choice_is_the_swept_experiment_with_its_settings(
    storage: str, choice: str, l1: float
) -> None:
    path = chosen_experiment("demo", [f"storage={storage}"], sweep_id(storage) + choice)
    experiment = load_experiment(str(path), [f"storage={storage}"])
    assert experiment.learning.l1 == l1
    assert experiment.learning.epochs == 3
    assert experiment.storage == storage


def test_the_published_recipe_can_be_chosen(storage: str) -> None:
    path = chosen_experiment("demo", [f"storage={storage}"], f"{sweep_id(storage)}:t000")
    experiment = load_experiment(str(path))
    assert experiment.learning.objective == "unified"
    assert experiment.learning.epochs == 20


def test_the_beginning_of_an_id_will_do(storage: str) -> None:
    path = chosen_experiment("demo", [f"storage={storage}"], f"{sweep_id(storage)[:-4]}:best")
    assert path.name == "t001.yaml"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("demo-swepe-123", "no sweep 'demo-swepe-123'.*known are demo-sweep-"),
        ("", "no sweep ''"),
        ("demo:t7", "no trial 't7'"),
    ],
)
def test_what_is_not_there_is_named_beside_what_is(storage: str, wanted: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        chosen_experiment("demo", [f"storage={storage}"], wanted)


def test_a_storage_without_sweeps_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="luca sweep EXPERIMENT"):
        chosen_experiment("demo", [f"storage={tmp_path}"], "demo-sweep-1")


def test_a_sweep_of_another_experiment_is_refused(storage: str) -> None:
    with pytest.raises(SettingsError, match="of experiment 'demo', not of 'other'"):
        chosen_experiment("demo", [f"storage={storage}", "name=other"], sweep_id(storage))
