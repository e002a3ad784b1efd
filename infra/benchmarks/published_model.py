"""The published model and its training step as a plain PyTorch program has them, written from METHOD's formulas.

What the other benchmarks compare against: ``nn.Module``, autograd, ``torch.optim.SGD``, nothing clever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class LucaModule(nn.Module):
    """a = LN(x + M(x)), a * g(a), with parameter names as released."""

    def __init__(self, width: int, ratio: int = 16) -> None:
        super().__init__()
        rank = width // ratio
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, rank), nn.GELU(), nn.Linear(rank, width))
        self.se = nn.Sequential(
            nn.Linear(width, rank, bias=False),
            nn.ReLU(),
            nn.Linear(rank, width, bias=False),
            nn.Sigmoid(),
        )
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[n, d] -> [n, d]."""
        a = self.norm(x + self.mlp(x))
        out: Tensor = a * self.se(a)
        return out


class CosineHead(nn.Module):
    """s * cos(x, w_c) for all classes seen so far."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(classes, width).uniform_(-(width**-0.5), width**-0.5)
        )
        self.sigma = nn.Parameter(torch.ones(1))

    def grow(self, classes: int) -> None:
        """Zero rows for new classes."""
        rows = self.weight.new_zeros(classes - len(self.weight), self.weight.shape[1])
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), rows]))

    def forward(self, x: Tensor) -> Tensor:
        """[n, d] -> [n, C]."""
        unit = functional.normalize(self.weight, dim=1)
        return self.sigma * functional.linear(functional.normalize(x, dim=1), unit)


class PlainTrainer:
    """SGD with momentum on module and head, the L1 term in the autograd graph."""

    def __init__(self, module: LucaModule, head: CosineHead, *, rate: float, l1: float) -> None:
        self.module, self.head, self._l1 = module, head, l1
        parameters = [*module.parameters(), *head.parameters()]
        self._optimiser = torch.optim.SGD(parameters, lr=rate, momentum=0.9)

    def set_rate(self, rate: float) -> None:
        """The learning rate from the next step on."""
        for group in self._optimiser.param_groups:
            group["lr"] = rate

    def step(self, features: Tensor, labels: Tensor) -> float:
        """One step on features [b, d]; the loss."""
        loss = functional.cross_entropy(self.head(self.module(features)), labels)
        loss = loss + self._l1 * sum(p.abs().sum() for p in self.module.parameters())
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return float(loss.item())


def load(module: LucaModule, state: Mapping[str, Any]) -> LucaModule:
    """The module with these parameters."""
    module.load_state_dict(dict(state))
    return module
