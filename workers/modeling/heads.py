"""Cosine heads: the classifier over LuCA outputs, unified over all classes or local to a task."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.errors import DataError

NORM_FLOOR = 1e-12
ENTROPY_FLOOR = 1e-9


@dataclass(frozen=True)
class UnifiedHead:
    """One cosine classifier over all classes seen so far.

    Attributes:
        weight: [C, d], row c for global class c.
        scale: scalar that multiplies every cosine, carried from task to task.
    """

    weight: Tensor
    scale: Tensor


def cosine_logits(outputs: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """scale * cos(output, row), norms floored at 1e-12.

    Args:
        outputs: LuCA outputs [..., n, d].
        weight: rows [..., C, d].
        scale: scalar, or [...] for one a module.

    Returns:
        logits [..., n, C].
    """
    unit_outputs = torch.nn.functional.normalize(outputs, dim=-1, eps=NORM_FLOOR)
    unit_rows = torch.nn.functional.normalize(weight, dim=-1, eps=NORM_FLOOR)
    logits = unit_outputs @ unit_rows.transpose(-1, -2)
    return logits * scale.reshape(*scale.shape, 1, 1) if scale.dim() else logits * scale


def softmax_entropy(logits: Tensor) -> Tensor:
    """Entropy -sum p log(p + 1e-9) of softmax(logits) over the last axis, as the released code has it."""
    p = torch.softmax(logits, dim=-1)
    return -(p * torch.log(p + ENTROPY_FLOOR)).sum(dim=-1)


def grow_unified_head(
    previous: UnifiedHead | None,
    *,
    classes: int,
    width: int,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> UnifiedHead:
    """The head a task starts from: older rows as they are, new rows zero, the scale carried on.

    The first task has rows uniform in +-1/sqrt(d) and scale one.  Zero rows are what the released code
    appends; see METHOD on the gradient they get under a floored norm.

    Raises:
        DataError: the older head has another width.
    """
    if previous is None:
        bound = 1.0 / math.sqrt(width)
        rows = torch.empty(classes, width).uniform_(-bound, bound, generator=generator)
        return UnifiedHead(weight=rows.to(dtype), scale=torch.ones((), dtype=dtype))
    seen, old_width = previous.weight.shape
    if old_width != width:
        raise DataError(
            f"the bank's head is {old_width} wide but the features are {width} wide; "
            "use the backbone the bank was made with"
        )
    weight = torch.zeros(max(classes, seen), width, dtype=dtype)
    weight[:seen] = previous.weight.to(weight)
    return UnifiedHead(weight=weight, scale=previous.scale.detach().to(weight).reshape(()).clone())


def class_sums(outputs: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sum [classes, d] and count [classes] of outputs [n, d] by label in 0..classes-1, in float64."""
    sums = torch.zeros(classes, outputs.shape[-1], dtype=torch.float64, device=outputs.device)
    sums.index_add_(0, labels, outputs.to(torch.float64))
    return sums, torch.bincount(labels, minlength=classes).to(sums)


def put_rows(weight: Tensor, rows: Tensor, present: Tensor) -> Tensor:
    """A copy of weight [C, d] that has ``rows`` [C, d] where ``present`` [C] is true."""
    return torch.where(present.unsqueeze(1), rows.to(weight), weight)
