"""Runs the modules of a bank over features: stacked, in bounded memory, or only those that are asked for.

Modules of equal shape are stacked and applied as one batched product.  Whether stacked or alone, a module's
output for a sample depends on that sample only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from workers.errors import BankError
from workers.modeling import luca
from workers.modeling.bank_tensors import BankTensors, TaskModule
from workers.modeling.heads import cosine_logits, softmax_entropy
from workers.modeling.luca import Parameters

_BLOCK_MODULES = 32
_BLOCK_ELEMENTS = 2**20


class ModuleScorer:
    """Applies modules of one bank to whitened features.

    A module's *score* is what can be kept for good once it is computed, because the module is frozen:
    for objective "local" its logits [n, c]; for "unified" its outputs [n, d], since the shared head
    goes on changing.
    """

    def __init__(self, bank: BankTensors) -> None:
        self._bank = bank
        self._blocks: list[_Block] | None = None

    def prepare(self, features: Tensor) -> Tensor:
        """Raw features [n, d] as modules and routers read them: whitened where the bank says so."""
        whitening = self._bank.whitening
        if whitening is None:
            return features
        return whitening.apply(features)

    def scores(self, features: Tensor, positions: Sequence[int] | None = None) -> list[Tensor]:
        """Scores of the modules at ``positions`` (default: all) on prepared features [n, d].

        Returns:
            One tensor a position in the order asked for, [n, c] or [n, d], in the modules' dtype.
        """
        if positions is None:
            if self._blocks is None:
                self._blocks = _blocks(self._bank.tasks, range(len(self._bank.tasks)))
            blocks, order = self._blocks, list(range(len(self._bank.tasks)))
        else:
            order = [_checked(position, self._bank) for position in positions]
            blocks = _blocks(self._bank.tasks, sorted(set(order)))
        found: dict[int, Tensor] = {}
        for block in blocks:
            parts: list[Tensor] = []
            for rows in _row_blocks(features, len(block.positions), self._bank.width):
                outputs = luca.apply(block.parameters, rows.to(block.dtype), self._bank.flow)
                if block.heads is not None and block.scales is not None:
                    outputs = cosine_logits(outputs, block.heads, block.scales)
                parts.append(outputs)
            joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
            for index, position in enumerate(block.positions):
                found[position] = joined[index]
        return [found[position] for position in order]

    def score(self, features: Tensor, position: int) -> Tensor:
        """Score of one module on prepared features [n, d], computed by itself: [n, c] or [n, d].

        Without the copies that stacking takes, which matter where a module meets few samples.
        """
        task = self._bank.tasks[_checked(position, self._bank)]
        parts = [self._run(task, rows) for rows in _row_blocks(features, 1, self._bank.width)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def entropies(self, features: Tensor, scores: Sequence[Tensor] | None) -> Tensor:
        """Entropy of every module's prediction over all classes seen, float64 [n, T] ("unified").

        -sum p log(p + 1e-9), as published.
        """
        columns: list[Tensor] = []
        tasks = range(len(self._bank.tasks))
        for start in range(0, len(tasks), _BLOCK_MODULES):
            positions = tasks[start : start + _BLOCK_MODULES]
            if scores is None:
                part = self.scores(features, positions if len(tasks) > _BLOCK_MODULES else None)
            else:
                part = [scores[position] for position in positions]
            for outputs in part:
                columns.append(softmax_entropy(self.head_logits(outputs)))
        return torch.stack(columns, dim=1)

    def head_logits(self, outputs: Tensor) -> Tensor:
        """Logits of the shared head over all classes seen, float64 [n, C], from outputs [n, d]."""
        assert self._bank.head is not None
        assert self._bank.scale is not None
        return cosine_logits(outputs, self._bank.head, self._bank.scale).to(torch.float64)

    def selected(
        self, features: Tensor, candidates: Tensor, scores: Sequence[Tensor] | None
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Scores of the (sample, module) pairs marked in ``candidates``, grouped by module.

        Args:
            features: Prepared features [n, d].
            candidates: bool [n, T].
            scores: Scores of all modules on these features if they are known already.

        Yields:
            Position of a module, its rows int64 [k], and its scores on these rows, float64 or the
            modules' dtype [k, ...].
        """
        for position in torch.nonzero(candidates.any(dim=0)).flatten().tolist():
            rows = torch.nonzero(candidates[:, position]).flatten()
            if scores is not None:
                yield position, rows, scores[position][rows]
                continue
            yield position, rows, self._run(self._bank.tasks[position], features[rows])

    def _run(self, task: TaskModule, features: Tensor) -> Tensor:
        """One module as it is, on prepared features."""
        inputs = features.to(next(iter(task.module.values())).dtype)
        outputs = luca.apply(task.module, inputs, self._bank.flow)
        if task.head is not None and task.scale is not None:
            outputs = cosine_logits(outputs, task.head, task.scale)
        return outputs


class _Block:
    """Modules of equal shape, stacked."""

    def __init__(self, tasks: Sequence[TaskModule], positions: Sequence[int]) -> None:
        chosen = [tasks[position] for position in positions]
        self.positions = tuple(positions)
        self.parameters: Parameters = luca.stack([task.module for task in chosen])
        self.dtype = next(iter(self.parameters.values())).dtype
        self.heads: Tensor | None = None
        self.scales: Tensor | None = None
        heads = [task.head for task in chosen if task.head is not None]
        scales = [task.scale for task in chosen if task.scale is not None]
        if len(heads) == len(chosen):
            self.heads = torch.stack(heads)
            self.scales = torch.stack([scale.reshape(()) for scale in scales])


def _blocks(tasks: Sequence[TaskModule], positions: Sequence[int]) -> list[_Block]:
    groups: dict[object, list[int]] = {}
    for position in positions:
        task = tasks[position]
        shapes = tuple((name, tuple(value.shape)) for name, value in task.module.items())
        head = None if task.head is None else tuple(task.head.shape)
        groups.setdefault((shapes, head), []).append(position)
    return [
        _Block(tasks, group[start : start + _BLOCK_MODULES])
        for group in groups.values()
        for start in range(0, len(group), _BLOCK_MODULES)
    ]


def _row_blocks(features: Tensor, modules: int, width: int) -> Iterator[Tensor]:
    step = max(1, _BLOCK_ELEMENTS // (modules * width))
    for start in range(0, max(1, features.shape[0]), step):
        yield features[start : start + step]


def _checked(position: int, bank: BankTensors) -> int:
    if not 0 <= position < len(bank.tasks):
        raise BankError(
            f"there is no module at position {position}; the bank holds {len(bank.tasks)} tasks."
        )
    return position


def module_scores(bank: BankTensors, positions: Sequence[int], features: Tensor) -> list[Tensor]:
    """Scores of frozen modules on raw features [n, d], to be kept and handed to `Predictor.predict`.

    Returns:
        One tensor a position: logits [n, c] over the task's own classes for objective "local";
        module outputs [n, d] for "unified", to which the shared head of any later version applies.

    Raises:
        DataError: The features do not fit the bank or are not finite.
        BankError: There is no module at a position.
    """
    bank.check_features(features)
    scorer = ModuleScorer(bank)
    with torch.inference_mode():
        return [score.clone() for score in scorer.scores(scorer.prepare(features), positions)]
