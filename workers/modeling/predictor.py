"""Prediction from a bank: routes samples to tasks, runs the modules that matter, and decides on a class.

A prediction depends on its own sample only: not on the batch, its size, its order or the chunks it is worked
off in.  The one exception is a router that says so itself (``order_dependent``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.errors import DataError
from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import (
    Combined,
    Routing,
    candidates,
    combine_local,
    effective,
    further_candidates,
    softmax_by_group,
)
from workers.modeling.entropies import local_entropies, unified_entropies
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.router_settings import Combination
from workers.modeling.routers import Router, RouterInput
from workers.modeling.scoring import ModuleScorer

_CHUNK_ROWS = 512
_CHUNK_ELEMENTS = 2**21
_DENSE_TASKS = 16


@dataclass(frozen=True)
class Predictions:
    """What was predicted for n samples.

    Attributes:
        class_index: Index into the bank's class names, int64 [n].
        task_index: Position of the most likely task, int64 [n]: with "hard", "joint" and "refine"
            the router's own choice; with "product" the choice after the modules have spoken.
        confidence: p(predicted class | x), float64 [n].
        routing_confidence: p(most likely task | x), float64 [n].
        label_log_prob: log p(label | x), float64 [n], where labels were given, else None.
    """

    class_index: Tensor
    task_index: Tensor
    confidence: Tensor
    routing_confidence: Tensor
    label_log_prob: Tensor | None = None


class Predictor:
    """Predicts with one bank, one router and one way of combining router and modules.

    Args:
        bank: The bank.
        settings: Combination and the options of routers.
        router: Name of the router.

    Raises:
        SettingsError: There is no such router.
        BankError: The bank lacks what the router needs.
    """

    def __init__(self, bank: BankTensors, settings: EvaluationSettings, router: str) -> None:
        self.bank = bank
        self.router: Router = settings.fit_router(router, bank)
        self.combination: Combination = self.router.combination or settings.combination
        self._scorer = ModuleScorer(bank)

    def predict(
        self,
        features: Tensor,
        *,
        task_ids: Tensor | None = None,
        scores: Sequence[Tensor] | None = None,
        labels: Tensor | None = None,
    ) -> Predictions:
        """Predicts the classes of raw features [n, d].

        Args:
            features: Any float type, [n, d].
            task_ids: True task positions [n], for the router "oracle".
            scores: `module_scores` of all modules on these features, where they are known already.
            labels: Class indices [n]; asks for ``label_log_prob``.

        Raises:
            DataError: Features, task ids, scores or labels do not fit.
        """
        bank = self.bank
        bank.check_features(features)
        samples = features.shape[0]
        _check_scores(bank, scores, samples)
        if labels is not None and labels.shape != (samples,):
            raise DataError(f"{samples} features came with labels of shape {tuple(labels.shape)}.")
        if task_ids is not None and task_ids.shape != (samples,):
            raise DataError(
                f"{samples} features came with task ids of shape {tuple(task_ids.shape)}."
            )
        index = torch.zeros(samples, dtype=torch.int64)
        task = torch.zeros(samples, dtype=torch.int64)
        confidence = torch.zeros(samples, dtype=torch.float64)
        routing_confidence = torch.zeros(samples, dtype=torch.float64)
        label_log_prob = None if labels is None else torch.zeros(samples, dtype=torch.float64)
        with torch.inference_mode():
            for rows in self._chunks(samples):
                result = self._chunk(
                    features[rows],
                    None if task_ids is None else task_ids[rows],
                    None if scores is None else [score[rows] for score in scores],
                )
                index[rows] = result.class_index
                confidence[rows] = (
                    result.class_log_probs.gather(1, result.class_index[:, None]).flatten().exp()
                )
                best = result.task_log_probs.max(dim=1)
                task[rows], routing_confidence[rows] = best.indices, best.values.exp()
                if labels is not None and label_log_prob is not None:
                    label_log_prob[rows] = result.class_log_probs.gather(
                        1, labels[rows].to(torch.int64)[:, None]
                    ).flatten()
        return Predictions(
            class_index=index,
            task_index=task,
            confidence=confidence,
            routing_confidence=routing_confidence,
            label_log_prob=label_log_prob,
        )

    def class_log_probs(
        self,
        features: Tensor,
        *,
        task_ids: Tensor | None = None,
        scores: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """log p(class | x) for all classes, float64 [n, C]; for few samples, it is held whole."""
        self.bank.check_features(features)
        _check_scores(self.bank, scores, features.shape[0])
        out = torch.zeros(features.shape[0], self.bank.classes, dtype=torch.float64)
        with torch.inference_mode():
            for rows in self._chunks(features.shape[0]):
                out[rows] = self._chunk(
                    features[rows],
                    None if task_ids is None else task_ids[rows],
                    None if scores is None else [score[rows] for score in scores],
                ).class_log_probs
        return out

    def _chunks(self, samples: int) -> list[Any]:
        """Rows of every chunk: slices of the given order, or of the order the router asks for."""
        width = max(len(self.bank.slot_class), self.bank.classes, 1)
        step = max(1, min(_CHUNK_ROWS, _CHUNK_ELEMENTS // width))
        batch = self.router.batch_size
        if batch is not None:
            step = max(1, step // batch) * batch
        starts = range(0, samples, step)
        if self.router.shuffle_seed is None:
            return [slice(start, start + step) for start in starts]
        # NumPy's legacy generator gives the same permutation in every version.
        order = np.random.RandomState(self.router.shuffle_seed).permutation(samples)
        return [torch.from_numpy(order[start : start + step]) for start in starts]

    def _chunk(
        self, raw: Tensor, task_ids: Tensor | None, scores: Sequence[Tensor] | None
    ) -> Combined:
        features = self._scorer.prepare(raw)
        unified = self.bank.objective == "unified"
        entropies = logits = None
        if self.router.evidence == "entropies":
            if unified:
                entropies = unified_entropies(self.bank, self._scorer, features, scores)
            else:
                logits = torch.cat(list(scores or self._scorer.scores(features)), dim=1)
                entropies = local_entropies(self.bank, logits, self._softmax(logits))
        routing = self.router.route(
            RouterInput(raw=raw, features=features, entropies=entropies, task_ids=task_ids)
        )
        if unified:
            return self._combine_unified(features, routing, scores)
        return self._combine(routing, self._local_log_probs(features, routing, scores, logits))

    def _softmax(self, logits: Tensor) -> Tensor:
        return softmax_by_group(logits, self.bank.slot_task, len(self.bank.tasks))

    def _combine(self, routing: Routing, log_probs: Tensor) -> Combined:
        return combine_local(
            self.combination,
            routing,
            log_probs,
            slot_task=self.bank.slot_task,
            slot_class=self.bank.slot_class,
            tasks=len(self.bank.tasks),
            classes=self.bank.classes,
        )

    def _local_log_probs(
        self,
        features: Tensor,
        routing: Routing,
        scores: Sequence[Tensor] | None,
        logits: Tensor | None,
    ) -> Tensor:
        """log p(c|t,x) of all slots, or only of those whose module can matter."""
        combination = effective(self.combination, routing)
        dense = combination != "hard" and len(self.bank.tasks) <= _DENSE_TASKS
        if logits is None and (dense or scores is not None):
            logits = torch.cat(list(scores or self._scorer.scores(features)), dim=1)
        if logits is not None:
            return self._softmax(logits)
        return self._own_log_probs(features, routing, None)

    def _own_log_probs(
        self, features: Tensor, routing: Routing, scores: Sequence[Tensor] | None
    ) -> Tensor:
        """log p(c|t,x) among each task's own classes, float64 [n, s]; -inf where nothing was run.

        Runs the routed module, then those that could still change a class or a confidence.
        """
        combination = effective(self.combination, routing)
        out = torch.full(
            (features.shape[0], len(self.bank.slot_class)), -torch.inf, dtype=torch.float64
        )
        done = candidates(combination, routing)
        self._run(features, done, scores, out)
        if combination == "product" and routing.slot_log_probs is not None:
            attained = (routing.slot_log_probs + out).logsumexp(dim=1)
            self._run(features, further_candidates(routing, attained) & ~done, scores, out)
        return out

    def _run(
        self, features: Tensor, chosen: Tensor, scores: Sequence[Tensor] | None, out: Tensor
    ) -> None:
        bank = self.bank
        for position, rows, score in self._scorer.selected(features, chosen, scores):
            start, stop = bank.slot_ranges[position]
            if bank.objective == "unified":
                score = self._scorer.head_logits(score)[:, bank.slot_class[start:stop]]
            out[rows, start:stop] = torch.log_softmax(score.to(torch.float64), dim=1)

    def _combine_unified(
        self, features: Tensor, routing: Routing, scores: Sequence[Tensor] | None
    ) -> Combined:
        """Modules that decide among all classes seen, through the shared head.

        hard: the chosen module's softmax over all classes, as published.  joint: the mixture
        sum over t of q(t|x) p_t(c|x).  product and refine: as for local modules, with p_t
        restricted to the task's own classes.
        """
        combination = effective(self.combination, routing)
        if combination in ("product", "refine") or routing.own_classes_only:
            return self._combine(routing, self._own_log_probs(features, routing, scores))
        chosen = candidates(combination, routing)
        weights = routing.task_log_probs
        if combination == "hard":
            weights = torch.zeros_like(weights)
        mixture = torch.full(
            (features.shape[0], self.bank.classes), -torch.inf, dtype=torch.float64
        )
        for position, rows, outputs in self._scorer.selected(features, chosen, scores):
            log_probs = torch.log_softmax(self._scorer.head_logits(outputs), dim=1)
            mixture[rows] = torch.logaddexp(
                mixture[rows], weights[rows, position, None] + log_probs
            )
        class_log_probs = torch.log_softmax(mixture, dim=1)
        return Combined(
            class_index=class_log_probs.argmax(dim=1),
            class_log_probs=class_log_probs,
            task_log_probs=routing.task_log_probs,
        )


def _check_scores(bank: BankTensors, scores: Sequence[Tensor] | None, samples: int) -> None:
    if scores is None:
        return
    if len(scores) != len(bank.tasks) or any(score.shape[0] != samples for score in scores):
        raise DataError(
            f"scores of {len(scores)} modules came for a bank of {len(bank.tasks)} and {samples} "
            "samples; give one tensor a module with a row a sample."
        )
