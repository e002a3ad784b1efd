"""A run's folder beside a remote storage."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from orchestrator.commands import run as run_module
from orchestrator.run_folder import fetch_run, publish_run
from tests.helpers import features_experiment
from workers.errors import DataError, StorageError
from workers.storage.filesystem import Storage

FILES = {"events.jsonl": b"one\n", "predictions/after-00000.parquet": b"two", "summary.json": b"{}"}


@pytest.fixture
def storage() -> Storage:
    return Storage.open((pafs._MockFileSystem(), "root"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "here" / "demo"
    for name, data in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(data)
    return made


def files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_a_published_run_is_fetched_elsewhere_as_it_was(
    storage: Storage, folder: Path, tmp_path: Path
) -> None:
    publish_run("demo", storage, folder)
    fetch_run("demo", storage, tmp_path / "there" / "demo")
    assert files(tmp_path / "there") == {f"demo/{name}": data for name, data in FILES.items()}


def test_a_run_that_was_fetched_in_part_is_fetched_again(
    storage: Storage, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_run("demo", storage, folder)
    read = Storage.read_bytes

    def lost(self: Storage, path: str) -> bytes:
        if path.endswith("summary.json"):
            raise StorageError("the network is gone")
        return read(self, path)

    there = tmp_path / "there" / "demo"
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "read_bytes", lost)
        with pytest.raises(StorageError):
            fetch_run("demo", storage, there)
    assert not there.exists()
    fetch_run("demo", storage, there)
    assert files(tmp_path / "there") == {f"demo/{name}": data for name, data in FILES.items()}


def test_what_is_here_already_stays(storage: Storage, folder: Path) -> None:
    publish_run("demo", storage, folder)
    (folder / "events.jsonl").write_bytes(b"newer")
    fetch_run("demo", storage, folder)
    assert (folder / "events.jsonl").read_bytes() == b"newer"


def test_a_run_that_nobody_published_leaves_nothing_here(storage: Storage, tmp_path: Path) -> None:
    fetch_run("demo", storage, tmp_path / "there" / "demo")
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    ("error", "status"), [(DataError("a bad picture"), "failed"), (KeyboardInterrupt(), "stopped")]
)
def test_a_run_that_ends_badly_is_published_with_its_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: str
) -> None:
    published: list[str] = []

    def publish(_run: str, _storage: Storage, folder: Path) -> None:
        published.append((folder / "events.jsonl").read_text().splitlines()[-1])
        raise StorageError("the storage is gone too")

    def learn(*_: object) -> None:
        monkeypatch.setattr(run_module, "publish_run", publish)
        raise error

    monkeypatch.setattr(run_module, "_learn_and_score", learn)
    with pytest.raises(type(error)):
        run_module.run_experiment(features_experiment(tmp_path), console=False)
    assert [json.loads(last)["status"] for last in published] == [status]
