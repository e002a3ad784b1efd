"""Keeping packages that nobody here uses from being imported, where another package would import them unasked."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def spare_pandas() -> None:
    """Has PyArrow, now or when it is imported, do without pandas in this process.

    The first array that PyArrow makes imports pandas where it is installed, a third of a second in every process, only
    to know its missing values when it sees them.  For processes that are ours alone: PyArrow asks once, and would not
    take ``pandas.NA`` for a null afterwards.  ``import pandas`` and ``to_pandas`` work as ever.
    """
    if "pyarrow" in sys.modules:
        _settle(
            importlib.import_module("pyarrow")
        )  # which another thread may be importing just now
    elif not any(isinstance(finder, _Settling) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Settling())


def _settle(pyarrow: ModuleType) -> None:
    if "pandas" not in sys.modules:
        with out_of_sight("pandas"):
            pyarrow.array([None])


class _Settling(importlib.abc.MetaPathFinder):
    """Lets PyArrow make its first array as soon as it is imported."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        """Leaves every other import to the finders behind."""
        if fullname != "pyarrow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def execute_and_settle(module: ModuleType) -> None:
                execute(module)
                _settle(module)

            loader.exec_module = execute_and_settle
        return spec


@contextlib.contextmanager
def out_of_sight(name: str) -> Iterator[None]:
    """Lets a package that is not imported yet look, to this thread alone, as if it were not installed."""
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
