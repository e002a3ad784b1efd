"""Made-up predictions of a run, small and with known numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from orchestrator.results import PredictionRows, write_chunk
from orchestrator.tracking import (
    JsonlTracker,
    Notice,
    PartExtracted,
    RunFinished,
    RunStarted,
    TaskEvaluated,
    TaskLearned,
    VersionCommitted,
)

METHODS = ("lda", "entropy", "batch_entropy", "oracle", "simplecil", "joint_linear")
MORE_METHODS = (*METHODS, "batch_entropy_shuffled")


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
        rng = np.random.default_rng([seed, after, MORE_METHODS.index(method)])
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


def write_events(
    run_dir: Path, *, tasks: int, classes: int = 2, upto: int | None = None, hostile: bool = False
) -> None:
    """The event log of a made-up run; ``hostile``: with names that try to be HTML."""
    bad = "<script>alert('x')</script>" if hostile else ""
    task_list = [
        {
            "name": f"task-{t:03d}{bad}",
            "classes": [f"{bad}class {t * classes + c}" for c in range(classes)],
            "train": 60,
            "validation": 0,
            "test": 20,
        }
        for t in range(tasks)
    ]
    log = JsonlTracker(run_dir / "events.jsonl")
    log.handle(
        RunStarted(
            run="made-up-0123456789",
            name="made-up",
            bank="made-up",
            storage="luca-storage",
            tasks=task_list,
            experiment={
                "stream": {"scenario": "class_incremental"},
                "evaluation": {"routers": ["lda", "entropy"]},
            },
        )
    )
    for t in range(tasks if upto is None else upto):
        log.handle(PartExtracted(t, f"{t:04x}", 60, 0 if t == 0 else 60, t == 0, 0.4))
        losses = [1.5 * 0.8**epoch for epoch in range(20)]
        log.handle(TaskLearned(t, task_list[t]["name"], 1.2, 40, losses, 149_808, 41_000 + 900 * t))
        log.handle(VersionCommitted(t, "made-up", t + 1, f"{t:064x}", 0.02))
        log.handle(TaskEvaluated(t, t + 1, {"lda": {"accuracy": 0.75}}, 0.3))
    if hostile:
        log.handle(Notice("warning", f"image {bad}.jpg is odd"))
    if upto is None or upto == tasks:
        log.handle(RunFinished("finished", 63.2))
    log.close()


def make_run(run_dir: Path, *, tasks: int, upto: int | None = None, **options) -> Path:
    """A made-up run's folder, as the driver leaves it (without a report)."""
    run_dir.mkdir(parents=True, exist_ok=True)
    names = ("classes", "hostile")
    write_events(
        run_dir, tasks=tasks, upto=upto, **{k: v for k, v in options.items() if k in names}
    )
    write_predictions(
        run_dir, tasks=tasks, upto=upto, **{k: v for k, v in options.items() if k != "hostile"}
    )
    (run_dir / "experiment.yaml").write_text("name: made-up\nseed: 1993\nstream:\n  shots: null\n")
    return run_dir
