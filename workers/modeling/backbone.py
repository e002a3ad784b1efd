"""The frozen vision transformer: pictures in, final-norm [CLS] features out.

``demo_vit`` is shipped with the package; every other name is timm's, with weights from the hub or a local file.  The
fingerprint says what a feature depends on (architecture, weights, transform, compute precision), so that cached
features can never be mistaken for another backbone's.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.resources
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from workers.errors import BackboneError
from workers.modeling.views import Transform
from workers.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from workers.modeling.cls_forward import Forward

Precision = Literal["float32", "bfloat16", "float16"]
RANDOM = "random"
_EXAMPLES = "vit_base_patch16_224, vit_small_patch14_dinov2 or deit_small_patch16_224"


class BackboneSettings(Settings):
    """Which frozen backbone, and how pictures are put into it."""

    name: str = Field(
        "demo_vit",
        min_length=1,
        description="'demo_vit' (embedded, 2.7 M parameters) or any timm model with a [CLS] token, with or "
        "without a pretrained tag, such as vit_base_patch16_224.augreg_in21k",
    )
    weights: str | None = Field(
        None,
        description="local .safetensors or .pth file; left out: the weights timm publishes under this name "
        "(for demo_vit: the embedded ones); 'random': seeded random weights, for tests and benchmarks",
    )
    image_size: int | None = Field(
        None, ge=8, le=4096, description="input edge in pixels; left out: the backbone's own"
    )
    crop_pct: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the resized test picture that the centre crop keeps; left out: the backbone's own",
    )
    normalise: bool = Field(
        True,
        description="subtract the backbone's mean and divide by its standard deviation; false feeds [0, 1] "
        "pictures, as the released TOSCA code does",
    )


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


class Backbone:
    """A loaded, frozen backbone on one device.

    Attributes:
        width: d, the length of a feature.
        transform: how a picture becomes input (:class:`workers.modeling.views.Transform`).
        fingerprint: 32 hex digits; equal if and only if architecture, weights, transform and compute precision are.
        source: where the weights came from, in words.  Not part of :meth:`info`.
        notes: what a user should know about this backbone.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        options: dict[str, Any],
        transform: Transform,
        device: str,
        precision: Precision,
        source: str,
        notes: tuple[str, ...] = (),
    ) -> None:
        """Use :meth:`load`."""
        import torch

        from workers.modeling.weights import weights_digest

        self.name = name
        self.transform = transform
        self.precision: Precision = precision
        self.device = torch.device(device)
        self.source = source
        self.notes = notes
        self.width = int(model.num_features)  # type: ignore[arg-type]
        self._weights = weights_digest(model)
        self.fingerprint = self._fingerprint(options)
        self._model = model.eval().requires_grad_(False).to(self.device)
        self._forward = self._checked_forward()
        self._compute = getattr(torch, precision)
        if precision != "float32":
            self._cast_weights()
        self._mean = torch.tensor(transform.mean, device=self.device).view(1, 3, 1, 1)
        self._std = torch.tensor(transform.std, device=self.device).view(1, 3, 1, 1)
        self._normalises = transform.mean != (0.0,) * 3 or transform.std != (1.0,) * 3

    @classmethod
    def load(
        cls, settings: BackboneSettings, *, device: str = "cpu", precision: Precision = "float32"
    ) -> Backbone:
        """Builds the model, loads and checks its weights.

        Args:
            settings: which backbone.
            device: "cpu", "cuda" (or "cuda:1", ...), or "auto": CUDA where torch sees a device.
            precision: what the products are computed in (autocast); features come out as float32.

        Raises:
            BackboneError: not in timm, no [CLS] token, weights that cannot be had or do not fit, an image size
                that the architecture does not take, or no such device.
        """
        device = resolve_device(device)
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
        _check_patches(model, settings)
        return cls(
            model,
            name=settings.name,
            options=options,
            transform=_transform(model, embedded, settings),
            device=device,
            precision=precision,
            source=source,
            notes=tuple(notes),
        )

    def info(self) -> dict[str, Any]:
        """JSON-able description for a bank's manifest: content only, no path, device or host."""
        return {
            "name": self.name,
            "width": self.width,
            "weights": self._weights,
            "transform": self.transform.describe(),
            "precision": self.precision,
            "fingerprint": self.fingerprint,
        }

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 pictures [n, h, w, 3] as float32 input [n, 3, h, w], as ToTensor and Normalize would."""
        import torch

        images = torch.empty(
            (len(pixels), 3, *pixels.shape[1:3]), dtype=torch.float32, device=pixels.device
        )
        images.copy_(pixels.permute(0, 3, 1, 2)).div_(255.0)
        return images.sub_(self._mean).div_(self._std) if self._normalises else images

    def features(self, images: Tensor) -> Tensor:
        """The final-norm [CLS] token.

        Args:
            images: [n, 3, h, w], normalised, any float dtype and device.

        Returns:
            [n, d] float32 on this backbone's device.
        """
        import torch

        torch.set_flush_denormal(True)  # denormals slow a pass several times and change nothing
        images = images.to(self.device)
        with (
            torch.inference_mode(),
            torch.autocast(
                self.device.type, dtype=self._compute, enabled=self.precision != "float32"
            ),
        ):
            return self._forward(images).float()

    def embed(self, pixels: NDArray[np.uint8]) -> Tensor:
        """uint8 pictures [n, h, w, 3] of the transform's size -> [n, d] float32 on this backbone's device."""
        import torch

        with torch.inference_mode():
            batch = torch.from_numpy(pixels)
            if self.device.type == "cuda":
                batch = batch.pin_memory().to(self.device, non_blocking=True)
            return self.features(self.normalise(batch))

    def _fingerprint(self, options: dict[str, Any]) -> str:
        content = {
            "architecture": self.name.partition(".")[0],
            "options": options,
            "weights": self._weights,
            "transform": self.transform.describe(),
            "precision": self.precision,
            "feature": "final-norm [CLS]",
        }
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _checked_forward(self) -> Forward:
        import torch

        from workers.modeling.cls_forward import cls_forward

        size = (self.transform.height, self.transform.width)
        generator = torch.Generator().manual_seed(0)
        probe = torch.rand((1, 3, *size), generator=generator).to(self.device)
        try:
            return cls_forward(self._model, probe)
        except TypeError as error:
            raise BackboneError(_no_cls(self.name, str(error))) from error
        except (AssertionError, RuntimeError) as error:
            if "out of memory" in str(error).lower():
                raise
            raise BackboneError(
                f"backbone '{self.name}' does not take {size[0]} x {size[1]} pictures "
                f"({str(error).splitlines()[0] if str(error) else type(error).__name__}): "
                "leave backbone.image_size out or choose a multiple of the patch size"
            ) from error

    def _cast_weights(self) -> None:
        """Keeps the products' weights in the compute dtype, so that autocast need not cast them in every batch."""
        from torch import nn

        for module in self._model.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                module.to(self._compute)


