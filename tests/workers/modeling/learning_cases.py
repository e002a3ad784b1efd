"""Small tasks to learn from, shared by the learner's tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.modeling.learner import LearnedTask, learn_local
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings

LUCA = LucaSettings(ratio=8)


def clusters(
    *, classes: int = 3, samples: int = 40, width: int = 24, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Features [n, d] around one centre a class, and labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=generator)
    labels = torch.arange(samples) % classes
    return centres[labels] + torch.randn(samples, width, generator=generator), labels


def settings(**changes: Any) -> LearningSettings:
    return LearningSettings(**{"epochs": 3, "batch_size": 16, **changes})


def learn(features: Any = None, labels: Tensor | None = None, **changes: Any) -> LearnedTask:
    """``learn_local`` on small clusters, any argument replaced."""
    if features is None:
        features, labels = clusters()
    arguments: dict[str, Any] = {
        "classes": 3,
        "luca": LUCA,
        "learning": settings(),
        "seed": 0,
        "task_key": "task",
        **changes,
    }
    return learn_local([features], labels, **arguments)


def assert_same_bits(left: LearnedTask, right: LearnedTask) -> None:
    for name, value in left.module.items():
        assert torch.equal(value, right.module[name]), name
    assert torch.equal(left.head, right.head)
    assert torch.equal(left.scale, right.scale)
    assert left.losses == right.losses


def assert_close(left: LearnedTask, right: LearnedTask, *, rtol: float, atol: float) -> None:
    for name, value in left.module.items():
        torch.testing.assert_close(value, right.module[name], rtol=rtol, atol=atol)
    torch.testing.assert_close(left.head, right.head, rtol=rtol, atol=atol)
    torch.testing.assert_close(left.scale, right.scale, rtol=rtol, atol=atol)
    np.testing.assert_allclose(left.losses, right.losses, rtol=rtol, atol=atol)


class RecordingView:
    """A feature view that remembers what was asked of it."""

    def __init__(self, features: Tensor) -> None:
        self._features = features.numpy()
        self.gathers: list[int] = []

    def __len__(self) -> int:
        return len(self._features)

    def gather(self, rows: np.ndarray) -> np.ndarray:
        self.gathers.append(len(rows))
        return np.ascontiguousarray(self._features[rows])
