"""The event log ``events.jsonl``: one JSON object a line, flushed at once, never rewritten.

It is written in every run and read by the report, so a run can always be explained from its own folder.
A process killed while it writes leaves half a line at the end: the reader passes over it and the next
writer cuts it off.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator.tracking.events import Event, StageProgress, event_from_json
from workers.errors import CorruptionError, DataError, StorageError

_PROGRESS_EVERY = 5.0  # seconds between two progress lines of one stage


class JsonlTracker:
    """Appends events to a file.

    Progress is thinned out: of each stage, the first and the last state and one every few seconds.

    Raises:
        StorageError: the file cannot be opened for writing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            repair(self.path)
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise StorageError(
                f"event log {str(self.path)!r} cannot be written ({error.strerror}); choose a writable storage"
            ) from error
        self._last_progress: dict[str, float] = {}

    def handle(self, event: Event) -> None:
        """Appends one line, in one write."""
        if isinstance(event, StageProgress) and not self._is_due(event):
            return
        line = json.dumps(event.to_json(), ensure_ascii=False, allow_nan=False) + "\n"
        self._file.write(line.encode("utf-8", errors="backslashreplace"))

    def close(self) -> None:
        """Makes the log durable and closes it.  Closing twice is harmless."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def _is_due(self, event: StageProgress) -> bool:
        now = time.monotonic()
        last = self._last_progress.get(event.stage)
        if last is not None and now - last < _PROGRESS_EVERY and event.done < event.total:
            return False
        self._last_progress[event.stage] = now
        return True


def repair(path: str | Path) -> None:
    """Cuts off a line that a crash left unfinished.  A missing file is left missing."""
    path = Path(path)
    if not path.exists():
        return
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            block = file.read(position - start)
            newline = block.rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position != end:
            file.truncate(position)


def read_events(path: str | Path) -> Iterator[Event]:
    """The events of a log, in order.  A torn last line and kinds of events unknown to this version are passed over.

    Raises:
        StorageError: the file cannot be read.
        CorruptionError: a line before the last is not JSON.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise StorageError(
            f"event log {str(path)!r} cannot be read ({error.strerror}); give a run's folder"
        ) from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                if not isinstance(data, dict):
                    raise ValueError("no object")
            except (ValueError, RecursionError) as error:
                raise CorruptionError(
                    f"event log {str(path)!r} line {number} is not JSON; remove that line to read the rest"
                ) from error
            try:
                yield event_from_json(data)
            except DataError:
                continue
