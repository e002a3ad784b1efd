"""Where a run keeps its log, predictions and report: in the storage, or beside it when the storage is remote.

Logs are appended to, which object stores cannot do, so with a remote storage a run works in a local folder that
is fetched from the storage when a run is continued elsewhere and published to it at the start and at the end, however
it ends.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from workers.storage.atomic import is_temporary, write_atomic

if TYPE_CHECKING:
    from workers.storage.filesystem import Storage

_SKIP = ("wandb", "tensorboard")
"""Sub-folders that their own programs look after."""


def run_folder(run: str, storage: Storage) -> Path:
    """The run's folder on this machine."""
    base = storage.local_path("runs") if storage.is_local else Path("luca-runs").resolve()
    return Path(base) / run


def fetch_run(run: str, storage: Storage, folder: Path) -> None:
    """Bring a run that was published from another machine here, whole or not at all; what is here already stays.

    Raises:
        StorageError: the storage cannot be read.
    """
    if storage.is_local or folder.exists():
        return
    coming = folder.with_name(f".{folder.name}.coming")
    shutil.rmtree(coming, ignore_errors=True)  # of an attempt that was killed
    for entry in storage.list(f"runs/{run}", recursive=True):
        if entry.is_directory:
            continue
        target = coming / entry.path.removeprefix(f"runs/{run}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(storage.read_bytes(entry.path))
    if coming.exists():
        coming.rename(folder)


def publish_run(run: str, storage: Storage, folder: Path) -> None:
    """Copy a run's files to a remote storage, where reports are read and other machines continue.

    Raises:
        StorageError: the storage cannot be written.
    """
    if storage.is_local:
        return
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        if file.is_file() and inside.parts[0] not in _SKIP and not is_temporary(file.name):
            write_atomic(storage, f"runs/{run}/{inside.as_posix()}", file.read_bytes())
