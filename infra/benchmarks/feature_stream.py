"""A class-incremental stream of features in memory, and banks learned from it: for comparing recipes without a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from workers.modeling.bank_tensors import BankTensors

PUBLISHED_SEED = 1993
HELD_OUT = 0.25
"""Share of every class's training samples that :meth:`FeatureStream.with_validation` holds out."""


@dataclass(frozen=True)
class FeatureStream:
    """Samples of a stream in order of class, cut into tasks of two classes.

    Attributes:
        name: for tables.
        views: features [n, d] float32; the test view first, augmented views behind it.
        labels: classes in the order in which they arrive, int64 [n].
        split: "train", "validation" or "test" of every sample, [n].
        classes: their names.
        seed: of class order and learning.
    """

    name: str
    views: tuple[NDArray[np.float32], ...]
    labels: NDArray[np.int64]
    split: NDArray[np.str_]
    classes: tuple[str, ...]
    seed: int = PUBLISHED_SEED
    classes_per_task: int = 2

    @property
    def tasks(self) -> list[tuple[int, ...]]:
        """Classes of every task."""
        numbers = range(len(self.classes))
        return [
            tuple(numbers[start : start + self.classes_per_task])
            for start in numbers[:: self.classes_per_task]
        ]

    def select(self, *splits: str, classes: Iterable[int] | None = None) -> NDArray[np.int64]:
        """Rows of some splits, of some classes."""
        chosen = np.isin(self.split, splits)
        if classes is not None:
            chosen &= np.isin(self.labels, list(classes))
        return np.flatnonzero(chosen)

    def with_validation(self) -> FeatureStream:
        """The same with a fixed quarter of each class's training samples held out."""
        split, generator = self.split.copy(), np.random.RandomState(7)
        for number in range(len(self.classes)):
            rows = generator.permutation(self.select("train", classes=[number]))
            split[rows[: round(HELD_OUT * len(rows))]] = "validation"
        return replace(self, split=split)


def arrange(
    name: str,
    views: Sequence[NDArray[np.float32]],
    labels: Sequence[str],
    split: Sequence[str],
    *,
    seed: int = PUBLISHED_SEED,
    only: Iterable[str] | None = None,
) -> FeatureStream:
    """A stream over samples in any order; its classes come in the published order of the seed.

    Args:
        name: for tables.
        views: features [n, d], the test view first.
        labels, split: of every sample.
        seed: of the class order and of learning.
        only: names of the classes to keep; all when left out.
    """
    given = np.asarray(labels)
    names = sorted(set(given.tolist()) if only is None else set(only))
    order = [names[at] for at in np.random.RandomState(seed).permutation(len(names))]
    place = {label: number for number, label in enumerate(order)}
    kept = np.flatnonzero(np.isin(given, names))
    numbers = np.array([place[label] for label in given[kept].tolist()], dtype=np.int64)
    by_class = np.argsort(numbers, kind="stable")
    rows = kept[by_class]
    return FeatureStream(
        name=name,
        views=tuple(np.ascontiguousarray(view[rows], dtype=np.float32) for view in views),
        labels=numbers[by_class],
        split=np.asarray(split, dtype="<U10")[rows],
        classes=tuple(order),
        seed=seed,
    )


