"""What the gate measures, notes and tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from orchestrator import gate as module
from orchestrator.gate import Gate
from tests.helpers import features_experiment
from workers.learned import Committed
from workers.scored import MethodPredictions, Scored

TASKS = ("first", "second", "third")


class Registry:
    def __init__(self) -> None:
        self.notes: dict[int, Any] = {}
        self.tagged: list[int] = []

    @property
    def annotate(self) -> Any:
        return Call(lambda version, metrics: self.notes.__setitem__(version, metrics))

    @property
    def tag(self) -> Any:
        return Call(lambda _, version: self.tagged.append(version))


class Call:
    def __init__(self, remote: Any) -> None:
        self.remote = remote


class Version:
    def __init__(self, metrics: dict[str, Any]) -> None:
        self.metrics = metrics


class Case:
    """A gate over a bank that holds versions with these metrics."""

    def __init__(self, folder: Path, bounds: dict[str, float], *metrics: Any, tagged: int = 0):
        self.registry, self.said = Registry(), list[str]()
        experiment = features_experiment(
            folder,
            gate=bounds,
            stream={"validation_fraction": 0.2},
            evaluation={"routers": ["lda"]},
        )
        bank = type("Bank", (), {"refs": lambda _: {"production": tagged} if tagged else {}})()
        tracker = type("Tracker", (), {"handle": lambda _, event: self.said.append(event.message)})
        self.gate = Gate(
            experiment,
            self.registry,
            cast(Any, tracker()),
            tasks=TASKS,
            bank=bank,
            versions={i + 1: cast(Any, Version(each)) for i, each in enumerate(metrics)},
        )

    def judge(self, *right: float) -> None:
        """Judge the version behind ten samples a task, of which these shares are right."""
        after = len(right) - 1
        hits = np.concatenate([np.arange(10) < 10 * share for share in right]).astype(np.int64)
        task = np.repeat(np.arange(after + 1), 10)
        made = MethodPredictions(predicted=hits)
        scored = Scored(task, pa.array([""] * len(task)), np.ones_like(task), {"lda": made})
        self.gate.judge(after, Committed(after + 1, "d", after + 1), scored)

    def noted(self, version: int) -> dict[str, Any]:
        noted: dict[str, Any] = self.registry.notes[version]["validation"]
        return noted


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fetch", lambda value: value)


def test_forgetting_is_the_mean_drop_from_the_best_so_far(tmp_path: Path) -> None:
    case = Case(tmp_path, {"max_forgetting": 0.25})
    case.judge(0.9)
    case.judge(1.0, 0.8)
    case.judge(0.5, 0.8, 0.1)
    assert [case.noted(version)["forgetting"] for version in (1, 2)] == pytest.approx([0.0, -0.1])
    assert case.noted(3)["forgetting"] == pytest.approx((1.0 - 0.5 + 0.8 - 0.8) / 2)
    assert case.registry.tagged == [1, 2, 3]


def test_a_run_that_adds_one_task_knows_what_the_bank_could_do_before(tmp_path: Path) -> None:
    before = Case(tmp_path, {"max_forgetting": 0.1})
    before.judge(0.9)
    before.judge(0.9, 0.8)
    now = Case(tmp_path, {"max_forgetting": 0.1}, *(before.registry.notes[v] for v in (1, 2)))
    now.judge(0.4, 0.8, 1.0)
    assert now.noted(3)["forgetting"] == pytest.approx(0.25)
    assert now.registry.tagged == []
    assert now.said == [
        "version 3 was not tagged 'production': on validation forgetting 0.2500 is above 0.1"
    ]


def test_a_version_that_is_judged_late_counts_from_then_on_and_by_those_before_it(
    tmp_path: Path,
) -> None:
    case = Case(tmp_path, {"max_forgetting": 0.9})
    case.judge(0.5)
    case.judge(0.4, 0.3, 0.9)
    case.judge(1.0, 0.8)
    assert case.noted(2)["forgetting"] == pytest.approx(-0.5)
    case.judge(0.4, 0.3, 0.9)
    assert case.noted(3)["forgetting"] == pytest.approx((1.0 - 0.4 + 0.8 - 0.3) / 2)


@pytest.mark.parametrize(
    "noted", [{}, {"validation": 3}, {"validation": {"router": "lda", "accuracy": 0.9}}]
)
def test_versions_of_which_nothing_is_noted_bound_nothing(tmp_path: Path, noted: Any) -> None:
    case = Case(tmp_path, {"max_forgetting": 0.1}, noted)
    case.judge(0.4, 0.8)
    assert case.registry.tagged == [2]


def test_what_another_router_reached_is_no_bound(tmp_path: Path) -> None:
    noted = {"validation": {"router": "ridge", "accuracy_by_task": {"first": 1.0}}}
    case = Case(tmp_path, {"max_forgetting": 0.1}, noted)
    case.judge(0.4, 0.8)
    assert case.registry.tagged == [2]


def test_the_tag_moves_to_newer_versions_only(tmp_path: Path) -> None:
    case = Case(tmp_path, {"min_accuracy": 0.5}, tagged=2)
    case.judge(0.9)
    case.judge(0.9, 0.9)
    assert case.registry.tagged == []
    case.judge(0.9, 0.9, 0.9)
    assert case.registry.tagged == [3]
