"""Checks of backbones: does the embedded one load, and can the experiment's be had?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.checkup.finding import Finding, ok, wrong
from workers.errors import BackboneError

if TYPE_CHECKING:
    from workers.modeling.backbone import BackboneSettings


def check_weights(settings: BackboneSettings, *, needed: bool) -> Iterator[Finding]:
    """The embedded backbone, and the experiment's.

    Args:
        settings: the experiment's backbone.
        needed: whether the experiment reads images; ready features need no backbone.
    """
    from workers.modeling.backbone import BackboneSettings
    from workers.modeling.backbone_models import EMBEDDED, RANDOM

    plain = BackboneSettings()
    yield _loaded(plain, f"{plain.name} (embedded)")
    if not needed:
        yield ok("backbone", "none needed: the experiment reads ready features")
    elif settings.weights is not None and settings.weights != RANDOM:
        yield _loaded(settings, f"{settings.name} with {settings.weights}")
    elif settings.name not in EMBEDDED:
        yield _published(settings)
    elif settings != plain:
        yield _loaded(settings, settings.name)


def _loaded(settings: BackboneSettings, title: str) -> Finding:
    from workers.modeling.backbone import Backbone

    try:
        backbone = Backbone.load(settings)
    except BackboneError as error:
        return wrong("backbone", f"{title} cannot be loaded", str(error))
    size = backbone.transform
    return ok(
        "backbone", f"{title} loads: width {backbone.width}, {size.height}x{size.width} pixels"
    )


def _published(settings: BackboneSettings) -> Finding:
    from workers.modeling.hub import published_weights

    name = settings.name
    try:
        state = published_weights(name)
    except BackboneError as error:
        return wrong(
            "backbone",
            str(error),
            "check backbone.name, or set backbone.weights=PATH to a local file",
        )
    if state.available:
        return ok("backbone", f"{name}: its weights are {state.where}")
    return wrong(
        "backbone",
        f"{name}: its weights are {state.where}",
        "set backbone.weights=PATH to a local .safetensors or .pth file, run once where the hub is reachable (set "
        "https_proxy if there is one), or try backbone.name=demo_vit",
    )
