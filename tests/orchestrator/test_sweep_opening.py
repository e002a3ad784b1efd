"""From an experiment to a sweep: its name, its space, its trials' settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.sweep.opening import PUBLISHED, Sweep
from pipelines.search.ledger import TrialRecord
from tests.helpers import features_experiment, write_features
from workers.errors import LucaError, SettingsError
from workers.modeling.recipes import RECIPES


def of(*overrides: str) -> Sweep:
    return Sweep.of("demo", overrides)


def finished(number: int, settings: dict[str, Any], *, published: bool = False) -> TrialRecord:
    return TrialRecord(
        number=number,
        settings=settings,
        digest="",
        published=published,
        status="finished",
        tasks=3,
        validation_accuracy=0.5,
        nonzero_parameters=5,
    )


def test_the_published_recipe_takes_nothing_from_the_experiment() -> None:
    sweep = of("learning.epochs=3", "luca.ratio=4", "whitening=none", "evaluation.routers=[ridge]")
    settings = sweep.resolve(PUBLISHED, True)
    recipe = RECIPES["tosca"]
    dumped = settings.model_dump(mode="json")
    assert {key: dumped["learning"][key] for key in recipe["learning"]} == recipe["learning"]
    assert {key: dumped["luca"][key] for key in recipe["luca"]} == recipe["luca"]
    assert settings.router == "ridge"  # modules are compared, by the router of the experiment


def test_the_published_recipe_is_judged_as_trials_are() -> None:
    sweep = of("recipe=refined")
    assert sweep.resolve(PUBLISHED, True).evaluation == sweep.resolve({}, False).evaluation


def test_a_trial_lays_its_settings_over_the_experiment() -> None:
    sweep = of("learning.epochs=3")
    settings = sweep.resolve({"learning.l1": 0.25, "luca.adapter_rank": 2}, False)
    assert (settings.learning.l1, settings.learning.epochs) == (0.25, 3)
    assert settings.luca.adapter_rank == 2


def test_a_recipe_can_be_searched() -> None:
    sweep = of("search.space.recipe=[tosca, local]")
    assert sweep.resolve({"recipe": "tosca"}, False).learning.objective == "unified"
    assert sweep.resolve({"recipe": "local"}, False).learning.objective == "local"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("search.space.learning.l2=[1]", "did you mean 'learning.l1'"),
        ("search.space.lerning.l1=[1]", "did you mean 'learning'"),
        ("search.space.luca.ratio=[0, 8]", "greater than 0, found 0"),
        ("search.space.learning.l1={low: -1, high: 1}", "found -1"),
        ("search.space.recipe=[toska]", "did you mean 'tosca'"),
        ("search.space.seed=[1, 2]", "search.repeats"),
        ("search.space.evaluation.routers=[[ldaa]]", "did you mean 'lda'"),
        ("search.trials=0", "greater than 0"),
    ],
)
def test_a_wrong_space_is_refused_before_anything_starts(override: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        of(override)


def test_listed_values_are_what_the_settings_make_of_them() -> None:
    sweep = of("search.space.learning.l1=[1e-4, 0.0001, 1e-3]")
    assert sweep.space.domains == {"learning.l1": (0.0001, 0.001)}


def test_the_id_depends_on_what_trials_measure_alone() -> None:
    base = of()
    same = of("search.trials=3", "storage=elsewhere", "cluster.cpus=1", "bank=b", "description=x")
    assert base.id == same.id
    for override in ("seed=1", "learning.epochs=3", "search.repeats=2", "search.method=random"):
        assert of(override).id != base.id
    assert base.id.startswith("demo-sweep-")


def test_the_number_of_trials_has_a_default_that_fits_the_method() -> None:
    assert of().trials == 24
    grid = "search.space={luca.ratio: [4, 8], learning.epochs: [1, 2, 3]}"
    assert of(grid, "search.method=grid").trials == 7
    assert of(grid, "search.method=grid", "search.trials=4").trials == 4


def test_a_choice_is_an_experiment_on_a_bank_of_its_own() -> None:
    sweep = of()
    chosen = sweep.chosen(finished(7, {"learning.l1": 0.25}))
    assert chosen.learning.l1 == 0.25
    assert chosen.bank_name.startswith("demo-")
    assert chosen.bank_name.endswith("-t007")
    assert chosen.stream.validation_fraction == 0  # the run learns from all training samples
    published = sweep.chosen(finished(0, PUBLISHED, published=True))
    assert published.bank_name != chosen.bank_name
    assert published.learning.l1_mode == "subgradient"
    assert of("bank=mine").chosen(finished(7, {"learning.l1": 0.25})).bank_name == "mine"


def test_a_sweep_can_be_opened_from_what_it_wrote() -> None:
    sweep = of("search.space.learning.l1=[1e-4, 1e-3]", "learning.epochs=3", "storage=s3://u:p@b/x")
    text = sweep.to_yaml()
    assert "s3://" not in text
    again = Sweep.from_data(yaml.safe_load(text), where="again")
    assert again.id == sweep.id


def test_repeats_over_class_orders_of_a_fixed_order_are_refused(tmp_path: Path) -> None:
    def sweep(**search: Any) -> Sweep:
        experiment = features_experiment(
            tmp_path, stream={"shuffle_classes": False}, search={"repeats": 2, **search}
        )
        return Sweep.from_data(yaml.safe_load(experiment.to_yaml()), where="tiny")

    with pytest.raises(LucaError, match="repeat_over: seeds"):
        sweep().streams()
    assert len(sweep(repeat_over="seeds").streams()) == 2


def test_other_samples_make_another_sweep(tmp_path: Path) -> None:
    experiment = features_experiment(tmp_path)
    sweep = Sweep.from_data(yaml.safe_load(experiment.to_yaml()), where="tiny")
    first = sweep.on(sweep.streams())
    assert sweep.on(sweep.streams()) == first
    write_features(tmp_path / "features.parquet", seed=1)
    assert sweep.on(sweep.streams()).id != first.id


def test_validation_samples_are_held_out_for_the_sweep(tmp_path: Path) -> None:
    for given, share in ((0.0, 0.2), (0.1, 0.1)):
        experiment = features_experiment(tmp_path, stream={"validation_fraction": given})
        sweep = Sweep.from_data(yaml.safe_load(experiment.to_yaml()), where="tiny")
        stream = sweep.streams()[0][0]
        held = sum(len(task.validation) for task in stream.tasks)
        assert held == round(share * 120)
