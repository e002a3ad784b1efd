"""Which versions a run has scored already: what lets a continued run skip evaluation that is done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage

_FILE = "evaluated.json"


class Ledger:
    """Bank digests by the last task learned, for which predictions are in the run's folder.

    Predictions are written before the ledger says so; a crash in between costs one evaluation.
    """

    def __init__(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self._storage = Storage.open(str(run_dir))
        self._entries: dict[str, dict[str, Any]] = self._read()

    def has(self, after: int, digest: str) -> bool:
        """Whether the version with this digest was scored after this task."""
        entry = self._entries.get(str(after))
        return entry is not None and entry.get("digest") == digest

    def note(self, after: int, version: int, digest: str) -> None:
        """Remember that it was."""
        self._entries[str(after)] = {"version": version, "digest": digest}
        write_atomic(self._storage, _FILE, json.dumps(self._entries, indent=1).encode())

    def _read(self) -> dict[str, dict[str, Any]]:
        data = self._storage.read_if_exists(_FILE)
        if data is None:
            return {}
        try:
            entries = json.loads(data)
        except ValueError:
            return {}
        return entries if isinstance(entries, dict) else {}
