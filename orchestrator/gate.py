"""The quality gate: a version is tagged only when it holds its bounds on validation samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.tracking import Notice
from pipelines.actors import fetch

if TYPE_CHECKING:
    from orchestrator.experiment import Experiment
    from orchestrator.tracking import CompositeTracker
    from workers.bank_scoring import Scored
    from workers.learned import Committed


class Gate:
    """Judges versions by the headline router's accuracy on the validation split.

    Attributes:
        active: whether the experiment sets any bound.
    """

    def __init__(self, experiment: Experiment, registry: Any, tracker: CompositeTracker) -> None:
        self._settings = experiment.gate
        self._registry = registry
        self._tracker = tracker
        self._best: dict[int, float] = {}
        self.active = experiment.gate.active

    def judge(self, after: int, version: Committed, validated: Scored) -> None:
        """Note what was measured, and tag the version if it holds every bound.

        Accuracy is over all validation samples.  Forgetting is the mean over earlier tasks of the best
        accuracy so far minus the present one (Chaudhry et al., ECCV 2018), as measured in this invocation.
        """
        (router,) = validated.methods
        right = validated.methods[router].predicted == validated.label
        accuracy = float(right.mean())
        by_task = {
            int(t): float(right[validated.task == t].mean()) for t in np.unique(validated.task)
        }
        drops = [self._best[t] - a for t, a in by_task.items() if t in self._best and t != after]
        forgetting = float(np.mean(drops)) if drops else 0.0
        for task, value in by_task.items():
            self._best[task] = max(self._best.get(task, 0.0), value)
        failures = []
        bounds = self._settings
        if bounds.min_accuracy is not None and accuracy < bounds.min_accuracy:
            failures.append(f"accuracy {accuracy:.4f} is below {bounds.min_accuracy}")
        if bounds.max_forgetting is not None and forgetting > bounds.max_forgetting:
            failures.append(f"forgetting {forgetting:.4f} is above {bounds.max_forgetting}")
        measured = {
            "validation": {
                "router": router,
                "accuracy": accuracy,
                "forgetting": forgetting,
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
        else:
            fetch(self._registry.tag.remote(bounds.tag, version.version))
