"""Calling actors: what errors become, and how many calls an actor is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from pipelines.actors import ActorPool, fetch, value_of
from workers.errors import ClusterError, LucaError, StorageError


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def get(reference: object) -> None:
        raise error

    monkeypatch.setattr("ray.get", get)


def task_error(cause: Exception) -> Exception:
    from ray.exceptions import RayTaskError

    error: Exception = RayTaskError("ray::TrainerImpl.learn()", f"Traceback ...\n{cause!r}", cause)
    return error


def test_an_error_for_the_user_arrives_as_the_actor_raised_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raising(monkeypatch, task_error(StorageError("disk is full; free some space")))
    with pytest.raises(StorageError, match=r"^disk is full; free some space$"):
        fetch("reference")


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.exceptions import RayTaskError

    raising(monkeypatch, task_error(ZeroDivisionError("division by zero")))
    with pytest.raises(RayTaskError, match="division by zero"):
        fetch("reference")


def test_a_lost_actor_is_one_sentence_that_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.exceptions import RayActorError

    raising(monkeypatch, RayActorError(None, "The actor died unexpectedly.\n\tclass_name: X"))
    with pytest.raises(ClusterError) as caught:
        fetch("reference")
    assert "(The actor died unexpectedly.)" in str(caught.value)
    assert "the same command continues" in str(caught.value)


def test_what_a_constructor_raised_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.exceptions import ActorDiedError

    raising(monkeypatch, ActorDiedError(cast(Any, task_error(ImportError("no module timm")))))
    with pytest.raises(ClusterError, match="no module timm"):
        fetch("reference")


class Waiting:
    """A loop whose references the test finishes."""

    def __init__(self) -> None:
        self.pending: dict[str, tuple[Callable[[Any], None], Any]] = {}

    def watch(self, reference: str, done: Callable[[Any], None], failed: Any = None) -> None:
        self.pending[reference] = (done, failed)


def pool(actors: int, depth: int = 2) -> tuple[ActorPool, Waiting, list[str]]:
    loop = Waiting()
    return ActorPool(cast(Any, loop), [f"actor {i}" for i in range(actors)], depth=depth), loop, []


def submit(pooled: ActorPool, name: str, done: list[str], failed: Any = None) -> None:
    pooled.submit(lambda actor: f"{name} on {actor}", lambda value: done.append(value), failed)


def test_an_actor_holds_only_so_many_calls_and_the_rest_waits_in_order() -> None:
    pooled, loop, done = pool(2)
    for number in range(6):
        submit(pooled, f"call {number}", done)
    assert sorted(loop.pending) == [f"call {n} on actor {n % 2}" for n in range(4)]
    loop.pending.pop("call 1 on actor 1")[0]("value 1")
    assert done == ["value 1"]
    assert sorted(loop.pending) == [
        "call 0 on actor 0",
        "call 2 on actor 0",
        "call 3 on actor 1",
        "call 4 on actor 1",
    ]


def test_a_failed_call_makes_room_and_is_taken_care_of_or_not() -> None:
    pooled, loop, done = pool(1, depth=1)
    errors: list[LucaError] = []

    def mend(error: LucaError) -> bool:
        errors.append(error)
        return True

    submit(pooled, "first", done, mend)
    submit(pooled, "second", done)
    error = LucaError("damaged")
    assert loop.pending.pop("first on actor 0")[1](error) is True
    assert errors == [error]
    assert loop.pending.pop("second on actor 0")[1](error) is False
    submit(pooled, "third", done)
    assert list(loop.pending) == ["third on actor 0"]


def test_one_value_is_waited_for_while_the_rest_goes_on() -> None:
    loop = Waiting()
    answers = iter([("rest", "other"), ("asked", "mine")])
    done: list[str] = []
    loop.watch("rest", done.append)

    def turn() -> None:
        reference, value = next(answers)
        loop.pending.pop(reference)[0](value)

    assert value_of("asked", cast(Any, loop), turn) == "mine"
    assert done == ["other"]


def test_waiting_for_a_value_ends_with_what_the_turn_raises() -> None:
    def turn() -> None:
        raise ClusterError("no room")

    with pytest.raises(ClusterError, match="no room"):
        value_of("asked", cast(Any, Waiting()), turn)
