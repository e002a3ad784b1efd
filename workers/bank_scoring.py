"""Scoring a bank's versions on test features: each frozen module meets each test part once.

When task t arrives, only its module on all parts and all modules on its part are new; the rest is remembered.
What is remembered can always be computed again, so a lost evaluator loses time only.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workers.feature_rows import FeatureRows, OpenRows, open_rows
from workers.loading import TensorLoader
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.predictor import Predictor
from workers.modeling.scoring import ModuleScorer
from workers.storage.bank import Bank
from workers.storage.features import FeatureCache
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from workers.modeling.bank_tensors import BankTensors

SCORES_IN_MEMORY = 1 << 30
"""Bytes of module scores an evaluator remembers; beyond, the least recently used are computed again."""


@dataclass(frozen=True)
class TestPart:
    """The samples of one task that a version is scored on.

    Attributes:
        task: position of the task in the bank.
        rows: where the features lie; labels are global class indices of the stream.
    """

    __test__ = False

    task: int
    rows: FeatureRows


@dataclass(frozen=True)
class MethodPredictions:
    """One method's predictions for n samples, as NumPy arrays (see ``orchestrator/results.py``).

    Attributes:
        predicted: class index in the stream, int64 [n].
        routed_task: task position, int64 [n], or None when the method does not route.
        confidence, routing_confidence, log_prob_true: float64 [n] or None.
    """

    predicted: NDArray[np.int64]
    routed_task: NDArray[np.int64] | None = None
    confidence: NDArray[np.float64] | None = None
    routing_confidence: NDArray[np.float64] | None = None
    log_prob_true: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Scored:
    """Predictions of several methods for the same samples.

    Attributes:
        task: true task position of each sample, int64 [n].
        sample: ids, string [n].
        label: true class index, int64 [n].
        methods: predictions by method name.
        module_scores: (module, test part) pairs that had to be computed.
    """

    task: NDArray[np.int64]
    sample: pa.Array
    label: NDArray[np.int64]
    methods: dict[str, MethodPredictions]
    seconds: float = field(default=0.0, compare=False)
    module_scores: int = field(default=0, compare=False)


class Scorer:
    """Scores versions of one bank.

    Args:
        storage: where bank and features lie.
        bank: name of the bank.
        class_names: names behind the labels of test rows.
        settings: routers and their combination with the modules.
    """

    def __init__(
        self,
        storage: Storage,
        bank: str,
        *,
        class_names: Sequence[str],
        settings: EvaluationSettings,
        memory: int = SCORES_IN_MEMORY,
    ) -> None:
        self._cache = FeatureCache(storage)
        self._bank = Bank.open_or_create(storage, bank)
        self._class_names = tuple(class_names)
        self._settings = settings
        self._loader = TensorLoader()
        self._scores = _ScoreMemory(memory)
        self._features: dict[tuple[str, ...], tuple[OpenRows, Tensor]] = {}

    def score(self, version: int, tests: Sequence[TestPart], routers: Sequence[str]) -> Scored:
        """Predictions of the routers for the samples of ``tests``, in their order.

        Raises:
            FeatureCorruptionError: a feature part has to be extracted again.
            CorruptionError: the bank is damaged.
            DataError: features do not fit the bank.
        """
        import torch

        started = time.perf_counter()
        loaded = self._bank.load(version)
        bank = self._loader.load(loaded)
        opened = [self._open(test.rows) for test in tests]
        features = torch.cat([tensor for _, tensor in opened])
        labels = np.concatenate([data.labels for data, _ in opened])
        tasks = np.concatenate(
            [np.full(len(data.labels), t.task) for t, (data, _) in zip(tests, opened, strict=True)]
        ).astype(np.int64)
        modules = [record.objects["module"].digest for record in loaded.tasks]
        whitening = loaded.manifest.shared.get("whitening")
        heads = [r.objects["head"].digest if "head" in r.objects else "" for r in loaded.tasks]
        names = [
            (module, head, whitening.digest if whitening else "")
            for module, head in zip(modules, heads, strict=True)
        ]
        fits = self._fits(bank, len(labels))
        computed = 0
        scores: list[Tensor] | None = None
        if fits:
            blocks: list[list[Tensor]] = []
            for test, (_, tensor) in zip(tests, opened, strict=True):
                part = _identity(test.rows)
                found = {
                    i: s
                    for i, n in enumerate(names)
                    if (s := self._scores.get((n, part))) is not None
                }
                missing = [i for i in range(len(names)) if i not in found]
                if missing:
                    computed += len(missing)
                    for i, new in zip(missing, _one_by_one(bank, missing, tensor), strict=True):
                        self._scores.put((names[i], part), new)
                        found[i] = new
                blocks.append([found[i] for i in range(len(names))])
            scores = [torch.cat([block[i] for block in blocks]) for i in range(len(names))]
        to_bank, to_stream = self._class_maps(bank.class_names)
        bank_labels = to_bank[labels]
        known = bank_labels >= 0
        methods: dict[str, MethodPredictions] = {}
        for router in routers:
            made = Predictor(bank, self._settings, router).predict(
                features,
                task_ids=torch.from_numpy(tasks),
                scores=scores,
                labels=torch.from_numpy(np.where(known, bank_labels, 0)),
            )
            log_prob = made.label_log_prob
            assert log_prob is not None
            methods[router] = MethodPredictions(
                predicted=to_stream[made.class_index.numpy()],
                routed_task=made.task_index.numpy(),
                confidence=made.confidence.numpy(),
                routing_confidence=made.routing_confidence.numpy(),
                log_prob_true=np.where(known, log_prob.numpy(), -np.inf),
            )
        return Scored(
            task=tasks,
            sample=_join([data.ids for data, _ in opened]),
            label=labels,
            methods=methods,
            seconds=time.perf_counter() - started,
            module_scores=computed,
        )

    def _open(self, rows: FeatureRows) -> tuple[OpenRows, Tensor]:
        import torch

        name = _identity(rows)
        if name not in self._features:
            data = open_rows(self._cache, rows)
            everything = np.arange(len(data.labels))
            self._features[name] = (data, torch.from_numpy(data.features.gather(everything)))
        return self._features[name]

    def _fits(self, bank: Any, samples: int) -> bool:
        """Whether all scores of this version fit in memory at once; else they are made as they are needed."""
        columns = sum(
            len(t.classes) if bank.objective == "local" else bank.width for t in bank.tasks
        )
        return columns * samples * 4 <= self._scores.limit

    def _class_maps(
        self, bank_classes: Sequence[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Class indices of the stream to those of the bank (-1: not in the bank), and back."""
        place = {name: i for i, name in enumerate(bank_classes)}
        to_bank = np.array([place.get(name, -1) for name in self._class_names], dtype=np.int64)
        stream = {name: i for i, name in enumerate(self._class_names)}
        to_stream = np.array([stream.get(name, -1) for name in bank_classes], dtype=np.int64)
        return to_bank, to_stream


