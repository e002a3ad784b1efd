"""LuCA: the small module that re-reads a frozen [CLS] feature for one task.

A module is a dictionary of named tensors, not an ``nn.Module``: the same functions then serve one module, or
many stacked along a leading axis as one batched product, and a bank stores exactly what is computed with.
Names and formulas are those of "Unlocking [CLS] Features for Continual Post-Training" (arXiv 2502.14762).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from workers.errors import SettingsError
from workers.modeling.luca_settings import (
    Flow,
    LucaSettings,
    Part,
    parameter_shapes,
)

Parameters = dict[str, Tensor]

LAYER_NORM_EPS = 1e-5

_PARTS: dict[str, Part] = {"norm.weight": "norm", "norm.bias": "norm"}


def part_of(name: str) -> Part:
    """The part (``weights``, ``biases`` or ``norm``) that a parameter belongs to."""
    return _PARTS.get(name, "biases" if name.endswith(".bias") else "weights")


def init_parameters(
    width: int,
    settings: LucaSettings,
    *,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Parameters:
    """A fresh module: Xavier-uniform weights, zero biases, LayerNorm gain one and bias zero.

    Drawn in float32 on the CPU whatever ``dtype`` is, so that one seed means one module.
    """
    parameters: Parameters = {}
    for name, shape in parameter_shapes(width, settings).items():
        if len(shape) == 2:
            bound = math.sqrt(6.0 / (shape[0] + shape[1]))
            drawn = torch.empty(shape).uniform_(-bound, bound, generator=generator)
            parameters[name] = drawn.to(dtype)
        elif name == "norm.weight":
            parameters[name] = torch.ones(shape, dtype=dtype)
        else:
            parameters[name] = torch.zeros(shape, dtype=dtype)
    return parameters


def apply(parameters: Mapping[str, Tensor], x: Tensor, flow: Flow) -> Tensor:
    """Output of one module, or of many at once as one batched product.

    Args:
        parameters: one module, or ``stack`` of m modules.
        x: features [n, d]; for stacked modules also [m, n, d], each module its own.
        flow: ``tosca``: a = LN(x + M(x)), a * g(a);  ``tosca_r``: x * g(x) + LN(M(x));
            ``adapter``: LN(M(x));  ``calibrator``: x * g(x).

    Returns:
        [n, d] for one module, [m, n, d] for m, in the dtype of the inputs.
    """
    if flow == "calibrator":
        return x * _gate(parameters, x)
    adapted = _adapter(parameters, x)
    if flow == "tosca":
        adapted = adapted + x
    normed = _layer_norm(parameters, adapted)
    if flow == "tosca":
        return normed * _gate(parameters, normed)
    if flow == "tosca_r":
        return normed + x * _gate(parameters, x)
    return normed


def stack(modules: Sequence[Mapping[str, Tensor]]) -> Parameters:
    """Modules of equal shape joined along a new leading axis.

    Raises:
        SettingsError: there is no module, or shapes differ.
    """
    if not modules:
        raise SettingsError("no module to stack; give at least one")
    shapes = [{name: tuple(value.shape) for name, value in module.items()} for module in modules]
    if any(shape != shapes[0] for shape in shapes):
        raise SettingsError(
            "modules of different shapes cannot be stacked; use one flow and one rank in a bank"
        )
    return {name: torch.stack([module[name] for module in modules]) for name in modules[0]}


def parameter_count(parameters: Mapping[str, Tensor]) -> int:
    """Number of stored parameters."""
    return sum(value.numel() for value in parameters.values())


def nonzero_count(parameters: Mapping[str, Tensor]) -> int:
    """Number of parameters that are not exactly zero."""
    return sum(int(torch.count_nonzero(value)) for value in parameters.values())


def _adapter(parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    hidden = _project(x, parameters["mlp.0.weight"])
    hidden = functional.gelu(hidden + _row(parameters["mlp.0.bias"]))
    return _project(hidden, parameters["mlp.2.weight"]) + _row(parameters["mlp.2.bias"])


def _gate(parameters: Mapping[str, Tensor], v: Tensor) -> Tensor:
    hidden = functional.relu(_project(v, parameters["se.0.weight"]))
    return torch.sigmoid(_project(hidden, parameters["se.2.weight"]))


def _layer_norm(parameters: Mapping[str, Tensor], z: Tensor) -> Tensor:
    normed = functional.layer_norm(z, (z.shape[-1],), eps=LAYER_NORM_EPS)
    return torch.addcmul(_row(parameters["norm.bias"]), normed, _row(parameters["norm.weight"]))


def _project(x: Tensor, weight: Tensor) -> Tensor:
    """x times weight transposed; features shared by all modules take one wide product."""
    if weight.dim() == 3 and x.dim() == 2:
        modules, rank, width = weight.shape
        wide = functional.linear(x, weight.reshape(modules * rank, width))
        return wide.view(x.shape[0], modules, rank).transpose(0, 1)
    return x @ weight.transpose(-1, -2)


def _row(vector: Tensor) -> Tensor:
    """A vector, or one a module, shaped to be added to rows."""
    return vector.unsqueeze(-2)
