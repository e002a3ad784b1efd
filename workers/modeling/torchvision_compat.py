"""Imports timm where torchvision's compiled operators cannot be loaded.

timm needs torchvision, and PyPI's torchvision is linked against CUDA builds of torch: beside a CPU build its
library does not load, and ``import torchvision`` fails because ``torchvision::nms`` is missing.  None of
the backbones uses the operator, so declaring its schema is enough.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")
_library: Any = None


def import_timm() -> ModuleType:
    """The timm package, after making sure that it can be imported.  Slow the first time (seconds)."""
    define_missing_operators()
    with _out_of_sight("wandb"):
        return importlib.import_module("timm")


@contextlib.contextmanager
def _out_of_sight(name: str) -> Iterator[None]:
    """Lets a package that is not imported yet look, to this thread alone, as if it were not installed.

    timm imports wandb, where it finds it, for the log of its training script: a fifth of its own import's time.
    """
    finder = _Refusing(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Refusing(importlib.abc.MetaPathFinder):
    """Refuses one top-level package to the thread that made it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:  # noqa: ARG002
        """Leaves every other import to the finders behind."""
        if fullname == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


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
