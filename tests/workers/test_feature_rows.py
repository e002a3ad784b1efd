"""Opening feature rows: what was left out as unreadable, what is damaged, and the order of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.workers.storage.bank_cases import quick_disk  # noqa: F401
from workers.errors import DataError, FeatureCorruptionError
from workers.feature_rows import FeatureRows, open_rows
from workers.storage.features import FeatureCache, PartKey
from workers.storage.filesystem import Storage

pytestmark = pytest.mark.usefixtures("quick_disk")

KEYS = tuple(PartKey(backbone="b", part=f"{part:032x}", view=0) for part in range(2))


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    return FeatureCache(Storage.open(str(tmp_path)))


def write(cache: FeatureCache, part: int, samples: list[int], view: int = 0) -> None:
    """Part ``part`` with those of its samples; sample i of part p has the feature [p, i, view]."""
    features = np.array([[part, i, view] for i in samples], dtype=np.float32).reshape(-1, 3)
    key = PartKey(backbone="b", part=KEYS[part].part, view=view)
    cache.write(key, [f"{part}-{i}" for i in samples], features)


def rows(tolerance: int = 0) -> FeatureRows:
    """Samples 2, 0 of part 1 and 1, 2 of part 0; each part has three."""
    part, row = np.array([1, 1, 0, 0]), np.array([2, 0, 1, 2])
    ids = pa.array([f"{p}-{i}" for p, i in zip(part, row, strict=True)])
    return FeatureRows(KEYS, np.array([3, 3]), part, row, 10 * part + row, ids, KEYS, tolerance)


def test_rows_come_in_the_order_asked_whatever_the_parts(cache: FeatureCache) -> None:
    for part in range(2):
        write(cache, part, [0, 1, 2])
    opened = open_rows(cache, rows())
    assert opened.features.gather(np.arange(4))[:, :2].tolist() == [[1, 2], [1, 0], [0, 1], [0, 2]]
    assert opened.labels.tolist() == [12, 10, 1, 2]


@pytest.mark.parametrize("view", [0, 2])
def test_samples_left_out_within_the_tolerance_are_left_out_of_everything(
    cache: FeatureCache, view: int
) -> None:
    write(cache, 0, [0, 2], view)
    write(cache, 1, [1, 2], view)
    opened = open_rows(cache, rows(tolerance=2), view=view)
    assert opened.features.gather(np.arange(2)).tolist() == [[1, 2, view], [0, 2, view]]
    assert opened.labels.tolist() == [12, 2]
    assert opened.ids.to_pylist() == ["1-2", "0-2"]


def test_parts_of_a_run_that_tolerated_more_are_looked_at_again(cache: FeatureCache) -> None:
    write(cache, 0, [0, 2])
    write(cache, 1, [1, 2])
    with pytest.raises(FeatureCorruptionError, match=r"lack 2 samples, .*tolerate_unreadable is 1"):
        open_rows(cache, rows(tolerance=1))


def test_a_task_of_which_nothing_can_be_read_is_refused(cache: FeatureCache) -> None:
    write(cache, 0, [0])
    write(cache, 1, [1])
    with pytest.raises(DataError, match="every sample of a task was skipped"):
        open_rows(cache, rows(tolerance=9))


def test_a_part_that_is_gone_has_to_be_extracted_again(cache: FeatureCache) -> None:
    write(cache, 0, [0, 1, 2])
    with pytest.raises(FeatureCorruptionError, match=KEYS[1].part):
        open_rows(cache, rows())


def test_tables_at_hand_are_used_instead_of_storage(cache: FeatureCache) -> None:
    for part in range(2):
        write(cache, part, [0, 1, 2])
    tables = {KEYS[1]: cache.read(KEYS[1]).to_table()}
    assert cache.storage.delete(KEYS[1].path)
    assert open_rows(cache, rows(), tables=tables).labels.tolist() == [12, 10, 1, 2]
