"""Scoring a bank's versions on test features: each frozen module meets each test part once.

When task t arrives, only its module on all parts and all modules on its part are new; the rest is remembered.
What is remembered can always be computed again, so a lost evaluator loses time only.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workers.feature_rows import FeatureRows, OpenRows, open_rows
from workers.loading import TensorLoader
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.predictor import Predictor
from workers.modeling.scoring import ModuleScorer
from workers.scored import MethodPredictions, Scored, TestPart
from workers.storage.bank import Bank, BankVersion
from workers.storage.bank_pages import PageCache
from workers.storage.features import FeatureCache
from workers.storage.filesystem import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from workers.modeling.bank_tensors import BankTensors

SCORES_IN_MEMORY = 1 << 30
"""Bytes of module scores of one version that are kept; beyond, scores are made when they are needed."""

_TABLES = 4
"""Score tables an evaluator keeps: the whole test set, its own share of it, validation samples."""


@dataclass(frozen=True)
class OpenPart:
    """Test samples with their features [n, d] float32 at hand."""

    name: str
    data: OpenRows
    features: Tensor

    def __len__(self) -> int:
        return len(self.data.labels)


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
        self._pages = PageCache(self._bank.objects)
        self._stream_index = {name: i for i, name in enumerate(class_names)}
        self._settings = settings
        self._loader = TensorLoader()
        self._memory = memory
        self._tables: list[ScoreTable] = []
        self._parts: dict[str, OpenPart] = {}

    def score(self, version: int, tests: Sequence[TestPart], routers: Sequence[str]) -> Scored:
        """Predictions of the routers for the samples of ``tests``, in their order.

        Raises:
            FeatureCorruptionError: a feature part has to be extracted again.
            CorruptionError: the bank is damaged.
            DataError: features do not fit the bank.
        """
        import torch

        started = time.perf_counter()
        loaded = self._bank.load(version, pages=self._pages)
        bank = self._loader.load(loaded)
        opened = [self._open(test.rows) for test in tests]
        labels = np.concatenate([part.data.labels for part in opened])
        tasks = np.repeat([test.task for test in tests], [len(part) for part in opened])
        features = torch.cat([part.features for part in opened])
        table = self._table(opened, bank, len(labels))
        computed, scores = 0, None
        if table is not None:
            names = _module_names(loaded)
            computed = table.fill(bank, names, opened)
            scores = table.scores(names, len(labels))
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
            sample=_join([part.data.ids for part in opened]),
            label=labels,
            methods=methods,
            seconds=time.perf_counter() - started,
            module_scores=computed,
        )

    def _open(self, rows: FeatureRows) -> OpenPart:
        import torch

        name = rows.identity
        if name not in self._parts:
            data = open_rows(self._cache, rows)
            everything = np.arange(len(data.labels))
            self._parts[name] = OpenPart(
                name, data, torch.from_numpy(data.features.gather(everything))
            )
        return self._parts[name]

    def _table(
        self, parts: Sequence[OpenPart], bank: BankTensors, samples: int
    ) -> ScoreTable | None:
        """The table to which these parts belong; None when all scores do not fit in memory at once.

        Then scores are made when they are needed, and not kept.
        """
        columns = sum(
            len(t.classes) if bank.objective == "local" else bank.width for t in bank.tasks
        )
        if columns * samples * 4 > self._memory:
            self._tables.clear()
            return None
        for table in self._tables:
            if table.takes(parts):
                return table
        self._tables = [*self._tables[1 - _TABLES :], ScoreTable()]
        return self._tables[-1]

    def _class_maps(
        self, bank_classes: Sequence[str]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Class indices of the stream to those of the bank (-1: not in the bank), and back."""
        stream = self._stream_index
        to_stream = np.array([stream.get(name, -1) for name in bank_classes], dtype=np.int64)
        to_bank = np.full(len(stream), -1, dtype=np.int64)
        known = np.flatnonzero(to_stream >= 0)
        to_bank[to_stream[known]] = known
        return to_bank, to_stream


class ScoreTable:
    """What frozen modules say of a growing list of test parts, each (module, part) computed once.

    One buffer a module, with a row a sample, grows as parts arrive; adding a part or a module costs as much as
    there are modules or parts, and reading all scores of a version costs a slice a module.  Each pair is
    computed by itself: a batched product rounds differently from a single one, so a score would depend on what
    else happened to be missing, and a restarted evaluator would differ in its last bits.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._ends: list[int] = []
        self._buffers: dict[str, Tensor] = {}
        self._filled: dict[str, int] = {}

    def takes(self, parts: Sequence[OpenPart]) -> bool:
        """Whether these parts begin with the table's, or the table's with these."""
        return all(known == part.name for known, part in zip(self._parts, parts, strict=False))

    def fill(self, bank: BankTensors, names: Sequence[str], parts: Sequence[OpenPart]) -> int:
        """Compute what is missing of the modules called ``names`` (in the bank's order) on ``parts``.

        Returns:
            How many (module, part) pairs were computed.
        """
        import torch

        for part in parts[len(self._parts) :]:
            bank.check_features(part.features)
            self._parts.append(part.name)
            self._ends.append((self._ends[-1] if self._ends else 0) + len(part))
        scorer = ModuleScorer(bank)
        missing: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for i, name in enumerate(names):
            for at in range(self._filled.get(name, 0), len(parts)):
                missing[at].append((i, name))
        with torch.inference_mode():
            for at in sorted(missing):
                prepared = scorer.prepare(parts[at].features)
                for i, name in missing[at]:
                    self._put(name, at, scorer.score(prepared, i))
        return sum(map(len, missing.values()))

    def scores(self, names: Sequence[str], rows: int) -> list[Tensor]:
        """Scores of the modules on the first ``rows`` samples: views [rows, c] or [rows, d]."""
        return [self._buffers[name][:rows] for name in names]

    def _put(self, name: str, at: int, score: Tensor) -> None:
        import torch

        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < self._ends[at]:
            room = max(self._ends[-1], 2 * self._ends[at] if buffer is not None else 0)
            grown = torch.empty((room, score.shape[1]), dtype=score.dtype)
            if buffer is not None:
                grown[: len(buffer)] = buffer
            self._buffers[name] = buffer = grown
        buffer[self._ends[at] - len(score) : self._ends[at]] = score
        self._filled[name] = at + 1


def _module_names(version: BankVersion) -> list[str]:
    """What determines each module's scores: its objects, and the whitening before it."""
    whitening = version.manifest.shared.get("whitening")
    before = whitening.digest if whitening else ""
    return [
        f"{record.objects['module'].digest} "
        f"{record.objects['head'].digest if 'head' in record.objects else ''} {before}"
        for record in version.tasks
    ]


def _join(ids: Sequence[pa.Array]) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(list(ids))
