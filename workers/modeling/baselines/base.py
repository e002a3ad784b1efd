"""What a baseline is: a method that learns tasks one after the other on the very features that LuCA gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from workers.errors import DataError
from workers.modeling.baseline_settings import BaselineSettings
from workers.modeling.luca_settings import LucaSettings


@dataclass(frozen=True)
class BaselineContext:
    """What a baseline may use beside the features.

    Attributes:
        width: Feature width d.
        seed: Seed of the run.
        luca: Shape of LuCA modules (baseline ``joint_luca``).
        learning: Learning settings of LuCA modules (baseline ``joint_luca``).
    """

    width: int
    seed: int = 0
    luca: LucaSettings | None = None
    learning: Any = None


@dataclass(frozen=True)
class BaselinePrediction:
    """Predictions for n samples.

    Attributes:
        class_index: Predicted class (index into the stream's classes), int64 [n].
        classes: Classes seen so far, int64 [C].
        log_probs: log p(class | x), float64 [n, C], columns in the order of ``classes``.
    """

    class_index: Tensor
    classes: Tensor
    log_probs: Tensor

    @property
    def confidence(self) -> Tensor:
        """p(predicted class | x), float64 [n]."""
        return self.log_probs.max(dim=1).values.exp()

    def among(self, allowed: Tensor) -> BaselinePrediction:
        """The decision among some classes of each sample only, bool [n, C] in the order of ``classes``."""
        log_probs = torch.log_softmax(self.log_probs.masked_fill(~allowed, -torch.inf), dim=1)
        return BaselinePrediction(
            class_index=self.classes[log_probs.argmax(dim=1)],
            classes=self.classes,
            log_probs=log_probs,
        )

    def label_log_prob(self, labels: Tensor) -> Tensor:
        """log p(label | x), float64 [n]; -inf for a label that was never seen."""
        hits = labels[:, None] == self.classes[None, :]
        return self.log_probs.masked_fill(~hits, -torch.inf).amax(dim=1)


class Baseline(ABC):
    """A method that sees one task at a time.  A new one is a new file and one line in ``BASELINES``.

    Attributes:
        name: Name in experiments and reports.
        Options: Its settings, which also say whether it is a bound, and after which tasks it is scored.
        exemplar_free: False when it keeps training samples.
    """

    name: ClassVar[str]
    Options: ClassVar[type[BaselineSettings]]
    exemplar_free: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def create(cls, context: BaselineContext, options: Any) -> Baseline:
        """An untrained baseline.

        Raises:
            SettingsError: The context lacks what it needs.
        """

    @abstractmethod
    def observe(self, features: Tensor, labels: Tensor, classes: Sequence[int]) -> None:
        """Learns a task.

        Args:
            features: Training features [n, d].
            labels: Class indices [n], each one of ``classes``.
            classes: Classes of the task; some may have been seen before (domain-incremental).

        Raises:
            DataError: Features or labels do not fit.
        """

    @abstractmethod
    def predict(self, features: Tensor) -> BaselinePrediction:
        """Decides among all classes seen so far.

        Raises:
            DataError: Features do not fit, or no task was observed yet.
        """


class ClassTable:
    """The classes seen so far and the row that each of them has."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.classes: list[int] = []
        self._rows: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.classes)

    def add(self, classes: Sequence[int]) -> list[int]:
        """Appends classes not seen before; returns the rows of all of them."""
        for index in classes:
            if index not in self._rows:
                self._rows[index] = len(self.classes)
                self.classes.append(index)
        return [self._rows[index] for index in classes]

    def check(self, features: Tensor) -> Tensor:
        """Features as float32, refused when they do not fit."""
        if features.ndim != 2 or features.shape[1] != self.width:
            raise DataError(
                f"baseline: features have shape {tuple(features.shape)}; "
                f"[samples, {self.width}] is needed."
            )
        if not bool(torch.isfinite(features).all()):
            raise DataError(
                "baseline: features hold NaN or infinite values; check the backbone's precision or "
                "the feature file."
            )
        return features.to(torch.float32)

    def enter(
        self, features: Tensor, labels: Tensor, classes: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Checks a task and enters its classes; a refused task leaves the table as it was.

        Returns:
            Features as float32 [n, d] and the row of every label, int64 [n].

        Raises:
            DataError: Features do not fit, or a label is not one of the task's classes.
        """
        samples = self.check(features)
        if labels.shape != (len(samples),):
            raise DataError(
                f"baseline: {len(samples)} features came with labels of shape "
                f"{tuple(labels.shape)}; give one label a feature."
            )
        local = torch.full((max(classes, default=0) + 1,), -1)
        local[list(classes)] = torch.arange(len(classes))
        inside = (labels >= 0) & (labels < len(local))
        positions = torch.where(inside, local[labels.clamp(0, len(local) - 1)], -1)
        if bool((positions < 0).any()):
            bad = int(labels[torch.nonzero(positions < 0)[0]])
            raise DataError(
                f"baseline: label {bad} is not one of the task's classes {list(classes)}."
            )
        return samples, torch.tensor(self.add(classes))[positions]

    def decide(self, scores: Tensor) -> BaselinePrediction:
        """Prediction from log-scores [n, C] in row order."""
        log_probs = torch.log_softmax(scores.to(torch.float64), dim=1)
        classes = torch.tensor(self.classes)
        return BaselinePrediction(
            class_index=classes[log_probs.argmax(dim=1)], classes=classes, log_probs=log_probs
        )

    def need_classes(self) -> None:
        """Refuses to predict before anything was learned."""
        if not self.classes:
            raise DataError("baseline: no task was observed yet; observe one before predicting.")


def grow(tensor: Tensor, rows: int) -> Tensor:
    """The tensor with zero rows appended up to ``rows``."""
    if tensor.shape[0] >= rows:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(rows - tensor.shape[0], *tensor.shape[1:])])
