"""Shared by the tests of commands: the command line in this process, and a small real bank for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cli import app, guarded
from tests.helpers import features_experiment
from tests.orchestrator.commands.learned_banks import learn
from workers.storage.bank import Bank
from workers.storage.filesystem import Storage


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str


Luca = Callable[..., Answer]


@pytest.fixture
def luca(capsys: pytest.CaptureFixture[str]) -> Luca:
    """``luca("bank", "list", ...)`` as if typed, in this process."""

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        code = guarded(lambda: app(args=[str(a) for a in arguments], standalone_mode=False))
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with features and bank "tiny" of three tasks of two classes, learned once."""
    folder = tmp_path_factory.mktemp("learned")
    learn(features_experiment(folder))
    return folder


@pytest.fixture
def folder(learned: Path, tmp_path: Path) -> Path:
    """A copy of it that the test may change."""
    shutil.copytree(learned, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def storage(folder: Path) -> str:
    """Its storage, as given to --storage."""
    return str(folder / "storage")


@pytest.fixture
def tiny(storage: str) -> Bank:
    """Its bank."""
    return Bank.open(Storage.open(storage), "tiny")
