"""Our numbers against those of the published classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.parity.__main__ import main
from tests.parity.check import check_folder

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="module")
def deviations():
    return {deviation.quantity: deviation for deviation in check_folder(FIXTURES)}


def test_every_recorded_quantity_is_matched(deviations):
    failed = [deviation for deviation in deviations.values() if not deviation.passed]
    assert failed == []


def test_all_flows_and_tasks_are_compared(deviations):
    for flow in ("tosca", "tosca_r", "adapter", "calibrator"):
        assert f"forward:{flow}.output" in deviations
    for task in range(3):
        for quantity in ("loss", "final.se.0.weight", "final.head", "final.sigma"):
            assert f"stream:task{task}.{quantity}" in deviations
        for quantity in ("entropy", "pred_batch48", "module_per_sample", "pred_per_sample"):
            assert f"stream:task{task}.eval.{quantity}" in deviations


def test_agreement_is_far_closer_than_asked(deviations):
    assert max(deviation.relative for deviation in deviations.values()) < 1e-8


def test_the_command_prints_deviations_and_exits_with_0():
    command = [sys.executable, "-m", "tests.parity", str(FIXTURES)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stream:task2.eval.entropy" in done.stdout
    assert "0 outside rtol 1e-06" in done.stdout


@pytest.mark.parametrize(
    ("quantity", "change"), [("task1.loss", 1e-5), ("task2.eval.pred_per_sample", 1)]
)
def test_numbers_that_differ_are_named_and_give_1(tmp_path, capsys, quantity, change):
    (tmp_path / "forward.npz").write_bytes((FIXTURES / "forward.npz").read_bytes())
    with np.load(FIXTURES / "stream.npz") as stream:
        arrays = dict(stream)
    arrays[quantity] = arrays[quantity].copy()
    arrays[quantity][3] += change
    np.savez(tmp_path / "stream.npz", **arrays)
    assert main([str(tmp_path)]) == 1
    failed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert failed == [f"stream:{quantity}"]


def copied(folder: Path, file: str = "stream.npz", change=None) -> str:
    """A copy of the fixtures in which ``change`` was made to one file's arrays."""
    for name in ("forward.npz", "stream.npz"):
        (folder / name).write_bytes((FIXTURES / name).read_bytes())
    if change is not None:
        with np.load(FIXTURES / file) as stored:
            arrays = dict(stored)
        change(arrays)
        np.savez(folder / file, **arrays)
    return str(folder)


def drop(beginning: str):
    def change(arrays):
        for name in [name for name in arrays if name.startswith(beginning)]:
            del arrays[name]

    return change


def test_missing_files_are_named(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 1
    assert "has no forward.npz; give a folder with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("stream.npz", drop("task1.init.head"), "no array 'task1.init.head'"),
        ("stream.npz", drop("task0."), "no array 'task0.init.head'"),
        ("stream.npz", drop("task"), "no array 'task0.init.head'"),
        ("forward.npz", drop(""), "no array FLOW.input"),
        ("forward.npz", drop("adapter.output"), "no array 'adapter.output'"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_no_success(tmp_path, capsys, file, change, words):
    assert main([copied(tmp_path, file, change)]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"text", (FIXTURES / "stream.npz").read_bytes()[:5000]])
def test_files_that_are_no_arrays_are_named(tmp_path, capsys, content):
    folder = copied(tmp_path)
    (tmp_path / "stream.npz").write_bytes(content)
    assert main([folder]) == 1
    assert "stream.npz is not a readable .npz file" in capsys.readouterr().err


def test_a_quantity_of_another_size_differs(tmp_path, capsys):
    def shorten(arrays):
        arrays["task2.eval.pred_per_sample"] = arrays["task2.eval.pred_per_sample"][:-1]

    assert main([copied(tmp_path, change=shorten)]) == 1
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if "FAILED" in line] == [
        "stream:task2.eval.pred_per_sample"
    ]