class _ScoreMemory:
    """Module scores by (module, part), the least recently used forgotten first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._scores: OrderedDict[Any, Tensor] = OrderedDict()

    def get(self, key: Any) -> Tensor | None:
        """A remembered score, or None."""
        score = self._scores.get(key)
        if score is not None:
            self._scores.move_to_end(key)
        return score

    def put(self, key: Any, score: Tensor) -> None:
        """Remember a score, forgetting old ones beyond the limit."""
        self._scores[key] = score
        self._held += score.nbytes
        while self._held > self.limit and len(self._scores) > 1:
            _, old = self._scores.popitem(last=False)
            self._held -= old.nbytes


def _one_by_one(bank: BankTensors, positions: Sequence[int], features: Tensor) -> list[Tensor]:
    """Scores of modules on raw features [n, d], each computed by itself.

    A batched product rounds differently from a single one, so a score would depend on which others happened to
    be missing: predictions of a run with a restarted evaluator would differ in their last bits.  On a CPU it is
    no slower, since one module's operands stay in the cache.
    """
    import torch

    bank.check_features(features)
    scorer = ModuleScorer(bank)
    with torch.inference_mode():
        prepared = scorer.prepare(features)
        return [scorer.scores(prepared, [position])[0].clone() for position in positions]


def _identity(rows: FeatureRows) -> tuple[str, ...]:
    """What tells one set of test rows from another: its parts and a digest of the row numbers."""
    import hashlib

    digest = hashlib.blake2b(rows.part.tobytes(), digest_size=16)
    digest.update(rows.row.tobytes())
    return (*[f"{key.backbone}/{key.part}" for key in rows.keys], digest.hexdigest())


def _join(ids: Sequence[pa.Array]) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(list(ids))
