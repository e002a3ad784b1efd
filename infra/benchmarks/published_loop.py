"""Against the published loop: what the released code computes, as a plain program, and its backbone passes counted.

The reference is written from the method's description: the backbone runs on every image of every epoch, once more for
the class means, and in every evaluation once for every stored module and batch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.benchmarks.measure import Row, one_thread

BATCH = 48


@dataclass(frozen=True)
class StreamSize:
    """A class-incremental stream with equal tasks."""

    tasks: int
    train: int
    test: int
    epochs: int

    def published_passes(self) -> int:
        """Images through the backbone: e epochs, class means, and after task t its t modules on t test parts."""
        evaluations = sum(t * t * self.test for t in range(1, self.tasks + 1))
        return self.tasks * self.train * (self.epochs + 1) + evaluations

    def our_passes(self, views: int = 0) -> int:
        """Every image once, and once more a training view."""
        return self.tasks * (self.train * (1 + views) + self.test)


CIFAR100_INC5 = StreamSize(tasks=20, train=2500, test=500, epochs=20)


def run(*, long: bool) -> list[Row]:
    """Passes of the full protocol by the formula, which a small stream checks by counting; and its time."""
    one_thread()
    full = CIFAR100_INC5
    measured = StreamSize(
        tasks=5 if long else 3,
        train=2 * (40 if long else 20),
        test=2 * (20 if long else 10),
        epochs=20 if long else 10,
    )
    with tempfile.TemporaryDirectory(prefix="luca-bench-") as folder:
        stages = _stages(Path(folder), measured)
        reference = _Reference(stages)
        began = time.process_time()
        reference.run(measured.epochs)
        published = time.process_time() - began
        began = time.process_time()
        _ours(stages)
        ours = time.process_time() - began
        images = stages.images
        began = time.process_time()
        _ours(stages, bank="again", l1=1e-3, ratio=8)
        warm = time.process_time() - began
    extra = stages.images - images
    small = f"{measured.tasks} tasks of {measured.train} + {measured.test} images, {measured.epochs} epochs"
    return [
        Row(
            "backbone passes of CIFAR-100 B0-Inc5, published over ours",
            full.published_passes() / full.our_passes(),
            aim=40,
            least=True,
            note=f"{full.published_passes():,} against {full.our_passes():,} images by the formula; with 4 augmented "
            f"views {full.published_passes() / full.our_passes(4):.1f} x",
        ),
        Row(
            "passes counted in a small stream minus the formula's",
            abs(reference.images - measured.published_passes())
            + abs(images - measured.our_passes()),
            "images",
            aim=0,
            note=f"{small}: {reference.images:,} against {images:,}",
        ),
        Row("backbone passes of a warm re-run", extra, "images", aim=0, note="another l1 and rank"),
        Row(
            "CPU time of the small stream, published over ours",
            published / ours,
            note=f"{published:.1f} against {ours:.1f} s with the demo backbone and recipe tosca; a warm re-run "
            f"{warm:.1f} s ({published / warm:.0f} x)",
        ),
        Row(
            "CIFAR-100 B0-Inc5 with ViT-B/16 on one core, extrapolated",
            full.published_passes() / 3 / 3600,
            "hours",
            note=f"at 3 images/s; ours {full.our_passes() / 3 / 3600:.1f} hours cold, none of it warm",
        ),
    ]


def _stages(folder: Path, size: StreamSize) -> Any:
    from infra.benchmarks.in_process import Stages
    from pipelines.sources import open_source
    from pipelines.sources.demo import DemoSettings

    samples = open_source(DemoSettings(kind="demo")).samples()
    names = sorted(set(samples["label"].to_pylist()))[: 2 * size.tasks]
    return Stages.of(
        folder,
        {
            "recipe": "tosca",
            "stream": {
                "scenario": "explicit",
                "unlisted": "leave_out",
                "tasks": [{"classes": names[2 * t : 2 * t + 2]} for t in range(size.tasks)],
                "source": {"kind": "demo"},
                "max_train_per_class": size.train // 2,
                "max_test_per_class": size.test // 2,
            },
            "learning": {"epochs": size.epochs},
            "evaluation": {"routers": ["batch_entropy"], "baselines": []},
        },
    )


class _Reference:
    """The published loop over the same images and backbone.

    Attributes:
        images: pictures that went through the backbone so far.
    """

    def __init__(self, stages: Any) -> None:
        self._stages = stages
        self._model = stages.extractor._backbone._model
        self._transform = stages.extractor._backbone.transform
        self.images = 0

    def run(self, epochs: int) -> None:
        """Learns all tasks, and after each evaluates on all seen."""
        import torch

        from infra.benchmarks.published_model import CosineHead, LucaModule, PlainTrainer
        from workers.modeling.learning_settings import LearningSettings

        torch.manual_seed(0)
        width = self._stages.extractor.width
        modules: list[Any] = []
        head = CosineHead(width, 0)
        for task, prepared in enumerate(self._stages.prepared.tasks):
            module = LucaModule(width)
            head.grow(len(head.weight) + len(prepared.task.classes))
            learning = LearningSettings(epochs=epochs)
            trainer = PlainTrainer(module, head, rate=learning.learning_rate, l1=learning.l1)
            train = prepared.task.train
            for epoch in range(epochs):
                trainer.set_rate(learning.rate(epoch))
                order = torch.randperm(len(train)).numpy()
                for rows in _batches(train[order]):
                    trainer.step(self._features(rows, augment=True), self._labels(rows))
            with torch.no_grad():
                outputs = torch.cat([module(self._features(rows)) for rows in _batches(train)])
                labels = self._labels(train)
                for label in labels.unique().tolist():
                    head.weight[label] = outputs[labels == label].mean(0)
            modules.append(module)
            for seen in self._stages.prepared.tasks[: task + 1]:
                for rows in _batches(seen.task.test):
                    self._evaluate(rows, modules, head)

    def _evaluate(self, rows: Any, modules: Sequence[Any], head: Any) -> Any:
        """The module that is surest of the batch decides; the backbone runs anew for each of them."""
        import torch

        with torch.no_grad():
            logits = [head(module(self._features(rows))) for module in modules]
            probabilities = [torch.softmax(one, dim=1) for one in logits]
            entropies = [-(p * (p + 1e-9).log()).sum(1).mean() for p in probabilities]
            return logits[int(torch.stack(entropies).argmin())].argmax(1)

    def _features(self, rows: Any, *, augment: bool = False) -> Any:
        """[CLS] features of the rows' images: decoded, transformed and sent through the backbone, every time."""
        import numpy as np
        import torch

        from workers.modeling.images import decode
        from workers.modeling.views import view_generator

        stream = self._stages.prepared.stream
        pictures = stream.reader.read(stream.samples.take(rows))
        views = []
        for number, picture in enumerate(pictures):
            image = decode(picture, str(number))
            if augment:
                rng = view_generator(self.images, str(number), 1)
                image = self._transform.train(image, rng)
            else:
                image = self._transform.test(image)
            views.append(np.asarray(image))
        pixels = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).float().div_(255)
        mean = torch.tensor(self._transform.mean).view(1, 3, 1, 1)
        std = torch.tensor(self._transform.std).view(1, 3, 1, 1)
        self.images += len(rows)
        with torch.no_grad():
            return self._model.forward_features((pixels - mean) / std)[:, 0]

    def _labels(self, rows: Any) -> Any:
        import torch

        return torch.from_numpy(self._stages.prepared.stream.labels[rows])


def _batches(rows: Any) -> Iterator[Any]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def _ours(stages: Any, *, bank: str = "bench", **changed: Any) -> None:
    """The same stream as the program does it: extract what is not cached, learn, commit, score."""
    e = stages.prepared.experiment
    update: dict[str, Any] = {"bank": bank}
    if changed:
        update["learning"] = e.learning.model_copy(update={"l1": changed["l1"]})
        update["luca"] = e.luca.model_copy(update={"ratio": changed["ratio"]})
    prepared = type(stages.prepared)(
        **{**vars(stages.prepared), "experiment": e.model_copy(update=update)}
    )
    mine = type(stages)(prepared, stages.extractor)
    registry, scorer, head = mine.registry(), mine.scorer(), None
    for task in mine.tasks:
        for split in ("train", "test"):
            mine.extract(task, split)
        info, learned = mine.learn(task, head)
        head = learned.head
        version = mine.commit(registry, task, info, learned)
        mine.score(scorer, version.version, task, ("batch_entropy",))
    registry.close()
    stages.images += mine.images
