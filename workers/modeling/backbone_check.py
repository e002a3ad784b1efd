"""Whether a backbone's settings can be met, as far as that can be said without its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.modeling.backbone_models import (
    EMBEDDED,
    RANDOM,
    check_name,
    check_patches,
    patch_size,
    require_cls,
    skeleton,
)
from workers.modeling.weights import weights_file

if TYPE_CHECKING:
    from torch import nn

    from workers.modeling.backbone import BackboneSettings


def check_buildable(settings: BackboneSettings) -> None:
    """Refuse what loading the backbone would refuse, as far as can be said without weights; reads and fetches none.

    Quick for an embedded backbone; for another one timm is imported, which takes seconds.

    Raises:
        BackboneError: not in timm, no [CLS] token, no such weights file, or an image size that the architecture does
            not take.
    """
    if settings.weights is not None and settings.weights != RANDOM:
        weights_file(settings.weights)
    embedded = EMBEDDED.get(settings.name)
    if embedded is not None:
        check_patches(embedded.arguments["patch_size"], settings)
        return
    check_patches(patch_size(checked_skeleton(settings)), settings)


def checked_skeleton(settings: BackboneSettings) -> nn.Module:
    """A model of timm's without its weights, headless; it says how wide features are.

    Raises:
        BackboneError: not in timm, no [CLS] token, or an image size that the architecture does not take.
    """
    from workers.modeling.torchvision_compat import import_timm

    timm = import_timm()
    check_name(timm, settings.name)
    size = {} if settings.image_size is None else {"img_size": settings.image_size}
    model = skeleton(timm, settings, {**size, "num_classes": 0})
    require_cls(model, settings.name)
    return model
