"""From features to committed versions: which task a trainer may start on, and in which order results are committed.

With objective ``local`` tasks are independent, so any trainer takes any task; with ``unified`` each task starts from
the head that the one before left.  Commits follow the stream's order in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.actors import Loop
from pipelines.extraction import FeatureFlow
from pipelines.fleet import Fleet
from workers.errors import FeatureCorruptionError, LucaError
from workers.learned import Arrays, Committed, LearnInfo, TaskHeader

if TYPE_CHECKING:
    from workers.learned import LearnRequest
    from workers.storage.features import PartKey


@dataclass(frozen=True, kw_only=True)
class LearningPlan:
    """What the flow needs to know about the run.

    Attributes:
        requests: what to tell a trainer, by task index.
        headers: what the bank records, by task index; ``info`` is filled in once the task is learned.
        keys: feature parts of the training and validation samples, by task index.
        first: the first task that is not in the bank.
        unified: whether tasks build on each other's head.
        whiten: whether features are whitened by the first task's statistics.
        whitening: the bank's whitening when the first task is learned already.
        head: the bank's unified head when tasks are learned already.
    """

    requests: Callable[[int], LearnRequest]
    headers: Callable[[int, Mapping[str, Any]], TaskHeader]
    keys: Callable[[int], Sequence[tuple[int, PartKey]]]
    first: int
    unified: bool
    whiten: bool
    whitening: Arrays | None = None
    head: Arrays | None = None


class LearningFlow:
    """Feeds trainers with tasks whose features are there, and the registry with their results, in order."""

    def __init__(
        self,
        plan: LearningPlan,
        loop: Loop,
        fleet: Fleet,
        registry: Any,
        features: FeatureFlow,
        *,
        learned: Callable[[int, LearnInfo], None],
        committed: Callable[[int, Committed], None],
    ) -> None:
        self._plan = plan
        self._loop = loop
        self._pool = fleet.pool("trainers", loop)
        self._registry = registry
        self._features = features
        self._learned = learned
        self._committed = committed
        self._waiting: set[int] = set()
        self._outcomes: dict[int, tuple[LearnInfo, Any]] = {}
        self._next_commit = plan.first
        self._committing = False
        self._next_unified = plan.first
        self._whitening: Any = plan.whitening
        self._whitening_asked = False
        self._head: Any = plan.head

    def learn(self, index: int) -> None:
        """The features of task ``index`` are there; learn it as soon as it may be learned."""
        self._waiting.add(index)
        self._start_what_may()

    def _start_what_may(self) -> None:
        if self._plan.whiten and self._whitening is None:
            if 0 in self._waiting and not self._whitening_asked:
                self._whitening_asked = True
                self._ask_whitening()
            return
        for index in sorted(self._waiting):
            if self._plan.unified and index != self._next_unified:
                return
            self._waiting.discard(index)
            self._submit(index)
            if self._plan.unified:
                return

    def _ask_whitening(self) -> None:
        request = self._plan.requests(0)
        keys, tables = self._features.tables(request.rows, 0)
        self._pool.submit(
            lambda trainer: trainer.whitening.remote(request, keys, *tables),
            self._have_whitening,
            self._on_corruption(0, self._ask_whitening),
        )

    def _have_whitening(self, whitening: Arrays) -> None:
        self._whitening = whitening
        self._start_what_may()

    def _submit(self, index: int) -> None:
        request = self._plan.requests(index)
        keys, tables = self._features.tables(request.rows, request.views)
        references: list[Any] = []

        def call(trainer: Any) -> Any:
            references[:] = trainer.learn.options(num_returns=3).remote(
                request, self._whitening, self._head, keys, *tables
            )
            return references[0]

        def done(info: LearnInfo) -> None:
            self._outcomes[index] = (info, references[1])
            if self._plan.unified:
                self._head = references[2]
                self._next_unified = index + 1
            self._features.let_go(key for _, key in self._plan.keys(index))
            self._learned(index, info)
            self._commit_what_may()
            self._start_what_may()

        self._pool.submit(call, done, self._on_corruption(index, lambda: self._submit(index)))

    def _commit_what_may(self) -> None:
        """Commit the next task, one at a time: Ray may repeat the calls of a lost registry in any order."""
        if self._committing or self._next_commit not in self._outcomes:
            return
        index = self._next_commit
        info, arrays = self._outcomes.pop(index)
        self._next_commit += 1
        self._committing = True
        header = self._plan.headers(index, info.to_json())
        whitening = self._whitening if index == 0 else None

        def done(version: Committed) -> None:
            self._committing = False
            self._commit_what_may()
            self._committed(index, version)

        self._loop.watch(self._registry.commit.remote(header, arrays, whitening), done)

    def _on_corruption(self, index: int, again: Callable[[], None]) -> Callable[[LucaError], bool]:
        """Damaged or missing feature parts are extracted again, then the work is repeated."""

        def failed(error: LucaError) -> bool:
            if not isinstance(error, FeatureCorruptionError):
                return False
            self._features.again(index, self._plan.keys(index), again)
            return True

        return failed
