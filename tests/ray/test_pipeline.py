"""The pipeline of actors on small real features: one digest whatever the actors, resuming, conflicts, damage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import results
from orchestrator.commands.run import run_experiment
from tests.helpers import features_experiment, write_features
from workers.errors import BankError, DataError, SettingsError
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


def run(folder: Path, **changes: Any) -> dict[str, Any]:
    return run_experiment(features_experiment(folder, **changes), console=False)


def bank(folder: Path, name: str = "tiny") -> Bank:
    return Bank.open(Storage.open(str(folder / "storage")), name)


@pytest.mark.parametrize("recipe", ["local", "tosca"])
def test_the_digest_is_the_same_for_any_number_of_actors(tmp_path: Path, recipe: str) -> None:
    counts = [
        {"shards": 1, "trainers": 1, "evaluators": 1},
        {"shards": 3, "trainers": 3, "evaluators": 2, "tasks_in_flight": 3},
    ]
    summaries = []
    for number, count in enumerate(counts):
        storage = str(tmp_path / f"storage-{number}")
        summaries.append(run(tmp_path, recipe=recipe, storage=storage, cluster=count))
    assert summaries[0]["digest"] == summaries[1]["digest"]
    assert summaries[0]["tasks_learned"] == 3
    for method, metrics in summaries[0]["metrics"].items():
        # Probabilities round differently in batches of another size; decisions do not.
        assert metrics == pytest.approx(summaries[1]["metrics"][method], abs=1e-6), method


def test_a_second_run_learns_nothing_and_reports_the_same(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path)
    assert (first["tasks_learned"], second["tasks_learned"]) == (3, 0)
    assert second["metrics"] == first["metrics"]
    assert second["digest"] == first["digest"]


def test_lost_predictions_are_made_again_without_learning(tmp_path: Path) -> None:
    first = run(tmp_path)
    shutil.rmtree(first["run_dir"])
    second = run(tmp_path)
    assert second["tasks_learned"] == 0
    assert second["metrics"] == first["metrics"]


def test_new_classes_are_learned_behind_the_known_ones(tmp_path: Path) -> None:
    order = [f"c{c:02d}" for c in range(6)]
    write_features(tmp_path / "features.parquet", classes=4)
    run(tmp_path, stream={"class_order": order[:4]})
    whole = tmp_path / "whole"
    whole.mkdir()
    write_features(tmp_path / "features.parquet", classes=6)
    write_features(whole / "features.parquet", classes=6)
    grown = run(tmp_path, stream={"class_order": order})
    assert grown["tasks_learned"] == 1
    at_once = run(whole, stream={"class_order": order})
    assert grown["digest"] == at_once["digest"]


def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    digest = run(tmp_path)["digest"]
    with pytest.raises(BankError, match=r"l1.*0\.02.*-o bank="):
        run(tmp_path, learning={"l1": 0.02})
    assert bank(tmp_path).load().digest == digest


def test_changed_samples_of_a_learned_task_are_refused(tmp_path: Path) -> None:
    run(tmp_path)
    write_features(tmp_path / "features.parquet", seed=1)
    with pytest.raises(BankError, match="samples' ids or contents differ"):
        run(tmp_path)


def test_a_damaged_feature_part_is_computed_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    for part in (tmp_path / "storage" / "features").rglob("*.arrow"):
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 0xFF
        part.write_bytes(bytes(data))
    shutil.rmtree(first["run_dir"])
    shutil.rmtree(tmp_path / "storage" / "banks")
    second = run(tmp_path)
    assert second["digest"] == first["digest"]
    assert second["metrics"] == first["metrics"]


def test_features_that_vanish_are_computed_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    shutil.rmtree(tmp_path / "storage" / "features")
    shutil.rmtree(first["run_dir"])
    assert run(tmp_path)["metrics"] == first["metrics"]


def test_predictions_are_those_of_the_final_table(tmp_path: Path) -> None:
    summary = run(tmp_path)
    predictions = results.read_predictions(summary["run_dir"])
    chosen = predictions.filter(
        (np.asarray(predictions["after_task"]) == 2)
        & (np.asarray(predictions["method"].cast("string")) == "lda")
    )
    right = np.asarray(chosen["label"]) == np.asarray(chosen["predicted"])
    assert summary["metrics"]["lda"]["final_accuracy"] == right.mean()
    assert len(chosen) == 60


def test_nan_features_stop_the_run_and_leave_the_bank_untouched(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_features(tmp_path / "features.parquet")
    table = pq.read_table(path)
    flat = np.array(table["feature"].combine_chunks().flatten())
    flat[5 * 16] = np.nan
    feature = pa.FixedSizeListArray.from_arrays(pa.array(flat), 16)
    pq.write_table(table.set_column(0, "feature", feature), path)
    with pytest.raises(DataError, match=r"(?i)nan"):
        run(tmp_path)
    assert Bank.names(Storage.open(str(tmp_path / "storage"))) == ()


def test_a_gate_tags_what_is_good_enough_and_nothing_else(tmp_path: Path) -> None:
    stream = {"validation_fraction": 0.2}
    run(tmp_path, stream=stream, gate={"min_accuracy": 0.5})
    opened = bank(tmp_path)
    assert opened.resolve("production") == opened.latest()
    assert opened.load().metrics["validation"]["passed"] is True
    run(tmp_path, bank="strict", stream=stream, gate={"min_accuracy": 1.0, "max_forgetting": -1})
    assert "production" not in bank(tmp_path, "strict").refs()


def test_views_need_pictures(tmp_path: Path) -> None:
    with pytest.raises((SettingsError, DataError), match="views"):
        run(tmp_path, features={"views": 2})
