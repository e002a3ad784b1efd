"""What happens in a run, as values: the driver emits these and every tracker reads the same ones.

An event is plain data (numbers, strings, lists, dictionaries), so that the log on disk, the console, W&B and
TensorBoard cannot disagree about what happened, and a log can be read back into the events that wrote it.
"""

from __future__ import annotations

import math
import re
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from workers.errors import DataError


@dataclass(frozen=True)
class Event:
    """Base of all events.  ``time`` is seconds since the epoch, taken when the event is made."""

    name_in_log: ClassVar[str] = "event"

    time: float = field(default_factory=clock.time, kw_only=True)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name_in_log = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        """The event as JSON-able data: ``event`` (its name), ``time`` (ISO 8601, UTC), then its fields.

        Numbers that JSON cannot say (NaN, infinities) become null.
        """
        data = asdict(self)
        moment = datetime.fromtimestamp(data.pop("time"), tz=timezone.utc)
        return {
            "event": self.name_in_log,
            "time": moment.isoformat(timespec="microseconds"),
            **{key: json_value(value) for key, value in data.items()},
        }


@dataclass(frozen=True)
class RunStarted(Event):
    """The experiment is valid and work begins.

    ``tasks`` has one dictionary a task: ``name``, ``classes`` (names, or how many), ``train``, ``validation``,
    ``test`` (numbers of samples).  ``shown`` is the digest of a finished run's bank that is only shown again: everything
    is learned and scored already, and nothing will happen.
    """

    run: str
    name: str
    bank: str
    storage: str
    tasks: Sequence[Mapping[str, Any]]
    experiment: Mapping[str, Any]
    resumed: bool = False
    shown: str = ""

    @property
    def scenario(self) -> str | None:
        """The stream's scenario, where the experiment names one."""
        stream = self.experiment.get("stream")
        scenario = stream.get("scenario") if isinstance(stream, Mapping) else None
        return scenario if isinstance(scenario, str) else None

    def to_json(self) -> dict[str, Any]:
        """As for every event, with secrets left out of the experiment and the storage's URI."""
        data: dict[str, Any] = without_secrets(super().to_json())
        return data


@dataclass(frozen=True)
class StageProgress(Event):
    """How far a stage ("features", "learning", "evaluation", ...) is.

    ``rate`` is in ``rate_unit`` a second, which is ``unit`` unless said: 3 of 10 tasks, 1,200 images a second.
    """

    stage: str
    done: int
    total: int
    unit: str = "tasks"
    rate: float | None = None
    rate_unit: str | None = None


@dataclass(frozen=True)
class PartExtracted(Event):
    """A part of a task's features is there; ``images`` went through the backbone (0 when ``cached``).

    ``skipped`` names the samples left out as unreadable within the configured tolerance.
    """

    task: int
    part: str
    rows: int
    images: int
    cached: bool
    seconds: float
    skipped: Sequence[str] = ()


@dataclass(frozen=True)
class TaskLearned(Event):
    """A task's module is learned, or was found in the bank (``cached``).  ``losses``: mean of each epoch."""

    task: int
    name: str
    seconds: float
    steps: int
    losses: Sequence[float]
    stored_parameters: int
    nonzero_parameters: int
    cached: bool = False


@dataclass(frozen=True)
class VersionCommitted(Event):
    """The bank has a new version."""

    task: int
    bank: str
    version: int
    digest: str
    seconds: float


@dataclass(frozen=True)
class TaskEvaluated(Event):
    """The bank as of ``task`` was scored on every task seen.  ``metrics``: method -> metric -> value."""

    task: int
    version: int
    metrics: Mapping[str, Mapping[str, float]]
    seconds: float


@dataclass(frozen=True)
class Notice(Event):
    """Something the user should read."""

    level: Literal["info", "warning"]
    message: str


@dataclass(frozen=True)
class RunFinished(Event):
    """The run is over.  ``summary`` is what ``summary.json`` holds; ``error`` is why a run failed, in one sentence."""

    status: Literal["finished", "failed", "stopped"]
    seconds: float
    summary: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


EVENTS: dict[str, type[Event]] = {
    kind.name_in_log: kind
    for kind in (
        RunStarted,
        StageProgress,
        PartExtracted,
        TaskLearned,
        VersionCommitted,
        TaskEvaluated,
        Notice,
        RunFinished,
    )
}


def event_from_json(data: Mapping[str, Any]) -> Event:
    """The event that :meth:`Event.to_json` wrote.

    Fields that this version does not know are ignored, so that an older program reads a newer log.

    Raises:
        DataError: the event's name is unknown or a field is missing.
    """
    kind = EVENTS.get(str(data.get("event")))
    if kind is None:
        raise DataError(
            f"event {data.get('event')!r} is not one of those this version knows: "
            f"{', '.join(sorted(EVENTS))}"
        )
    known = {f.name for f in fields(kind)} - {"time"}
    values = {key: value for key, value in data.items() if key in known}
    try:
        moment = datetime.fromisoformat(str(data["time"])).timestamp()
        hints = _annotations(kind.name_in_log)
        for key, value in values.items():
            if not _fits(value, hints[key]):
                raise TypeError(f"{key} is {value!r:.50}")
        return kind(**values, time=moment)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"event {kind.name_in_log!r} is incomplete: {error}") from error


@cache
def _annotations(name: str) -> Mapping[str, Any]:
    return get_type_hints(EVENTS[name])


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON, where NaN in a list or mapping is null, is what a field's annotation says."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is Any:
        return True
    if origin is Literal:
        return value in inner
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in inner)
    if origin is Sequence:
        return isinstance(value, list) and all(v is None or _fits(v, inner[0]) for v in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            v is None or _fits(v, inner[1]) for v in value.values()
        )
    if origin in (int, float):
        numbers = (int, float) if origin is float else int
        return isinstance(value, numbers) and not isinstance(value, bool)
    return isinstance(value, origin)


_SECRET_KEY = re.compile(r"api_?key|token|secret|passw|credential|access_key", re.IGNORECASE)
_SECRET_IN_URI = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=[?&]secret_key=)[^&\s]+")


def without_secrets(value: Any) -> Any:
    """JSON data without the values of keys that sound secret and without user and password in URIs."""
    if isinstance(value, dict):
        return {
            key: "(hidden)" if item and _SECRET_KEY.search(key) else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    if isinstance(value, str):
        return _SECRET_IN_URI.sub("(hidden)", value)
    return value


def json_value(value: Any) -> Any:
    """``value`` with what JSON lacks replaced: NaN and infinities by None, tuples and sets by lists,
    NumPy scalars and arrays by Python's, anything else by its text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((json_value(item) for item in value), key=str)
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return json_value(value.tolist())
    return str(value)
