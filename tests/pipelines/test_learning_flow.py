"""The learning flow without Ray: in which order work is given out and results are committed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from pipelines.learning import LearningFlow, LearningPlan
from workers.errors import FeatureCorruptionError, LucaError
from workers.learned import Committed, LearnInfo


class Calls:
    """An actor whose calls are noted and answered by the test; a loop and a pool that hold what is under way."""

    def __init__(self) -> None:
        self.watched: dict[str, Callable[[Any], None]] = {}
        self.submitted: dict[str, tuple[Callable[[Any], None], Callable[[LucaError], bool]]] = {}

    # as the loop
    def watch(self, reference: str, done: Callable[[Any], None], failed: Any = None) -> None:
        self.watched[reference] = done

    def answer(self, reference: str, value: object) -> None:
        self.watched.pop(reference)(value)

    # as the pool of trainers and the fleet
    def pool(self, kind: str, loop: object) -> Calls:
        return self

    def submit(self, call: Callable[[Any], Any], done: Any, failed: Any) -> None:
        self.submitted[call(Trainer())] = (done, failed)

    def learned(self, task: int) -> None:
        done, _ = self.submitted.pop(f"info of {task}")
        done(info(task))


@dataclass
class Remote:
    """One method of an actor."""

    call: Callable[..., Any]

    def remote(self, *arguments: Any) -> Any:
        return self.call(*arguments)

    def options(self, **_: Any) -> Remote:
        return self


class Trainer:
    learn = Remote(
        lambda request, whitening, head, keys, *tables: [
            f"info of {request.task}",
            f"arrays of {request.task}",
            f"head after {request.task} from {head}",
        ]
    )
    whitening = Remote(lambda request, keys, *tables: "whitening asked")


@dataclass
class Registry:
    told: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def commit(self) -> Remote:
        def call(header: str, arrays: str, whitening: object) -> str:
            self.told.append((header, arrays, whitening))
            return f"commit of {header}"

        return Remote(call)


@dataclass
class Request:
    task: int
    rows: None = None
    views: int = 0


class Features:
    def __init__(self) -> None:
        self.asked_again: list[int] = []

    def tables(self, rows: object, views: int) -> tuple[tuple[()], list[Any]]:
        return (), []

    def let_go(self, keys: object) -> None: ...

    def again(self, task: int, keys: object, ready: Callable[[], None]) -> None:
        self.asked_again.append(task)
        ready()


def info(task: int) -> LearnInfo:
    return LearnInfo(str(task), 1, 1, (0.5,), 1, 1, 4, 4, 0.0, 0.1)


@dataclass
class Case:
    """A flow over recorded calls."""

    unified: bool = False
    whiten: bool = False
    first: int = 0

    def __post_init__(self) -> None:
        self.calls, self.registry, self.features = Calls(), Registry(), Features()
        self.committed: list[int] = []
        plan = LearningPlan(
            requests=cast(Any, Request),
            headers=cast(Any, lambda task, _: f"task {task}"),
            keys=lambda _: [],
            first=self.first,
            unified=self.unified,
            whiten=self.whiten,
        )
        self.flow = LearningFlow(
            plan,
            cast(Any, self.calls),
            cast(Any, self.calls),
            self.registry,
            cast(Any, self.features),
            learned=lambda *_: None,
            committed=lambda task, _: self.committed.append(task),
        )

    def confirm(self, task: int) -> None:
        self.calls.answer(f"commit of task {task}", Committed(task + 1, "d", task + 1))

    @property
    def headers(self) -> list[str]:
        return [header for header, _, _ in self.registry.told]


def test_a_commit_waits_until_the_one_before_is_confirmed() -> None:
    case = Case()
    for task in range(3):
        case.flow.learn(task)
    for task in (2, 1, 0):
        case.calls.learned(task)
    assert case.headers == ["task 0"]
    case.confirm(0)
    assert case.headers == ["task 0", "task 1"]
    case.confirm(1)
    case.confirm(2)
    assert case.headers == ["task 0", "task 1", "task 2"]
    assert case.committed == [2, 1, 0][::-1]


def test_commits_start_behind_what_the_bank_has() -> None:
    case = Case(first=4)
    case.flow.learn(5)
    case.flow.learn(4)
    case.calls.learned(5)
    assert case.headers == []
    case.calls.learned(4)
    case.confirm(4)
    assert case.headers == ["task 4", "task 5"]


def test_with_a_unified_head_each_task_starts_from_the_one_before() -> None:
    case = Case(unified=True)
    case.flow.learn(1)
    assert case.calls.submitted == {}
    case.flow.learn(0)
    assert list(case.calls.submitted) == ["info of 0"]
    case.calls.learned(0)
    assert list(case.calls.submitted) == ["info of 1"]


def test_nothing_is_learned_before_the_whitening_is_known() -> None:
    case = Case(whiten=True)
    case.flow.learn(1)
    assert case.calls.submitted == {}
    case.flow.learn(0)
    done, _ = case.calls.submitted.pop("whitening asked")
    done({"mean": 0})
    assert sorted(case.calls.submitted) == ["info of 0", "info of 1"]
    case.calls.learned(0)
    assert case.registry.told[0][2] == {"mean": 0}


def test_damaged_features_are_extracted_and_the_task_learned_again() -> None:
    case = Case()
    case.flow.learn(0)
    _, failed = case.calls.submitted.pop("info of 0")
    assert failed(FeatureCorruptionError("part is damaged"))
    assert case.features.asked_again == [0]
    assert list(case.calls.submitted) == ["info of 0"]
    _, failed = case.calls.submitted.pop("info of 0")
    assert not failed(LucaError("something else"))