def resolve_device(device: str) -> str:
    """ "auto" as "cuda" or "cpu"; anything else checked.

    Raises:
        BackboneError: a CUDA device is asked for and torch sees none, or the word is unknown.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise BackboneError(f"device '{device}' is unknown: use cpu, cuda or auto")
    if kind == "cuda" and not torch.cuda.is_available():
        raise BackboneError(
            "device 'cuda' is asked for and torch sees no GPU here: use device cpu or auto, or give the "
            "actor a GPU"
        )
    return device


def _embedded_model(
    embedded: Embedded, settings: BackboneSettings, options: dict[str, Any]
) -> tuple[nn.Module, str]:
    from workers.modeling.torchvision_compat import import_timm
    from workers.modeling.weights import fit_weights, read_weights

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
    from workers.modeling.weights import fit_weights, read_weights

    timm = import_timm()
    check_name(timm, settings.name)
    arguments = {**options, "num_classes": 0}
    if settings.weights is None:
        _require_cls(_skeleton(timm, settings, arguments), settings.name)
        return load_from_hub(settings.name, arguments), "the hub"
    weights = None if settings.weights == RANDOM else read_weights(settings.weights)
    with _seeded():
        model = _create(timm, settings, arguments)
    _require_cls(model, settings.name)
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


def _skeleton(timm: Any, settings: BackboneSettings, arguments: dict[str, Any]) -> nn.Module:
    """The model without memory for its weights where timm can do so; it tells whether there is a [CLS] token."""
    import torch

    try:
        with torch.device("meta"):
            model: nn.Module = timm.create_model(settings.name, pretrained=False, **arguments)
    except (RuntimeError, NotImplementedError):
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
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    advice = (
        f"backbone.image_size={settings.image_size} may not suit it, leave it out"
        if settings.image_size is not None
        else "choose another backbone"
    )
    return f"backbone '{settings.name}' cannot be built ({reason}): {advice}"


def _require_cls(model: nn.Module, name: str) -> None:
    from torch import nn

    if not isinstance(getattr(model, "cls_token", None), nn.Parameter):
        raise BackboneError(_no_cls(name, f"its class is {type(model).__name__}"))


def _check_patches(model: nn.Module, settings: BackboneSettings) -> None:
    """timm leaves out what does not fill a patch; better to say so than to lose a picture's edge."""
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    size = settings.image_size
    if isinstance(patch, int):
        patch = (patch, patch)
    if size is not None and patch is not None and any(size % int(edge) for edge in patch):
        raise BackboneError(
            f"backbone.image_size={size} is not a multiple of the patch size {int(patch[0])} of "
            f"'{settings.name}': use {max(1, round(size / int(patch[0]))) * int(patch[0])}"
        )


def _no_cls(name: str, why: str) -> str:
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
