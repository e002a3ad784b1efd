"""The cut of a stream into feature parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.preparation import prepare
from pipelines.features import FeaturePlan
from pipelines.stream import build_stream
from tests.helpers import features_experiment, write_features
from workers.storage.features import FeatureSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features")
    write_features(path / "features.parquet")
    return path


def plan_of(folder: Path, **changes: object) -> tuple[FeaturePlan, object]:
    experiment = features_experiment(folder, **changes)
    stream = build_stream(experiment.stream, seed=experiment.seed)
    return FeaturePlan(stream, experiment.features, seed=experiment.seed), stream


def keys(plan: FeaturePlan) -> set[str]:
    return {plan.key(i, 0, "b").part for i in range(len(plan.parts))}


def test_every_used_sample_lies_in_exactly_one_part(folder: Path) -> None:
    plan, stream = plan_of(folder)
    rows = np.concatenate([part.rows for part in plan.parts])
    assert sorted(rows.tolist()) == list(range(len(stream.labels)))  # type: ignore[attr-defined]


def test_a_part_holds_one_class_and_split(folder: Path) -> None:
    plan, _ = plan_of(folder)
    for i, part in enumerate(plan.parts):
        samples = plan.samples_of(i)
        assert len(part.rows) <= 8
        assert len(set(samples["label"].to_pylist())) == 1
        assert len(set(samples["split"].to_pylist())) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 5},
        {"stream": {"classes_per_task": 3}},
        {"stream": {"validation_fraction": 0.2}},
        {"stream": {"scenario": "task_incremental"}},
    ],
)
def test_the_same_parts_serve_any_grouping_into_tasks(
    folder: Path, changes: dict[str, object]
) -> None:
    assert keys(plan_of(folder, **changes)[0]) == keys(plan_of(folder)[0])


def test_another_seed_means_other_augmented_views(folder: Path) -> None:
    first, _ = plan_of(folder)
    second, _ = plan_of(folder, seed=5)
    names = [{plan.key(i, 1, "b").part for i in range(len(plan.parts))} for plan in (first, second)]
    assert names[0].isdisjoint(names[1])


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_rows_lead_back_to_the_samples_in_the_order_asked(
    folder: Path, data: st.DataObject
) -> None:
    plan, stream = plan_of(folder)
    samples = len(stream.labels)  # type: ignore[attr-defined]
    asked = np.array(
        data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=30)), dtype=np.int64
    )
    rows = plan.rows(asked, "b")
    by_key = {plan.key(i, 0, "b"): part.rows for i, part in enumerate(plan.parts)}
    found = [by_key[rows.keys[p]][r] for p, r in zip(rows.part, rows.row, strict=True)]
    assert found == asked.tolist()
    assert rows.ids.to_pylist() == stream.samples["id"].take(asked).to_pylist()  # type: ignore[attr-defined]


def test_few_shot_streams_cut_only_what_they_use(folder: Path) -> None:
    plan, _ = plan_of(folder, stream={"shots": 3})
    train = [i for i in range(len(plan.parts)) if plan.samples_of(i)["split"][0].as_py() == "train"]
    assert sum(len(plan.parts[i].rows) for i in train) == 3 * 6


def test_preparing_twice_changes_nothing(folder: Path) -> None:
    experiment = features_experiment(folder)
    first, second = prepare(experiment), prepare(experiment)
    assert first.learned == second.learned == 0
    assert [t.definition for t in first.tasks] == [t.definition for t in second.tasks]


def test_part_size_changes_parts_and_not_samples(folder: Path) -> None:
    _, stream = plan_of(folder)
    small = FeaturePlan(stream, FeatureSettings(part_size=5), seed=0)  # type: ignore[arg-type]
    large = FeaturePlan(stream, FeatureSettings(part_size=500), seed=0)  # type: ignore[arg-type]
    assert len(small.parts) == 6 * (4 + 2)
    assert len(large.parts) == 12
