"""What a bank adds to the backbone: time per image with 1 to 1,000 modules over the backbone's time per image."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from infra.benchmarks.measure import Row, interleaved, one_thread

BACKBONES = {384: "vit_small_patch16_224", 768: "vit_base_patch16_224"}
CLASSES = 5
AIMS = {100: 1.02, 1000: 1.10}
IMAGES = 64


def run(*, long: bool) -> list[Row]:
    """Cost with the default router (routing first), and of scoring every module, published and stacked."""
    one_thread()
    rows = []
    for width in BACKBONES:
        backbone = _backbone_seconds(width, images=16 if long else 4, rounds=5 if long else 3)
        rows.append(
            Row(
                f"backbone, d={width}",
                1000 * backbone,
                "ms/image",
                note=f"{BACKBONES[width]}, 224 px",
            )
        )
        for tasks in (1, 10, 100, 1000):
            rows += _bank(width, tasks, backbone, long=long)
    return rows


def _bank(width: int, tasks: int, backbone: float, *, long: bool) -> list[Row]:
    import torch

    from workers.modeling.evaluation_settings import EvaluationSettings
    from workers.modeling.predictor import Predictor

    bank, features = _made_bank(width, tasks)
    settings = EvaluationSettings()
    began = time.process_time()
    routed = Predictor(bank, settings, "lda")
    fitted = time.process_time() - began
    rounds = 7 if long else 3
    variants: dict[str, Callable[[], Any]] = {"routed": lambda: routed.predict(features)}
    if tasks <= 100 or long:
        entropy = Predictor(bank, settings, "entropy")
        variants["all modules"] = lambda: entropy.predict(features)
    if tasks == 100:
        variants["plain loop"] = lambda: _plain_loop(bank, features)
    times = interleaved(variants, rounds=rounds)
    cost = {name: timing.seconds / len(features) for name, timing in times.items()}
    note = f"{1e6 * cost['routed']:.0f} us an image; router fitted once in {fitted:.2f} s"
    rows = [
        Row(
            f"backbone + bank over backbone, {tasks} modules, d={width}",
            1 + cost["routed"] / backbone,
            aim=AIMS.get(tasks),
            note=note,
        )
    ]
    if "all modules" in cost:
        plain = f"; one by one {1000 * cost['plain loop']:.2f} ms" if "plain loop" in cost else ""
        rows.append(
            Row(
                f"the same, every module scored (router entropy), {tasks} modules",
                1 + cost["all modules"] / backbone,
                note=f"{1000 * cost['all modules']:.3f} ms an image{plain}",
            )
        )
    if tasks == 100:
        from workers.modeling.scoring import module_scores

        scores = module_scores(bank, range(tasks), features)
        whole, some = routed.predict(features, scores=scores), routed.predict(features)
        differ = int((whole.class_index != some.class_index).sum())
        gap = float((whole.confidence - some.confidence).abs().max())
        rows.append(
            Row(
                "predictions that differ from the full evaluation",
                differ,
                f"of {len(features)}",
                aim=0,
                note=f"routing first, 100 modules, d={width}; confidences within {gap:.1e}; "
                f"{torch.get_num_threads()} thread",
            )
        )
    return rows


def _made_bank(width: int, tasks: int) -> tuple[Any, Any]:
    """A bank of random modules over Gaussian classes, and features of its classes."""
    import numpy as np
    import torch

    from workers.modeling.bank_tensors import BankTensors, TaskModule
    from workers.modeling.luca import init_parameters
    from workers.modeling.luca_settings import LucaSettings
    from workers.modeling.statistics import TaskStatistics

    generator = torch.Generator().manual_seed(0)
    classes = tasks * CLASSES
    # A shared offset and unequal directions, as real [CLS] features have them.
    spread = torch.linspace(2.0, 0.2, width)
    centres = torch.randn(classes, width, generator=generator) * spread * 0.5
    noise = torch.randn(512, width, generator=generator) * spread
    gram = np.asarray((noise.T @ noise / 512).to(torch.float64))
    upper = np.triu_indices(width)
    modules, statistics = [], []
    for task in range(tasks):
        mine = range(task * CLASSES, (task + 1) * CLASSES)
        means = centres[list(mine)].to(torch.float64).numpy()
        samples = 100
        packed = (samples * (CLASSES * gram + means.T @ means))[upper][None]
        statistics.append(
            TaskStatistics(np.full(CLASSES, samples, dtype=np.int64), samples * means, packed)
        )
        module = init_parameters(width, LucaSettings(), generator=generator)
        modules.append(
            TaskModule(
                name=f"t{task}",
                classes=tuple(mine),
                module=module,
                head=centres[list(mine)].clone(),
                scale=torch.tensor(10.0),
            )
        )
    bank = BankTensors(
        width=width,
        class_names=tuple(f"c{c}" for c in range(classes)),
        flow="tosca",
        objective="local",
        tasks=tuple(modules),
        statistics=tuple(statistics),
    )
    labels = torch.randint(classes, (IMAGES,), generator=generator)
    features = centres[labels] + torch.randn(IMAGES, width, generator=generator) * spread
    return bank, features


def _plain_loop(bank: Any, features: Any) -> Any:
    """Every module as an nn.Module would be run: one after the other on the batch."""
    import torch

    from workers.modeling.heads import cosine_logits
    from workers.modeling.luca import apply

    with torch.inference_mode():
        return [
            cosine_logits(apply(task.module, features, bank.flow), task.head, task.scale)
            for task in bank.tasks
        ]


def _backbone_seconds(width: int, *, images: int, rounds: int) -> float:
    """Seconds a picture of a bare timm forward pass on one core."""
    import torch

    from workers.modeling.torchvision_compat import import_timm

    model = import_timm().create_model(BACKBONES[width], num_classes=0).eval()
    batch = torch.rand(images, 3, 224, 224)

    def forward() -> None:
        with torch.inference_mode():
            model.forward_features(batch)

    return interleaved({"forward": forward}, rounds=rounds)["forward"].seconds / images
