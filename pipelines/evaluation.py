"""Bank versions times test features: scores and baselines after every task.

Per-sample routers are split over evaluators by test task, since no prediction depends on another sample; routers
that depend on the order of the test set see it whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.actors import ActorPool, Loop
from pipelines.extraction import FeatureFlow
from pipelines.fleet import Fleet
from workers.errors import FeatureCorruptionError, LucaError, StateLostError
from workers.modeling.router_settings import ROUTER_SETTINGS
from workers.scored import MethodPredictions, Scored, TestPart, TrainPart

if TYPE_CHECKING:
    from workers.storage.features import PartKey


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """What the flow needs to know about the run, by task index.

    Attributes:
        tested: whether a task has test samples; those that have none are not scored on.
        tests: test samples of a task.
        trains: training samples and classes of a task, for baselines.
        keys: feature parts of both.
        routers: names of the routers to report.
        baselines: whether there are baselines.
    """

    tested: Callable[[int], bool]
    tests: Callable[[int], TestPart]
    trains: Callable[[int], TrainPart]
    keys: Callable[[int], Sequence[tuple[int, PartKey]]]
    routers: tuple[str, ...]
    baselines: bool


@dataclass
class _Pending:
    after: int
    tasks: Sequence[int]
    done: Callable[[Scored], None]
    left: int = 0
    pieces: list[Scored] = field(default_factory=list)
    whole: Scored | None = None
    baselines: dict[str, MethodPredictions] | None = None


class EvaluationFlow:
    """Scores versions after every task, on every task seen."""

    def __init__(
        self, plan: EvaluationPlan, loop: Loop, fleet: Fleet, features: FeatureFlow
    ) -> None:
        self._plan = plan
        self._features = features
        self._singles = [ActorPool(loop, [actor], depth=1) for actor in fleet.evaluators]
        self._baselines = (
            ActorPool(loop, fleet.evaluators[-1:], depth=1) if plan.baselines else None
        )
        self._order_dependent = tuple(r for r in plan.routers if ROUTER_SETTINGS[r].order_dependent)
        self._per_sample = tuple(r for r in plan.routers if r not in self._order_dependent)
        self._queue: list[_Pending] = []
        self._running: _Pending | None = None
        self._observed = 0
        self._told: list[set[int]] = [set() for _ in self._singles]
        self._featured: set[int] = set()
        self._tested: list[int] = []
        self._looked_at = 0
        self.busy_seconds = 0.0

    def evaluate(self, after: int, version: int, done: Callable[[Scored], None]) -> None:
        """Score ``version`` on the tests of tasks 0..after once their features are there.

        Where none of them has test samples, ``done`` is told of no samples and no methods.
        """
        pending = _Pending(after, self._tested_up_to(after), done)
        tasks = [task for task in range(after + 1) if task not in self._featured]
        pairs = [pair for task in tasks for pair in self._plan.keys(task)]

        def ready() -> None:
            self._featured.update(tasks)
            self._features.let_go(key for _, key in pairs)
            self._start(pending, version)

        self._features.need(after, pairs, ready)

    def _tested_up_to(self, after: int) -> list[int]:
        """Tasks 0..after that have test samples; each is looked at once, however many versions are scored."""
        for task in range(self._looked_at, after + 1):
            if self._plan.tested(task):
                self._tested.append(task)
        self._looked_at = max(self._looked_at, after + 1)
        return self._tested[: bisect_right(self._tested, after)]

    def score(
        self,
        after: int,
        version: int,
        parts: Sequence[TestPart],
        keys: Sequence[tuple[int, PartKey]],
        routers: tuple[str, ...],
        done: Callable[[Scored], None],
    ) -> None:
        """Score ``version``, which ends with task ``after``, on any samples, whose feature parts are ``keys``."""

        def submit() -> None:
            self._features.let_go(key for _, key in keys)
            self._singles[0].submit(
                lambda evaluator: evaluator.score_parts.remote(version, list(parts), routers),
                done,
                self._on_failure(after, 0, submit, lambda: keys),
            )

        self._features.need(after, keys, submit)

    def _start(self, pending: _Pending, version: int) -> None:
        if not pending.tasks:
            pending.done(_nothing())
            return
        if self._baselines is None:
            pending.baselines = {}
        else:
            self._queue.append(pending)
            self._next_baselines()
        tasks = pending.tasks
        evaluators = len(self._singles)
        asks: list[tuple[int, list[int], tuple[str, ...], bool]] = []
        if evaluators == 1:
            asks.append((0, list(tasks), self._plan.routers, True))
        else:
            if self._order_dependent:
                asks.append((0, list(tasks), self._order_dependent, True))
            for number in range(evaluators):
                mine = [task for task in tasks if task % evaluators == number]
                if mine and self._per_sample:
                    asks.append((number, mine, self._per_sample, False))
        pending.left = len(asks)
        for number, chosen, routers, whole in asks:
            self._ask(pending, version, number, chosen, routers, whole=whole)

    def _ask(
        self,
        pending: _Pending,
        version: int,
        number: int,
        tasks: Sequence[int],
        routers: tuple[str, ...],
        *,
        whole: bool,
    ) -> None:
        def done(scored: Scored) -> None:
            self.busy_seconds += scored.seconds
            pending.left -= 1
            if whole:
                pending.whole = scored
            else:
                pending.pieces.append(scored)
            self._finish_if_whole(pending)

        def again() -> None:
            self._ask(pending, version, number, tasks, routers, whole=whole)

        def call(evaluator: Any) -> Any:
            tests = self._untold(number, tasks)
            return evaluator.score.remote(version, list(tasks), tests, routers)

        self._singles[number].submit(call, done, self._on_failure(pending.after, number, again))

    def _untold(self, number: int, tasks: Sequence[int]) -> dict[int, TestPart]:
        """Test samples that an evaluator has not been told yet."""
        new = [task for task in tasks if task not in self._told[number]]
        self._told[number].update(new)
        return {task: self._plan.tests(task) for task in new}

    def _next_baselines(self) -> None:
        if self._running is None and self._queue:
            self._running = self._queue.pop(0)
            self._ask_baselines(self._running)

    def _ask_baselines(self, pending: _Pending) -> None:
        assert self._baselines is not None
        last = len(self._singles) - 1

        def call(evaluator: Any) -> Any:
            trains = {i: self._plan.trains(i) for i in range(self._observed, pending.after + 1)}
            tests = self._untold(last, pending.tasks)
            return evaluator.baselines.remote(pending.after, trains, list(pending.tasks), tests)

        def done(value: tuple[dict[str, MethodPredictions], float]) -> None:
            pending.baselines, seconds = value
            self.busy_seconds += seconds
            self._observed = pending.after + 1
            self._running = None
            self._finish_if_whole(pending)
            self._next_baselines()

        again = self._on_failure(pending.after, last, lambda: self._ask_baselines(pending))
        self._baselines.submit(call, done, again)

    def _finish_if_whole(self, pending: _Pending) -> None:
        if pending.baselines is None or pending.left:
            return
        scored = join(pending.pieces, pending.whole)
        methods = {router: scored.methods[router] for router in self._plan.routers}
        pending.done(replace(scored, methods={**methods, **pending.baselines}))

    def _on_failure(
        self,
        after: int,
        number: int,
        again: Callable[[], None],
        keys: Callable[[], Sequence[tuple[int, PartKey]]] | None = None,
    ) -> Callable[[LucaError], bool]:
        """What can be mended: an evaluator that forgot, and feature parts that are damaged or gone.

        ``keys`` are the parts that were read, those of all tasks up to ``after`` when left out.
        """

        def of_tasks() -> Sequence[tuple[int, PartKey]]:
            return [pair for task in range(after + 1) for pair in self._plan.keys(task)]

        def failed(error: LucaError) -> bool:
            if isinstance(error, StateLostError):
                self._told[number].clear()
                if number == len(self._singles) - 1:
                    self._observed = 0
                again()
                return True
            if isinstance(error, FeatureCorruptionError):
                self._features.again(after, (keys or of_tasks)(), again)
                return True
            return False

        return failed


def _nothing() -> Scored:
    """No samples, and so no methods."""
    import pyarrow as pa

    none = np.empty(0, dtype=np.int64)
    return Scored(none, pa.array([], pa.string()), none, {})


def join(pieces: Sequence[Scored], whole: Scored | None) -> Scored:
    """Per-sample predictions scored in pieces by test task, beside those scored on the whole test set."""
    if not pieces:
        assert whole is not None
        return whole
    import pyarrow as pa

    task = np.concatenate([piece.task for piece in pieces])
    order = np.argsort(task, kind="stable")

    def column(values: Sequence[Any]) -> Any:
        if any(value is None for value in values):
            return None
        return np.concatenate(list(values))[order]

    methods = {
        name: MethodPredictions(
            predicted=column([p.methods[name].predicted for p in pieces]),
            routed_task=column([p.methods[name].routed_task for p in pieces]),
            confidence=column([p.methods[name].confidence for p in pieces]),
            routing_confidence=column([p.methods[name].routing_confidence for p in pieces]),
            log_prob_true=column([p.methods[name].log_prob_true for p in pieces]),
        )
        for name in pieces[0].methods
    }
    sample = pa.concat_arrays([piece.sample for piece in pieces]).take(pa.array(order))
    seconds = sum(piece.seconds for piece in pieces)
    if whole is not None:
        methods.update(whole.methods)
    return Scored(
        task[order], sample, np.concatenate([p.label for p in pieces])[order], methods, seconds
    )
