"""The frozen vision transformer: pictures in, final-norm [CLS] features out.

``demo_vit`` is shipped with the package; every other name is timm's, with weights from the hub or a local file.  The
fingerprint says what a feature depends on (architecture, weights, transform, compute precision), so that cached
features can never be mistaken for another backbone's.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from workers.errors import BackboneError, first_line
from workers.modeling.backbone_models import build, no_cls
from workers.modeling.views import Transform
from workers.settings import Settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from workers.modeling.cls_forward import Forward

Precision = Literal["float32", "bfloat16", "float16"]


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
        built = build(settings)
        return cls(
            built.model,
            name=settings.name,
            options=built.options,
            transform=built.transform,
            device=device,
            precision=precision,
            source=built.source,
            notes=built.notes,
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
            raise BackboneError(no_cls(self.name, str(error))) from error
        except (AssertionError, RuntimeError) as error:
            if "out of memory" in str(error).lower():
                raise
            raise BackboneError(
                f"backbone '{self.name}' does not take {size[0]} x {size[1]} pictures "
                f"({first_line(error)}): "
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
