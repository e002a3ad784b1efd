"""Benchmarks: what is offered can be run, and sizes are as stated."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from infra.benchmarks.__main__ import BENCHMARKS
from infra.benchmarks.orchestration import write_stream


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_that_is_offered_can_be_run(name: str) -> None:
    module = importlib.import_module(f"infra.benchmarks.{name}")
    assert list(inspect.signature(module.run).parameters) == ["long"]


def test_runs_under_fire_need_nothing_that_only_tests_need() -> None:
    code = (
        "import sys\n"
        "for name in ('pytest', 'hypothesis', 'moto'): sys.modules[name] = None\n"
        "import infra.benchmarks.chaos"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(("tested", "test_rows"), [(None, 12), (1, 3)])
def test_only_so_many_tasks_have_test_samples(
    tmp_path: Path, tested: int | None, test_rows: int
) -> None:
    write_stream(tmp_path / "s.parquet", classes=4, train=8, test=3, tested=tested)
    splits = pq.read_table(tmp_path / "s.parquet")["split"].to_pylist()
    assert (splits.count("train"), splits.count("test")) == (32, test_rows)
