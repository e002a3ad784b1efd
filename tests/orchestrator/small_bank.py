"""Small real banks made without Ray: coloured pictures through the embedded backbone, and ready features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor

from pipelines.pictures import PictureDecoder
from workers.modeling.backbone import Backbone, BackboneSettings
from workers.modeling.luca import init_parameters
from workers.modeling.luca_settings import LucaSettings
from workers.modeling.statistics import TaskStatistics
from workers.storage.bank import Bank, BankVersion
from workers.storage.bank_draft import TaskDraft
from workers.storage.bank_writer import BankWriter
from workers.storage.filesystem import Storage

COLOURS = {
    "red": (220, 40, 30),
    "yellow": (230, 210, 40),
    "green": (40, 180, 60),
    "blue": (40, 60, 210),
}
TASKS = (("warm", ("red", "yellow")), ("cold", ("green", "blue")))
WIDTH = 6


def picture(colour: str, number: int, *, size: int = 40) -> Image.Image:
    """A noisy picture of one colour; another one for every number."""
    noise = np.random.RandomState(number).randint(-30, 31, (size, size, 3))
    return Image.fromarray(np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8))


def write_pictures(root: Path, *, each: int = 4, first: int = 100) -> Path:
    """``root/<colour>/<number>.png``."""
    for colour in COLOURS:
        (root / colour).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + each):
            picture(colour, number).save(root / colour / f"{number}.png")
    return root


def feature_rows(labels: Sequence[int], *, seed: int = 0, width: int = WIDTH) -> Tensor:
    """Gaussian features float32 [n, width]; a label has the same mean for every seed."""
    means = np.random.RandomState(7).randn(16, width) * 4
    noise = np.random.RandomState(seed).randn(len(labels), width)
    return torch.from_numpy((means[list(labels)] + noise).astype(np.float32))


def write_features(path: Path, labels: Sequence[int], *, seed: int = 1, width: int = WIDTH) -> Path:
    """A Parquet file of unlabelled features."""
    flat = feature_rows(labels, seed=seed, width=width).numpy().ravel()
    column = pa.FixedSizeListArray.from_arrays(pa.array(flat), width)
    pq.write_table(pa.table({"feature": column}), path)
    return path


def picture_bank(
    storage: Path, *, name: str = "colours", defaults: Mapping[str, Any] | None = None
) -> BankVersion:
    """Two tasks of two colours on features of demo_vit; version 1 is tagged "production"."""
    backbone = Backbone.load(BackboneSettings())
    decoder = PictureDecoder(backbone.transform, 10**7)
    features = [
        [
            backbone.embed(decoder.pixels([picture(colour, number) for number in range(24)]))
            for colour in colours
        ]
        for _, colours in TASKS
    ]
    return _commit(storage, name, backbone.info(), features, TASKS, defaults)


def feature_bank(storage: Path, *, name: str = "vectors") -> BankVersion:
    """Two tasks of two classes on ready features of width 6; version 1 is tagged "production"."""
    info = {"name": "ready-features", "width": WIDTH, "fingerprint": f"ready-features-{WIDTH}"}
    tasks = (("first", ("a", "b")), ("second", ("c", "d")))
    features = [
        [feature_rows([2 * at + label] * 24, seed=10 * at + label) for label in range(2)]
        for at in range(2)
    ]
    return _commit(storage, name, info, features, tasks)


def _commit(
    storage: Path,
    name: str,
    backbone: dict[str, Any],
    features: list[list[Tensor]],
    tasks: Sequence[tuple[str, tuple[str, ...]]],
    defaults: Mapping[str, Any] | None = None,
) -> BankVersion:
    settings = {
        "luca": LucaSettings(ratio=2).model_dump(mode="json"),
        "learning": {"objective": "local"},
        "feature_dtype": "float32",
    }
    with BankWriter(Bank.open_or_create(Storage.open(storage), name), run="tests") as writer:
        writer.begin(backbone, settings, defaults=defaults)
        for position, ((task, classes), found) in enumerate(zip(tasks, features, strict=True)):
            version = writer.commit(
                TaskDraft(
                    id=f"task-{position:05d}",
                    name=task,
                    classes=classes,
                    definition={"name": task, "classes": list(classes)},
                    arrays=_arrays(found, position),
                )
            )
            if position == 0:
                writer.tag("production")
    return version


def _arrays(features: list[Tensor], position: int) -> dict[str, dict[str, Any]]:
    """A module as it begins, with its head at the means of the classes' module outputs."""
    from workers.modeling import luca

    joined = torch.cat(features)
    labels = torch.tensor([at for at, rows in enumerate(features) for _ in rows])
    generator = torch.Generator().manual_seed(position)
    module = init_parameters(joined.shape[1], LucaSettings(ratio=2), generator=generator)
    head = torch.stack([luca.apply(module, rows, "tosca").mean(dim=0) for rows in features])
    statistics = TaskStatistics.from_features(joined, labels, classes=len(features))
    return {
        "module": {key: value.numpy() for key, value in module.items()},
        "head": {"weight": head.numpy(), "scale": torch.tensor(10.0).numpy()},
        "statistics": statistics.to_arrays(),
    }
