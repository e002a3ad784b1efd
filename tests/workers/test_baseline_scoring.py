"""Scoring baselines: what is kept of earlier runs may not show in what is said, and spares every fit."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.scoring_cases import rows
from tests.workers.storage.bank_cases import quick_disk  # noqa: F401
from workers.baseline_scoring import BaselineScorer
from workers.errors import FeatureCorruptionError, StateLostError
from workers.feature_rows import FeatureRows, OpenRows, open_rows
from workers.kept_predictions import source_digest
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings
from workers.scored import MethodPredictions, TestPart, TrainPart
from workers.storage.features import FeatureCache
from workers.storage.filesystem import Storage

TASKS = 3
NAMES = ("simplecil", "sequential_linear", "joint_linear", "joint_luca")
Predictions = dict[str, MethodPredictions]


class Stream:
    """Features of three tasks in a storage of their own, and the baselines' view of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        cache = FeatureCache(Storage.open(str(folder)))
        self.trains = {
            t: TrainPart(rows(cache, t, "train"), (2 * t, 2 * t + 1)) for t in range(TASKS)
        }
        self.tests = [TestPart(t, rows(cache, t, "test")) for t in range(TASKS)]

    def scorer(self, **changes: Any) -> BaselineScorer:
        """A scorer as a fresh actor has it."""
        given: dict[str, Any] = {
            "settings": EvaluationSettings(baselines=NAMES),
            "seed": 1,
            "luca": LucaSettings(ratio=4),
            "learning": LearningSettings(epochs=1, batch_size=8),
            "tasks": TASKS,
        }
        return BaselineScorer(Storage.open(str(self.folder)), **{**given, **changes})

    def walk(self, scorer: BaselineScorer, upto: int = TASKS) -> list[Predictions]:
        """Predictions after each task."""
        return [scorer.score(t, {t: self.trains[t]}, self.tests[: t + 1])[0] for t in range(upto)]

    def forget_features(self) -> None:
        """From here on, whatever looks at a feature fails."""
        shutil.rmtree(self.folder / "features")

    @property
    def kept(self) -> list[Path]:
        return sorted((self.folder / "baselines").rglob("*.parquet"))


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path)


def assert_same(found: list[Predictions], expected: list[Predictions]) -> None:
    assert [list(step) for step in found] == [list(step) for step in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for name, made in ours.items():
            for field in ("predicted", "confidence", "log_prob_true"):
                assert np.array_equal(getattr(made, field), getattr(theirs[name], field)), name


def test_a_run_with_other_modules_fits_no_baseline_again(stream: Stream) -> None:
    first = stream.walk(stream.scorer())
    assert list(first[0]) == ["simplecil", "sequential_linear", "joint_linear"]
    stream.forget_features()
    again = stream.scorer(
        settings=EvaluationSettings(baselines=NAMES, routers=("entropy",), combination="hard")
    )
    assert_same(stream.walk(again), first)
    other = stream.scorer(
        settings=EvaluationSettings(baselines=NAMES[:3]),
        luca=LucaSettings(ratio=2),
        learning=LearningSettings(epochs=3, l1=0.1),
    )
    assert_same(stream.walk(other), [{name: step[name] for name in NAMES[:3]} for step in first])


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2},
        {"task_known": True},
        {"luca": LucaSettings(ratio=2)},
        {"learning": LearningSettings(epochs=3)},
        {
            "settings": EvaluationSettings(
                baselines=NAMES, baseline_options={"sequential_linear": {"epochs": 3}}
            )
        },
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_a_baseline_depends_on_makes_it_learn_again(
    stream: Stream, changes: Mapping[str, Any]
) -> None:
    stream.walk(stream.scorer())
    stream.forget_features()
    with pytest.raises(FeatureCorruptionError):
        stream.walk(stream.scorer(**changes))


def test_another_number_of_threads_makes_it_learn_again(stream: Stream) -> None:
    """They add up in another order, so the last digits differ."""
    stream.walk(stream.scorer())
    stream.forget_features()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.raises(FeatureCorruptionError):
            stream.walk(stream.scorer())
    finally:
        torch.set_num_threads(threads)


