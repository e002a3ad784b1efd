"""Compares this implementation with numbers computed by the published classes."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.modeling.bank_tensors import BankTensors, TaskModule
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.heads import UnifiedHead, grow_unified_head
from workers.modeling.learner import Execution, LearnedTask, learn_unified
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca import Parameters, apply
from workers.modeling.luca_settings import PARAMETER_NAMES, Flow, LucaSettings
from workers.modeling.predictor import Predictor
from workers.modeling.recipes import RECIPES
from workers.modeling.scoring import ModuleScorer

RTOL = 1e-6
ATOL = 1e-12

Array = NDArray[Any]
Arrays = Mapping[str, Array]


class FolderError(Exception):
    """A folder that does not hold what there is to compare with."""


@dataclass(frozen=True)
class Deviation:
    """The largest difference of one quantity.

    Attributes:
        quantity: its name, ``FILE:NAME``.
        relative: largest |ours - theirs| / |theirs|, where |theirs| exceeds ATOL; for whole numbers
            the share of entries that differ.
        passed: within RTOL (floating point), or equal (whole numbers).
    """

    quantity: str
    relative: float
    passed: bool


def check_folder(folder: Path) -> list[Deviation]:
    """All deviations of a folder that holds ``forward.npz`` and ``stream.npz``.

    Raises:
        FolderError: a file is missing or unreadable, or lacks arrays; no comparison is left out silently.
    """
    forward, stream = _read(folder / "forward.npz"), _read(folder / "stream.npz")
    found = [_named("forward", deviation) for deviation in check_forward(forward)]
    return found + [_named("stream", deviation) for deviation in check_stream(stream)]


class _File(dict[str, Array]):
    """The arrays of a file, which says what it lacks."""

    def __init__(self, path: Path, arrays: Arrays) -> None:
        super().__init__(arrays)
        self._path = path

    def __missing__(self, name: str) -> Array:
        raise FolderError(f"{self._path} has no array {name!r}")


def _read(path: Path) -> _File:
    if not path.is_file():
        raise FolderError(
            f"{path.parent} has no {path.name}; give a folder with forward.npz and stream.npz"
        )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return _File(path, dict(arrays))
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, TypeError) as error:
        raise FolderError(f"{path} is not a readable .npz file ({error})") from error


def check_forward(arrays: Arrays) -> Iterator[Deviation]:
    """Outputs of every flow in the file.

    Raises:
        FolderError: there is none.
    """
    if not any(f"{flow}.input" in arrays for flow in PARAMETER_NAMES):
        raise FolderError(
            f"forward.npz has no array FLOW.input, FLOW one of {', '.join(PARAMETER_NAMES)}"
        )
    for flow in PARAMETER_NAMES:
        if f"{flow}.input" in arrays:
            module = _tensors(arrays, f"{flow}.state.", PARAMETER_NAMES[flow])
            output = apply(module, torch.from_numpy(arrays[f"{flow}.input"]), flow)
            yield _compare(f"{flow}.output", output, arrays[f"{flow}.output"])


def check_stream(arrays: Arrays) -> Iterator[Deviation]:
    """Every task of the stream learned in its recorded order, and evaluated after it.

    Raises:
        FolderError: there is no task, or one is missing in between.
    """
    numbered = (re.match(r"task(\d+)\.", name) for name in arrays)
    tasks = 1 + max((int(match[1]) for match in numbered if match), default=0)
    flow: Flow = "tosca"
    train, test = torch.from_numpy(arrays["train.features"]), arrays["test.features"]
    labels = arrays["train.labels"].astype(np.int64)
    modules: list[Parameters] = []
    head: UnifiedHead | None = None
    for task in range(tasks):
        name = f"task{task}"
        seen = 0 if head is None else head.weight.shape[0]
        total = arrays[f"{name}.init.head"].shape[0]
        if head is not None:
            yield _compare(f"{name}.init.head", _grown(head, total), arrays[f"{name}.init.head"])
        rows = np.flatnonzero((labels >= seen) & (labels < total))
        learned = _learn(
            arrays, name, train[rows], torch.from_numpy(labels[rows]), range(seen, total), head
        )
        yield _compare(f"{name}.loss", learned.step_losses, arrays[f"{name}.loss"])
        for parameter in PARAMETER_NAMES[flow]:
            key = f"{name}.final.{parameter}"
            yield _compare(key, learned.module[parameter], arrays[key])
        yield _compare(f"{name}.final.head", learned.head, arrays[f"{name}.final.head"])
        yield _compare(f"{name}.final.sigma", learned.scale, arrays[f"{name}.final.sigma"])
        modules.append(learned.module)
        head = UnifiedHead(learned.head, learned.scale)
        shown = torch.from_numpy(test[arrays["test.labels"] < total])
        for key, ours in _evaluate(modules, head, shown, flow).items():
            yield _compare(f"{name}.eval.{key}", ours, arrays[f"{name}.eval.{key}"])


def _learn(
    arrays: Arrays,
    name: str,
    features: Tensor,
    labels: Tensor,
    classes: range,
    head: UnifiedHead | None,
) -> LearnedTask:
    order = arrays[f"{name}.order"]
    init = _tensors(arrays, f"{name}.init.", PARAMETER_NAMES["tosca"])
    sigma = torch.from_numpy(arrays[f"{name}.init.sigma"]).reshape(())
    learning = LearningSettings(
        **{
            **RECIPES["tosca"]["learning"],
            "epochs": len(order),
            "batch_size": _batch_size(len(features), len(arrays[f"{name}.loss"]) // len(order)),
        }
    )
    return learn_unified(
        [features],
        labels,
        new_classes=classes,
        previous=head,
        luca=LucaSettings(
            adapter_rank=init["mlp.0.weight"].shape[0],
            calibrator_rank=init["se.0.weight"].shape[0],
        ),
        learning=learning,
        seed=0,
        task_key=name,
        init=init,
        init_head=UnifiedHead(torch.from_numpy(arrays[f"{name}.init.head"]), sigma),
        order=order,
        execution=Execution(dtype=torch.float64, keep_step_losses=True),
    )


def _batch_size(samples: int, steps: int) -> int:
    """16 where that gives the recorded number of steps, else the largest power of two that does."""
    for size in (16, 512, 256, 128, 64, 48, 32, 8, 4, 2, 1):
        if -(-samples // size) == steps:
            return size
    return -(-samples // steps)


def _evaluate(
    modules: list[Parameters], head: UnifiedHead, features: Tensor, flow: Flow
) -> dict[str, Tensor]:
    """What the predictor of a bank with these modules makes of the features, both routings."""
    classes, width = head.weight.shape
    bank = BankTensors(
        width=width,
        class_names=tuple(str(index) for index in range(classes)),
        flow=flow,
        objective="unified",
        tasks=tuple(
            TaskModule(name=str(index), classes=(index,), module=module)
            for index, module in enumerate(modules)
        ),
        head=head.weight,
        scale=head.scale,
    )
    settings = EvaluationSettings(combination="hard")
    single = Predictor(bank, settings, "entropy").predict(features)
    batched = Predictor(bank, settings, "batch_entropy").predict(features)
    return {
        "entropy": ModuleScorer(bank).entropies(features, None).T,
        "pred_batch48": batched.class_index,
        "module_per_sample": single.task_index,
        "pred_per_sample": single.class_index,
    }


def _grown(head: UnifiedHead, total: int) -> Tensor:
    return grow_unified_head(
        head,
        classes=total,
        width=head.weight.shape[1],
        generator=torch.Generator(),
        dtype=torch.float64,
    ).weight


def _tensors(arrays: Arrays, prefix: str, names: tuple[str, ...]) -> Parameters:
    return {name: torch.from_numpy(arrays[prefix + name].copy()) for name in names}


def _compare(quantity: str, ours: Tensor | None, theirs: Array) -> Deviation:
    assert ours is not None
    if ours.numel() != theirs.size:
        return Deviation(quantity, float("inf"), passed=False)
    values = ours.numpy().reshape(theirs.shape)
    if theirs.dtype.kind in "iu":
        differing = float(np.mean(values != theirs))
        return Deviation(quantity, differing, differing == 0.0)
    difference = np.abs(values - theirs)
    relative = float(np.max(difference / np.maximum(np.abs(theirs), ATOL)))
    passed = bool(np.allclose(values, theirs, rtol=RTOL, atol=ATOL))
    return Deviation(quantity, relative, passed)


def _named(file: str, deviation: Deviation) -> Deviation:
    return Deviation(f"{file}:{deviation.quantity}", deviation.relative, deviation.passed)
