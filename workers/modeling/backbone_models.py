"""How the model behind a backbone is built: the embedded one, or any of timm's, with its weights and data config.

What cannot be a backbone is refused here: names that timm does not have, architectures without a [CLS] token, sizes
that do not fit.
"""

from __future__ import annotations

import difflib
import importlib.resources
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workers.errors import BackboneError, first_line
from workers.modeling.views import Transform
from workers.modeling.weights import fit_weights, read_weights

if TYPE_CHECKING:
    from torch import nn

    from workers.modeling.backbone import BackboneSettings

RANDOM = "random"
"""Says in place of a weights file that the weights shall be random."""

_EXAMPLES = "vit_base_patch16_224, vit_small_patch14_dinov2 or deit_small_patch16_224"


@dataclass(frozen=True)
class Embedded:
    """A backbone inside the package: a file of ``assets/``, timm's arguments for it, and its data config."""

    file: str
    arguments: dict[str, Any]
    input: dict[str, Any]
    note: str


EMBEDDED: dict[str, Embedded] = {
    "demo_vit": Embedded(
        file="demo_vit.safetensors",
        arguments={
            "img_size": 32,
            "patch_size": 8,
            "embed_dim": 192,
            "depth": 6,
            "num_heads": 3,
            "num_classes": 0,
            "global_pool": "token",
            "class_token": True,
        },
        input={
            "input_size": (3, 32, 32),
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
        },
        note="demo_vit is a small demonstration backbone (68 % on CIFAR-10): quick, real and not good",
    ),
}


@dataclass(frozen=True)
class Built:
    """A model as :func:`build` makes it.

    Attributes:
        options: arguments beside the name that decide the architecture.
        transform: how a picture becomes its input.
        source: where the weights came from, in words.
        notes: what a user should know about it.
    """

    model: nn.Module
    options: dict[str, Any]
    transform: Transform
    source: str
    notes: tuple[str, ...]


def build(settings: BackboneSettings) -> Built:
    """The model with its weights, on the CPU.

    Raises:
        BackboneError: not in timm, no [CLS] token, weights that cannot be had or do not fit, or an image size that
            the architecture does not take.
    """
    embedded = EMBEDDED.get(settings.name)
    options: dict[str, Any] = {} if embedded is None else dict(embedded.arguments)
    if settings.image_size is not None:
        options["img_size"] = settings.image_size
    if embedded is not None:
        model, source = _embedded_model(embedded, settings, options)
    else:
        model, source = _timm_model(settings, options)
    notes = []
    if embedded is not None:
        notes.append(embedded.note)
    if settings.weights == RANDOM:
        notes.append(f"the weights of '{settings.name}' are random: its features mean nothing")
    check_patches(patch_size(model), settings)
    transform = _transform(model, embedded, settings)
    return Built(model, options, transform, source, tuple(notes))


def _embedded_model(
    embedded: Embedded, settings: BackboneSettings, options: dict[str, Any]
) -> tuple[nn.Module, str]:
    from workers.modeling.torchvision_compat import import_timm

    import_timm()
    from timm.models.vision_transformer import VisionTransformer

    with _seeded():
        try:
            model = VisionTransformer(**options)
        except (AssertionError, ValueError, RuntimeError) as error:
            raise BackboneError(_bad_size(settings, error)) from error
    if settings.weights == RANDOM:
        return model, "random"
    folder = importlib.resources.files("workers.modeling") / "assets"
    with importlib.resources.as_file(folder / embedded.file) as path:
        file = settings.weights or str(path)
        fit_weights(
            model,
            read_weights(file),
            name=settings.name,
            path=file,
            resample_positions=settings.image_size is not None,
        )
    return model, settings.weights or "embedded in the package"


def _timm_model(settings: BackboneSettings, options: dict[str, Any]) -> tuple[nn.Module, str]:
    from workers.modeling.hub import load_from_hub
    from workers.modeling.torchvision_compat import import_timm

    timm = import_timm()
    check_name(timm, settings.name)
    arguments = {**options, "num_classes": 0}
    if settings.weights is None:
        require_cls(skeleton(timm, settings, arguments), settings.name)
        return load_from_hub(settings.name, arguments), "the hub"
    weights = None if settings.weights == RANDOM else read_weights(settings.weights)
    with _seeded():
        model = _create(timm, settings, arguments)
    require_cls(model, settings.name)
    if weights is not None:
        fit_weights(
            model,
            weights,
            name=settings.name,
            path=str(settings.weights),
            resample_positions=settings.image_size is not None,
        )
    return model, settings.weights


