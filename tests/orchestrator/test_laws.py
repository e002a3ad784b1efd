"""What must not change a run's predictions does not: laws over the whole pipeline, from a file to stored predictions."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import results
from orchestrator.experiment import Experiment
from tests.helpers import features_experiment, write_features
from tests.orchestrator import in_process
from tests.orchestrator.in_process import Events, InProcess

CLASSES = [f"c{i:02d}" for i in range(6)]
METHODS = ["lda", "entropy", "oracle", "simplecil", "joint_linear"]
LAW = settings(max_examples=3, deadline=None)
RECIPES = pytest.mark.parametrize("recipe", ["local", "tosca"])


def experiment(folder: Path, **changes: Any) -> Experiment:
    data = {
        "evaluation": {"routers": METHODS[:3], "baselines": METHODS[3:]},
        "stream": {"class_order": CLASSES},
        **changes,
    }
    return features_experiment(folder, **data)


def write(folder: Path, *, order: list[int] | None = None, names: dict[str, str] | None = None):
    """The samples, each with an id of its own, in some order and with classes of other names."""
    path = write_features(folder / "features.parquet", spread=4.0)
    table = pq.read_table(path)
    table = table.append_column("id", pa.array([f"{i:04d}" for i in range(len(table))]))
    if names is not None:
        renamed = pa.array([names[label] for label in table["label"].to_pylist()])
        table = table.set_column(table.schema.get_field_index("label"), "label", renamed)
    pq.write_table(table if order is None else table.take(order), path)


def outcome(made: Experiment, *, evaluators: int = 1) -> tuple[str, pa.Table]:
    """The bank's digest and all predictions, by method, step and sample."""
    with pytest.MonkeyPatch.context() as patch:
        in_process.without_ray(patch)
        done = InProcess.run(made, evaluators=evaluators, events=Events())
    table = results.read_predictions(done.prepared.run_dir)
    table = table.set_column(0, "method", pc.cast(table["method"], pa.string()))
    keys = [("method", "ascending"), ("after_task", "ascending"), ("sample", "ascending")]
    return done.outcome.digest, table.sort_by(keys)


@cache
def plain(recipe: str) -> tuple[str, pa.Table]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return outcome(experiment(Path(folder), recipe=recipe))


def assert_same(found: pa.Table, expected: pa.Table, tolerance: float = 1e-5) -> None:
    for column in ("method", "after_task", "sample", "label", "predicted", "routed_task"):
        assert found[column].equals(expected[column]), column
    for column in ("confidence", "routing_confidence", "log_prob_true"):
        values = [table[column].to_numpy() for table in (found, expected)]
        np.testing.assert_allclose(*values, atol=tolerance, err_msg=column)


@RECIPES
@LAW
@given(seed=st.integers(0, 1000))
def test_the_order_of_samples_in_the_file_does_not_matter(recipe, seed):
    expected = plain(recipe)
    order = np.random.default_rng(seed).permutation(180).tolist()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), order=order)
        digest, table = outcome(experiment(Path(folder), recipe=recipe))
    assert digest == expected[0]
    assert_same(table, expected[1])


@RECIPES
@LAW
@given(part=st.integers(1, 40), batch=st.integers(1, 40), evaluators=st.integers(1, 4))
def test_sizes_of_parts_and_batches_and_the_number_of_evaluators_do_not_matter(
    recipe, part, batch, evaluators
):
    expected = plain(recipe)
    features = {"part_size": part, "batch_size": batch}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        made = experiment(Path(folder), recipe=recipe, features=features)
        digest, table = outcome(made, evaluators=evaluators)
    assert digest == expected[0]
    assert_same(table, expected[1])


@RECIPES
@LAW
@given(order=st.permutations(range(6)))
def test_other_names_of_classes_change_names_and_nothing_else(recipe, order):
    names = {name: f"n{order[i]}" for i, name in enumerate(CLASSES)}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), names=names)
        stream = {"class_order": [names[name] for name in CLASSES]}
        _, table = outcome(experiment(Path(folder), recipe=recipe, stream=stream))
    assert_same(table, plain(recipe)[1])


@RECIPES
def test_a_cache_in_half_precision_changes_only_what_is_close(recipe, tmp_path):
    write(tmp_path)
    made = experiment(tmp_path, recipe=recipe, features={"dtype": "float16"})
    digest, table = outcome(made)
    expected = plain(recipe)
    assert digest != expected[0]
    clear = expected[1]["confidence"].to_numpy() > 0.6
    same = table["predicted"].to_numpy() == expected[1]["predicted"].to_numpy()
    assert same[clear].mean() > 0.98
    assert clear.mean() > 0.3
