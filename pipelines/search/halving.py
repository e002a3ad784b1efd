"""When to stop a trial early: asynchronous successive halving over the tasks of the stream.

The rule of ASHA (Li et al., MLSys 2020) in its stopping form, as in Ray's ASHAScheduler: at a rung a trial goes on when
it is among the best 1/factor of those that have been there.  Three things are different, and the reason why it stands
here: scores of former invocations count, the published recipe is spared, and a trial within ``margin`` of the
cut goes on, since accuracy on the few validation samples of the first tasks is noisy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Halving:
    """Rungs and the scores that trials had there.

    Args:
        rungs: numbers of tasks at which is decided; none: nobody is stopped.
        factor: one of so many goes on.
        margin: how far below the cut a score may be.
    """

    def __init__(self, rungs: Sequence[int], *, factor: float, margin: float) -> None:
        self._factor, self._margin = factor, margin
        self._scores: dict[int, dict[int, float]] = {rung: {} for rung in rungs}

    def note(self, trial: int, tasks: int, score: float) -> None:
        """A score that a trial had; only those at rungs matter."""
        if tasks in self._scores:
            self._scores[tasks][trial] = score

    def stops(self, trial: int, tasks: int, score: float) -> bool:
        """Note a score, and whether the trial should learn no further."""
        others = [s for other, s in self._scores.get(tasks, {}).items() if other != trial]
        self.note(trial, tasks, score)
        if not others:
            return False
        cut = float(np.percentile(others, 100.0 * (1.0 - 1.0 / self._factor)))
        return score < cut - self._margin
