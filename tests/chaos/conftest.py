"""The small stream that everything here runs, and what it comes to when nobody disturbs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands.run import run_experiment
from orchestrator.experiment_files import load_experiment
from tests.chaos.runs import Outcome, Place, features_stream, place

TASKS = 8


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Learned tasks are large enough to lie in the object store of the node that learned them."""
    folder = tmp_path_factory.mktemp("chaos")
    with place(folder, slow_stream(folder)) as made:
        yield made


@pytest.fixture(scope="session")
def undisturbed(stream: Place, ray_session: object) -> Outcome:
    """What every disturbed run must come to."""
    return run_here(stream, stream.folder / "undisturbed")


def slow_stream(folder: Path) -> dict[str, Any]:
    """Learning takes a quarter of a second a task, so that a run can be met half way."""
    return features_stream(folder, tasks=TASKS, width=160, learning={"epochs": 40})


def run_here(stream: Place, storage: Path) -> Outcome:
    """Run in this process, on the session's Ray."""
    experiment = load_experiment(str(stream.experiment), [f"storage={storage}"])
    return Outcome.of(run_experiment(experiment, console=False))
