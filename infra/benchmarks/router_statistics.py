"""Router statistics: many ridge candidates from one factorisation, and sums in float64 against float32."""

from __future__ import annotations

import time

import numpy as np

from infra.benchmarks.measure import Row, interleaved, one_thread, ratio

CLASSES = 100


def run(*, long: bool) -> list[Row]:
    """At 5,000 random features in long mode and 1,500 in short mode."""
    one_thread()
    return [*_ridge(5000 if long else 1500), *_sums(long=long)]


def _ridge(size: int) -> list[Row]:
    """All candidates by one reduction, against a Cholesky solve a candidate (timed for three, multiplied)."""
    import torch

    from workers.modeling.ridge import CANDIDATES, RidgePath

    rng = np.random.default_rng(0)
    samples = 2 * size
    rows = np.maximum(rng.standard_normal((samples, 200)) @ rng.standard_normal((200, size)), 0)
    targets = np.eye(CLASSES)[np.arange(samples) % CLASSES]
    rows -= rows.mean(axis=0)
    targets -= targets.mean(axis=0)
    gram, cross = rows.T @ rows, rows.T @ targets
    energy = float(np.square(targets).sum())
    dense_gram, dense_cross = torch.from_numpy(gram), torch.from_numpy(cross)

    began = time.process_time()
    path = RidgePath.factorise(gram, cross, energy, samples)
    penalties = [path.absolute(relative) for relative in CANDIDATES]
    residuals, _ = path.residuals(penalties)
    chosen = path.choose()
    path.weights(chosen)
    ours = time.process_time() - began

    tried = [penalties[len(penalties) // 2 + offset] for offset in (0, 6, 12)]
    dense, worst = [], 0.0
    for penalty in tried:
        began = time.process_time()
        factor = torch.linalg.cholesky(dense_gram + penalty * torch.eye(size, dtype=torch.float64))
        weights = torch.cholesky_solve(dense_cross, factor)
        residual = (
            energy - float((weights * dense_cross).sum()) - penalty * float(weights.square().sum())
        )
        dense.append(time.process_time() - began)
        mine = float(residuals[penalties.index(penalty)])
        worst = max(worst, abs(mine - residual) / abs(residual))
    each = float(np.median(dense))
    return [
        Row(
            f"{len(CANDIDATES)} ridge candidates by a dense solve each, over ours",
            each * len(CANDIDATES) / ours,
            aim=10.0 if size >= 5000 else None,
            least=True,
            note=f"{size} random features: ours {ours:.1f} s for all and the weights, one Cholesky solve "
            f"{each:.2f} s (without its degrees of freedom); residuals agree to {worst:.0e}",
        )
    ]


def _sums(*, long: bool) -> list[Row]:
    """Sums of one task's features as the program takes them (float64), and the same in float32."""
    from workers.modeling.statistics import TaskStatistics

    rows = []
    for width, samples in ((768, 4000), (2000, 4000)) if long else ((384, 2000), (768, 2000)):
        rng = np.random.default_rng(0)
        features = rng.standard_normal((samples, width)).astype(np.float32)
        labels = np.arange(samples) % 10

        def single(features: np.ndarray = features, labels: np.ndarray = labels) -> None:
            for label in range(10):
                block = features[labels == label]
                gram = np.zeros((block.shape[1], block.shape[1]), dtype=np.float32)
                gram += block.T @ block.copy()  # a copy: a general product, as two operands are
                block.sum(axis=0)
                gram[np.triu_indices(0)]

        def double(features: np.ndarray = features, labels: np.ndarray = labels) -> None:
            TaskStatistics.from_features(features, labels, classes=10)

        def symmetric(features: np.ndarray = features, labels: np.ndarray = labels) -> None:
            for label in range(10):
                block = features[labels == label]
                (block.T @ block, block.sum(axis=0))

        times = interleaved(
            {"float32": single, "float64": double, "float32 symmetric": symmetric},
            rounds=7 if long else 3,
        )
        rows.append(
            Row(
                f"sums in float64 over float32, d={width}",
                ratio(times["float64"], times["float32"]),
                aim=2.0,
                note=f"{samples} samples of 10 classes: {1000 * times['float64'].seconds:.0f} ms, packed and "
                f"checked for NaN; over float32 as a symmetric update "
                f"{ratio(times['float64'], times['float32 symmetric']):.2f} x",
            )
        )
    return rows
