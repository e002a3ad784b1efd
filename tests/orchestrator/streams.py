"""Made-up predictions of a run, small and with known numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orchestrator.results import PredictionRows, write_chunk

METHODS = ("lda", "entropy", "batch_entropy", "oracle", "simplecil", "joint_linear")


def chance_of_right(method: str, after: int, on: int) -> float:
    """How often the made-up method is right: it forgets a little with every task."""
    best = {"oracle": 0.98, "lda": 0.8, "joint_linear": 0.85}.get(method, 0.6)
    return best if method in ("oracle", "joint_linear") else max(0.1, best - 0.03 * (after - on))


def rows_after(
    after: int,
    *,
    tasks: int,
    classes: int = 2,
    per_task: int = 20,
    seed: int = 0,
    methods: tuple[str, ...] = METHODS,
) -> PredictionRows:
    """Predictions of every method on the tasks 0..after, ``classes`` classes and ``per_task`` samples each."""
    rows = PredictionRows()
    for method in methods:
        if method.startswith("joint") and after < tasks - 1:
            continue
        rng = np.random.default_rng([seed, after, METHODS.index(method)])
        for on in range(after + 1):
            label = on * classes + np.arange(per_task) % classes
            right = rng.random(per_task) < chance_of_right(method, after, on)
            wrong = rng.integers(0, (after + 1) * classes, per_task)
            predicted = np.where(right, label, wrong)
            routes = method not in ("simplecil", "joint_linear")
            confidence = np.clip(rng.normal(0.8, 0.1, per_task), 0.05, 1.0)
            rows.add(
                method=method,
                after_task=after,
                task=on,
                sample=[f"task{on}/sample{i}.jpg" for i in range(per_task)],
                label=label,
                predicted=predicted,
                routed_task=(np.full(per_task, on) if method == "oracle" else predicted // classes)
                if routes
                else None,
                confidence=confidence,
                routing_confidence=confidence if routes else None,
                log_prob_true=np.log(np.where(predicted == label, confidence, 0.05)),
            )
    return rows


def write_predictions(run_dir: Path, *, tasks: int, upto: int | None = None, **options) -> None:
    """Writes the chunks of a whole made-up run, or of its first tasks."""
    for after in range(tasks if upto is None else upto):
        write_chunk(run_dir, after, rows_after(after, tasks=tasks, **options))
