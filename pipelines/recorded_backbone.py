"""The backbone a bank was learned on, loaded again from what the bank's manifest says of it.

A manifest keeps content, not places: name, transform, precision and the fingerprint of all of it together with the
weights.  Where the weights lie is the reader's business; whatever is loaded must have the recorded fingerprint,
so a prediction can never be made on another backbone's features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workers.errors import BackboneError

if TYPE_CHECKING:
    from workers.modeling.backbone import Backbone, BackboneSettings

READY_FEATURES = "ready-features"
"""The recorded name of banks that were learned on features made elsewhere."""


def load_recorded(
    recorded: Mapping[str, Any],
    *,
    name: str | None = None,
    weights: str | None = None,
    device: str = "cpu",
) -> Backbone:
    """The backbone whose fingerprint a bank recorded.

    Args:
        recorded: ``BankVersion.backbone``.
        name: another name of the same backbone; None takes the recorded one.
        weights: local weights file; None takes the embedded or published weights.
        device: "cpu", "cuda" or "auto".

    Raises:
        BackboneError: the bank has no backbone, or its backbone cannot be had: no such model or file, or what was
            loaded has another fingerprint; says in what it differs.
    """
    from workers.modeling.backbone import Backbone

    if recorded["name"] == READY_FEATURES:
        raise BackboneError(
            f"this bank was learned on ready features of width {recorded['width']}, so it has no backbone for "
            "images: give Parquet or Arrow files with a column of such features"
        )
    failures: list[str] = []
    for settings in _candidates(recorded, name, weights):
        try:
            backbone = Backbone.load(settings, device=device, precision=recorded["precision"])
        except BackboneError as error:
            failures.append(f"the bank's backbone cannot be loaded: {error} (--weights PATH)")
            continue
        if backbone.fingerprint == recorded["fingerprint"]:
            return backbone
        failures.append(_difference(backbone.info(), recorded, weights))
    raise BackboneError(failures[0])


def _candidates(
    recorded: Mapping[str, Any], name: str | None, weights: str | None
) -> list[BackboneSettings]:
    """Settings that can have led to what was recorded: the image size was left out, or given."""
    from workers.modeling.backbone import BackboneSettings

    transform = recorded["transform"]
    height, width = transform["input"]
    sizes = [None, height] if height == width else [None]
    return [
        BackboneSettings(
            name=name or recorded["name"],
            weights=weights,
            image_size=size,
            crop_pct=transform["test"]["crop_pct"],
            normalise=any(transform["mean"]) or any(std != 1 for std in transform["std"]),
        )
        for size in sizes
    ]


def _difference(loaded: Mapping[str, Any], recorded: Mapping[str, Any], weights: str | None) -> str:
    what = [
        word
        for word, key in (("weights", "weights"), ("transform", "transform"), ("width", "width"))
        if loaded[key] != recorded[key]
    ]
    if loaded["name"].partition(".")[0] != recorded["name"].partition(".")[0]:
        what.insert(0, "architecture")
    source = f"{loaded['name']!r} with the weights {weights!r}" if weights else repr(loaded["name"])
    return (
        f"the bank was learned on features of {recorded['name']!r}, and {source} gives other ones (the "
        f"{' and '.join(what) or 'options'} differ: fingerprint {loaded['fingerprint'][:12]}, recorded "
        f"{recorded['fingerprint'][:12]}): give the weights it was learned with (--weights PATH)"
    )
