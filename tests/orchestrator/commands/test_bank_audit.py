"""A bank made by learning holds no sample and no feature of a sample; the audit finds one that does."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from pipelines.exemplar_free import GUARD, audit_version, revealing_sums
from tests.helpers import features_experiment, write_features
from tests.orchestrator.commands.conftest import Luca
from tests.orchestrator.commands.learned_banks import features, learn, quick_disk
from workers.modeling.sparse import decode
from workers.modeling.statistics import TaskStatistics
from workers.modeling.statistics_settings import Granularity
from workers.modeling.whitening import Whitening
from workers.storage.bank import Bank
from workers.storage.bank_draft import TaskDraft, draft_of
from workers.storage.bank_version import BankVersion
from workers.storage.bank_writer import BankWriter

__all__ = ["quick_disk"]

RIDGE = {
    "routers": ["lda", "ridge"],
    "router_options": {"ridge": {"random_features": 24}},
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recipe": "tosca"},
        {"evaluation": RIDGE},
        {"whitening": "none", "evaluation": {"statistics": {"granularity": "task"}}},
    ],
)
def test_no_row_of_any_stored_array_is_a_training_feature(
    luca: Luca, folder: Path, changes: dict[str, Any]
) -> None:
    experiment = features_experiment(folder, bank="audited", **changes)
    version = learn(experiment).load()
    said = luca("bank", "audit", "audited", "--storage", experiment.storage, "--json")
    report = json.loads(said.out)
    assert (said.code, report["findings"]) == (0, [])
    samples, _, _ = features(experiment, "train")
    known = [samples.astype(np.float64)]
    if "whitening" in version.shared:
        white = Whitening.from_arrays(version.shared["whitening"])
        known.append(white.apply(torch.from_numpy(samples)).numpy().astype(np.float64))
    arrays = [array for kind in version.shared.values() for array in kind.values()]
    for task in version.tasks:
        for kind in task.objects:
            arrays += decode(version.arrays(task, kind)).values()
    width = samples.shape[1]
    compared = 0
    for array in arrays:
        flat = np.asarray(array, dtype=np.float64).reshape(-1)
        for start in range(flat.size - width + 1):  # wherever a feature could begin
            window = flat[start : start + width]
            for features_ in known:
                assert np.abs(features_ - window).max(axis=1).min() > 1e-4
            compared += 1
    assert compared > 1000


def test_the_comparison_would_find_a_kept_feature(folder: Path) -> None:
    experiment = features_experiment(folder)
    samples, _, _ = features(experiment, "train")
    flat = np.concatenate([[0.0], samples[3].astype(np.float64), [1.0]])
    window = flat[1 : 1 + samples.shape[1]]
    assert np.abs(samples - window).max(axis=1).min() < 1e-4


def with_array(tiny: Bank, name: str, rows: int) -> None:
    """Adds an array of that many rows to every task of the bank, as a new bank's content."""
    head = tiny.load()
    with BankWriter(Bank.create(tiny.storage, "keeps")) as writer:
        writer.begin(head.backbone, head.settings)
        for task in head.tasks:
            draft = draft_of(head, task)
            extra = {**draft.arrays["statistics"], name: np.ones((rows, 16), np.float32)}
            arrays = {**draft.arrays, "statistics": extra}
            writer.commit(TaskDraft(**{**vars(draft), "arrays": arrays}))


def test_an_array_with_a_row_for_each_sample_is_found(luca: Luca, storage: str, tiny: Bank) -> None:
    with_array(tiny, "memory", rows=40)
    said = luca("bank", "audit", "keeps", "--storage", storage)
    assert said.code == 1
    assert "memory" in said.out
    assert "number of samples" in " ".join(said.out.split())


@pytest.mark.parametrize(("samples", "words"), [(1, "one training sample"), (2, "two training")])
def test_sums_of_too_few_samples_are_found(
    luca: Luca, tmp_path: Path, samples: int, words: str
) -> None:
    write_features(tmp_path / "features.parquet", train=samples)
    experiment = features_experiment(tmp_path)
    learn(experiment)
    said = luca("bank", "audit", "tiny", "--storage", experiment.storage, "--json")
    assert said.code == 1
    findings = json.loads(said.out)["findings"]
    assert len([f for f in findings if words in f["what"]]) == len(findings) == 6
    assert {f["remedy"] for f in findings} == {GUARD}
    said = luca("bank", "audit", "tiny", "--storage", experiment.storage)
    assert said.out.count("what to do:") == 1
    assert "from three samples or more" in " ".join(said.out.split())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recipe": "tosca"},
        {"evaluation": RIDGE},
        {"stream": {"classes_per_task": 1}},
        {"stream": {"classes_per_task": 4}},
        {"stream": {"validation_fraction": 0.2}},
    ],
)
@pytest.mark.parametrize("shots", [1, 2, 3, 4, 5, 6])
def test_chance_sizes_of_few_shot_streams_raise_no_alarm(
    folder: Path, shots: int, changes: dict[str, Any]
) -> None:
    """Whole matrices can have a multiple of few samples' number of entries; what sums tell is true, and is said."""
    changes = {**changes, "stream": {"shots": shots, **changes.get("stream", {})}}
    bank = learn(features_experiment(folder, bank="few", **changes))
    for number in bank.versions():
        version = bank.load(number)
        left = {
            count
            for task in version.tasks
            for count in version.arrays(task, "statistics")["count"].tolist()
        }
        report = audit_version(version)
        assert report.clean == (min(left) > 2)
        assert {finding.remedy for finding in report.findings} <= {GUARD}


def counted(counts: list[int], granularity: Granularity) -> list[str]:
    """What is found in a bank of one task whose classes have so many samples."""
    features = np.random.default_rng(0).normal(size=(sum(counts), 16))
    sums = TaskStatistics.from_features(
        features,
        np.repeat(np.arange(len(counts)), counts),
        classes=len(counts),
        granularity=granularity,
    )
    task = SimpleNamespace(
        id="t", classes=tuple("abc"[: len(counts)]), objects={"statistics": None}
    )
    version = SimpleNamespace(tasks=[task], arrays=lambda *_: sums.to_arrays())
    return [f.what.split(" has ")[0] for f in revealing_sums(cast(BankVersion, version))]


def test_a_pair_follows_from_a_gram_matrix_in_which_nothing_else_is_spread() -> None:
    assert counted([2, 2], "class") == ["class 'a'", "class 'b'"]
    assert counted([2, 2], "task") == []
    assert counted([1, 2, 1], "task") == ["class 'a'", "class 'b'", "class 'c'"]
    assert counted([2], "task") == ["class 'a'"]
    assert counted([3, 4], "class") == []


def test_a_fork_with_other_settings_stays_clean(luca: Luca, folder: Path, storage: str) -> None:
    other = {"luca": {"ratio": 2}, "learning": {"epochs": 2}}
    file = folder / "tiny.yaml"
    file.write_text(features_experiment(folder, **other).to_yaml())
    assert luca("bank", "fork", "tiny@2", "new", "--settings", file, "--storage", storage).code == 0
    learn(features_experiment(folder, bank="new", **other))
    assert luca("bank", "audit", "new", "--storage", storage).code == 0
