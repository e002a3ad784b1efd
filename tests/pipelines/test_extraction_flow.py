"""The feature flow without Ray: each part is asked for once, and those who wait are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from pipelines.extraction import REPEATS, FeatureFlow
from workers.errors import DataError, FeatureCorruptionError
from workers.extraction import PartRequest, PartResult
from workers.storage.features import FeatureCache, PartKey
from workers.storage.filesystem import Storage

TABLE = pa.table({"id": pa.array([], pa.string())})
SAMPLES = 4


class Plan:
    """Parts of four samples each; sample ``n`` lies in part ``n // 4``."""

    parts = tuple(type("Part", (), {"rows": np.arange(SAMPLES)}) for _ in range(9))

    def parts_of(self, rows: np.ndarray[Any, Any]) -> list[int]:
        return sorted({int(row) // SAMPLES for row in rows})

    def key(self, part: int, view: int, backbone: str) -> PartKey:
        return PartKey(backbone=backbone, part=f"{part:032x}", view=view)

    def samples_of(self, part: int) -> int:
        return part


class Shards:
    """A pool whose calls are noted and answered by the test."""

    def __init__(self) -> None:
        self.asked: list[PartRequest] = []
        self._done: list[Callable[[PartResult], None]] = []

    def submit(self, call: Callable[[Any], Any], done: Callable[[PartResult], None]) -> None:
        assert call(self) == "facts"
        self._done.append(done)

    # as a data shard
    @property
    def extract(self) -> Shards:
        return self

    def options(self, *, num_returns: int) -> Shards:
        assert num_returns == 2
        return self

    def remote(self, request: PartRequest) -> tuple[str, str]:
        self.asked.append(request)
        return "facts", f"table of part {request.samples} view {request.view}"

    def answer(self, **facts: Any) -> None:
        """Answer every call that is under way."""
        done, self._done = self._done, []
        for each, request in zip(done, self.asked[-len(done) :], strict=True):
            key = Plan().key(cast(int, request.samples), request.view, "b")
            each(PartResult(key=key, table=TABLE, **facts))


class Case:
    def __init__(self, folder: Path, **changes: Any) -> None:
        self.shards, self.ready = Shards(), list[str]()
        self.cache = FeatureCache(Storage.open(str(folder)))
        settings = {"views": 0, "tolerance": 0, "hand_on": False, **changes}
        self.flow = FeatureFlow(
            cast(Any, Plan()),
            cast(Any, self.shards),
            self.cache,
            backbone="b",
            extracted=lambda *_: None,
            **settings,
        )

    def keys(self, *parts: int) -> list[tuple[int, PartKey]]:
        return [(part, Plan().key(part, 0, "b")) for part in parts]

    def need(self, name: str, *parts: int) -> None:
        self.flow.need(0, self.keys(*parts), lambda: self.ready.append(name))

    @property
    def asked(self) -> list[int]:
        return [cast(int, request.samples) for request in self.shards.asked]


def test_a_part_that_is_named_twice_is_extracted_once(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.need("train and validation", 0, 1, 1, 0)
    case.need("test", 1, 2)
    assert case.asked == [0, 1, 2]
    case.shards.answer()
    assert case.ready == ["train and validation", "test"]
    case.flow.again(0, case.keys(1, 1), lambda: case.ready.append("again"))
    assert case.asked == [0, 1, 2, 1]
    case.shards.answer()
    assert case.ready[-1] == "again"


def test_hits_are_parts_found_and_misses_parts_made(tmp_path: Path) -> None:
    case = Case(tmp_path)
    ids = [f"s{i}" for i in range(SAMPLES)]
    case.cache.write(case.keys(0)[0][1], ids, np.zeros((SAMPLES, 2), np.float32))
    assert [part for part, _ in case.flow.missing(case.keys(0, 1))] == [1]
    for name in ("learning", "scoring", "scoring again"):
        case.need(name, 0, 1)
        case.shards.answer(images=SAMPLES) if case.shards._done else None
    assert case.ready == ["learning", "scoring", "scoring again"]
    assert (case.flow.cached_parts, case.flow.computed_parts) == (1, 1)


def test_parts_that_are_destroyed_again_and_again_end_in_a_sentence(tmp_path: Path) -> None:
    case = Case(tmp_path)
    for _ in range(REPEATS):
        case.flow.again(3, case.keys(0), lambda: None)
        case.shards.answer()
    with pytest.raises(FeatureCorruptionError, match=r"task 3 .* every node sees the same storage"):
        case.flow.again(3, case.keys(0), lambda: None)


def test_more_unreadable_samples_than_tolerated_stop_the_run(tmp_path: Path) -> None:
    case = Case(tmp_path, tolerance=2)
    case.need("task", 0)
    case.shards.answer(skipped=("s1: not a picture", "s2: not a picture"))
    case.need("next", 1)
    with pytest.raises(DataError, match=r"s5: torn \(3 unreadable samples so far"):
        case.shards.answer(skipped=("s5: torn",))


def test_tables_are_kept_until_they_are_let_go(tmp_path: Path) -> None:
    class Rows:
        def keys_of_view(self, view: int) -> tuple[PartKey, ...]:
            return (Plan().key(0, view, "b"),)

    case = Case(tmp_path, hand_on=True)
    case.need("task", 0)
    keys, tables = case.flow.tables(cast(Any, Rows()), 1)
    assert tables == ["table of part 0 view 0"]
    case.flow.let_go(keys)
    assert case.flow.tables(cast(Any, Rows()), 1) == ((), [])
