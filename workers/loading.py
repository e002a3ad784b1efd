"""A bank version from storage as the tensors that prediction works on.

Objects are immutable and named by their digest, so what a process has loaded once it never loads again: going
from version t to t+1 reads one task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.modeling.bank_tensors import BankTensors, TaskModule
from workers.modeling.pooling import PooledStatistics
from workers.modeling.sparse import decode
from workers.modeling.statistics import TaskStatistics
from workers.modeling.whitening import Whitening
from workers.storage.bank import BankVersion
from workers.storage.bank_manifest import TaskRecord

Arrays = dict[str, NDArray[Any]]


class TensorLoader:
    """Loads versions of banks, keeping decoded tasks by the digests of their objects."""

    def __init__(self) -> None:
        self._modules: dict[tuple[str, ...], TaskModule] = {}
        self._last: tuple[tuple[TaskRecord, ...], tuple[TaskModule, ...]] = (), ()
        self._pool: tuple[list[str], PooledStatistics | None] = ([], None)
        self._whitening: dict[str, Whitening] = {}

    def load(self, version: BankVersion, *, statistics: bool = True) -> BankTensors:
        """The version's tensors.

        Args:
            version: an opened version.
            statistics: whether routers that need them will be used.

        Raises:
            CorruptionError: an object is damaged; the message names the file.
        """
        tasks = self._tasks(version)
        shared = version.manifest.shared
        head = version.shared.get("head") if "head" in shared else None
        objective = version.settings["learning"]["objective"]
        return BankTensors(
            width=int(version.backbone["width"]),
            class_names=version.classes,
            flow=version.settings["luca"]["flow"],
            objective=objective,
            tasks=tasks,
            head=_tensor(head["weight"]) if head else None,
            scale=_tensor(head["scale"]) if head else None,
            whitening=self._cached(
                self._whitening,
                shared["whitening"].digest,
                lambda: version.shared["whitening"],
                Whitening.from_arrays,
            )
            if "whitening" in shared
            else None,
            pool=self._pooled(version) if statistics else None,
        )

    def _pooled(self, version: BankVersion) -> PooledStatistics:
        """Statistics of all tasks, added up; going on from the last version costs the new tasks only."""
        digests = [record.objects["statistics"].digest for record in version.tasks]
        known, pool = self._pool
        if pool is None or digests[: len(known)] != known:
            known, pool = [], None
        new = [
            TaskStatistics.from_arrays(version.arrays(record, "statistics"))
            for record in version.tasks[len(known) :]
        ]
        pool = PooledStatistics.of(new) if pool is None else pool.plus_all(new)
        self._pool = (digests, pool)
        return pool

    def _tasks(self, version: BankVersion) -> tuple[TaskModule, ...]:
        """The version's modules; those that it begins with like the last one are taken over unseen.

        Equal records from the first on have their classes at equal places, too.
        """
        records, tasks = self._last
        same = 0
        for known, record in zip(records, version.tasks, strict=False):
            if known is not record:
                break
            same += 1
        index = {name: i for i, name in enumerate(version.classes)}
        new = (self._module(version, record, index) for record in version.tasks[same:])
        tasks = (*tasks[:same], *new)
        self._last = version.tasks, tasks
        return tasks

    def _module(
        self, version: BankVersion, record: TaskRecord, index: dict[str, int]
    ) -> TaskModule:
        head_ref = record.objects.get("head")
        classes = tuple(index[name] for name in record.classes)
        key = (
            record.id,
            record.objects["module"].digest,
            head_ref.digest if head_ref else "",
            *map(str, classes),
        )
        if key not in self._modules:
            module = decode(version.arrays(record, "module"))
            head = version.arrays(record, "head") if head_ref else None
            self._modules[key] = TaskModule(
                name=record.name,
                classes=classes,
                module={name: _tensor(array) for name, array in module.items()},
                head=_tensor(head["weight"]) if head else None,
                scale=_tensor(head["scale"]) if head else None,
            )
        return self._modules[key]

    @staticmethod
    def _cached(
        store: dict[str, Any],
        digest: str,
        read: Callable[[], Arrays],
        build: Callable[[Arrays], Any],
    ) -> Any:
        if digest not in store:
            store[digest] = build(read())
        return store[digest]


def _tensor(array: NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(np.array(array))
