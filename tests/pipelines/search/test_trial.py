"""A trial learns what a run learns, and nothing else moves its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.search.data import SweepData, SweepPlan
from pipelines.search.trial import Trial
from pipelines.search.trial_report import TrialReport
from pipelines.search.trial_settings import TrialSettings
from tests.pipelines.search.toy import extract, toy_plan, toy_sweep, trial_settings
from workers.errors import FeatureCorruptionError, SettingsError
from workers.learned import LearnRequest
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.luca import nonzero_count, parameter_count
from workers.modeling.sparse import decode
from workers.modeling.statistics import TaskStatistics
from workers.storage.features import FeatureCache, FeaturePart, PartKey
from workers.storage.filesystem import Storage
from workers.task_learning import fit_whitening, learn_task


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> SweepPlan:
    return toy_plan(toy_sweep(tmp_path_factory.mktemp("toy")))


def through(settings: TrialSettings, data: SweepData) -> tuple[Trial, list[TrialReport]]:
    trial = Trial(settings, data)
    reports = []
    while not trial.finished:
        reports.append(trial.step())
    return trial, reports


@pytest.mark.parametrize(
    "learning",
    [
        {"objective": "local", "l1": 0.02},
        {"objective": "unified", "l1_mode": "subgradient"},
        {"objective": "local", "threshold": 0.05},
    ],
)
@pytest.mark.parametrize("fraction", [0.0, 0.2])
def test_a_trial_learns_what_a_run_learns(
    tmp_path: Path, learning: dict[str, Any], fraction: float
) -> None:
    sweep = toy_sweep(tmp_path, stream={"validation_fraction": fraction})
    plan = toy_plan(sweep)
    settings = trial_settings(**learning)
    trial, reports = through(settings, SweepData(plan))
    cache = FeatureCache(Storage.open(plan.storage))
    head, whitening = None, None
    nonzero = 0
    for task, learned in zip(plan.streams[0].tasks, trial.learned[0], strict=True):
        request = LearnRequest(
            task=task.name,
            rows=task.train,
            validation=task.validation if fraction else None,
            classes=task.classes,
            new_classes=task.new_classes,
            views=0,
            seed=sweep.experiment.seed,
            luca=settings.luca,
            learning=settings.learning,
            evaluation=settings.evaluation,
        )
        whitening = whitening or fit_whitening(cache, request)
        info, arrays = learn_task(cache, request, whitening=whitening, previous_head=head)
        head = arrays.head
        module = decode(arrays.objects["module"])
        for name, value in learned.module.items():
            np.testing.assert_allclose(value.numpy(), module[name], rtol=1e-4, atol=1e-6)
        nonzero += info.nonzero_parameters
    assert abs(reports[-1].nonzero - nonzero) <= 2


def test_the_same_trial_has_the_same_result_whatever_ran_before(plan: SweepPlan) -> None:
    settings = trial_settings(l1=0.01)
    fresh = through(settings, SweepData(plan))[1]
    used = SweepData(plan)
    through(trial_settings(l1=0.3, objective="unified"), used)
    again = through(settings, used)[1]
    assert [(r.seen, r.whole, r.nonzero) for r in fresh] == [
        (r.seen, r.whole, r.nonzero) for r in again
    ]


def test_where_it_may_be_stopped_does_not_change_a_trial(tmp_path: Path) -> None:
    search = {"grace_tasks": 1, "reduction_factor": 1.5}
    stopped = toy_plan(toy_sweep(tmp_path, search=search))
    whole = toy_plan(toy_sweep(tmp_path, search={"early_stopping": False}))
    assert (stopped.rungs, whole.rungs) == ((1, 2), ())
    results = [through(trial_settings(), SweepData(p))[1] for p in (stopped, whole)]
    assert [r.seen for r in results[0]] == [r.seen for r in results[1]]


def test_accuracy_counts_tasks_seen_and_the_whole_stream(plan: SweepPlan) -> None:
    _, reports = through(trial_settings(), SweepData(plan))
    sizes = [len(task.validation) for task in plan.streams[0].tasks]
    for done, report in enumerate(reports, 1):
        right = report.seen[0] * sum(sizes[:done])
        assert abs(right - round(right)) < 1e-9
        assert abs(report.whole[0] - right / sum(sizes)) < 1e-12
    assert reports[-1].seen == reports[-1].whole
    assert reports[-1].whole[0] > 0.8


def test_repeats_differ_by_class_order_and_are_those_of_single_sweeps(tmp_path: Path) -> None:
    both = toy_plan(toy_sweep(tmp_path, search={"repeats": 2}))
    assert both.streams[0].class_names != both.streams[1].class_names
    together = through(trial_settings(), SweepData(both))[1]
    seed = toy_sweep(tmp_path).experiment.seed
    for repeat in range(2):
        alone = toy_plan(toy_sweep(tmp_path, seed=seed + repeat))
        report = through(trial_settings(), SweepData(alone))[1][-1]
        assert abs(together[-1].whole[repeat] - report.whole[0]) < 0.051


def test_repeats_over_seeds_keep_the_stream(tmp_path: Path) -> None:
    plan = toy_plan(toy_sweep(tmp_path, search={"repeats": 2, "repeat_over": "seeds"}))
    first, second = plan.streams
    assert first.class_names == second.class_names
    assert first.seed != second.seed
    trial, _ = through(trial_settings(), SweepData(plan))
    one, two = (learned[0].module["se.0.weight"] for learned in trial.learned)
    assert not torch.equal(one, two)


def test_other_class_orders_need_no_other_features(tmp_path: Path) -> None:
    sweep = toy_sweep(tmp_path, search={"repeats": 3})
    stream, plan, _ = sweep.streams()[0]
    extract(stream, plan, sweep)
    parts = sorted((tmp_path / "storage" / "features").rglob("*.arrow"))
    toy_plan(sweep)
    assert sorted((tmp_path / "storage" / "features").rglob("*.arrow")) == parts


def test_test_samples_stay_behind(tmp_path: Path) -> None:
    sweep = toy_sweep(tmp_path)
    stream, _, _ = sweep.streams()[0]
    plan = toy_plan(sweep)
    splits = dict(
        zip(stream.samples["id"].to_pylist(), stream.samples["split"].to_pylist(), strict=True)
    )
    told = {
        name
        for task in plan.streams[0].tasks
        for rows in (task.train, task.validation)
        for name in rows.ids.to_pylist()
    }
    assert {splits[name] for name in told} == {"train"}
    assert len(told) == 120


@pytest.mark.parametrize("router", ["lda", "prototype", "entropy", "ridge", "oracle"])
@pytest.mark.parametrize("objective", ["local", "unified"])
def test_every_router_can_judge(plan: SweepPlan, router: str, objective: str) -> None:
    settings = trial_settings(objective=objective).model_copy(
        update={"evaluation": EvaluationSettings(routers=(router, "batch_entropy"))}
    )
    _, reports = through(settings, SweepData(plan))
    assert 0.0 <= reports[-1].whole[0] <= 1.0


def test_remembered_scores_change_nothing(plan: SweepPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = through(trial_settings(), SweepData(plan))[1]
    monkeypatch.setattr("pipelines.search.trial.SCORE_BYTES", 0)
    computed = through(trial_settings(), SweepData(plan))[1]
    assert [r.seen for r in remembered] == [r.seen for r in computed]


def test_a_trial_adds_up_each_task_once(plan: SweepPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = SweepData.statistics

    def counted(self: SweepData, repeat: int, index: int, *rest: Any) -> TaskStatistics:
        asked.append(index)
        return original(self, repeat, index, *rest)

    monkeypatch.setattr(SweepData, "statistics", counted)
    trial, reports = through(trial_settings(l1=0.05), SweepData(plan))
    assert asked == [0, 1, 2]
    for done, report in enumerate(reports, 1):
        modules = [learned.module for learned in trial.learned[0][:done]]
        assert report.nonzero == sum(nonzero_count(module) for module in modules)
        assert report.stored == sum(parameter_count(module) for module in modules)


def test_settings_that_diverge_say_so(plan: SweepPlan) -> None:
    with pytest.raises(SettingsError, match="diverged"):
        through(trial_settings(learning_rate=1e18), SweepData(plan))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    plan = toy_plan(toy_sweep(tmp_path))
    victim = next((tmp_path / "storage" / "features").rglob("*.arrow"))
    victim.unlink()
    with pytest.raises(FeatureCorruptionError, match=victim.stem):
        through(trial_settings(), SweepData(plan))


def test_a_process_maps_every_part_once_for_all_its_trials(
    plan: SweepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[PartKey] = []
    original = FeatureCache.read

    def counted(self: FeatureCache, key: PartKey) -> FeaturePart:
        read.append(key)
        part = original(self, key)
        assert not part.features.flags.owndata
        return part

    monkeypatch.setattr(FeatureCache, "read", counted)
    data = SweepData(plan)
    through(trial_settings(), data)
    through(trial_settings(l1=0.1, objective="unified"), data)
    wanted = [
        key
        for task in plan.streams[0].tasks
        for rows in (task.train, task.validation)
        for key in rows.keys
    ]
    assert sorted(read, key=str) == sorted(wanted, key=str)


def test_a_report_survives_json() -> None:
    report = TrialReport(3, (0.1, 0.2), (0.3, 0.4), 5.5, 6.5, 7.5)
    assert TrialReport.from_json(report.to_json()) == report
