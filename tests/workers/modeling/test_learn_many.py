"""Many modules at once, and one module on many ranks, against one alone."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from tests.workers.modeling.learning_cases import (
    LUCA,
    assert_close,
    assert_same_bits,
    clusters,
    learn,
    settings,
)
from workers.errors import SettingsError
from workers.modeling.learner import Execution, LearnJob, learn_many
from workers.modeling.luca_settings import LucaSettings


def job(seed: int = 0, *, samples: int = 40, classes: int = 3, luca=LUCA, **learning) -> LearnJob:
    features, labels = clusters(seed=seed, samples=samples, classes=classes)
    return LearnJob(
        views=[features],
        labels=labels,
        classes=classes,
        luca=luca,
        learning=settings(**learning),
        seed=seed,
        task_key=f"task {seed}",
    )


@pytest.mark.parametrize("mode", ["proximal", "subgradient"])
@pytest.mark.parametrize("flow", ["tosca", "tosca_r", "adapter", "calibrator"])
def test_tasks_learned_together_equal_each_alone(mode, flow):
    luca = LucaSettings(ratio=8, flow=flow)
    jobs = [job(seed, luca=luca, l1_mode=mode) for seed in range(3)]
    for together, one in zip(learn_many(jobs, stack=3), jobs, strict=True):
        assert_close(together, learn_many([one])[0], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("mode", ["proximal", "subgradient"])
def test_settings_learned_together_equal_each_alone(mode):
    jobs = [
        job(l1=l1, learning_rate=rate, initial_scale=scale, l1_mode=mode)
        for l1, rate, scale in [(0.0, 0.01, 1.0), (1e-3, 0.025, 4.0), (1e-2, 0.05, 10.0)]
    ]
    for together, one in zip(learn_many(jobs, stack=3), jobs, strict=True):
        assert_close(together, learn_many([one])[0], rtol=2e-4, atol=2e-5)


def test_float64_agreement_shows_that_only_round_off_differs():
    execution = Execution(dtype=torch.float64)
    jobs = [job(seed, l1=1e-3 * seed) for seed in range(4)]
    for together, one in zip(learn_many(jobs, stack=4, execution=execution), jobs, strict=True):
        alone = learn_many([one], execution=execution)[0]
        assert_close(together, alone, rtol=1e-10, atol=1e-12)


def test_jobs_of_different_shape_are_learned_in_order_of_asking():
    jobs = [job(0), job(1, samples=30), job(2, classes=2), job(3), job(4, epochs=1)]
    results = learn_many(jobs)
    assert [result.head.shape[0] for result in results] == [3, 3, 2, 3, 3]
    assert [result.steps for result in results] == [9, 6, 9, 9, 3]
    assert_close(results[1], learn_many([jobs[1]])[0], rtol=2e-4, atol=2e-5)


def test_stacks_of_one_give_the_same_bits_as_alone():
    jobs = [job(seed) for seed in range(3)]
    for result, one in zip(learn_many(jobs, stack=1), jobs, strict=True):
        assert_same_bits(result, learn_many([one])[0])


def test_nothing_to_learn_gives_nothing():
    assert learn_many([]) == []


class LockStep:
    """Sums tensors over ranks that run as threads: what an all-reduce does."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world, timeout=30)
        self._parts: list[Tensor | None] = [None] * world

    def reducer(self, rank: int):
        def reduce(gradient: Tensor) -> None:
            self._parts[rank] = gradient.clone()
            self._barrier.wait()
            gradient.copy_(torch.stack(self._parts).sum(0))
            self._barrier.wait()

        return reduce


def learn_on_ranks(world: int, jobs: list[LearnJob], dtype: torch.dtype):
    step = LockStep(world)
    results = [None] * world

    def run(rank: int) -> None:
        execution = Execution(dtype=dtype, rank=rank, world=world, reduce=step.reducer(rank))
        results[rank] = learn_many(jobs, execution=execution)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_with_the_same_global_batch_equal_one_trainer(world):
    # 33 samples in batches of 16: the last batch has one row, so all ranks but one have none
    jobs = [job(0, samples=33)]
    alone = learn_many(jobs, execution=Execution(dtype=torch.float64))[0]
    ranks = learn_on_ranks(world, jobs, torch.float64)
    assert_close(ranks[0][0], alone, rtol=1e-10, atol=1e-12)
    for other in ranks[1:]:
        assert_same_bits(other[0], ranks[0][0])


def test_ranks_can_learn_several_modules_at_once():
    jobs = [job(seed) for seed in range(2)]
    ranks = learn_on_ranks(2, jobs, torch.float64)
    for index, alone in enumerate(learn_many(jobs, execution=Execution(dtype=torch.float64))):
        assert_close(ranks[1][index], alone, rtol=1e-10, atol=1e-12)


def test_a_single_rank_with_a_reducer_equals_none():
    reduced = learn(execution=Execution(reduce=lambda gradient: None))
    assert_close(reduced, learn(), rtol=1e-5, atol=1e-6)


def test_ranks_without_a_reducer_are_refused():
    with pytest.raises(SettingsError, match="2 ranks need"):
        Execution(rank=0, world=2)


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(SettingsError, match="rank 2 is not among the 2 ranks"):
        Execution(rank=2, world=2, reduce=lambda gradient: None)
