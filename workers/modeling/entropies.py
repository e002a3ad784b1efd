"""Normalised entropies: how unsure each module is, comparable between tasks of different sizes.

- Unified head: every module decides among all C classes seen, so each entropy is divided by log C: the order of
  the modules is that of the published rule.
- Local heads: the module of task t decides among its own c_t classes; its entropy is divided by log c_t, so
  that 1 means a uniform guess whatever the size of the task.
- A local module of a single class has no alternative to be unsure between.  It is read as a decision between
  its class, with logit s cos(out, w), and "none of mine", with logit 0: the entropy of that decision over log 2
  where the class is preferred, and 1 (knows nothing) where it is not.  Among tasks of one class each, the
  module with the largest logit then wins, which is nearest class mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from workers.modeling.bank_tensors import BankTensors
from workers.modeling.combining import sum_by_group
from workers.modeling.heads import ENTROPY_FLOOR
from workers.modeling.scoring import ModuleScorer


def local_entropies(bank: BankTensors, logits: Tensor, log_probs: Tensor) -> Tensor:
    """Normalised entropies of local modules.

    Args:
        bank: The bank.
        logits: Logits of all slots [n, s].
        log_probs: log p(c|t,x) of all slots, float64 [n, s].

    Returns:
        float64 [n, T].
    """
    probs = log_probs.exp()
    terms = -probs * (probs + ENTROPY_FLOOR).log()
    tasks = len(bank.tasks)
    entropies = sum_by_group(terms, bank.slot_task, tasks)
    sizes = torch.bincount(bank.slot_task, minlength=tasks)
    entropies = entropies / sizes.clamp_min(2).to(torch.float64).log()
    single = sizes[bank.slot_task] == 1
    if bool(single.any()):
        mine = logits[:, single].to(torch.float64).clamp_min(0.0)
        p = torch.sigmoid(mine)
        binary = -(p * p.log() + (1 - p) * torch.nn.functional.logsigmoid(-mine)) / math.log(2)
        entropies[:, bank.slot_task[single]] = binary
    return entropies


def unified_entropies(
    bank: BankTensors, scorer: ModuleScorer, features: Tensor, scores: Sequence[Tensor] | None
) -> Tensor:
    """Normalised entropies of modules under the shared head, float64 [n, T]."""
    entropies = scorer.entropies(features, scores).to(torch.float64)
    return entropies / math.log(max(2, bank.classes))
