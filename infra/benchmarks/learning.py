"""Learning: steps per second against a plain PyTorch loop on the same features, and many modules at once."""

from __future__ import annotations

from functools import partial
from typing import Any

from infra.benchmarks.measure import Row, interleaved, one_thread, ratio

WIDTH, CLASSES, BATCH = 768, 5, 48
MANY = 20


def run(*, long: bool) -> list[Row]:
    """Speed at d=768, h=48, batch 48, and how far the results lie apart."""
    one_thread()
    samples, epochs, rounds = (2400, 4, 9) if long else (480, 3, 5)
    data = _data(samples, epochs)
    steps = epochs * (samples // BATCH)
    times = interleaved(
        {
            "plain": lambda: _plain(data),
            "subgradient": lambda: _ours(data, "unified", "subgradient"),
            "proximal": lambda: _ours(data, "local", "proximal"),
        },
        rounds=rounds,
    )
    plain, ours = _plain(data), _ours(data, "unified", "subgradient")
    apart = max(float((ours[name] - value).abs().max()) for name, value in plain.items())
    size = max(float(value.abs().max()) for value in plain.values())

    def per_step(name: str) -> str:
        return f"{1000 * times[name].seconds / steps:.2f}"

    rows = [
        Row(
            "steps/s, published recipe, over plain PyTorch",
            ratio(times["plain"], times["subgradient"]),
            aim=2.0,
            least=True,
            note=f"{per_step('subgradient')} ms a step, plain {per_step('plain')} ms; d=768, h=48, batch 48",
        ),
        Row(
            "steps/s, local head and proximal L1, over plain PyTorch",
            ratio(times["plain"], times["proximal"]),
            aim=2.0,
            least=True,
            note=f"{per_step('proximal')} ms a step",
        ),
        Row(
            "largest difference to plain PyTorch after learning",
            apart / size,
            "of max",
            aim=1e-3,
            note=f"relative to the largest parameter, after {steps} steps in float32",
        ),
    ]
    return rows + _many(long=long)


def _many(*, long: bool) -> list[Row]:
    from workers.modeling.learner import learn_many

    rows = []
    for width in (768, 192):
        samples, epochs, rounds = (480, 4, 7) if long else (240, 2, 3)
        data = [_data(samples, epochs, width=width, seed=seed) for seed in range(MANY)]
        jobs = [_job(d) for d in data]
        times = interleaved(
            {
                "alone": partial(_alone, jobs),
                "together": partial(learn_many, jobs),
                "one stack": partial(learn_many, jobs, stack=MANY),
            },
            rounds=rounds,
        )
        steps = MANY * epochs * (samples // BATCH)
        rows.append(
            Row(
                f"{MANY} modules together over one after the other, d={width}",
                ratio(times["alone"], times["together"]),
                aim=1.5,
                least=True,
                note=f"{1e6 * times['together'].seconds / steps:.0f} against "
                f"{1e6 * times['alone'].seconds / steps:.0f} us a module's step; "
                f"one stack of {MANY}: {ratio(times['alone'], times['one stack']):.2f} x",
            )
        )
    return rows


def _data(samples: int, epochs: int, *, width: int = WIDTH, seed: int = 0) -> dict[str, Any]:
    import torch

    from workers.modeling.learner import UnifiedHead
    from workers.modeling.learning_settings import LearningSettings
    from workers.modeling.luca import init_parameters
    from workers.modeling.luca_settings import LucaSettings

    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % CLASSES
    centres = torch.randn(CLASSES, width, generator=generator)
    features = centres[labels] + 2 * torch.randn(samples, width, generator=generator)
    head = torch.empty(CLASSES, width).uniform_(-(width**-0.5), width**-0.5, generator=generator)
    return {
        "features": features,
        "labels": labels,
        "epochs": epochs,
        "order": torch.stack([torch.randperm(samples, generator=generator) for _ in range(epochs)]),
        "init": init_parameters(width, LucaSettings(), generator=generator),
        "head": UnifiedHead(weight=head, scale=torch.tensor(1.0)),
        "learning": LearningSettings(epochs=epochs, batch_size=BATCH),
        "seed": seed,
    }


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    import torch

    from infra.benchmarks.published_model import CosineHead, LucaModule, PlainTrainer, load

    width = data["features"].shape[1]
    module, head = load(LucaModule(width), data["init"]), CosineHead(width, CLASSES)
    head.weight.data.copy_(data["head"].weight)
    learning = data["learning"]
    trainer = PlainTrainer(module, head, rate=learning.learning_rate, l1=learning.l1)
    for epoch in range(data["epochs"]):
        trainer.set_rate(learning.rate(epoch))
        for rows in torch.split(data["order"][epoch], BATCH):
            trainer.step(data["features"][rows], data["labels"][rows])
    return dict(module.state_dict())


def _ours(data: dict[str, Any], objective: str, mode: str) -> dict[str, Any]:
    from workers.modeling.learner import learn_local, learn_unified
    from workers.modeling.luca_settings import LucaSettings

    parts = ("weights", "biases", "norm") if mode == "subgradient" else ("weights",)
    learning = data["learning"].model_copy(update={"l1_mode": mode, "l1_parts": parts})
    common = {"luca": LucaSettings(), "learning": learning, "seed": 0, "task_key": "t"}
    if objective == "local":
        learned = learn_local([data["features"]], data["labels"], classes=CLASSES, **common)
    else:
        learned = learn_unified(
            [data["features"]],
            data["labels"],
            new_classes=range(CLASSES),
            previous=None,
            init=data["init"],
            init_head=data["head"],
            order=data["order"],
            **common,
        )
    return learned.module


def _alone(jobs: list[Any]) -> list[Any]:
    from workers.modeling.learner import learn_many

    return [learn_many([job])[0] for job in jobs]


def _job(data: dict[str, Any]) -> Any:
    from workers.modeling.learner import LearnJob
    from workers.modeling.luca_settings import LucaSettings

    return LearnJob(
        views=[data["features"]],
        labels=data["labels"],
        classes=CLASSES,
        luca=LucaSettings(),
        learning=data["learning"],
        seed=data["seed"],
        task_key="t",
    )
