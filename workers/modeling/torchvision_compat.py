"""Imports timm where torchvision's compiled operators cannot be loaded.

timm needs torchvision, and PyPI's torchvision is linked against CUDA builds of torch: beside a CPU build its
library does not load, and ``import torchvision`` fails because ``torchvision::nms`` is missing.  None of
the backbones uses the operator, so declaring its schema is enough.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from workers.imports import out_of_sight

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")
_library: Any = None


def import_timm() -> ModuleType:
    """The timm package, after making sure that it can be imported.  Slow the first time (seconds)."""
    define_missing_operators()
    # timm imports wandb, where it finds it, for the log of its training script: a fifth of its own import's time.
    with out_of_sight("wandb"):
        return importlib.import_module("timm")


def define_missing_operators() -> tuple[str, ...]:
    """Declares the operators that torchvision's import asks for, when its own library cannot be loaded.

    Returns:
        The names that were declared by this call; empty where torchvision works by itself.
    """
    global _library
    import torch

    if _library is not None:
        return ()
    _load_compiled_operators()
    missing = tuple(name for name in _OPERATORS if not _exists(name))
    if "nms" not in missing:
        # A working torchvision: what else it has or lacks is its own business.
        return ()
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in missing:
        library.define(name + _SCHEMA)
    _library = library  # torch drops the operators together with the Library object
    return missing


def _exists(name: str) -> bool:
    import torch

    return hasattr(torch.ops.torchvision, name)


def _load_compiled_operators() -> None:
    """Loads torchvision's library as its own import would, so that a working one is never shadowed."""
    import torch

    load_library: Any = torch.ops.load_library
    spec = importlib.util.find_spec("torchvision")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for pattern in ("_C*.so", "_C*.pyd", "_C*.dylib"):
            for file in sorted(Path(folder).glob(pattern)):
                try:
                    load_library(str(file))
                except OSError:
                    continue  # linked against another torch: the operators stay missing
