"""Records of trials in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.search.ledger import SweepLedger, TrialRecord
from workers.errors import CorruptionError
from workers.storage.filesystem import Storage


def ledger(folder: Path) -> SweepLedger:
    return SweepLedger(Storage.open(str(folder)), "sweeps/one")


def record(number: int, accuracies: tuple[float, ...] = (0.5,)) -> TrialRecord:
    return TrialRecord(
        number=number,
        settings={"learning.l1": 1e-05, "evaluation.routers": ["lda"]},
        digest="d",
        status="finished",
        tasks=3,
        validation_accuracy=sum(accuracies) / len(accuracies),
        accuracies=accuracies,
        nonzero_parameters=12,
        stored_parameters=20,
        curve=(1.0, 0.75, 0.5),
        sizes=(4.0, 8.0, 12.0),
        seconds=1.5,
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = [record(0), record(3, (0.4, 0.6)), TrialRecord(number=11, settings={}, digest="")]
    for one in written:
        ledger(tmp_path).put(one)
    assert ledger(tmp_path).read() == {one.number: one for one in written}
    assert ledger(tmp_path).read()[0].seconds == 1.5


def test_a_record_is_replaced_whole(tmp_path: Path) -> None:
    ledger(tmp_path).put(TrialRecord(number=2, settings={}, digest=""))
    ledger(tmp_path).put(record(2))
    assert ledger(tmp_path).read() == {2: record(2)}


def test_half_written_files_are_not_read(tmp_path: Path) -> None:
    ledger(tmp_path).put(record(1))
    folder = tmp_path / "sweeps" / "one" / "trials"
    (folder / ".t002.json.0123.tmp").write_text('{"number":')
    assert list(ledger(tmp_path).read()) == [1]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    ledger(tmp_path).put(record(1))
    path = tmp_path / "sweeps" / "one" / "trials" / "t001.json"
    path.write_text("[1, 2]")
    with pytest.raises(CorruptionError, match=r"t001\.json"):
        ledger(tmp_path).read()


def test_spread_is_that_of_a_sample() -> None:
    assert record(0).spread is None
    spread = record(0, (0.4, 0.6)).spread
    assert spread is not None
    assert abs(spread - 0.02**0.5) < 1e-12
