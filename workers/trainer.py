"""The trainer actor: learns task modules from cached features.  A shell around task_learning.py.

The driver imports this module too, to start the actor, so torch is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workers.learned import Arrays, LearnedArrays, LearnInfo, LearnRequest
from workers.runtime import prepare_process
from workers.storage.features import FeatureCache
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    import pyarrow as pa

    from workers.storage.features import PartKey


class TrainerImpl:
    """Learns whatever task it is asked to; keeps nothing between calls but open storage."""

    def __init__(self, storage: str, *, threads: int, device: str = "cpu") -> None:
        prepare_process(threads)
        from workers.modeling.learner import Execution

        self._execution = Execution(device=device)
        self._cache = FeatureCache(Storage.open(storage))

    def whitening(
        self, request: LearnRequest, keys: tuple[PartKey, ...] = (), *tables: pa.Table
    ) -> Arrays:
        """The stream's whitening, from its first task."""
        from workers.task_learning import fit_whitening

        return fit_whitening(self._cache, request, dict(zip(keys, tables, strict=True)))

    def learn(
        self,
        request: LearnRequest,
        whitening: Arrays | None = None,
        previous_head: Arrays | None = None,
        keys: tuple[PartKey, ...] = (),
        *tables: pa.Table,
    ) -> tuple[LearnInfo, LearnedArrays, Arrays | None]:
        """Learn a task.  The three values are separate returns: facts, bank objects, unified head."""
        from workers.task_learning import learn_task

        info, learned = learn_task(
            self._cache,
            request,
            whitening=whitening,
            previous_head=previous_head,
            tables=dict(zip(keys, tables, strict=True)),
            execution=self._execution,
        )
        return info, learned, learned.head


def trainer_class() -> Any:
    """The Ray actor class; Ray is imported only here."""
    import ray

    return ray.remote(max_restarts=-1, max_task_retries=-1)(TrainerImpl)
