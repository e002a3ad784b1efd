"""The evaluator actors: score bank versions and run baselines.  Shells around bank_scoring.py and baseline_scoring.py.

The driver imports this module too, to start the actors, so torch is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workers.errors import StateLostError
from workers.runtime import prepare_process
from workers.scored import MethodPredictions, Scored, TestPart, TrainPart
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    from workers.modeling.evaluation_settings import EvaluationSettings
    from workers.modeling.learning_settings import LearningSettings
    from workers.modeling.luca_settings import LucaSettings


class EvaluatorImpl:
    """Scores versions of one bank and runs the baselines beside it.

    It remembers scores of frozen modules and the state of baselines; both are computed again when lost.
    """

    def __init__(
        self,
        storage: str,
        bank: str,
        *,
        class_names: Sequence[str],
        settings: EvaluationSettings,
        seed: int,
        luca: LucaSettings,
        learning: LearningSettings,
        tasks: int,
        threads: int,
        task_known: bool = False,
    ) -> None:
        prepare_process(threads)
        from workers.bank_scoring import Scorer
        from workers.baseline_scoring import BaselineScorer

        opened = Storage.open(storage)
        self._scorer = Scorer(opened, bank, class_names=class_names, settings=settings)
        self._tests: dict[int, TestPart] = {}
        self._baselines = BaselineScorer(
            opened,
            settings=settings,
            seed=seed,
            luca=luca,
            learning=learning,
            tasks=tasks,
            task_known=task_known,
        )

    def score(
        self,
        version: int,
        tasks: Sequence[int],
        tests: Mapping[int, TestPart],
        routers: tuple[str, ...],
    ) -> Scored:
        """Predictions of the routers for the test samples of ``tasks``.

        ``tests`` holds what this evaluator was not told before; the rest it remembers.

        Raises:
            StateLostError: it was restarted and does not know some of the tests.
        """
        return self._scorer.score(version, self._known(tasks, tests), routers)

    def score_parts(
        self, version: int, parts: Sequence[TestPart], routers: tuple[str, ...]
    ) -> Scored:
        """Predictions for any samples, such as those of the validation split."""
        return self._scorer.score(version, parts, routers)

    def baselines(
        self,
        after: int,
        trains: Mapping[int, TrainPart],
        tasks: Sequence[int],
        tests: Mapping[int, TestPart],
    ) -> tuple[dict[str, MethodPredictions], float]:
        """Let the baselines learn the tasks up to ``after`` and predict the test samples of ``tasks``.

        Raises:
            StateLostError: it was restarted and does not know earlier tasks.
        """
        return self._baselines.score(after, trains, self._known(tasks, tests))

    def _known(self, tasks: Sequence[int], tests: Mapping[int, TestPart]) -> list[TestPart]:
        self._tests.update(tests)
        unknown = [task for task in tasks if task not in self._tests]
        if unknown:
            raise StateLostError(
                f"this evaluator was never told the test samples of task {unknown[0]}"
            )
        return [self._tests[task] for task in tasks]


def evaluator_class() -> Any:
    """The Ray actor class; Ray is imported only here."""
    import ray

    return ray.remote(max_restarts=-1, max_task_retries=-1)(EvaluatorImpl)
