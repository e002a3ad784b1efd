"""A backbone's weights from a local file, and whether they fit.

They are checked key by key before anything is loaded, since timm itself ignores missing keys once the classifier is
dropped.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from workers.errors import BackboneError, first_line

if TYPE_CHECKING:
    from torch import Tensor, nn

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar")

_HEADS = ("head", "head_dist", "head_drop", "fc", "classifier", "pre_logits", "lin_cls")
_POSITIONS = ("pos_embed", "rel_pos", "relative_position", "position_embed")
MISFIT = (KeyError, RuntimeError, ValueError, AttributeError, TypeError, IndexError)
"""What timm and PyTorch raise on weights of another architecture."""


def weights_digest(model: nn.Module) -> str:
    """Hex digest of every parameter and buffer of the state dict: name, dtype, shape, bytes.

    It does not depend on the file format or on where the weights came from.  About 0.5 s for ViT-B.
    """
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        data = tensor.detach().cpu().contiguous()
        digest.update(f"{name}\0{data.dtype}\0{tuple(data.shape)}\0".encode())
        digest.update(data.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def weights_file(path: str) -> Path:
    """The file behind ``backbone.weights``, judged by its name alone.

    Raises:
        BackboneError: there is no such file, or its name is not that of a format that is read.
    """
    file = Path(path).expanduser()
    if not os.path.isfile(file):
        if os.path.isdir(file):
            what = "is a directory"
        else:
            what = "is no file" if os.path.exists(file) else "does not exist"
        raise BackboneError(f"backbone.weights '{path}' {what}: give a .safetensors or .pth file")
    if file.suffix.lower() not in SUFFIXES:
        raise BackboneError(
            f"backbone.weights '{path}' ends in '{file.suffix}': give a .safetensors file or a PyTorch "
            f"checkpoint ({', '.join(SUFFIXES[1:])})"
        )
    return file


def read_weights(path: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file or a PyTorch checkpoint (read without executing pickled code).

    Raises:
        BackboneError: no such file, another format, damaged, or a checkpoint that needs code to be unpickled.
    """
    file = weights_file(path)
    from workers.modeling.torchvision_compat import import_timm

    import_timm()
    import torch
    from safetensors import SafetensorError
    from timm.models import load_state_dict

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks on pickles it is about to refuse
            state = load_state_dict(str(file), weights_only=True)
    except (OSError, SafetensorError, pickle.UnpicklingError, EOFError, *MISFIT) as error:
        raise BackboneError(
            f"backbone.weights '{path}' cannot be read as weights ({first_line(error)}): give a "
            ".safetensors file or a PyTorch checkpoint that holds tensors only"
        ) from error
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise BackboneError(
            f"backbone.weights '{path}' holds no tensors at its top level, under 'state_dict' or under 'model'"
        )
    return tensors


def fit_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    *,
    name: str,
    path: str,
    resample_positions: bool,
) -> None:
    """Loads weights that fit a headless model exactly; a classifier in the file is left out.

    A file in an architecture's original layout (DINOv2, CLIP, ...) is converted by timm's own filter for that
    architecture.  Position embeddings are resampled only when ``resample_positions`` asks for it.

    Raises:
        BackboneError: naming the first missing, unexpected and mismatched tensors.
    """
    own = model.state_dict()
    candidate = _without_heads(weights, own)
    if _misfits(candidate, own) is not None:
        converted = _converted(model, weights)
        if converted is not None:
            converted = _without_heads(converted, own)
            forced = _resampled(weights, own, resample_positions)
            if not forced and _misfits(converted, own) is None:
                candidate = converted
    fault = _misfits(candidate, own)
    if fault is not None:
        raise BackboneError(
            f"backbone.weights '{path}' does not fit '{name}': {fault}; give weights of this architecture, or "
            "set backbone.name to the architecture of these"
            + (
                ", or set backbone.image_size to resample the position embedding"
                if _only_positions(candidate, own)
                else ""
            )
        )
    model.load_state_dict({key: candidate[key].to(own[key].dtype) for key in own}, strict=True)


def _without_heads(
    weights: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    return {k: v for k, v in weights.items() if k in own or k.partition(".")[0] not in _HEADS}


def _converted(model: nn.Module, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
    """What timm's filter for this model's module makes of the file; None when there is none or it fails."""
    filter_fn: Callable[..., Mapping[str, Tensor]] | None = getattr(
        sys.modules[type(model).__module__], "checkpoint_filter_fn", None
    )
    if filter_fn is None:
        return None
    try:
        return filter_fn(dict(weights), model)
    except MISFIT:
        return None


def _resampled(
    weights: Mapping[str, Tensor], own: Mapping[str, Tensor], positions_allowed: bool
) -> bool:
    """Whether the filter had to stretch a tensor that must fit as it is (timm resamples patch embeddings too)."""
    return any(
        key in own
        and weights[key].numel() != own[key].numel()
        and not (positions_allowed and any(part in key for part in _POSITIONS))
        for key in weights
    )


def _only_positions(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    wrong = [k for k in own if k not in weights or weights[k].shape != own[k].shape]
    return bool(wrong) and all(any(part in key for part in _POSITIONS) for key in wrong)


def _misfits(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str | None:
    missing = [key for key in own if key not in weights]
    unexpected = [key for key in weights if key not in own]
    mismatched = [
        key for key in own if key in weights and tuple(weights[key].shape) != tuple(own[key].shape)
    ]
    parts = []
    if missing:
        parts.append(f"'{missing[0]}'{_more(missing)} missing")
    if unexpected:
        parts.append(f"'{unexpected[0]}'{_more(unexpected)} unexpected")
    if mismatched:
        key = mismatched[0]
        parts.append(
            f"'{key}'{_more(mismatched)} of shape {list(weights[key].shape)} instead of {list(own[key].shape)}"
        )
    return ", ".join(parts) or None


def _more(keys: list[str]) -> str:
    return f" and {len(keys) - 1} more" if len(keys) > 1 else ""
