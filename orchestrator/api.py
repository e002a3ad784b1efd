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
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.yaml_text import parse_yaml
from workers.errors import LucaError, SettingsError
from workers.storage.bank import LATEST, Bank, BankVersion
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    from orchestrator.experiment import Experiment
    from pipelines.prediction import Model
    from workers.storage.bank_manifest import Manifest

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
_BEFORE = 32
"""How many versions back the experiment of a version is looked for."""


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

        How router and modules are combined is taken from the run that made the version, where its folder is still there
        (``runs/<run>/experiment.yaml``); else from the defaults.

        Args:
            ref: a tag, a version's number, or "latest".
            router: None takes the first router of that run.
            backbone: another name of the recorded backbone.
            weights: the backbone's weights file, where it is neither embedded nor published nor the run's own.
            device: of the backbone: "cpu", "cuda", or "auto".

        Raises:
            BankError: no such version or tag, or the version lacks what the router needs.
            SettingsError: no such router, or one that needs the true task.
            CorruptionError: the version is damaged; the message names the file.
        """
        from pipelines.prediction import Model
        from workers.modeling.evaluation_settings import EvaluationSettings

        version = self.bank.load(ref)
        made_by = recorded_experiment(version)
        evaluation = made_by.evaluation if made_by is not None else EvaluationSettings()
        same = backbone is None and made_by is not None
        return Model(
            version,
            router=router or headline_router(evaluation.routers),
            settings=evaluation,
            backbone=backbone,
            weights=weights or (made_by.backbone.weights if same and made_by else None),
            device=device,
            max_pixels=made_by.features.max_pixels if made_by is not None else None,
        )


def headline_router(routers: tuple[str, ...]) -> str:
    """The first of an experiment's routers that a prediction can use."""
    from workers.modeling.routers import ROUTERS

    usable = (r for r in routers if not ROUTERS[r].upper_bound and not ROUTERS[r].order_dependent)
    return next(usable, "lda")


def recorded_experiment(version: BankVersion) -> Experiment | None:
    """The experiment of the run that made a version or the nearest one before it; None when its folder is gone."""
    from orchestrator.experiment_files import parse_experiment

    bank, manifest = version.bank, version.manifest
    for _ in range(_BEFORE):
        data = _experiment_file(bank.storage, manifest.writer)
        if data is not None:
            try:
                return parse_experiment(data, where=f"run {manifest.writer['run']}")
            except LucaError:
                return None  # of a release with other settings
        before = _before(bank, manifest)
        if before is None:
            return None
        bank, manifest = before
    return None


def _before(bank: Bank, manifest: Manifest) -> tuple[Bank, Manifest] | None:
    """The version that this one was forked or rolled back from, else its parent; None when it is not there."""
    try:
        if manifest.origin is not None:
            origin = Bank.open(bank.storage, str(manifest.origin.get("bank")))
            found = origin.read_manifest(int(manifest.origin.get("version", 0)))
            return (origin, found) if found.digest == manifest.origin.get("digest") else None
        return None if manifest.parent is None else (bank, bank.read_manifest(manifest.parent))
    except (LucaError, TypeError, ValueError):
        return None  # collected, or of another storage; only its experiment is of interest here


def _experiment_file(storage: Storage, writer: dict[str, Any]) -> dict[str, Any] | None:
    """``experiment.yaml`` of a run, in the storage or (remote storages) beside the working directory."""
    run = writer.get("run")
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        return None
    path = f"{run}/experiment.yaml"
    data = storage.read_if_exists(f"runs/{path}")
    local = Path("luca-runs") / path
    if data is None and not storage.is_local and local.is_file():
        data = local.read_bytes()
    if data is None:
        return None
    try:
        parsed = parse_yaml(data)
    except SettingsError:
        return None
    return parsed if isinstance(parsed, dict) else None
