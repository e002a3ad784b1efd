"""Session folders of killed drivers go at the next start; everybody else's stay."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.cluster.leftovers import OWNER, new_session_folder, remove_leftovers


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder that sessions are made in."""
    with tempfile.TemporaryDirectory(prefix="lt-", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def left_by_a_dead_process(base: Path) -> Path:
    code = "from pipelines.cluster.leftovers import new_session_folder; print(new_session_folder())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip())
    (folder / "session" / "logs").mkdir(parents=True)
    (folder / "session" / "logs" / "raylet.out").write_text("log")
    assert folder.parent == base
    return folder


def test_a_new_session_removes_what_the_dead_left_and_nothing_of_the_living(base: Path) -> None:
    mine = new_session_folder()
    dead = left_by_a_dead_process(base)
    assert mine.is_dir()
    another = new_session_folder()
    assert not dead.exists()
    assert sorted(base.iterdir()) == sorted([mine, another])


def test_a_process_number_that_was_given_again_does_not_keep_a_folder(base: Path) -> None:
    folder = new_session_folder()
    mark = json.loads((folder / OWNER).read_text())
    (folder / OWNER).write_text(json.dumps({**mark, "born": "1"}))
    remove_leftovers(base)
    assert not folder.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"machine": "m"}', '{"machine": "elsewhere", "pid": 1, "born": "1"}']
)
def test_folders_of_other_machines_and_unreadable_marks_stay(base: Path, text: str) -> None:
    folder = base / "luca-other"
    folder.mkdir()
    (folder / OWNER).write_text(text)
    unmarked = base / "luca-unmarked"
    unmarked.mkdir()
    remove_leftovers(base)
    assert folder.is_dir()
    assert unmarked.is_dir()
