"""Tiny banks and streams of Gaussian classes for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from workers.modeling.bank_tensors import BankTensors, TaskModule
from workers.modeling.luca import init_parameters
from workers.modeling.luca_settings import LucaSettings
from workers.modeling.projection import ProjectionSpec, RandomProjection
from workers.modeling.statistics import TaskStatistics
from workers.modeling.whitening import Whitening

WIDTH = 16


def samples(
    classes: Sequence[int], *, each: int = 12, seed: int = 0, width: int = WIDTH
) -> tuple[Tensor, Tensor]:
    """Features and global labels of Gaussian classes; a class has the same mean for every seed."""
    features, labels = [], []
    for index in classes:
        mean = torch.randn(width, generator=torch.Generator().manual_seed(1000 + index)) * 2
        noise = torch.Generator().manual_seed(seed * 7919 + index)
        features.append(mean + torch.randn(each, width, generator=noise))
        labels += [index] * each
    return torch.cat(features), torch.tensor(labels)


@cache
def bank(
    tasks: tuple[tuple[int, ...], ...],
    *,
    objective: str = "local",
    whitening: bool = False,
    random_features: int = 0,
    ranks: tuple[int, ...] | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> BankTensors:
    """A bank with modules fresh from initialisation and heads at noisy class means."""
    count = max(index for task in tasks for index in task) + 1
    generator = torch.Generator().manual_seed(seed)
    whiten: Whitening | None = None
    projection: RandomProjection | None = None
    modules, statistics = [], []
    for position, task in enumerate(tasks):
        features, labels = samples(task, seed=seed + 1 + position)
        local = torch.tensor([list(task).index(int(label)) for label in labels])
        if position == 0:
            if whitening:
                first = TaskStatistics.from_features(features, local, classes=len(task))
                whiten = Whitening.from_statistics(first)
            if random_features:
                spec = ProjectionSpec(seed, WIDTH, random_features, whitening)
                projection = RandomProjection(spec, whiten)
        statistics.append(
            TaskStatistics.from_features(features, local, classes=len(task), projection=projection)
        )
        settings = LucaSettings(adapter_rank=ranks[position] if ranks else 4, calibrator_rank=4)
        head = torch.randn(len(task), WIDTH, generator=generator, dtype=torch.float64).to(dtype)
        local_bank = objective == "local"
        modules.append(
            TaskModule(
                name=f"task-{position}",
                classes=tuple(task),
                module=init_parameters(WIDTH, settings, generator=generator, dtype=dtype),
                head=head if local_bank else None,
                scale=torch.tensor(8.0 + position, dtype=dtype) if local_bank else None,
            )
        )
    unified = objective == "unified"
    shared = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return BankTensors(
        width=WIDTH,
        class_names=tuple(f"class-{index}" for index in range(count)),
        flow="tosca",
        objective="unified" if unified else "local",
        tasks=tuple(modules),
        head=shared if unified else None,
        scale=torch.tensor(9.0, dtype=dtype) if unified else None,
        whitening=whiten,
        statistics=tuple(statistics),
    )


def relabelled(original: BankTensors, permutation: Sequence[int]) -> BankTensors:
    """The same bank with class i called permutation[i]."""
    names = [""] * original.classes
    for index, name in enumerate(original.class_names):
        names[permutation[index]] = name
    head = original.head
    if head is not None:
        head = torch.empty_like(head)
        assert original.head is not None
        head[torch.tensor(permutation)] = original.head
    return replace(
        original,
        class_names=tuple(names),
        head=head,
        tasks=tuple(
            replace(task, classes=tuple(permutation[index] for index in task.classes))
            for task in original.tasks
        ),
    )
