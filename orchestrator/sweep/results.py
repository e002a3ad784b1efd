"""What a sweep found: which trials no other beats, the best, the smallest that is as good, what mattered.

Only trials that learned every task are compared.  Numbers come from the ledger alone.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.search.ledger import TrialRecord
from pipelines.search.settings import Domain
from pipelines.search.space import as_text
from workers.errors import SettingsError

ROUNDING = 1e-9
LEAST_FOR_IMPORTANCE = 5


@dataclass(frozen=True)
class SweepResult:
    """A sweep's outcome.

    Attributes:
        id, name: of the sweep and its experiment.
        records: all trials, by number.
        tolerance: accuracy below the best at which a smaller trial counts as equal.
        tasks: tasks of the stream.
        backbone_images: images that went through the backbone in this invocation.
        importance: share of the variation among trials that each setting explains, by what is explained.
        about: further facts for a reader, such as the router that trials are judged by.
    """

    id: str
    name: str
    records: Sequence[TrialRecord]
    tolerance: float
    tasks: int
    backbone_images: int = 0
    importance: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> list[TrialRecord]:
        """Trials that learned every task."""
        return [record for record in self.records if record.status == "finished"]

    @property
    def published(self) -> TrialRecord | None:
        """The yardstick, if it finished."""
        return next((record for record in self.finished if record.published), None)

    @property
    def pareto(self) -> list[TrialRecord]:
        """Trials that no other beats in accuracy without more parameters, by falling accuracy."""
        return pareto(self.finished)

    @property
    def best(self) -> TrialRecord | None:
        """The most accurate trial; of equals, the smallest."""
        return max(self.finished, key=_accuracy_then_small, default=None)

    @property
    def smallest(self) -> TrialRecord | None:
        """The fewest non-zero parameters within ``tolerance`` of the best accuracy."""
        best = self.best
        if best is None:
            return None
        floor = accuracy(best) - self.tolerance - ROUNDING
        equal = [record for record in self.finished if accuracy(record) >= floor]
        return min(equal, key=lambda r: (nonzero(r), -accuracy(r), r.number))

    @property
    def smallest_as_published(self) -> TrialRecord | None:
        """The fewest non-zero parameters at no more than ``tolerance`` below the published recipe's accuracy."""
        if self.published is None:
            return None
        floor = accuracy(self.published) - self.tolerance - ROUNDING
        equal = [record for record in self.finished if accuracy(record) >= floor]
        return min(equal, key=lambda r: (nonzero(r), -accuracy(r), r.number))

    def pick(self, wanted: str) -> TrialRecord:
        """The trial that ``best``, ``smallest`` or a trial's name means.

        Raises:
            SettingsError: there is none, or it did not finish.
        """
        if wanted in ("best", "smallest"):
            found = self.best if wanted == "best" else self.smallest
            if found is None:
                raise SettingsError(f"no trial of sweep {self.id} has finished")
            return found
        for record in self.records:
            if record.id == wanted:
                if record.status != "finished":
                    reason = f": {record.error}" if record.error else ""
                    raise SettingsError(
                        f"trial {wanted} of sweep {self.id} is {record.status}{reason}"
                    )
                return record
        names = ", ".join(record.id for record in self.finished)
        raise SettingsError(
            f"sweep {self.id} has no trial {wanted!r}: choose best, smallest or one of {names}"
        )

    def to_json(self) -> dict[str, Any]:
        """What ``luca sweep --json`` prints."""
        best = self.best
        return {
            "sweep": self.id,
            "backbone_images": self.backbone_images,
            "trials": [_trial_json(record) for record in self.records],
            "pareto": [record.id for record in self.pareto],
            "best": None if best is None else best.id,
        }


def accuracy(record: TrialRecord) -> float:
    """Validation accuracy of a trial that was judged."""
    assert record.validation_accuracy is not None
    return record.validation_accuracy


def nonzero(record: TrialRecord) -> int:
    """Non-zero parameters of a trial that was judged."""
    assert record.nonzero_parameters is not None
    return record.nonzero_parameters


def pareto(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Records that no other one beats: none is at least as accurate and as small, and better in one of both."""
    front: list[TrialRecord] = []
    fewest = float("inf")
    ordered = sorted(records, key=lambda r: (-accuracy(r), nonzero(r), r.number))
    for record in ordered:
        twin = front and (accuracy(front[-1]), nonzero(front[-1])) == (
            accuracy(record),
            nonzero(record),
        )
        if nonzero(record) < fewest or twin:
            front.append(record)
            fewest = nonzero(record)
    return front


def importances(
    records: Sequence[TrialRecord], domains: Mapping[str, Domain], *, seed: int
) -> dict[str, dict[str, float]]:
    """How much of the variation in accuracy and in parameters each setting explains (fANOVA, Hutter et al., ICML 2014).

    From finished trials inside the space; the shares of one column add up to one.  Nothing when there
    are fewer than five, or fewer than two settings that vary.
    """
    import optuna
    from optuna import distributions
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    usable = [
        record
        for record in records
        if record.status == "finished" and set(record.settings) == set(domains)
    ]
    varying = [
        key for key in domains if len({as_text(record.settings[key]) for record in usable}) > 1
    ]
    if len(usable) < LEAST_FOR_IMPORTANCE or len(varying) < 2:
        return {}
    space: dict[str, Any] = {}
    for key in varying:
        domain = domains[key]
        if isinstance(domain, tuple):
            space[key] = distributions.CategoricalDistribution([as_text(v) for v in domain])
        else:
            space[key] = distributions.FloatDistribution(
                float(domain.low), float(domain.high), log=domain.log
            )
    found: dict[str, dict[str, float]] = {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for title, value in (("validation accuracy", accuracy), ("non-zero parameters", nonzero)):
        values = [float(value(record)) for record in usable]
        if max(values) - min(values) < ROUNDING:
            continue
        study = optuna.create_study(direction="maximize")
        for record, outcome in zip(usable, values, strict=True):
            params = {
                key: as_text(record.settings[key])
                if isinstance(domains[key], tuple)
                else float(record.settings[key])
                for key in varying
            }
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=space, value=outcome)
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[title] = {
                key: float(share)
                for key, share in get_param_importances(
                    study, evaluator=FanovaImportanceEvaluator(seed=seed)
                ).items()
            }
    return found


def _accuracy_then_small(record: TrialRecord) -> tuple[float, int, int]:
    return accuracy(record), -nonzero(record), -record.number


def _trial_json(record: TrialRecord) -> dict[str, Any]:
    shown = {
        "id": record.id,
        "settings": json.loads(as_text(record.settings)),
        "validation_accuracy": record.validation_accuracy,
        "nonzero_parameters": record.nonzero_parameters,
        "published": record.published,
        "seconds": record.seconds,
    }
    if record.error:
        shown["error"] = record.error
    return shown
