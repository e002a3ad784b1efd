"""The flat parameters that learning works on, and their update.

All parameters of a module, its head and its scale lie in one row, so that momentum, weight update and L1 term are a
few passes over one buffer, for m modules as for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from workers.modeling.luca import Parameters

HEAD, SCALE = "head", "scale"

_aten: Any = torch.ops.aten


class FlatState:
    """Values and momentum of m equal-shaped modules, heads and scales, one flat row each.

    The penalised parameters come first, so that the L1 term acts on one slice.
    """

    def __init__(
        self,
        modules: Sequence[Parameters],
        heads: Sequence[Tensor],
        scales: Sequence[Tensor],
        *,
        penalised: frozenset[str],
        with_gradient: bool,
    ) -> None:
        rows = [
            {**module, HEAD: head, SCALE: scale.reshape(1)}
            for module, head, scale in zip(modules, heads, scales, strict=True)
        ]
        names = sorted(rows[0], key=lambda name: name not in penalised)
        self.count = len(rows)
        self.penalised = sum(rows[0][name].numel() for name in names if name in penalised)
        self.values = torch.stack(
            [torch.cat([row[name].reshape(-1) for name in names]) for row in rows]
        )
        self.velocity = torch.zeros_like(self.values)
        # one more column than parameters: the batch's loss is reduced together with the gradient
        self.gradient = (
            self.values.new_zeros(self.count, self.values.shape[1] + 1) if with_gradient else None
        )
        self._slices: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        start = 0
        for name in names:
            shape = tuple(rows[0][name].shape)
            self._slices[name] = (start, start + rows[0][name].numel(), shape)
            start += rows[0][name].numel()

    def views(self, buffer: Tensor) -> Parameters:
        """Named views into a flat buffer: matrices [m, a, b], vectors as rows [m, 1, a]; no m if it is one."""
        named: Parameters = {}
        for name, (start, stop, shape) in self._slices.items():
            matrix = shape if len(shape) == 2 else (1, *shape)
            view = buffer[:, start:stop].view(self.count, *matrix)
            named[name] = view[0] if self.count == 1 else view
        return named

    def module(self, index: int) -> tuple[Parameters, Tensor, Tensor]:
        """Copies of module ``index``: its parameters, head and scale."""
        copies = {
            name: self.values[index, start:stop].reshape(shape).clone()
            for name, (start, stop, shape) in self._slices.items()
        }
        head, scale = copies.pop(HEAD), copies.pop(SCALE)
        return copies, head, scale.reshape(())


class Update:
    """The weight update: momentum SGD with the L1 term as subgradient or as proximal step.

    ``subgradient`` adds l1 * sign(p) to the gradient, as autograd would.  ``proximal`` soft-thresholds after
    the step by lr * l1 / (1 - momentum): momentum multiplies a steady gradient by 1 / (1 - momentum), and with
    the same factor on the threshold both modes have the same stationary points, the minimisers of
    loss + l1 * |p|; but proximal reaches exact zeros.
    """

    def __init__(
        self, state: FlatState, *, l1: Sequence[float], proximal: bool, momentum: float
    ) -> None:
        self._state = state
        self._l1 = list(l1)
        self._proximal = proximal and state.penalised > 0
        self._subgradient = not proximal and state.penalised > 0 and any(l1)
        self._momentum = momentum
        self._part = state.values[:, : state.penalised]
        self._sign = torch.empty_like(self._part)
        self._l1_column = state.values.new_tensor(self._l1).unsqueeze(1)
        self._rates: list[float] = []
        self._limits: list[float] = []
        self._negative_rates = self._limit_column = self._l1_column

    def set_rates(self, rates: Sequence[float]) -> None:
        """Use these learning rates, one a module, from the next step on."""
        self._rates = list(rates)
        self._limits = [
            rate * l1 / (1.0 - self._momentum) for rate, l1 in zip(rates, self._l1, strict=True)
        ]
        self._negative_rates = self._part.new_tensor(self._rates).neg_().unsqueeze(1)
        self._limit_column = self._part.new_tensor(self._limits).unsqueeze(1)

    def penalty(self) -> Tensor:
        """l1 * sum |p| over the penalised parameters, [m]."""
        return self._part.abs().sum(1).mul_(self._l1_column[:, 0])

    def apply(self) -> None:
        """Update the weights from the momentum buffer, which holds this batch's gradient already."""
        state = self._state
        if self._subgradient:
            torch.sign(self._part, out=self._sign)
            velocity = state.velocity[:, : state.penalised]
            if _alike(self._l1):
                velocity.add_(self._sign, alpha=self._l1[0])
            else:
                velocity.addcmul_(self._sign, self._l1_column)
        if _alike(self._rates):
            state.values.add_(state.velocity, alpha=-self._rates[0])
        else:
            state.values.addcmul_(state.velocity, self._negative_rates)
        if self._proximal:
            self._shrink()

    def _shrink(self) -> None:
        if _alike(self._limits):
            soft_threshold(self._part, self._limits[0])
        elif self._part.is_cpu:  # as many passes as one over all, and each a vectorised kernel
            for part, limit in zip(self._part, self._limits, strict=True):
                soft_threshold(part, limit)
        else:
            soft_threshold(self._part, self._limit_column)


def _alike(numbers: Sequence[float]) -> bool:
    return all(number == numbers[0] for number in numbers)


def soft_threshold(values: Tensor, limit: float | Tensor) -> None:
    """Moves every value towards zero by ``limit``, in place; those within it become exactly zero.

    Args:
        values: any shape.
        limit: not negative; one number, or a tensor that broadcasts against ``values``.
    """
    if isinstance(limit, Tensor):
        values.sub_(torch.clamp(values, -limit, limit))
    elif limit > 0:
        _aten.softshrink.out(values, limit, out=values)
