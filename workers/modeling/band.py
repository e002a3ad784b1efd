"""One orthogonal reduction of a symmetric matrix after which shifted systems are cheap.

Householder blocks bring A to block-tridiagonal form, A = Q B Q^T with Q orthogonal, almost wholly by large matrix
products.  (A + shift I)^-1 C and tr (A + shift I)^-1 then cost O(n b^2) a shift instead of O(n^3), and no
eigenvectors are ever formed: several times quicker than an eigendecomposition of a large matrix.
Bischof, Lang, Sun: A framework for symmetric band reduction, ACM TOMS 2000.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

_SHIFTS_AT_ONCE = 16
_STRIPE = 768


@dataclass(frozen=True)
class ShiftedSolutions:
    """What `BandReduction.solve` gives for every shift; NaN where A + shift I is singular to working precision.

    Attributes:
        products: tr(C^T (A + shift I)^-1 C), float64 [k].
        norms: Squared Frobenius norm of (A + shift I)^-1 C, float64 [k].
        traces: tr (A + shift I)^-1, float64 [k].
    """

    products: Tensor
    norms: Tensor
    traces: Tensor


class BandReduction:
    """A = Q B Q^T with block-tridiagonal B, and right-hand sides turned along.

    Args:
        matrix: Symmetric positive semi-definite A, float64 [n, n]; not changed.
        sides: Right-hand sides C, float64 [n, s].
        block: Size b of the blocks.
    """

    def __init__(self, matrix: Tensor, sides: Tensor, *, block: int = 64) -> None:
        size = matrix.shape[0]
        padded = max(2, -(-size // block)) * block
        work = matrix.new_zeros(padded, padded)
        work[:size, :size] = matrix
        turned = sides.new_zeros(padded, sides.shape[1])
        turned[:size] = sides
        self._size, self._block = size, block
        self._reflectors: list[tuple[Tensor, Tensor]] = []
        for start in range(0, padded - block, block):
            after = start + block
            panel, scales = torch.geqrf(work[after:, start:after])
            upper = panel[:block].triu()
            vectors = panel.tril(-1)
            vectors.diagonal().fill_(1.0)
            inner = _block_factor(vectors, scales)
            work[after : after + block, start:after] = upper
            pushed = _symmetric_product(work, after, vectors) @ inner
            pushed -= 0.5 * vectors @ (inner.T @ (vectors.T @ pushed))
            _symmetric_update(work, after, vectors, pushed)
            below = turned[after:]
            below.sub_(vectors @ (inner.T @ (vectors.T @ below)))
            self._reflectors.append((vectors, inner))
        blocks = padded // block
        self._diagonal = torch.stack(
            [work[i * block : (i + 1) * block, i * block : (i + 1) * block] for i in range(blocks)]
        )
        self._lower = torch.stack(
            [
                work[(i + 1) * block : (i + 2) * block, i * block : (i + 1) * block]
                for i in range(blocks - 1)
            ]
        )
        self._sides = turned.view(blocks, block, -1)

    @property
    def trace(self) -> float:
        """tr A."""
        return float(self._diagonal.diagonal(dim1=1, dim2=2).sum())

    def solve(self, shifts: Tensor) -> ShiftedSolutions:
        """Scalars of the shifted systems for shifts > 0, float64 [k]."""
        parts = [self._solve(part)[1] for part in torch.split(shifts, _SHIFTS_AT_ONCE)]
        return ShiftedSolutions(
            products=torch.cat([part.products for part in parts]),
            norms=torch.cat([part.norms for part in parts]),
            traces=torch.cat([part.traces for part in parts]),
        )

    def solution(self, shift: float) -> Tensor:
        """(A + shift I)^-1 C, float64 [n, s]; NaN where A + shift I is singular to working precision."""
        solved, _ = self._solve(torch.tensor([shift], dtype=torch.float64))
        full = solved[0].reshape(-1, self._sides.shape[2]).clone()
        for index in reversed(range(len(self._reflectors))):
            vectors, inner = self._reflectors[index]
            below = full[(index + 1) * self._block :]
            below.sub_(vectors @ (inner @ (vectors.T @ below)))
        return full[: self._size]

    def _solve(self, shifts: Tensor) -> tuple[Tensor, ShiftedSolutions]:
        """Solutions in turned coordinates [k, blocks, b, s], and their scalars.

        Block elimination D_i = B_ii + shift I - L_i D_{i-1}^-1 L_i^T; on the way back also the
        diagonal blocks of the inverse, G_i = D_i^-1 + D_i^-1 L_{i+1}^T G_{i+1} L_{i+1} D_i^-1.  All of it goes
        through R_i^-1 with D_i = R_i R_i^T, and what is taken from a pivot is a square: through D_i^-1, round-off
        would grow with the square of the condition number, and a matrix of low rank would lose its sign.
        """
        count, blocks = len(shifts), len(self._diagonal)
        identity = torch.eye(self._block, dtype=torch.float64)
        shift = shifts[:, None, None] * identity
        halves: list[Tensor] = []
        carried: list[Tensor] = []
        sides: list[Tensor] = []
        pivot = self._diagonal[0] + shift
        side = self._sides[0].expand(count, -1, -1)
        singular = torch.zeros(count, dtype=torch.bool)
        for index in range(blocks):
            root, failed = torch.linalg.cholesky_ex(pivot)
            if bool(failed.any()):
                singular |= failed > 0
                root = torch.where(singular[:, None, None], identity, root)
            half = torch.linalg.solve_triangular(root, identity.expand_as(root), upper=False)
            halves.append(half)
            sides.append(half @ side)
            if index + 1 < blocks:
                over = half @ self._lower[index].T
                carried.append(over)
                pivot = self._diagonal[index + 1] + shift - over.mT @ over
                side = self._sides[index + 1] - over.mT @ sides[-1]
        solutions: list[Tensor] = [halves[-1].mT @ sides[-1]]
        corner = halves[-1].mT @ halves[-1]
        # The padding adds a zero eigenvalue a row, and so 1 / shift to the trace of the inverse.
        traces = (
            corner.diagonal(dim1=1, dim2=2).sum(1) - (blocks * self._block - self._size) / shifts
        )
        for index in reversed(range(blocks - 1)):
            half, over = halves[index], carried[index]
            solutions.append(half.mT @ (sides[index] - over @ solutions[-1]))
            corner = half.mT @ (identity + over @ corner @ over.mT) @ half
            traces = traces + corner.diagonal(dim1=1, dim2=2).sum(1)
        solved = torch.stack(solutions[::-1], dim=1)
        solved[singular], traces[singular] = torch.nan, torch.nan
        return solved, ShiftedSolutions(
            products=(solved * self._sides).sum(dim=(1, 2, 3)),
            norms=solved.square().sum(dim=(1, 2, 3)),
            traces=traces,
        )


def _stripes(start: int, stop: int) -> list[tuple[int, int]]:
    """Ranges of columns cut at multiples of `_STRIPE`, wherever the first one starts."""
    cuts = [start, *range((start // _STRIPE + 1) * _STRIPE, stop, _STRIPE), stop]
    return list(itertools.pairwise(cuts))


def _symmetric_product(work: Tensor, start: int, vectors: Tensor) -> Tensor:
    """A V for the symmetric A = work[start:, start:], of which stripes right of the diagonal are stale."""
    product = torch.zeros_like(vectors)
    for left, right in _stripes(start, len(work)):
        inside, below = slice(left - start, right - start), slice(right - start, None)
        product[left - start :].addmm_(work[left:, left:right], vectors[inside])
        if right < len(work):
            product[inside].addmm_(work[right:, left:right].T, vectors[below])
    return product


def _symmetric_update(work: Tensor, start: int, vectors: Tensor, pushed: Tensor) -> None:
    """A - V W^T - W V^T in place for A = work[start:, start:], on and below the diagonal stripes."""
    left_factor = torch.cat([vectors, pushed], dim=1)
    right_factor = torch.cat([pushed, vectors], dim=1)
    for left, right in _stripes(start, len(work)):
        work[left:, left:right].addmm_(
            left_factor[left - start :], right_factor[left - start : right - start].T, alpha=-1
        )


def _block_factor(vectors: Tensor, scales: Tensor) -> Tensor:
    """T [b, b] with H_1 ... H_b = I - V T V^T for Householder vectors V [r, b] and scales [b]."""
    overlap = vectors.T @ vectors
    size = len(scales)
    factor = torch.zeros(size, size, dtype=torch.float64)
    for column in range(size):
        factor[column, column] = scales[column]
        if column:
            factor[:column, column] = -scales[column] * (
                factor[:column, :column] @ overlap[:column, column]
            )
    return factor
