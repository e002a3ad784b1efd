"""What is refused and made absolute before Ray is joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.experiment import Experiment
from orchestrator.preparation import prepare, prepare_evaluation
from orchestrator.sweep.opening import Sweep
from orchestrator.sweep.running import run_sweep
from tests.helpers import features_experiment, write_features
from tests.orchestrator import in_process
from tests.orchestrator.in_process import Events, InProcess
from tests.workers.storage.bank_cases import quick_disk  # noqa: F401
from workers.errors import BankError, ClusterError, SettingsError


def test_actors_are_told_absolute_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = features_experiment(tmp_path, storage="here")
    assert prepare(experiment).experiment.storage == str(tmp_path / "here")


def test_a_job_refuses_storage_that_it_would_lose_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    experiment = features_experiment(tmp_path, storage="here")
    with pytest.raises(ClusterError, match="relative path"):
        prepare(experiment)
    sweep = Sweep.from_data(experiment.model_dump(mode="json"), where="here")
    with pytest.raises(ClusterError, match="relative path"):
        run_sweep(sweep, console=False)
    assert not (tmp_path / "here").exists()


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_disk: None) -> InProcess:  # noqa: F811
    """A run that has learned its bank from ``features.parquet``."""
    in_process.without_ray(monkeypatch)
    return InProcess.run(features_experiment(tmp_path), evaluators=1, events=Events())


def test_features_of_another_width_than_the_banks_are_refused_by_both_widths(
    tmp_path: Path, done: InProcess
) -> None:
    experiment = done.prepared.experiment
    write_features(tmp_path / "features.parquet", width=24)
    with pytest.raises(BankError, match="features of 16 numbers, and this source gives 24"):
        prepare(experiment)
    with pytest.raises(BankError, match="features of 16 numbers, and this source gives 24"):
        prepare_evaluation(experiment, "latest")
    assert done.prepared.bank.latest() == done.outcome.version


def test_another_backbone_is_refused_by_name_before_anything_starts(done: InProcess) -> None:
    stream = {"scenario": "class_incremental", "classes_per_task": 2, "source": {"kind": "demo"}}
    pictures = Experiment.model_validate(
        {**done.prepared.experiment.model_dump(), "stream": stream}
    )
    with pytest.raises(BankError, match="features of 'ready-features', not 'demo_vit'"):
        prepare(pictures)
    with pytest.raises(BankError, match="features of 'ready-features', not 'demo_vit'"):
        prepare_evaluation(pictures, "latest")
    assert done.prepared.bank.latest() == done.outcome.version


def test_a_fork_is_advised_only_for_what_a_fork_can_change(tmp_path: Path, done: InProcess) -> None:
    for changes, fork in (({"luca": {"ratio": 2}}, True), ({"recipe": "tosca"}, False)):
        with pytest.raises(BankError, match=r"another bank \(-o bank=NAME\)") as refused:
            prepare(features_experiment(tmp_path, **changes))
        assert ("luca bank fork tiny NAME --settings" in str(refused.value)) == fork


def test_features_too_narrow_for_a_bottleneck_are_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="leaves no bottleneck for features of width 16"):
        prepare(features_experiment(tmp_path, luca={"ratio": 17}))
    assert not list((tmp_path / "storage").glob("banks/*"))


def test_a_learned_task_with_other_samples_is_refused_or_kept_as_it_was_learned(
    tmp_path: Path, done: InProcess
) -> None:
    experiment = done.prepared.experiment
    write_features(tmp_path / "features.parquet", train=19)
    with pytest.raises(BankError, match=r"20 training.*19 training.*known_tasks=keep leaves"):
        prepare(experiment)
    kept = prepare(experiment.model_copy(update={"known_tasks": "keep"}))
    assert kept.learned == len(kept.tasks)
    assert kept.head is not None
    assert kept.head.digest == done.outcome.digest
    (warning,) = kept.warnings
    assert "'task-01', 'task-02'" in warning
    assert "as they are" in warning


def test_other_classes_are_refused_whatever_is_kept(tmp_path: Path, done: InProcess) -> None:
    write_features(tmp_path / "features.parquet", classes=7)
    kept = done.prepared.experiment.model_copy(update={"known_tasks": "keep"})
    with pytest.raises(
        BankError, match=r"keep the order of known classes with stream\.class_order"
    ):
        prepare(kept)
