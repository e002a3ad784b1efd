"""Banks that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.commands.command_line import CommandLine
from tests.orchestrator.small_bank import feature_bank, picture_bank


@pytest.fixture(scope="session")
def bank_storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the banks "colours" and "vectors"; tests only read it."""
    storage = tmp_path_factory.mktemp("banks")
    picture_bank(storage)
    feature_bank(storage)
    return storage


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Runs ``luca`` inside this process."""
    return CommandLine(capsys)
