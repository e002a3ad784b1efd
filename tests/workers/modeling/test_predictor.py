"""Prediction: the published numbers, combinations from their definitions, and no needless work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import workers.modeling.predictor as predictor_module
from tests.workers.modeling.banks import WIDTH, bank, samples
from workers.errors import BankError, DataError
from workers.modeling.bank_tensors import BankTensors, TaskModule
from workers.modeling.combining import REFINE_SHARE, Routing, combine_local
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.luca_settings import PARAMETER_NAMES
from workers.modeling.predictor import Predictor
from workers.modeling.router_settings import Combination
from workers.modeling.scoring import module_scores
from workers.modeling.whitening import Whitening

FIXTURE = Path(__file__).parents[2] / "parity" / "fixtures" / "stream.npz"
TASKS = ((0, 1), (2,), (3, 4, 5))
COMBINATIONS = get_args(Combination)


def chosen(combination):
    return EvaluationSettings(combination=combination)


def assert_same(left, right, tolerance=1e-6):
    assert torch.equal(left.class_index, right.class_index)
    assert torch.equal(left.task_index, right.task_index)
    assert torch.allclose(left.confidence, right.confidence, atol=tolerance)
    assert torch.allclose(left.routing_confidence, right.routing_confidence, atol=tolerance)


@pytest.mark.parametrize(
    ("router", "expected"), [("entropy", "pred_per_sample"), ("batch_entropy", "pred_batch48")]
)
def test_recorded_predictions_of_the_published_code_are_met_exactly(router, expected):
    with np.load(FIXTURE) as stored:
        arrays = dict(stored)
    for last in range(3):
        finals = [f"task{task}.final." for task in range(last + 1)]
        head = torch.from_numpy(arrays[f"task{last}.final.head"])
        per_task = [len(arrays[f"task{task}.final.head"]) for task in range(last + 1)]
        tensors = BankTensors(
            width=64,
            class_names=tuple(str(index) for index in range(len(head))),
            flow="tosca",
            objective="unified",
            tasks=tuple(
                TaskModule(
                    name=str(task),
                    classes=tuple(range(per_task[task - 1] if task else 0, per_task[task])),
                    module={
                        name: torch.from_numpy(arrays[prefix + name])
                        for name in PARAMETER_NAMES["tosca"]
                    },
                )
                for task, prefix in enumerate(finals)
            ),
            head=head,
            scale=torch.from_numpy(arrays[f"task{last}.final.sigma"]).reshape(()),
        )
        seen = arrays["test.labels"] < len(head)
        features = torch.from_numpy(arrays["test.features"][seen])
        found = Predictor(tensors, chosen("product"), router).predict(features)
        assert np.array_equal(found.class_index.numpy(), arrays[f"task{last}.eval.{expected}"])
        if router == "entropy":
            modules = arrays[f"task{last}.eval.module_per_sample"]
            assert np.array_equal(found.task_index.numpy(), modules)


@pytest.mark.parametrize("objective", ["local", "unified"])
@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("router", ["lda", "entropy"])
def test_scores_computed_beforehand_change_nothing(router, combination, objective):
    tensors = bank(TASKS, objective=objective, whitening=True)
    features, _ = samples(range(6))
    scores = module_scores(tensors, range(3), features)
    predictor = Predictor(tensors, chosen(combination), router)
    assert_same(predictor.predict(features, scores=scores), predictor.predict(features))


def test_scores_of_some_modules_are_those_of_all():
    tensors = bank(TASKS)
    features, _ = samples(range(6))
    everything = module_scores(tensors, range(3), features)
    assert [score.shape for score in everything] == [(72, 2), (72, 1), (72, 3)]
    for asked in ([2], [1, 0], [2, 2, 0]):
        for position, score in zip(asked, module_scores(tensors, asked, features), strict=True):
            assert torch.allclose(score, everything[position], atol=1e-5)
    unified = bank(TASKS, objective="unified")
    assert module_scores(unified, [1], features)[0].shape == (72, WIDTH)


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_modules_of_unequal_rank_are_grouped(combination):
    tensors = bank(TASKS, ranks=(2, 5, 2))
    features, _ = samples(range(6))
    together = module_scores(tensors, range(3), features)
    alone = [module_scores(tensors, [position], features)[0] for position in range(3)]
    for left, right in zip(together, alone, strict=True):
        assert torch.allclose(left, right, atol=1e-5)
    found = Predictor(tensors, chosen(combination), "entropy").predict(features)
    assert torch.isfinite(found.confidence).all()


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(["local", "unified"]), st.sampled_from(COMBINATIONS), st.integers(1, 20))
def test_chunks_do_not_matter(objective, combination, chunk):
    tensors = bank(TASKS, objective=objective)
    features, labels = samples(range(6), each=3)
    predictor = Predictor(tensors, chosen(combination), "lda")
    whole = predictor.predict(features, labels=labels)
    original = predictor_module._CHUNK_ROWS
    predictor_module._CHUNK_ROWS = chunk
    try:
        parts = predictor.predict(features, labels=labels)
    finally:
        predictor_module._CHUNK_ROWS = original
    assert_same(whole, parts)
    assert torch.allclose(whole.label_log_prob, parts.label_log_prob, atol=1e-5)


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_running_only_modules_that_matter_equals_running_all(combination):
    tasks = tuple((2 * index, 2 * index + 1) for index in range(24))
    tensors = bank(tasks)
    features, labels = samples(range(48), each=3, seed=5)
    sharp = EvaluationSettings.model_validate(
        {"combination": combination, "router_options": {"lda": {"temperature": 0.25}}}
    )
    predictor = Predictor(tensors, sharp, "lda")
    few = predictor.predict(features, labels=labels)
    scores = module_scores(tensors, range(24), features)
    everything = predictor.predict(features, scores=scores, labels=labels)
    assert_same(few, everything)
    ran = []
    original = predictor._scorer.selected

    def counted(*arguments):
        for position, rows, found in original(*arguments):
            ran.append(len(rows))
            yield position, rows, found

    predictor._scorer.selected = counted
    predictor.predict(features)
    limit = len(features) if combination == "hard" else 6 * len(features)
    assert sum(ran) <= limit


def routing(task_probs, slot_probs=None):
    slots = None if slot_probs is None else torch.tensor([slot_probs]).double().log()
    return Routing(torch.tensor([task_probs]).double().log(), slots)


def combined(combination, belief, module_probs, slot_task=(0, 0, 1, 1), slot_class=(0, 1, 2, 3)):
    return combine_local(
        combination,
        belief,
        torch.tensor([module_probs]).double().log(),
        slot_task=torch.tensor(slot_task),
        slot_class=torch.tensor(slot_class),
        tasks=2,
        classes=max(slot_class) + 1,
    )


def probabilities(found):
    return [round(float(p), 6) for p in found.class_log_probs[0].exp()]


def test_hard_takes_the_likeliest_task_and_spreads_the_rest_evenly():
    found = combined("hard", routing([0.6, 0.4]), [0.5, 0.5, 0.1, 0.9])
    assert int(found.class_index) == 0
    assert probabilities(found) == [0.3, 0.3, 0.2, 0.2]


def test_joint_multiplies_task_and_module():
    found = combined("joint", routing([0.6, 0.4]), [0.5, 0.5, 0.1, 0.9])
    assert int(found.class_index) == 3
    assert probabilities(found) == [0.3, 0.3, 0.04, 0.36]


def test_product_multiplies_slot_and_module_and_normalises():
    belief = routing([0.6, 0.4], [0.5, 0.1, 0.2, 0.2])
    found = combined("product", belief, [0.5, 0.5, 0.25, 0.75])
    expected = np.array([0.25, 0.05, 0.05, 0.15])
    np.testing.assert_allclose(probabilities(found), expected / expected.sum(), atol=1e-6)
    np.testing.assert_allclose(found.task_log_probs.exp()[0], [0.6, 0.4], atol=1e-6)


def test_refine_moves_mass_within_a_task_and_never_between_tasks():
    slots = [0.5, 0.1, 0.3, 0.1]
    module = [0.05, 0.95, 0.5, 0.5]
    found = combined("refine", routing([0.6, 0.4], slots), module)
    own = np.array(slots) ** (1 - REFINE_SHARE) * np.array(module) ** REFINE_SHARE
    expected = np.concatenate([0.6 * own[:2] / own[:2].sum(), 0.4 * own[2:] / own[2:].sum()])
    np.testing.assert_allclose(probabilities(found), expected, atol=1e-6)
    np.testing.assert_allclose(found.task_log_probs.exp()[0], [0.6, 0.4], atol=1e-6)


def test_refine_leaves_out_slots_that_were_not_run_or_have_no_mass():
    found = combined("refine", routing([1.0, 0.0], [0.4, 0.6, 0.0, 0.0]), [0.5, 0.5, 0.0, 0.0])
    own = np.array([0.4, 0.6]) ** (1 - REFINE_SHARE)
    np.testing.assert_allclose(probabilities(found), [*own / own.sum(), 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("combination", ["product", "refine"])
def test_a_router_without_classes_leaves_the_published_hard_choice(combination):
    module = [0.5, 0.5, 0.1, 0.9]
    found = combined(combination, routing([0.6, 0.4]), module)
    assert probabilities(found) == probabilities(combined("hard", routing([0.6, 0.4]), module))
    assert int(found.class_index) == 0


def test_modules_of_the_same_class_add_up():
    found = combined("joint", routing([0.5, 0.5]), [0.6, 0.4, 0.3, 0.7], slot_class=(0, 1, 0, 1))
    assert probabilities(found) == [0.45, 0.55]
    assert int(found.class_index) == 1


@pytest.mark.parametrize("objective", ["local", "unified"])
@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("router", ["lda", "ridge", "prototype", "entropy"])
def test_domains_with_the_same_classes_predict_a_class(router, combination, objective):
    tensors = bank(((0, 1), (0, 1), (1, 0)), objective=objective)
    features, labels = samples([0, 1], each=20, seed=3)
    found = Predictor(tensors, chosen(combination), router).predict(features)
    assert set(found.class_index.tolist()) <= {0, 1}
    if combination == "product" and router == "lda":
        assert (found.class_index == labels).double().mean() > 0.6


@pytest.mark.parametrize("objective", ["local", "unified"])
def test_the_log_probability_of_labels_is_that_of_their_class(objective):
    tensors = bank(TASKS, objective=objective)
    features, labels = samples(range(6))
    for combination in COMBINATIONS:
        predictor = Predictor(tensors, chosen(combination), "lda")
        found = predictor.predict(features, labels=labels)
        everything = predictor.class_log_probs(features)
        assert torch.allclose(found.label_log_prob, everything.gather(1, labels[:, None])[:, 0])
        assert torch.isfinite(found.label_log_prob).all()


def test_no_features_give_no_predictions():
    found = Predictor(bank(TASKS), chosen("product"), "lda").predict(torch.zeros(0, WIDTH))
    assert len(found.class_index) == 0


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (torch.full((2, WIDTH), torch.nan), "sample 0 holds NaN"),
        (torch.full((2, WIDTH), torch.inf), "NaN or infinite"),
        (torch.zeros(2, WIDTH + 1), f"width {WIDTH}"),
        (torch.zeros(WIDTH), f"width {WIDTH}"),
    ],
)
def test_bad_features_are_refused(features, words):
    tensors = bank(TASKS)
    with pytest.raises(DataError, match=words):
        Predictor(tensors, chosen("product"), "lda").predict(features)
    with pytest.raises(DataError, match=words):
        module_scores(tensors, [0], features)


def test_scores_labels_and_task_ids_that_do_not_fit_are_refused():
    tensors = bank(TASKS)
    features, labels = samples(range(6))
    predictor = Predictor(tensors, chosen("product"), "lda")
    scores = module_scores(tensors, range(3), features)
    with pytest.raises(DataError, match="scores of 2 modules"):
        predictor.predict(features, scores=scores[:2])
    with pytest.raises(DataError, match="scores of 3 modules"):
        predictor.predict(features[:5], scores=scores)
    with pytest.raises(DataError, match="labels of shape"):
        predictor.predict(features, labels=labels[:3])
    with pytest.raises(DataError, match="task ids of shape"):
        predictor.predict(features, task_ids=labels[:3])
    with pytest.raises(BankError, match="no module at position 3"):
        module_scores(tensors, [3], features)


def test_a_bank_that_does_not_fit_together_is_refused():
    tensors = bank(TASKS)
    unified = bank(TASKS, objective="unified")
    task = tensors.tasks[0]
    for change, words in (
        ({"tasks": ()}, "no task"),
        ({"tasks": (replace(task, classes=(0, 9)),)}, "numbers below 6"),
        ({"tasks": (replace(task, head=None),)}, "its own head"),
        ({"statistics": tensors.statistics[:2]}, "statistics of 2"),
        ({"statistics": tensors.statistics[::-1]}, "are needed"),
    ):
        with pytest.raises(BankError, match=words):
            replace(tensors, **change)
    for classes, words in (((), "no classes"), ((1, 1), "distinct"), ((-1, 0), "distinct")):
        with pytest.raises(BankError, match=words):
            replace(task, classes=classes)
    narrow = Whitening(np.zeros(3), np.eye(3), 0.0)
    with pytest.raises(BankError, match="whitening is 3 wide"):
        replace(tensors, whitening=narrow)
    with pytest.raises(BankError, match="shared head and scale"):
        replace(unified, head=None)
    with pytest.raises(BankError, match="shared head has shape"):
        replace(unified, head=unified.head[:2])
