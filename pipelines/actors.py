"""Calling actors without blocking: one loop of pending calls, and pools that never let a queue grow.

Everything the driver starts is watched here.  A pool gives each actor a small number of calls at a time and
keeps the rest as plain Python values on the driver, so that the cluster never holds an unbounded queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from workers.errors import ClusterError, LucaError

Done = Callable[[Any], None]
Failed = Callable[[LucaError], bool]
"""Told what an actor raised; whether it took care of it."""
Call = Callable[[Any], Any]
"""Given an actor, starts a call and returns its reference (the first of several returns)."""


def starting(reader: str) -> str:
    """The sentence said before actors start, which takes as long as their imports and the backbone's weights."""
    return "starting actors" + (" and loading the backbone" if reader == "images" else "")


class Loop:
    """Pending references and what to do when each is there.  Callbacks run on the driver, one at a time."""

    def __init__(self) -> None:
        self._pending: dict[Any, tuple[Done, Failed | None]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def watch(self, reference: Any, done: Done, failed: Failed | None = None) -> None:
        """Call ``done(value)`` once ``reference`` can be had, or ``failed(error)``."""
        self._pending[reference] = (done, failed)

    def turn(self, *, timeout: float = 1.0) -> bool:
        """Run the callbacks of what is ready; wait up to ``timeout`` seconds for the first.

        Returns:
            Whether anything was ready.

        Raises:
            LucaError: what an actor raised, as itself.
            ClusterError: an actor died more often than it may be restarted.
        """
        import ray

        if not self._pending:
            return False
        waiting = list(self._pending)
        ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout, fetch_local=False)
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0, fetch_local=False)
        for reference in ready:
            done, failed = self._pending.pop(reference)
            try:
                value = fetch(reference)
            except LucaError as error:
                if failed is None or not failed(error):
                    raise
            else:
                done(value)
        return bool(ready)


def value_of(reference: Any, loop: Loop, turn: Callable[[], object]) -> Any:
    """What ``reference`` becomes, while the rest goes on.

    Args:
        reference: a call's first return.
        loop: what shall watch it.
        turn: turns the loop, and looks at whatever could make that wait for ever.

    Raises:
        LucaError: what an actor raised, or ``turn``.
    """
    found: list[Any] = []
    loop.watch(reference, found.append)
    while not found:
        turn()
    return found[0]


def fetch(reference: Any) -> Any:
    """``ray.get`` with errors as the actor raised them.

    Raises:
        LucaError: what the actor raised.
        ClusterError: the actor or the object is gone for good.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, LucaError):
            raise type(cause)(str(cause)) from None
        raise
    except RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        lines = lines or [type(error).__name__]
        # What a constructor raised stands in the last line, below its traceback.
        what = lines[-1] if "creation task" in lines[0] else lines[0]
        raise ClusterError(
            f"an actor was lost and could not be brought back ({what[:300]}); what was committed is "
            "safe, and the same command continues from there"
        ) from error


class ActorPool:
    """Actors of one kind, fed evenly.

    Args:
        loop: watches the calls.
        actors: the handles.
        depth: calls given to an actor at a time; 2 keeps it busy while an answer travels.
    """

    def __init__(self, loop: Loop, actors: Sequence[Any], *, depth: int = 2) -> None:
        self._loop = loop
        self._actors = list(actors)
        self._depth = depth
        self._running = [0] * len(self._actors)
        self._queue: deque[tuple[Call, Done, Failed | None]] = deque()

    def submit(self, call: Call, done: Done, failed: Failed | None = None) -> None:
        """Start ``call(actor)`` on the least busy actor when one has room; then ``done(value)``."""
        self._queue.append((call, done, failed))
        self._feed()

    def _feed(self) -> None:
        while self._queue:
            index = min(range(len(self._actors)), key=lambda i: self._running[i])
            if self._running[index] >= self._depth:
                return
            call, done, failed = self._queue.popleft()
            self._running[index] += 1
            reference = call(self._actors[index])
            self._loop.watch(reference, *self._finished(index, done, failed))

    def _finished(self, index: int, done: Done, failed: Failed | None) -> tuple[Done, Failed]:
        def free() -> None:
            self._running[index] -= 1
            self._feed()

        def on_value(value: Any) -> None:
            free()
            done(value)

        def on_error(error: LucaError) -> bool:
            free()
            return failed is not None and failed(error)

        return on_value, on_error
