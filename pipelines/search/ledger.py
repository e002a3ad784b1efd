"""What is known of every trial of a sweep, one small file each, so that a killed sweep goes on where it was.

    sweeps/<id>/trials/t003.json      the record of trial 3, replaced whole whenever it changes

A trial is written down when it is proposed and again when it ends.  Only the driver writes; a sweep that finds a
trial proposed but not ended learns it again under the same name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from workers.errors import CorruptionError
from workers.storage.atomic import write_atomic
from workers.storage.filesystem import Storage

Status = Literal["proposed", "finished", "stopped", "failed", "lost"]


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial.

    Attributes:
        number: its place in the order of proposals; 0 is the published recipe.
        settings: values by dotted key of the experiment.
        digest: of everything that decides its result; equal digests need learning once.
        status: ``stopped``: by the early-stopping rule; ``failed``: the settings do not work, see ``error``;
            ``lost``: its process or features were lost, it is learned again by the next invocation.
        tasks: tasks of the stream it learned.
        validation_accuracy: share of all validation samples of the stream that it gets right, mean over
            repeats; the classes that a stopped trial never learned count as wrong.
        accuracies: the same of every repeat.
        nonzero_parameters, stored_parameters: over the modules it learned, mean over repeats.
        curve: accuracy over the tasks seen, after each task, mean over repeats.
        sizes: non-zero parameters after each task, mean over repeats.
        seconds: its learning and scoring.
    """

    number: int
    settings: dict[str, Any]
    digest: str
    published: bool = False
    status: Status = "proposed"
    tasks: int = 0
    validation_accuracy: float | None = None
    accuracies: tuple[float, ...] = ()
    nonzero_parameters: int | None = None
    stored_parameters: int | None = None
    curve: tuple[float, ...] = ()
    sizes: tuple[float, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    error: str = ""

    @property
    def id(self) -> str:
        """Its name."""
        return trial_id(self.number)

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do for it."""
        return self.status in ("finished", "stopped", "failed")

    @property
    def spread(self) -> float | None:
        """Sample standard deviation of the accuracy over repeats; None for a single one."""
        count = len(self.accuracies)
        if count < 2:
            return None
        mean = sum(self.accuracies) / count
        return float((sum((a - mean) ** 2 for a in self.accuracies) / (count - 1)) ** 0.5)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"id": self.id, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrialRecord:
        """The inverse of ``to_json``; fields of a later version are ignored."""
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        for key in ("accuracies", "curve", "sizes"):
            values[key] = tuple(values.get(key, ()))
        return cls(**values)


def trial_id(number: int) -> str:
    """The name of trial ``number``."""
    return f"t{number:03d}"


class SweepLedger:
    """The records of one sweep, below ``directory`` of a storage."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = f"{directory}/trials"

    def read(self) -> dict[int, TrialRecord]:
        """All records by number.

        Raises:
            CorruptionError: a record cannot be read; the message names the file.
        """
        found = {}
        for entry in self._storage.list(self._directory):
            if not entry.name.endswith(".json") or entry.name.startswith("."):
                continue
            path = f"{self._directory}/{entry.name}"
            try:
                record = TrialRecord.from_json(json.loads(self._storage.read_bytes(path)))
            except (ValueError, TypeError, AttributeError) as error:
                raise CorruptionError(
                    f"{self._storage.describe(path)} is not the record of a trial ({error}); delete it "
                    "and the trial is learned again"
                ) from error
            found[record.number] = record
        return dict(sorted(found.items()))

    def put(self, record: TrialRecord) -> None:
        """Write a record down, whole or not at all."""
        text = json.dumps(record.to_json(), indent=1)
        write_atomic(self._storage, f"{self._directory}/{record.id}.json", text.encode())
