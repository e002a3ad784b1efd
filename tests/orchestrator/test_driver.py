"""The driver's walk over a stream, with real workers in this process: counts, gaps, order, and what is resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator import results
from orchestrator.tracking import Notice, PartExtracted, TaskEvaluated, VersionCommitted
from tests.helpers import features_experiment, write_features
from tests.orchestrator import in_process
from tests.orchestrator.in_process import Events, InProcess
from tests.workers.storage.bank_cases import quick_disk  # noqa: F401
from workers.errors import ClusterError, StorageError
from workers.registry import RegistryImpl
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage

pytestmark = pytest.mark.usefixtures("quick_disk")

ORDER = [f"c{i:02d}" for i in range(6)]
VALIDATED = {"class_order": ORDER, "validation_fraction": 0.2}
GATED = {"stream": VALIDATED, "gate": {"min_accuracy": 0.0}, "evaluation": {"baselines": []}}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., InProcess]:
    """Runs an experiment over the features in a folder to its end."""
    in_process.without_ray(monkeypatch)

    def start(
        folder: Path, *, evaluators: int = 1, events: Events | None = None, **changes: Any
    ) -> InProcess:
        experiment = features_experiment(folder, **changes)
        return InProcess.run(experiment, evaluators=evaluators, events=events or Events())

    return start


def keep(folder: Path, wanted: Callable[[str, str, int], bool]) -> None:
    """Keep those samples of the features file whose label, split and number in them are ``wanted``."""
    path = write_features(folder / "features.parquet")
    table = pq.read_table(path)
    seen: dict[tuple[str, str], int] = {}
    mask = []
    for label, split in zip(table["label"].to_pylist(), table["split"].to_pylist(), strict=True):
        number = seen[label, split] = seen.get((label, split), -1) + 1
        mask.append(wanted(label, split, number))
    pq.write_table(table.filter(pa.array(mask)), path)


def damage(folder: Path) -> None:
    """Change a byte of every cached part."""
    for part in (folder / "storage" / "features").rglob("*.arrow"):
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 0xFF
        part.write_bytes(bytes(data))


def bank(folder: Path) -> Bank:
    return Bank.open(Storage.open(str(folder / "storage")), "tiny")


def numbers(done: InProcess) -> str:
    """Every prediction to its last digit; NaN is equal to itself."""
    return repr(results.read_predictions(done.prepared.run_dir).to_pylist())


def scored_tasks(done: InProcess) -> list[int]:
    return [event.task for event in done.events.of(TaskEvaluated)]


# -- features ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [{}, {"validation_fraction": 0.2}, {"blurry": 0.3}])
def test_each_part_is_extracted_once_and_found_by_the_next_run(
    tmp_path: Path, run: Callable[..., InProcess], stream: dict[str, float]
) -> None:
    first = run(tmp_path, stream=stream)
    parts = len(first.prepared.plan.parts)
    assert len(first.events.of(PartExtracted)) == parts
    assert (first.outcome.cache["hits"], first.outcome.cache["misses"]) == (0, parts)
    other = run(tmp_path, stream=stream, bank="other", learning={"epochs": 2})
    assert (other.outcome.cache["hits"], other.outcome.cache["misses"]) == (parts, 0)


def test_no_more_tasks_are_under_way_than_allowed(
    tmp_path: Path, run: Callable[..., InProcess]
) -> None:
    done = run(tmp_path, stream={"classes_per_task": 1}, cluster={"tasks_in_flight": 2})
    committed, ahead = 0, []
    for event in done.events.all:
        committed += isinstance(event, VersionCommitted)
        if isinstance(event, PartExtracted):
            ahead.append(event.task - committed)
    assert max(ahead) == 1


# -- scoring -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evaluators", [2, 5])
def test_predictions_do_not_depend_on_the_number_of_evaluators(
    tmp_path: Path, run: Callable[..., InProcess], evaluators: int
) -> None:
    one = run(tmp_path)
    tables = [results.read_predictions(one.prepared.run_dir)]
    for chunk in (Path(one.prepared.run_dir) / "predictions").iterdir():
        chunk.unlink()
    several = run(tmp_path, evaluators=evaluators)
    tables.append(results.read_predictions(several.prepared.run_dir))
    exact = ["method", "after_task", "task", "sample", "label", "predicted", "routed_task"]
    assert tables[0].select(exact).to_pylist() == tables[1].select(exact).to_pylist()


@pytest.mark.parametrize("evaluators", [1, 2])
@pytest.mark.parametrize("untested", [0, 1, 2])
@pytest.mark.parametrize("recipe", ["local", "tosca"])
def test_tasks_without_test_samples_are_learned_and_left_out_of_scores(
    tmp_path: Path, run: Callable[..., InProcess], evaluators: int, untested: int, recipe: str
) -> None:
    without = ORDER[2 * untested : 2 * untested + 2]
    keep(tmp_path, lambda label, split, _: split == "train" or label not in without)
    done = run(tmp_path, evaluators=evaluators, stream={"class_order": ORDER}, recipe=recipe)
    assert done.outcome.tasks_learned == 3
    assert scored_tasks(done) == [0, 1, 2]
    matrix = results.accuracy_matrix(results.read_predictions(done.prepared.run_dir), "lda")
    tested = [task for task in range(3) if task != untested]
    assert [task for task in range(3) if matrix[2, task] == matrix[2, task]] == tested


def test_a_stream_without_any_test_samples_is_learned(
    tmp_path: Path, run: Callable[..., InProcess]
) -> None:
    keep(tmp_path, lambda label, split, _: split == "train" or label == "c00")
    done = run(tmp_path, stream={"class_order": ORDER[::-1]})
    assert [event.metrics for event in done.events.of(TaskEvaluated)][:2] == [{}, {}]
    assert done.outcome.tasks_learned == 3
    assert run(tmp_path, stream={"class_order": ORDER[::-1]}).outcome.tasks_learned == 0


def test_a_stream_of_one_task_is_learned_and_scored(
    tmp_path: Path, run: Callable[..., InProcess]
) -> None:
    assert scored_tasks(run(tmp_path, stream={"classes_per_task": 6}, evaluators=2)) == [0]


@pytest.mark.parametrize("evaluators", [1, 3])
def test_evaluators_that_start_anew_are_told_again(
    tmp_path: Path, run: Callable[..., InProcess], evaluators: int
) -> None:
    class Restarting(Events):
        def handle(self, event: Any) -> None:
            super().handle(event)
            if isinstance(event, TaskEvaluated):
                self.fleet.restart_evaluators()

    steady = run(tmp_path, storage=str(tmp_path / "steady"), evaluators=evaluators)
    shaken = run(tmp_path, evaluators=evaluators, events=Restarting())
    assert numbers(shaken) == numbers(steady)


# -- resuming ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True])
def test_damaged_predictions_are_made_again(
    tmp_path: Path, run: Callable[..., InProcess], joined: bool
) -> None:
    first = run(tmp_path)
    run_dir = first.prepared.run_dir
    path = run_dir / "predictions/after-00001.parquet"
    whole = results.read_predictions(run_dir).to_pylist()
    if joined:
        results.consolidate_predictions(run_dir)
        path = run_dir / "predictions.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    assert scored_tasks(run(tmp_path)) == ([0, 1, 2] if joined else [1])
    results.consolidate_predictions(run_dir)
    assert repr(results.read_predictions(run_dir).to_pylist()) == repr(whole)


def test_only_predictions_that_are_missing_are_made_again(
    tmp_path: Path, run: Callable[..., InProcess]
) -> None:
    first = run(tmp_path, stream={"classes_per_task": 1})
    before = numbers(first)
    for task in (1, 4):
        (first.prepared.run_dir / "predictions" / f"after-{task:05d}.parquet").unlink()
    second = run(tmp_path, stream={"classes_per_task": 1})
    assert scored_tasks(second) == [1, 4]
    assert second.outcome.tasks_learned == 0
    assert numbers(second) == before


def test_damaged_features_are_mended_wherever_they_are_read(
    tmp_path: Path, run: Callable[..., InProcess]
) -> None:
    first = run(tmp_path, **GATED)
    damage(tmp_path)
    for chunk in (first.prepared.run_dir / "predictions").iterdir():
        chunk.unlink()
    again = run(tmp_path, **GATED)
    assert again.outcome.tasks_learned == 0
    assert scored_tasks(again) == [0, 1, 2]


def test_other_test_samples_are_scored_though_nothing_is_learned(
    tmp_path: Path, run: Callable[..., InProcess]
) -> None:
    order = {"class_order": ORDER}
    keep(tmp_path, lambda label, split, number: (split, label, number) != ("test", "c05", 9))
    first = run(tmp_path, stream=order)
    assert run(tmp_path, stream=order).events.of(TaskEvaluated) == []
    write_features(tmp_path / "features.parquet")
    second = run(tmp_path, stream=order)
    assert second.outcome.digest == first.outcome.digest
    assert scored_tasks(second) == [2]
    counts = results.count(results.read_predictions(second.prepared.run_dir))["lda"]
    assert counts.samples[2].tolist() == [20, 20, 20]


# -- the gate ----------------------------------------------------------------------------------------------------


def test_a_version_is_judged_though_the_run_died_before_it_was_tagged(
    tmp_path: Path, run: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = RegistryImpl.tag

    def refuse_the_last(self: RegistryImpl, name: str, version: int) -> None:
        if version == 3:
            raise StorageError("the disk is full")
        tag(self, name, version)

    with monkeypatch.context() as patch:
        patch.setattr(RegistryImpl, "tag", refuse_the_last)
        with pytest.raises(StorageError):
            run(tmp_path, **GATED)
    assert bank(tmp_path).refs()["production"] == 2
    run(tmp_path, **GATED)
    assert bank(tmp_path).refs()["production"] == 3


def test_scoring_an_old_version_again_does_not_move_the_tag_back(
    tmp_path: Path, run: Callable[..., InProcess]
) -> None:
    first = run(tmp_path, **GATED)
    (first.prepared.run_dir / "predictions" / "after-00000.parquet").unlink()
    again = run(tmp_path, **GATED)
    assert scored_tasks(again) == [0]
    assert bank(tmp_path).refs()["production"] == 3


def test_without_validation_samples_a_version_is_scored_and_not_tagged(
    tmp_path: Path, run: Callable[..., InProcess]
) -> None:
    keep(tmp_path, lambda _, split, number: split == "test" or number == 0)
    done = run(tmp_path, **GATED)
    said = [event.message for event in done.events.of(Notice)]
    assert said == [
        f"version {number} was not judged: its tasks have no validation samples"
        for number in (1, 2, 3)
    ]
    assert "production" not in bank(tmp_path).refs()


# -- room --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", [1, 10])
def test_actors_that_have_no_room_end_the_run_whatever_it_waits_for(
    tmp_path: Path, run: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    looks = 0

    def check_room(self: in_process.LocalFleet) -> None:
        nonlocal looks
        looks += 1
        if looks == look:
            raise ClusterError("there is still no room for 1 CPU")

    with monkeypatch.context() as patch:
        patch.setattr(in_process.LocalFleet, "check_room", check_room)
        with pytest.raises(ClusterError, match="no room for 1 CPU"):
            run(tmp_path)
    assert looks == look
    assert run(tmp_path).outcome.version == 3
