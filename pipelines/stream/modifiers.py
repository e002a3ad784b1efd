"""What is done to a stream's training samples after tasks are cut: thinned, scattered, held out.

Every choice is a rank of hashes of (seed, purpose, sample), so it depends on the samples alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pipelines.sources.splits import held_out, seeded_order
from workers.wording import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pipelines.sources import Listing
    from pipelines.stream.settings import ScenarioSettings, TaskPlan


class Modifiers:
    """Applies a scenario's modifiers to its tasks.

    Args:
        settings: which modifiers, and how strong.
        listing: the samples that the tasks' rows point into.
        seed: the experiment's seed.
    """

    def __init__(self, settings: ScenarioSettings, listing: Listing, *, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._labels = listing.samples["label"].to_numpy()
        self._ids = listing.samples["id"].to_numpy()
        self._contents = listing.samples["content"].to_numpy()
        self._classes = listing.classes
        self.warnings: list[str] = []

    def apply(self, plans: Sequence[TaskPlan]) -> list[TaskPlan]:
        """Thin by long tail, scatter, then limit the samples of each class of each task."""
        changed = list(plans)
        if self._settings.long_tail is not None:
            changed = self._long_tail(changed, self._settings.long_tail)
        if self._settings.blurry:
            changed = self._scatter(changed, self._settings.blurry)
        return self._limit(changed)

    def validation(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Split a task's training rows into train and validation, class by class."""
        fraction = self._settings.validation_fraction
        if not fraction:
            return rows, np.empty(0, dtype=np.int64)
        kept, out = [], []
        for _, members in self._by_class(rows):
            count = held_out(len(members), fraction)
            order = self._order("validation", members)
            out.append(order[:count])
            kept.append(order[count:])
        return np.concatenate(kept), np.concatenate(out)

    def _by_class(self, rows: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64]]]:
        labels = self._labels[rows]
        order = np.argsort(labels, kind="stable")
        names, starts = np.unique(labels[order], return_index=True)
        yield from zip(names.tolist(), np.split(rows[order], starts[1:]), strict=True)

    def _order(self, purpose: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        order = seeded_order(
            self._seed, purpose, self._contents[rows].tolist(), self._ids[rows].tolist()
        )
        return rows[order]

    def _long_tail(self, plans: list[TaskPlan], ratio: float) -> list[TaskPlan]:
        """n_c = n ratio^(r / (C - 1)), r the class's rank in a seeded order (Cui et al., CVPR 2019; the shuffled
        order of Liu et al., ECCV 2022); at least one sample of every class of a task stays."""
        order = seeded_order(self._seed, "long tail", self._classes, self._classes)
        last = max(1, len(order) - 1)
        share = {self._classes[at]: ratio ** (rank / last) for rank, at in enumerate(order)}
        thinned = []
        for plan in plans:
            kept = [
                self._order("long tail", members)[: max(1, int(len(members) * share[name]))]
                for name, members in self._by_class(plan.train)
            ]
            thinned.append(replace(plan, train=np.concatenate(kept)))
        return thinned

    def _scatter(self, plans: list[TaskPlan], fraction: float) -> list[TaskPlan]:
        """Move a fraction of every class's samples to the other tasks in turn; one stays at home."""
        if len(plans) < 2:
            return plans
        arrived: list[list[NDArray[np.int64]]] = [[] for _ in plans]
        for home, plan in enumerate(plans):
            others = [at for at in range(len(plans)) if at != home]
            for turn, (_, members) in enumerate(self._by_class(plan.train)):
                order = self._order("blurry", members)
                count = min(int(len(order) * fraction + 0.5), len(order) - 1)
                arrived[home].append(order[count:])
                for position, row in enumerate(order[:count]):
                    arrived[others[(turn + position) % len(others)]].append(row[None])
        return [
            replace(plan, train=np.concatenate(rows))
            for plan, rows in zip(plans, arrived, strict=True)
        ]

    def _limit(self, plans: list[TaskPlan]) -> list[TaskPlan]:
        settings = self._settings
        limited = []
        for index, plan in enumerate(plans):
            most = settings.max_train_per_class
            if settings.shots is not None and not (settings.full_first_task and index == 0):
                most = settings.shots
                for name, members in self._by_class(plan.train):
                    if len(members) < most:
                        self.warnings.append(
                            f"{plan.name}: class {name!r} has {plural(len(members), 'training sample')}, "
                            f"fewer than the {most} shots asked for"
                        )
            limited.append(
                replace(
                    plan,
                    train=self._at_most(most, "limit train", plan.train),
                    test=self._at_most(settings.max_test_per_class, "limit test", plan.test),
                )
            )
        return limited

    def _at_most(
        self, most: int | None, purpose: str, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        if most is None or len(rows) == 0:
            return rows
        return np.concatenate(
            [self._order(purpose, members)[:most] for _, members in self._by_class(rows)]
        )