def read_parquet(path: Path) -> tuple[NDArray[np.float32], list[str], list[str]]:
    """Features [n, d], labels and splits of a ready-features file."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["feature", "label", "split"]).combine_chunks()
    flat = table["feature"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    features = flat.reshape(table.num_rows, -1).astype(np.float32)
    return features, table["label"].to_pylist(), table["split"].to_pylist()


def learn(
    stream: FeatureStream,
    recipe: str,
    *,
    changes: Mapping[str, Any] | None = None,
    whitening: str | None = None,
    views: int = 0,
    random_features: int = 0,
) -> BankTensors:
    """The bank that a run with this recipe would end with, from the samples marked "train".

    Args:
        stream: what to learn.
        recipe: a recipe's name.
        changes: learning settings that differ from the recipe's.
        whitening: "none" or "first_task"; None: as the recipe says.
        views: learn from so many augmented views instead of from the test view.
        random_features: collect the statistics of so many, for router "ridge".
    """
    import torch

    from workers.modeling.bank_tensors import BankTensors, TaskModule
    from workers.modeling.heads import UnifiedHead
    from workers.modeling.learner import learn_local, learn_unified
    from workers.modeling.learning_settings import LearningSettings
    from workers.modeling.luca_settings import LucaSettings
    from workers.modeling.projection import ProjectionSpec, RandomProjection
    from workers.modeling.recipes import RECIPES
    from workers.modeling.statistics import TaskStatistics
    from workers.modeling.whitening import Whitening

    chosen = RECIPES[recipe]
    luca = LucaSettings(**chosen["luca"])
    learning = LearningSettings(**{**chosen["learning"], **(changes or {})})
    local = learning.objective == "local"
    width = stream.views[0].shape[1]
    white: Whitening | None = None
    projection: RandomProjection | None = None
    head: UnifiedHead | None = None
    modules, statistics = [], []
    for number, classes in enumerate(stream.tasks):
        raw, own = _training(stream, classes, view=0), stream.labels[_rows(stream, classes)]
        positions = torch.from_numpy(own - classes[0])
        if number == 0 and (whitening or chosen["whitening"]) == "first_task":
            first = TaskStatistics.from_features(raw, positions, classes=len(classes))
            white = Whitening.from_statistics(first)
        if number == 0 and random_features:
            spec = ProjectionSpec(
                seed=stream.seed, width=width, size=random_features, whitened=white is not None
            )
            projection = RandomProjection(spec, white)
        statistics.append(
            TaskStatistics.from_features(
                raw, positions, classes=len(classes), projection=projection
            )
        )

        def seen(features: Tensor, white: Whitening | None = white) -> Tensor:
            return features if white is None else white.apply(features)

        common: dict[str, Any] = {
            "luca": luca,
            "learning": learning,
            "seed": stream.seed,
            "task_key": f"task-{number + 1:02d}",
            "test_view": seen(raw),
        }
        shown = [seen(_training(stream, classes, view=v)) for v in range(1, views + 1)]
        shown = shown or [seen(raw)]
        if local:
            made = learn_local(shown, positions, classes=len(classes), **common)
            modules.append(TaskModule(f"{number}", classes, made.module, made.head, made.scale))
        else:
            made = learn_unified(
                shown, torch.from_numpy(own), new_classes=classes, previous=head, **common
            )
            head = UnifiedHead(made.head, made.scale)
            modules.append(TaskModule(f"{number}", classes, made.module))
    return BankTensors(
        width=width,
        class_names=stream.classes,
        flow=luca.flow,
        objective=learning.objective,
        tasks=tuple(modules),
        head=None if head is None else head.weight,
        scale=None if head is None else head.scale,
        whitening=white,
        statistics=tuple(statistics),
    )


def accuracies(
    stream: FeatureStream, bank: BankTensors, split: str, routers: Sequence[tuple[str, str, int]]
) -> Iterator[float]:
    """Accuracy on a split, all classes seen, for each (router, combination, random features of "ridge")."""
    import torch

    from workers.modeling.evaluation_settings import EvaluationSettings
    from workers.modeling.predictor import Predictor
    from workers.modeling.scoring import module_scores

    rows = stream.select(split)
    features = torch.from_numpy(stream.views[0][rows])
    labels = torch.from_numpy(stream.labels[rows])
    task_ids = labels // stream.classes_per_task
    scores = module_scores(bank, range(len(bank.tasks)), features)
    for router, combination, size in routers:
        settings = EvaluationSettings.model_validate(
            {"combination": combination, "router_options": {"ridge": {"random_features": size}}}
        )
        made = Predictor(bank, settings, router).predict(features, task_ids=task_ids, scores=scores)
        yield float((made.class_index == labels).double().mean())


def _rows(stream: FeatureStream, classes: Sequence[int]) -> NDArray[np.int64]:
    return stream.select("train", classes=classes)


def _training(stream: FeatureStream, classes: Sequence[int], *, view: int) -> Tensor:
    import torch

    return torch.from_numpy(stream.views[view][_rows(stream, classes)])
