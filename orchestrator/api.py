"""The Python API: open a bank, load a version, call it.

    import orchestrator

    bank = orchestrator.open_bank("luca-storage", "demo")
    model = bank.load("production")            # a tag, a version's number, or "latest"
    predictions = model(features)              # features [n, d], as plain torch tensors
    predictions = model(["a.jpg", "b.png"])    # or images: paths, bytes, PIL images, pictures [n, 3, h, w]
    predictions.classes, predictions.confidence, predictions.tasks, predictions.routing_confidence

No Ray is needed.  Results equal those of the run's own evaluation: the same predictor, on features of the same backbone,
which is refused when its fingerprint is another than the bank recorded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.storage.bank import LATEST, Bank, BankVersion
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    from pipelines.prediction import Model
    from workers.modeling.evaluation_settings import EvaluationSettings


def open_bank(storage: str | os.PathLike[str], name: str) -> OpenBank:
    """An existing bank, for reading and predicting.

    Args:
        storage: the ``storage`` of the run that made it: a folder or a URI.
        name: the bank's name.

    Raises:
        BankError: there is no such bank; the message lists those there are.
        StorageError: the storage cannot be read.
    """
    return OpenBank(Bank.open(Storage.open(storage), name))


@dataclass(frozen=True)
class OpenBank:
    """A bank of which versions can be loaded; it looks at the storage anew with every call."""

    bank: Bank

    @property
    def name(self) -> str:
        """The bank's name."""
        return self.bank.name

    def versions(self) -> tuple[int, ...]:
        """The numbers of all versions, rising."""
        return self.bank.versions()

    def tags(self) -> dict[str, int]:
        """The version each tag points to, and ``latest``."""
        return self.bank.refs()

    def load(
        self,
        ref: str | int = LATEST,
        *,
        router: str | None = None,
        backbone: str | None = None,
        weights: str | None = None,
        device: str = "auto",
    ) -> Model:
        """A version, ready to predict.

        Which router, and how it is combined with the modules, is what the run that made the version noted in it.

        Args:
            ref: a tag, a version's number, or "latest".
            router: None takes the first router of that run that needs neither the true task nor an order.
            backbone: another name of the recorded backbone.
            weights: the backbone's weights file, where it is neither embedded nor published nor the run's own.
            device: of the backbone: "cpu", "cuda", or "auto".

        Raises:
            BankError: no such version or tag, or the version lacks what the router needs.
            SettingsError: no such router, or one that needs the true task.
            CorruptionError: the version is damaged; the message names the file.
        """
        from pipelines.prediction import Model

        version = self.bank.load(ref)
        noted = noted_defaults(version)
        return Model(
            version,
            router=router or headline_router(noted.evaluation.routers),
            settings=noted.evaluation,
            backbone=backbone,
            weights=weights or (noted.weights if backbone is None else None),
            device=device,
            max_pixels=noted.max_pixels,
        )


def headline_router(routers: tuple[str, ...]) -> str:
    """The first of an experiment's routers that a prediction can use."""
    from workers.modeling.router_settings import ROUTER_SETTINGS

    usable = (
        name
        for name in routers
        if not (ROUTER_SETTINGS[name].upper_bound or ROUTER_SETTINGS[name].order_dependent)
    )
    return next(usable, "lda")


@dataclass(frozen=True)
class Defaults:
    """What the run that made a version notes for those who predict with it.

    Attributes:
        evaluation: routers, and how they are combined with the modules.
        weights: the backbone's weights file, where the run was given one.
        max_pixels: the largest picture to decode; None when not noted.
    """

    evaluation: EvaluationSettings
    weights: str | None = None
    max_pixels: int | None = None


def noted_defaults(version: BankVersion) -> Defaults:
    """The defaults noted in a version; those of this program where nothing is noted, or by a release of other settings."""
    from pydantic import ValidationError

    from workers.modeling.evaluation_settings import EvaluationSettings

    noted = version.defaults
    try:
        evaluation = EvaluationSettings.model_validate(noted.get("evaluation", {}))
    except ValidationError:
        evaluation = EvaluationSettings()
    weights, max_pixels = noted.get("weights"), noted.get("max_pixels")
    return Defaults(
        evaluation,
        weights if isinstance(weights, str) else None,
        max_pixels if isinstance(max_pixels, int) else None,
    )
