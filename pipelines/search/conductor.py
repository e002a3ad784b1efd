"""Conducts a sweep: hands out trials, takes what came of them, and keeps both in the ledger.  No Ray in here.

The published recipe is trial 0.  What a former invocation proposed and did not end comes next, then new proposals,
until there are as many trials as asked for or the space has no further point.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.search.halving import Halving
from pipelines.search.ledger import SweepLedger, TrialRecord
from pipelines.search.planning import rungs
from pipelines.search.proposals import Proposals
from pipelines.search.settings import SearchSettings
from pipelines.search.space import as_text
from pipelines.search.trial_report import TrialReport
from pipelines.search.trial_settings import TrialSettings
from workers.errors import SettingsError

_ATTEMPTS = 100
"""Proposals in a row that are all known already, after which the space counts as exhausted."""


@dataclass(frozen=True)
class Assignment:
    """A trial to be run."""

    record: TrialRecord
    settings: TrialSettings


Resolve = Callable[[Mapping[str, Any], bool], TrialSettings]
"""Settings by dotted key to what a trial needs, and whether they are the published recipe, which stands alone;
raises SettingsError where they do not work."""


class Conductor:
    """One sweep.

    Args:
        ledger: records of this and former invocations.
        proposals: what to try.
        resolve: turns proposals into settings.
        published: dotted settings of the published recipe, as ``resolve`` takes them.
        trials: how many trials there shall be.
        tasks: tasks of the stream.
        settings: of the sweep: when trials are stopped, how often lost ones are handed out again.
        identity: what else decides a trial's result, such as seeds.
        changed: told every record that changes.
    """

    def __init__(
        self,
        ledger: SweepLedger,
        proposals: Proposals,
        resolve: Resolve,
        *,
        published: Mapping[str, Any],
        trials: int,
        tasks: int,
        settings: SearchSettings,
        identity: str,
        changed: Callable[[TrialRecord], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._proposals = proposals
        self._resolve = resolve
        self._trials = trials
        self._tasks = tasks
        self._identity = identity
        self._changed = changed
        self._retries = settings.retries
        self._losses: Counter[int] = Counter()
        self._running: set[int] = set()
        self._reports: dict[int, list[TrialReport]] = {}
        self._records = {
            number: record for number, record in ledger.read().items() if number < trials
        }
        self._worth = settings.decade_worth if settings.objective == "pareto" else 0.0
        self._halving = Halving(
            rungs(settings, tasks), factor=settings.reduction_factor, margin=settings.stop_margin
        )
        self._waiting: deque[int] = deque()
        self._exhausted = False
        if 0 not in self._records:
            self._propose(0, published, published=True)
        for record in self.records:
            for done, (accuracy, size) in enumerate(
                zip(record.curve, record.sizes, strict=True), 1
            ):
                self._halving.note(record.number, done, self._score(accuracy, size))
            if record.ended:
                proposals.tell(record)
            elif record.number not in self._waiting:
                self._waiting.append(record.number)

    @property
    def records(self) -> list[TrialRecord]:
        """All trials so far, by number."""
        return [self._records[number] for number in sorted(self._records)]

    @property
    def total(self) -> int:
        """How many trials there will be, as far as is known."""
        return len(self._records) if self._exhausted else self._trials

    @property
    def ended(self) -> int:
        """Trials with nothing left to do."""
        return sum(record.ended for record in self._records.values())

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do.  May write down proposals to find out."""
        if self._waiting or any(record.status == "proposed" for record in self._records.values()):
            return False
        self._fill()
        return not self._waiting

    @property
    def running(self) -> bool:
        """Whether trials are handed out that have not ended: should one be lost, ``next`` gives it again."""
        return bool(self._running)

    def next(self) -> Assignment | None:
        """The next trial to run, or None when there is none now."""
        while True:
            if not self._waiting:
                self._fill()
            if not self._waiting:
                return None
            record = self._records[self._waiting.popleft()]
            try:
                settings = self._resolve(record.settings, record.published)
            except SettingsError as error:
                self._update(replace(record, status="failed", error=str(error)))
                continue
            if record.status != "proposed":
                record = self._update(replace(record, status="proposed", error=""))
            self._running.add(record.number)
            return Assignment(record, settings)

    def report(self, number: int, new: Sequence[TrialReport]) -> bool:
        """Note a trial's reports after some more tasks, and say whether it should stop there.

        A trial that begins again, after its process was lost, begins its reports again.
        """
        self._take(number, new)
        last = new[-1]
        stop = self._halving.stops(number, last.tasks, self._score(_mean(last.seen), last.nonzero))
        return stop and not self._records[number].published

    def end(self, number: int, new: Sequence[TrialReport]) -> TrialRecord:
        """A trial ended with these reports: finished when it learned every task, else stopped."""
        self._take(number, new)
        reports = self._reports.pop(number)
        last = reports[-1]
        return self._update(
            replace(
                self._records[number],
                status="finished" if last.tasks == self._tasks else "stopped",
                tasks=last.tasks,
                validation_accuracy=_mean(last.whole),
                accuracies=last.whole,
                nonzero_parameters=round(last.nonzero),
                stored_parameters=round(last.stored),
                curve=tuple(_mean(report.seen) for report in reports),
                sizes=tuple(report.nonzero for report in reports),
                seconds=sum(report.seconds for report in reports),
            )
        )

    def failed(self, number: int, error: str) -> TrialRecord:
        """A trial whose settings do not work."""
        reports = self._reports.pop(number, [])
        return self._update(
            replace(
                self._records[number],
                status="failed",
                error=error,
                tasks=len(reports),
                seconds=sum(report.seconds for report in reports),
            )
        )

    def lost(self, number: int, error: str) -> TrialRecord:
        """A trial whose process or data went away.

        It is handed out again, unless that has happened too often: then the next invocation learns it.
        """
        self._reports.pop(number, None)
        self._losses[number] += 1
        record = self._update(replace(self._records[number], status="lost", error=error))
        if self._losses[number] <= self._retries:
            self._waiting.append(number)
        return record

    def _take(self, number: int, new: Sequence[TrialReport]) -> None:
        reports = self._reports.setdefault(number, [])
        for report in new:
            if report.tasks == 1:
                reports.clear()
            if (
                report.tasks == len(reports) + 1
            ):  # the last ones may come twice, as reports and at the end
                reports.append(report)

    def _score(self, accuracy: float, nonzero: float) -> float:
        """What trials are compared by before they end.

        The accuracy over the tasks seen, less ``decade_worth`` for every power of ten of non-zero parameters, those of
        as many tasks in every trial that is compared.
        """
        return accuracy - self._worth * math.log10(max(1.0, nonzero))

    def _fill(self) -> None:
        """Propose one more trial, unless there are enough or there is nothing new to try."""
        number = max(self._records, default=-1) + 1
        if self._exhausted or number >= self._trials:
            return
        known = {record.digest: record for record in self._records.values()}
        for attempt in range(_ATTEMPTS):
            point = self._proposals.ask(number, attempt)
            if point is None:
                break
            twin = known.get(self._digest(point, published=False))
            if twin is None:
                self._propose(number, point, published=False)
                return
            if twin.ended:
                self._proposals.tell(replace(twin, settings=dict(point)))
        self._exhausted = True

    def _propose(self, number: int, settings: Mapping[str, Any], *, published: bool) -> None:
        record = TrialRecord(
            number=number,
            settings=dict(settings),
            digest=self._digest(settings, published=published),
            published=published,
        )
        self._update(record)
        self._waiting.append(number)

    def _digest(self, settings: Mapping[str, Any], *, published: bool) -> str:
        """Of the resolved settings; of the settings as they are where they do not resolve."""
        try:
            resolved = self._resolve(settings, published).model_dump_json()
        except SettingsError:
            resolved = as_text(settings)
        return hashlib.sha256(f"{self._identity}\n{resolved}".encode()).hexdigest()

    def _update(self, record: TrialRecord) -> TrialRecord:
        self._records[record.number] = record
        self._ledger.put(record)
        if record.status != "proposed":
            self._running.discard(record.number)
        if record.ended and not record.published:
            self._proposals.tell(record)
        if self._changed is not None:
            self._changed(record)
        return record


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
