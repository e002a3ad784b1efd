"""What a trainer is asked, and what a learned task is on its way to the bank.  NumPy only: driver and registry never load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from workers.feature_rows import FeatureRows
    from workers.modeling.evaluation_settings import EvaluationSettings
    from workers.modeling.learning_settings import LearningSettings
    from workers.modeling.luca_settings import LucaSettings

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class LearnRequest:
    """What a trainer needs to know to learn a task.

    Attributes:
        task: the task's name; with ``seed`` it decides all randomness.
        rows: the training samples, labels as global class indices.
        validation: held-out samples on which a magnitude threshold is checked, or None.
        classes: global indices of the task's classes, ascending.
        new_classes: those of them that no earlier task had.
        views: augmented views to learn from; 0 learns from the test view.
        evaluation: decides which statistics routers will want.
    """

    task: str
    rows: FeatureRows
    validation: FeatureRows | None
    classes: tuple[int, ...]
    new_classes: tuple[int, ...]
    views: int
    seed: int
    luca: LucaSettings
    learning: LearningSettings
    evaluation: EvaluationSettings


@dataclass(frozen=True)
class LearnedArrays:
    """A learned task as named arrays, ready for the bank.

    Attributes:
        objects: ``module`` and ``statistics``, and ``head`` for the local objective.
        head: the head over all classes so far, for the unified objective.
    """

    objects: dict[str, Arrays]
    head: Arrays | None = None


@dataclass(frozen=True)
class LearnInfo:
    """Facts about how a task was learned: for the log, and for the bank's record.

    Attributes:
        threshold: magnitude below which parameters were set to zero after learning; 0 when none were.
        dense_bytes, stored_bytes: of the module, as plain arrays and in the form that is stored.
        seconds: wall time in the trainer; the only one that another run need not repeat.
    """

    task: str
    samples: int
    steps: int
    losses: tuple[float, ...]
    stored_parameters: int
    nonzero_parameters: int
    dense_bytes: int
    stored_bytes: int
    threshold: float
    seconds: float = field(compare=False)

    def to_json(self) -> dict[str, Any]:
        """For the bank's record."""
        return {**asdict(self), "losses": [float(np.float64(v)) for v in self.losses]}


@dataclass(frozen=True)
class TaskHeader:
    """What the bank records of a task beside its arrays."""

    id: str
    name: str
    domain: str
    classes: tuple[str, ...]
    definition: Mapping[str, Any]
    info: Mapping[str, Any]


@dataclass(frozen=True)
class Committed:
    """A bank version as the driver needs to know it."""

    version: int
    digest: str
    tasks: int
    seconds: float = field(default=0.0, compare=False)
