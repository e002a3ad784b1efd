"""Predictions of baselines, kept from run to run: a baseline depends on the features and its options, on no module.

So a run with another sparsity, rank or recipe finds them, and fits no baseline again.  They lie in the storage under
``baselines``, by a digest of everything that determines them; the folder can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from workers.errors import StorageError
from workers.scored import MethodPredictions, TestPart, TrainPart
from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage
from workers.storage.sealed_parquet import is_sealed, seal_fault, sealed

_COLUMNS = ("predicted", "confidence", "log_prob_true")


class KeptPredictions:
    """Reads and writes predictions by what they are made from.

    Args:
        storage: where they lie.
        made_by: all that decides what a baseline predicts beside its options, the samples and the program, such as
            the seed.
    """

    def __init__(self, storage: Storage, made_by: Mapping[str, Any]) -> None:
        import torch

        self._storage = storage
        # Another number of threads adds up in another order, and so differs in the last digits.
        threads = torch.get_num_threads()
        self._made_by = {"program": _program(), "threads": threads, **made_by}

    def key(self, baseline: str, options: Mapping[str, Any], samples: str) -> str:
        """The digest for a baseline with these options, on samples that a digest stands for."""
        content = {**self._made_by, "baseline": baseline, "options": options, "samples": samples}
        return hashlib.blake2b(_canonical(content), digest_size=16).hexdigest()

    def read(self, key: str) -> MethodPredictions | None:
        """The predictions, or None when there are none or they are damaged: then they are made again."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = _path(key)
        if not self._storage.exists(path):
            return None
        with suppress(StorageError, pa.ArrowException, OSError):
            buffer = self._storage.open_mmap(path).read_buffer()
            if is_sealed(buffer) and seal_fault(buffer) is None:
                table = pq.read_table(pa.BufferReader(buffer), columns=list(_COLUMNS))
                return MethodPredictions(**{name: table[name].to_numpy() for name in _COLUMNS})
        return None

    def write(self, key: str, made: MethodPredictions) -> None:
        """Keep predictions, which replaces what lies there.

        Raises:
            StorageError: they cannot be written.
        """
        import pyarrow as pa

        table = pa.table({name: np.ascontiguousarray(getattr(made, name)) for name in _COLUMNS})
        write_atomic(self._storage, _path(key), sealed(table))


def train_digest(part: TrainPart) -> str:
    """What a baseline learns of a task: which features, with which labels, of which classes."""
    digest = hashlib.blake2b(part.rows.identity.encode(), digest_size=16)
    digest.update(np.ascontiguousarray(part.rows.labels).tobytes())
    digest.update(_canonical(list(part.classes)))
    return digest.hexdigest()


def test_digest(part: TestPart) -> str:
    """What a baseline is scored on: which features of which task, with which labels."""
    digest = hashlib.blake2b(f"{part.task} {part.rows.identity}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(part.rows.labels).tobytes())
    return digest.hexdigest()


def _path(key: str) -> str:
    return f"baselines/{key[:2]}/{key}.parquet"


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


@cache
def _program() -> str:
    """What calculates: the source of this package, and the PyTorch and NumPy below it.  Another one predicts anew."""
    import torch

    return (
        f"{source_digest(Path(__file__).parent)} torch {torch.__version__} numpy {np.__version__}"
    )


def source_digest(folder: Path) -> str:
    """All Python files below a folder, with their names."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.rglob("*.py")):
        content = file.read_bytes()
        name = file.relative_to(folder).as_posix()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