def check_name(timm: Any, name: str) -> None:
    """Refuse a name that is none of timm's own, before timm looks for it elsewhere (hubs, folders).

    Raises:
        BackboneError: there is no such model or pretrained tag; names the nearest.
    """
    if "/" not in name and ":" not in name and timm.is_model(name):
        architecture, _, tag = name.partition(".")
        published = timm.list_pretrained(f"{architecture}.*")
        if not tag or name in published:
            return
        near = difflib.get_close_matches(name, published, 3, 0.3) or published[:3]
        raise BackboneError(
            f"backbone '{architecture}' has no pretrained tag '{tag}' in timm {timm.__version__}: "
            + (f"use {', '.join(near)}" if near else "leave the tag out and give backbone.weights")
        )
    near = difflib.get_close_matches(name, [*EMBEDDED, *timm.list_models()], 3, 0.5)
    raise BackboneError(
        f"backbone '{name}' is not in timm {timm.__version__}: "
        + (f"did you mean {', '.join(near)}?" if near else f"use for instance {_EXAMPLES}")
    )


def skeleton(timm: Any, settings: BackboneSettings, arguments: dict[str, Any]) -> nn.Module:
    """The model without memory for its weights where timm can do so; it tells whether there is a [CLS] token."""
    import torch

    try:
        with torch.device("meta"):
            model: nn.Module = timm.create_model(settings.name, pretrained=False, **arguments)
    except RuntimeError:  # an operator that has no such form
        return _create(timm, settings, arguments)
    except (TypeError, AssertionError, ValueError) as error:
        raise BackboneError(_bad_size(settings, error)) from error
    return model


def _create(timm: Any, settings: BackboneSettings, arguments: dict[str, Any]) -> nn.Module:
    try:
        model: nn.Module = timm.create_model(settings.name, pretrained=False, **arguments)
    except (TypeError, AssertionError, ValueError, RuntimeError) as error:
        raise BackboneError(_bad_size(settings, error)) from error
    return model


def _bad_size(settings: BackboneSettings, error: BaseException) -> str:
    advice = (
        f"backbone.image_size={settings.image_size} may not suit it, leave it out"
        if settings.image_size is not None
        else "choose another backbone"
    )
    return f"backbone '{settings.name}' cannot be built ({first_line(error)}): {advice}"


def require_cls(model: nn.Module, name: str) -> None:
    """Refuse a model without a [CLS] token."""
    from torch import nn

    if not isinstance(getattr(model, "cls_token", None), nn.Parameter):
        raise BackboneError(no_cls(name, f"its class is {type(model).__name__}"))


def patch_size(model: nn.Module) -> Any:
    """Pixels, one number or two; None where a model does not say."""
    return getattr(getattr(model, "patch_embed", None), "patch_size", None)


def check_patches(patch: Any, settings: BackboneSettings) -> None:
    """timm leaves out what does not fill a patch; better to say so than to lose a picture's edge."""
    size = settings.image_size
    if isinstance(patch, int):
        patch = (patch, patch)
    if size is not None and patch is not None and any(size % int(edge) for edge in patch):
        raise BackboneError(
            f"backbone.image_size={size} is not a multiple of the patch size {int(patch[0])} of "
            f"'{settings.name}': use {max(1, round(size / int(patch[0]))) * int(patch[0])}"
        )


def no_cls(name: str, why: str) -> str:
    """The sentence for a model without a [CLS] token."""
    return (
        f"backbone '{name}' has no [CLS] token to take features from ({why}): set backbone.name to a vision "
        f"transformer that has one, such as {_EXAMPLES}"
    )


def _transform(
    model: nn.Module, embedded: Embedded | None, settings: BackboneSettings
) -> Transform:
    if embedded is not None:
        config = dict(embedded.input)
    else:
        from timm.data import resolve_model_data_config

        config = resolve_model_data_config(model)
    size = config["input_size"][-2:]
    if settings.image_size is not None:
        size = (settings.image_size, settings.image_size)
    # timm lists 'random' for a few models that were trained with several; its evaluation then uses bilinear.
    interpolation = "bilinear" if config["interpolation"] == "random" else config["interpolation"]
    return Transform(
        height=int(size[0]),
        width=int(size[1]),
        interpolation=interpolation,
        crop_pct=float(settings.crop_pct or config["crop_pct"]),
        crop_mode=config["crop_mode"],
        mean=_triple(config["mean"]) if settings.normalise else (0.0, 0.0, 0.0),
        std=_triple(config["std"]) if settings.normalise else (1.0, 1.0, 1.0),
    )


def _triple(values: Any) -> tuple[float, float, float]:
    a, b, c = (float(v) for v in values)
    return a, b, c


class _seeded:  # noqa: N801 - used as a context, like torch's own
    """Random initial weights that are the same in every process, leaving the caller's generator as it was."""

    def __enter__(self) -> None:
        import torch

        self._state = torch.get_rng_state()
        torch.manual_seed(0)

    def __exit__(self, *_: object) -> None:
        import torch

        torch.set_rng_state(self._state)
