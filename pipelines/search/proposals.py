"""Which settings to try next: on a grid, at random, or where Optuna expects the most.

Proposers are told what came of every trial, those of earlier invocations too, in any order.
"""

from __future__ import annotations

import json
import random
from typing import Any, Protocol

from pipelines.search.ledger import TrialRecord
from pipelines.search.settings import Domain, SearchSettings
from pipelines.search.space import Point, SearchSpace, as_text

_PATIENCE = 20
"""Proposals in a row that may be known already before Optuna is no longer asked."""


class Proposals(Protocol):
    """Proposes points of a space."""

    def ask(self, number: int, attempt: int) -> Point | None:
        """Settings for trial ``number``; None when there are no more.

        Args:
            number: which trial.
            attempt: how many proposals for it were refused as known already.
        """
        ...

    def tell(self, record: TrialRecord) -> None:
        """What came of a trial."""
        ...


class GridProposals:
    """Every combination once, in an order shuffled by the seed, so that a part of the grid is a fair sample."""

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        self._points = space.grid()
        random.Random(seed).shuffle(self._points)

    def __len__(self) -> int:
        return len(self._points)

    def ask(self, number: int, attempt: int) -> Point | None:  # noqa: ARG002
        return self._points.pop(0) if self._points else None

    def tell(self, record: TrialRecord) -> None:
        """Leave out what is known."""
        settings = as_text(record.settings)
        self._points = [point for point in self._points if as_text(point) != settings]


class RandomProposals:
    """Independent draws; trial n's depends on the seed and n alone."""

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, number: int, attempt: int) -> Point | None:
        return self._space.draw(random.Random(f"{self._seed}/{number}/{attempt}"))

    def tell(self, record: TrialRecord) -> None:
        """Draws learn nothing."""


class OptunaProposals:
    """Optuna's TPE sampler (Bergstra et al., NeurIPS 2011; several objectives: Ozaki et al., GECCO 2020).

    A trial that was stopped early enters with what it reached: the accuracy over all validation samples, the
    classes it never learned counting as wrong, and its non-zero parameters scaled up to all tasks.  So
    it ranks below every trial that went on, and the further it came the higher, with one objective or two.
    A failed trial enters as failed.  When it keeps proposing what is known, points are drawn at random.
    """

    def __init__(
        self, space: SearchSpace, settings: SearchSettings, *, tasks: int, seed: int, trials: int
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self._tasks = tasks
        self._pareto = settings.objective == "pareto"
        self._space, self._domains = space, space.domains
        self._distributions = {key: _distribution(d) for key, d in space.domains.items()}
        self._seed, self._startup = seed, max(4, min(10, trials // 3))
        self._study: Any = None
        self._asked: dict[str, Any] = {}
        self._known: list[Any] = []

    def ask(self, number: int, attempt: int) -> Point | None:
        if attempt >= _PATIENCE:
            return self._space.draw(random.Random(f"{self._seed}/{number}/{attempt}"))
        trial = self._opened(number).ask(self._distributions)
        point = {key: _decoded(self._domains[key], value) for key, value in trial.params.items()}
        text = as_text(point)
        if text in self._asked:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._asked[text] = trial
        return point

    def tell(self, record: TrialRecord) -> None:
        if set(record.settings) != set(self._domains):
            return
        state = self._optuna.trial.TrialState
        values = self._values(record)
        trial = self._asked.get(as_text(record.settings))
        if trial is not None:
            if not self._study.trials[trial.number].state.is_finished():
                self._study.tell(trial, values, state=None if values else state.FAIL)
            return
        known = self._optuna.trial.create_trial(
            params={k: _encoded(self._domains[k], v) for k, v in record.settings.items()},
            distributions=self._distributions,
            values=values,
            state=state.COMPLETE if values else state.FAIL,
        )
        if self._study is None:
            self._known.append(known)
        else:
            self._study.add_trial(known)

    def _opened(self, number: int) -> Any:
        """The study, made at the first question: its randomness depends on how far the sweep is, so that a sweep
        that is continued does not draw what it drew before."""
        if self._study is None:
            directions = ["maximize", "minimize"] if self._pareto else ["maximize"]
            sampler = self._optuna.samplers.TPESampler(
                seed=(self._seed + 7919 * number) % 2**32, n_startup_trials=self._startup
            )
            self._study = self._optuna.create_study(directions=directions, sampler=sampler)
            self._study.add_trials(self._known)
        return self._study

    def _values(self, record: TrialRecord) -> list[float] | None:
        if record.status not in ("finished", "stopped") or not record.tasks:
            return None
        assert record.validation_accuracy is not None
        if not self._pareto:
            return [record.validation_accuracy]
        assert record.nonzero_parameters is not None
        return [
            record.validation_accuracy,
            record.nonzero_parameters * self._tasks / record.tasks,
        ]


def make_proposals(
    space: SearchSpace, settings: SearchSettings, *, tasks: int, seed: int, trials: int
) -> Proposals:
    """The proposer that the settings name."""
    if settings.method == "grid":
        return GridProposals(space, seed=seed)
    if settings.method == "random":
        return RandomProposals(space, seed=seed)
    return OptunaProposals(space, settings, tasks=tasks, seed=seed, trials=trials)


def _distribution(domain: Domain) -> Any:
    """Optuna's form of a domain; listed values stand as JSON texts, since Optuna takes no lists."""
    from optuna import distributions

    if isinstance(domain, tuple):
        return distributions.CategoricalDistribution([as_text(value) for value in domain])
    if domain.whole:
        return distributions.IntDistribution(
            int(domain.low), int(domain.high), log=domain.log, step=int(domain.step or 1)
        )
    step = None if domain.step is None else float(domain.step)
    return distributions.FloatDistribution(
        float(domain.low), float(domain.high), log=domain.log, step=step
    )


def _encoded(domain: Domain, value: Any) -> Any:
    return as_text(value) if isinstance(domain, tuple) else value


def _decoded(domain: Domain, value: Any) -> Any:
    return json.loads(value) if isinstance(domain, tuple) else value
