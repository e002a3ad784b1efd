"""The quality gate: a version is tagged only when it holds its bounds on validation samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.tracking import Notice
from pipelines.actors import fetch
from workers.wording import fixed

if TYPE_CHECKING:
    from orchestrator.experiment import Experiment
    from orchestrator.tracking import CompositeTracker
    from workers.learned import Committed
    from workers.scored import Scored
    from workers.storage.bank import Bank, BankVersion

BY_TASK = "accuracy_by_task"


class Gate:
    """Judges versions by the headline router's accuracy on the validation split.

    What was measured stands in the versions' metrics, so that a bank which grows by one task a run knows what it
    could do before.

    Args:
        experiment: its ``gate``, and its headline router.
        registry: actor that notes and tags.
        tracker: told of versions that fail.
        tasks: the bank's ids of the stream's tasks, in order.
        bank: says which version has the tag; it moves to newer ones only.
        versions: versions that are there already, by their number of tasks.

    Attributes:
        active: whether the experiment sets any bound.
    """

    def __init__(
        self,
        experiment: Experiment,
        registry: Any,
        tracker: CompositeTracker,
        *,
        tasks: Sequence[str],
        bank: Bank,
        versions: Mapping[int, BankVersion],
    ) -> None:
        self._settings = experiment.gate
        self._registry = registry
        self._tracker = tracker
        self._tasks = tasks
        self._measured: dict[int, Mapping[str, float]] = {}
        self._best: dict[str, float] = {}
        self._looked_at = 0
        router = experiment.scoring.routers[0]
        for count, version in versions.items():
            noted = version.metrics.get("validation")
            if isinstance(noted, dict) and noted.get("router") == router:
                self._measured[count - 1] = noted.get(BY_TASK, {})
        self.active = experiment.gate.active
        self._tagged = bank.refs().get(experiment.gate.tag) if self.active else None

    def judge(self, after: int, version: Committed, validated: Scored) -> None:
        """Note what was measured, and tag the version if it holds every bound.

        Accuracy is over all validation samples.  Forgetting is the mean over earlier tasks of the best
        accuracy so far minus the present one (Chaudhry et al., ECCV 2018).
        """
        (router,) = validated.methods
        right = validated.methods[router].predicted == validated.label
        accuracy = float(right.mean())
        samples, hits = np.bincount(validated.task), np.bincount(validated.task[right])
        hits.resize(samples.shape)
        by_task = {
            self._tasks[t]: float(hits[t] / samples[t]) for t in np.flatnonzero(samples).tolist()
        }
        forgetting = self._forgetting(after, by_task)
        self._measured[after] = by_task
        failures = []
        bounds = self._settings
        if bounds.min_accuracy is not None and accuracy < bounds.min_accuracy:
            failures.append(f"accuracy {fixed(accuracy, 4)} is below {bounds.min_accuracy}")
        if bounds.max_forgetting is not None and forgetting > bounds.max_forgetting:
            failures.append(f"forgetting {fixed(forgetting, 4)} is above {bounds.max_forgetting}")
        measured = {
            "validation": {
                "router": router,
                "accuracy": accuracy,
                "forgetting": forgetting,
                BY_TASK: by_task,
                "passed": not failures,
            }
        }
        fetch(self._registry.annotate.remote(version.version, measured))
        if failures:
            self._tracker.handle(
                Notice(
                    "warning",
                    f"version {version.version} was not tagged '{bounds.tag}': on validation "
                    f"{' and '.join(failures)}",
                )
            )
        elif self._tagged is None or self._tagged < version.version:
            fetch(self._registry.tag.remote(bounds.tag, version.version))
            self._tagged = version.version

    def _forgetting(self, after: int, now: Mapping[str, float]) -> float:
        best = self._best_before(after)
        drops = [best[task] - accuracy for task, accuracy in now.items() if task in best]
        return float(np.mean(drops)) if drops else 0.0

    def _best_before(self, after: int) -> Mapping[str, float]:
        """The best accuracy of every task in versions that end before task ``after``.

        Versions come in order but for those that were scored again, so each is looked at once as a rule.
        """
        if after < self._looked_at:
            self._best, self._looked_at = {}, 0
        for earlier in range(self._looked_at, after):
            for task, accuracy in self._measured.get(earlier, {}).items():
                self._best[task] = max(accuracy, self._best.get(task, accuracy))
        self._looked_at = after
        return self._best