def test_another_program_makes_it_learn_again(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.walk(stream.scorer())
    stream.forget_features()
    monkeypatch.setattr("workers.kept_predictions._program", lambda: "another")
    with pytest.raises(FeatureCorruptionError):
        stream.walk(stream.scorer())


def test_a_program_is_known_by_its_files_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.py").write_text("x = 1")
    digests = [source_digest(tmp_path)]
    (tmp_path / "inner" / "a.py").write_text("x = 2")
    digests.append(source_digest(tmp_path))
    (tmp_path / "inner" / "a.py").rename(tmp_path / "inner" / "b.py")
    digests.append(source_digest(tmp_path))
    (tmp_path / "c.py").touch()
    digests.append(source_digest(tmp_path))
    assert len(set(digests)) == 4
    (tmp_path / "notes.txt").touch()
    assert source_digest(tmp_path) == digests[-1]


def test_other_samples_labels_or_classes_are_learned_again(stream: Stream) -> None:
    stream.walk(stream.scorer())
    stream.forget_features()
    train, test = stream.trains[0], stream.tests[0]
    swapped = {0: 1, 1: 0}
    renamed = np.array([swapped[label] for label in train.rows.labels])
    fewer = replace(test.rows, row=test.rows.row[::-1].copy())
    for learned, scored in [
        (replace(train, rows=replace(train.rows, labels=renamed)), test),
        (replace(train, classes=(0, 1, 2)), test),
        (stream.trains[1], test),
        (train, replace(test, rows=fewer)),
        (train, replace(test, rows=replace(test.rows, labels=renamed))),
        (train, stream.tests[1]),
    ]:
        with pytest.raises(FeatureCorruptionError):
            stream.scorer().score(0, {0: learned}, [scored])
    assert stream.scorer().score(0, {0: train}, [test])[0].keys() == set(NAMES[:3])


def test_a_run_that_was_cut_off_goes_on_as_if_it_had_not_been(
    stream: Stream, tmp_path: Path
) -> None:
    stream.walk(stream.scorer(), upto=2)
    expected = Stream(tmp_path / "undisturbed")
    assert_same(stream.walk(stream.scorer()), expected.walk(expected.scorer()))


def test_each_task_is_read_once_for_all_baselines(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(cache: FeatureCache, rows: FeatureRows) -> OpenRows:
        read.append(rows.identity)
        return open_rows(cache, rows)

    monkeypatch.setattr("workers.baseline_scoring.open_rows", counted)
    stream.scorer().score(TASKS - 1, stream.trains, stream.tests)
    parts = [part.rows for part in (*stream.trains.values(), *stream.tests)]
    assert sorted(read) == sorted(rows.identity for rows in parts)


def test_damaged_predictions_are_made_again(stream: Stream) -> None:
    expected = stream.walk(stream.scorer())
    for number, file in enumerate(stream.kept):
        data = bytearray(file.read_bytes())
        if number % 3 == 0:
            data[len(data) // 2] ^= 1
        file.write_bytes((bytes(data), data[: len(data) // 3], b"")[number % 3])
    found = stream.walk(stream.scorer())
    assert_same(found, expected)
    stream.forget_features()
    assert_same(stream.walk(stream.scorer()), expected)


def test_a_file_whose_seal_was_taken_off_is_not_believed(stream: Stream) -> None:
    import pyarrow.parquet as pq

    stream.walk(stream.scorer())
    for file in stream.kept:
        pq.write_table(pq.read_table(file).replace_schema_metadata(None), file)
    stream.forget_features()
    with pytest.raises(FeatureCorruptionError):
        stream.walk(stream.scorer())


def test_nothing_is_kept_where_samples_may_be_left_out(stream: Stream) -> None:
    train = replace(stream.trains[0], rows=replace(stream.trains[0].rows, tolerance=1))
    stream.scorer().score(0, {0: train}, stream.tests[:1])
    assert not stream.kept


def test_scoring_an_earlier_task_again_learns_it_anew(stream: Stream) -> None:
    scorer = stream.scorer()
    expected = stream.walk(scorer)
    shutil.rmtree(stream.folder / "baselines")
    found, _ = scorer.score(0, {}, stream.tests[:1])
    assert_same([found], expected[:1])


def test_tasks_that_were_never_told_are_asked_for(stream: Stream) -> None:
    with pytest.raises(StateLostError, match="task 0 was never told"):
        stream.scorer().score(1, {1: stream.trains[1]}, stream.tests[:2])
