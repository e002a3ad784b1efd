"""Laws that every router keeps, and what each of them says."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.modeling.banks import WIDTH, bank, relabelled, samples
from workers.errors import BankError, DataError, SettingsError
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.predictor import Predictor
from workers.modeling.ridge import CANDIDATES, RidgeClassifier, RidgePath
from workers.modeling.router_settings import Combination
from workers.modeling.routers import ROUTERS, RouterInput
from workers.modeling.statistics import TaskStatistics
from workers.modeling.whitening import Whitening

QUICK = settings(max_examples=12, deadline=None)
TASKS = ((0, 1), (2,), (3, 4, 5))
PER_SAMPLE = sorted(name for name, router in ROUTERS.items() if not router.Options.order_dependent)
STATISTICS = sorted(n for n, router in ROUTERS.items() if router.evidence == "statistics")
COMBINATIONS = get_args(Combination)


def options(**router_options):
    return EvaluationSettings.model_validate({"router_options": router_options})


def predict(tensors, router, features, *, task_ids=None, combination="product", labels=None):
    chosen = EvaluationSettings(combination=combination)
    needs_ids = ROUTERS[router].evidence == "task ids"
    return Predictor(tensors, chosen, router).predict(
        features, task_ids=task_ids if needs_ids else None, labels=labels
    )


def stream(seed=9, each=5):
    features, labels = samples(range(6), each=each, seed=seed)
    ids = torch.tensor([next(t for t, task in enumerate(TASKS) if int(c) in task) for c in labels])
    return features, labels, ids


def assert_same(left, right, tolerance=1e-5):
    assert torch.equal(left.class_index, right.class_index)
    assert torch.equal(left.task_index, right.task_index)
    assert torch.allclose(left.confidence, right.confidence, atol=tolerance)
    assert torch.allclose(left.routing_confidence, right.routing_confidence, atol=tolerance)


def rows(predictions, index):
    return replace(
        predictions,
        class_index=predictions.class_index[index],
        task_index=predictions.task_index[index],
        confidence=predictions.confidence[index],
        routing_confidence=predictions.routing_confidence[index],
    )


@pytest.mark.parametrize("router", PER_SAMPLE)
@QUICK
@given(
    st.lists(st.integers(0, 29), min_size=1, max_size=9),
    st.sampled_from(COMBINATIONS),
    st.sampled_from(["local", "unified"]),
)
def test_prediction_does_not_depend_on_batch_neighbours(router, chosen, combination, objective):
    tensors = bank(TASKS, objective=objective)
    features, _, ids = stream()
    whole = predict(tensors, router, features, task_ids=ids, combination=combination)
    index = torch.tensor(chosen)
    alone = predict(tensors, router, features[index], task_ids=ids[index], combination=combination)
    assert_same(alone, rows(whole, index))


@pytest.mark.parametrize("router", sorted(ROUTERS))
@QUICK
@given(
    st.permutations(range(6)),
    st.booleans(),
    st.sampled_from(COMBINATIONS),
    st.sampled_from(["local", "unified"]),
)
def test_relabelling_classes_permutes_predictions_and_changes_nothing_else(
    router, permutation, whitening, combination, objective
):
    tensors = bank(TASKS, whitening=whitening, objective=objective)
    features, _, ids = stream()
    before = predict(tensors, router, features, task_ids=ids, combination=combination)
    after = predict(
        relabelled(tensors, permutation), router, features, task_ids=ids, combination=combination
    )
    renamed = torch.tensor(permutation)[before.class_index]
    assert_same(after, replace(before, class_index=renamed), tolerance=1e-9)


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_half_precision_features_give_the_same_classes_within_tolerance(router):
    tensors = bank(TASKS)
    features, _, ids = stream()
    full = predict(tensors, router, features, task_ids=ids)
    half = predict(tensors, router, features.half(), task_ids=ids)
    assert torch.allclose(full.confidence, half.confidence, atol=0.05)
    clear = full.confidence > 0.6
    assert torch.equal(full.class_index[clear], half.class_index[clear])


@pytest.mark.parametrize("objective", ["local", "unified"])
@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_probabilities_over_classes_sum_to_one(router, combination, objective):
    tensors = bank(TASKS, objective=objective)
    features, _, ids = stream()
    predictor = Predictor(tensors, EvaluationSettings(combination=combination), router)
    known = ids if ROUTERS[router].evidence == "task ids" else None
    total = predictor.class_log_probs(features, task_ids=known).exp().sum(dim=1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-6)


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_one_class_and_one_task_are_enough(router):
    tensors = bank(((0,),))
    features, _ = samples([0])
    found = predict(
        tensors, router, features, task_ids=torch.zeros(len(features), dtype=torch.int64)
    )
    assert (found.class_index == 0).all()
    assert torch.allclose(found.confidence, torch.ones_like(found.confidence))


@pytest.mark.parametrize("router", STATISTICS)
def test_statistics_route_gaussian_classes_to_their_task(router):
    tensors = bank(TASKS)
    features, _, ids = stream()
    found = predict(tensors, router, features, combination="hard")
    assert (found.task_index == ids).double().mean() > 0.9


@pytest.mark.parametrize("router", STATISTICS)
@QUICK
@given(st.permutations(range(3)))
def test_the_order_in_which_tasks_were_learned_does_not_matter(router, order):
    tensors = bank(TASKS)
    features, _, _ = stream()
    shuffled = replace(
        tensors,
        tasks=tuple(tensors.tasks[index] for index in order),
        statistics=tuple(tensors.statistics[index] for index in order),
    )
    before, after = predict(tensors, router, features), predict(shuffled, router, features)
    position = torch.tensor([list(order).index(t) for t in range(3)])
    assert_same(after, replace(before, task_index=position[before.task_index]), tolerance=1e-9)


@pytest.mark.parametrize("router", STATISTICS)
def test_a_router_that_needs_statistics_says_so_when_there_are_none(router):
    with pytest.raises(BankError, match="without them"):
        predict(replace(bank(TASKS), statistics=()), router, stream()[0])


@pytest.mark.parametrize("router", STATISTICS)
def test_singular_statistics_still_route(router):
    tensors = bank(TASKS)
    one_each = [
        replace(
            statistics,
            counts=np.ones_like(statistics.counts),
            sums=statistics.sums / statistics.counts[:, None],
            gram=np.stack(
                [
                    np.outer(m, m)[np.triu_indices(WIDTH)]
                    for m in statistics.sums / statistics.counts[:, None]
                ]
            ),
        )
        for statistics in tensors.statistics
    ]
    singular = replace(tensors, statistics=tuple(one_each))
    found = predict(singular, router, stream()[0], combination="hard")
    assert torch.isfinite(found.confidence).all()
    if router != "ridge":  # no cross-validation can predict a class that has one sample
        assert (found.task_index == stream()[2]).double().mean() > 0.8


def test_random_features_route_and_are_refused_when_the_bank_lacks_them():
    chosen = EvaluationSettings.model_validate(
        {"combination": "hard", "router_options": {"ridge": {"random_features": 64}}}
    )
    features, _, ids = stream()
    for whitening in (False, True):
        tensors = bank(TASKS, random_features=64, whitening=whitening)
        found = Predictor(tensors, chosen, "ridge").predict(features)
        assert (found.task_index == ids).double().mean() > 0.9
    with pytest.raises(BankError, match=r"64 random features.* hold none"):
        Predictor(bank(TASKS), chosen, "ridge")
    with pytest.raises(BankError, match="hold 32"):
        Predictor(bank(TASKS, random_features=32), chosen, "ridge")


def test_lda_is_the_gaussian_classifier_with_the_pooled_covariance():
    tensors = bank(TASKS)
    features, _, _ = stream()
    shrinkage = 0.3
    router = options(lda={"shrinkage": shrinkage, "temperature": 1.0}).fit_router("lda", tensors)
    from workers.modeling.routers import RouterInput

    found = router.route(RouterInput(raw=features, features=features)).slot_log_probs
    means = np.concatenate([s.sums / s.counts[:, None] for s in tensors.statistics])
    pooled = tensors.pooled
    covariance = pooled.within_scatter() / (pooled.counts.sum() - 6)
    covariance = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / WIDTH * np.eye(
        WIDTH
    )
    distance = features.double().numpy()[:, None] - means[None]
    scores = -0.5 * np.einsum("nsd,de,nse->ns", distance, np.linalg.inv(covariance), distance)
    expected = torch.log_softmax(torch.from_numpy(scores), dim=1)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("whitening", [False, True])
def test_lda_of_one_sample_a_class_is_the_nearest_sample(whitening):
    """Also where a class comes in several tasks; what is left of the sums is round-off, and no covariance."""
    ones = [samples(range(6), each=1, seed=seed)[0] + 5 for seed in range(4)]
    statistics = [TaskStatistics.from_features(x, torch.arange(6), classes=6) for x in ones]
    white = Whitening.from_statistics(statistics[0]) if whitening else None
    tensors = replace(bank((tuple(range(6)),) * 4), statistics=tuple(statistics), whitening=white)
    raw = stream()[0] + 5
    seen = raw if white is None else white.apply(raw)
    batch = RouterInput(raw=raw, features=seen)
    found = options().fit_router("lda", tensors).route(batch).slot_log_probs
    distances = np.square(raw.double().numpy()[:, None] - torch.cat(ones).double().numpy()).sum(-1)
    assert (found.argmax(dim=1).numpy() == distances.argmin(axis=1)).all()


def test_lda_can_weigh_classes_by_their_share_of_samples():
    features, _ = samples([0, 1], each=3)
    tensors = bank(((0,), (1,)))
    heavy = tensors.statistics[0]
    heavy = heavy + heavy + heavy
    tensors = replace(tensors, statistics=(heavy, tensors.statistics[1]))
    even = Predictor(
        tensors, options(lda={"prior": "uniform", "temperature": 1}), "lda"
    ).class_log_probs(features)
    shares = Predictor(
        tensors, options(lda={"prior": "counts", "temperature": 1}), "lda"
    ).class_log_probs(features)
    odds = (shares[:, 0] - shares[:, 1]) - (even[:, 0] - even[:, 1])
    assert torch.allclose(odds, torch.full_like(odds, np.log(3.0)), atol=1e-6)


def ridge_problem(samples_=60, width=8, classes=3):
    random = np.random.RandomState(3)
    x = random.standard_normal((samples_, width)) @ random.standard_normal((width, width))
    y = np.eye(classes)[random.randint(0, classes, samples_)]
    return x + 1.5, y


def test_ridge_scores_equal_those_of_a_direct_solution():
    x, y = ridge_problem()
    classifier = RidgeClassifier.fit(y.T @ x, x.T @ x, y.sum(0).astype(np.int64), penalty=0.1)
    centred, targets = x - x.mean(0), y - y.mean(0)
    gram = centred.T @ centred
    penalty = 0.1 * np.trace(gram) / 8
    weights = np.linalg.solve(gram + penalty * np.eye(8), centred.T @ targets)
    assert classifier.penalty == pytest.approx(penalty)
    np.testing.assert_allclose(classifier.weights.numpy(), weights, atol=1e-10)
    np.testing.assert_allclose(classifier.bias.numpy(), y.mean(0) - x.mean(0) @ weights, atol=1e-10)


def test_lda_ridge_is_the_geometric_mean_of_its_halves():
    tensors = bank(TASKS)
    features, _, _ = stream()
    inputs = RouterInput(raw=features, features=features)
    lda, ridge, both = (
        options().fit_router(name, tensors).route(inputs).slot_log_probs
        for name in ("lda", "ridge", "lda_ridge")
    )
    expected = (lda.exp() * ridge.exp()).sqrt()
    assert torch.allclose(both.exp(), expected / expected.sum(dim=1, keepdim=True))


def test_halves_of_lda_ridge_have_settings_of_their_own():
    tensors = bank(TASKS)
    features, _, _ = stream()
    inputs = RouterInput(raw=features, features=features)
    sharp = {"temperature": 1e-3}
    chosen = options(lda=sharp, lda_ridge={"lda": sharp, "ridge": {"temperature": 1e6}})
    lda, both = (chosen.fit_router(name, tensors).route(inputs) for name in ("lda", "lda_ridge"))
    assert torch.equal(lda.slot_log_probs.argmax(1), both.slot_log_probs.argmax(1))


def test_generalised_cross_validation_from_sums_equals_that_from_samples():
    x, y = ridge_problem()
    centred, targets = x - x.mean(0), y - y.mean(0)
    gram = centred.T @ centred
    path = RidgePath.factorise(gram, centred.T @ targets, float(np.sum(targets**2)), len(x))
    penalties = (1e-3, 1.0, 50.0)
    for penalty, found in zip(penalties, path.generalised_cross_validation(penalties), strict=True):
        hat = centred @ np.linalg.solve(gram + penalty * np.eye(8), centred.T)
        residual = np.sum((targets - hat @ targets) ** 2)
        expected = residual / len(x) / (1 - (np.trace(hat) + 1) / len(x)) ** 2
        assert found == pytest.approx(expected, rel=1e-9)
    chosen = path.generalised_cross_validation([path.choose()])[0]
    assert chosen <= path.generalised_cross_validation(list(map(path.absolute, CANDIDATES))).min()


def test_ridge_with_more_features_than_samples_avoids_interpolation():
    x, y = ridge_problem(samples_=20, width=60)
    classifier = RidgeClassifier.fit(y.T @ x, x.T @ x, y.sum(0).astype(np.int64))
    centred = x - x.mean(0)
    gram = centred.T @ centred
    hat = np.linalg.solve(gram + classifier.penalty * np.eye(60), gram)
    assert np.trace(hat) + 1 <= 10 + 1e-6
    assert torch.isfinite(classifier.log_posterior(torch.from_numpy(x))).all()


def test_a_penalty_below_the_precision_of_singular_statistics_is_refused():
    row = np.linspace(1.0, 2.0, 200)
    sums, gram = np.stack([row, 3 * row]), np.outer(row, row) * 10
    counts = np.array([1, 1])
    with pytest.raises(SettingsError, match=r"statistics are singular.*larger penalty, or 'gcv'"):
        RidgeClassifier.fit(sums, gram, counts, penalty=1e-30)
    assert torch.isfinite(RidgeClassifier.fit(sums, gram, counts).weights).all()


def test_entropies_of_tasks_of_different_sizes_are_comparable():
    from workers.modeling.combining import softmax_by_group
    from workers.modeling.entropies import local_entropies

    tensors = bank(((0, 1), (2, 3, 4, 5)))
    logits = torch.zeros(1, 6)
    log_probs = softmax_by_group(logits, tensors.slot_task, 2)
    assert torch.allclose(local_entropies(tensors, logits, log_probs), torch.ones(1, 2).double())


def test_a_module_of_one_class_wins_only_when_it_prefers_its_class():
    from workers.modeling.combining import softmax_by_group
    from workers.modeling.entropies import local_entropies

    tensors = bank(((0,), (1,), (2,)))
    logits = torch.tensor([[5.0, 1.0, -4.0]])
    found = local_entropies(tensors, logits, softmax_by_group(logits, tensors.slot_task, 3))[0]
    assert found[0] < found[1] < found[2]
    assert found[2] == 1.0


def test_batch_entropy_depends_on_the_order_and_says_so():
    tensors = bank(TASKS, objective="unified")
    features, _, _ = stream(each=48)
    router = ROUTERS["batch_entropy"]
    assert router.Options.order_dependent
    assert ROUTERS["batch_entropy_shuffled"].Options.order_dependent
    ordered = predict(tensors, "batch_entropy", features, combination="hard")
    shuffled = predict(tensors, "batch_entropy_shuffled", features, combination="hard")
    for start in range(0, len(features), 48):
        assert len(ordered.task_index[start : start + 48].unique()) == 1
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(features)))
    assert not torch.equal(ordered.class_index, shuffled.class_index)
    by_hand = predict(tensors, "batch_entropy", features[order], combination="hard")
    assert torch.equal(by_hand.class_index, shuffled.class_index[order])


def test_batches_of_one_reduce_batch_entropy_to_entropy():
    tensors = bank(TASKS)
    features, _, _ = stream()
    single = options(batch_entropy={"batch_size": 1})
    assert_same(
        Predictor(tensors, single, "batch_entropy").predict(features),
        Predictor(tensors, single, "entropy").predict(features),
    )


def test_oracle_is_flagged_and_needs_task_ids():
    assert ROUTERS["oracle"].Options.upper_bound
    assert not any(
        router.Options.upper_bound for name, router in ROUTERS.items() if name != "oracle"
    )
    tensors = bank(TASKS)
    features, _, ids = stream()
    found = predict(tensors, "oracle", features, task_ids=ids)
    assert torch.equal(found.task_index, ids)
    with pytest.raises(DataError, match="needs the task of every sample"):
        Predictor(tensors, EvaluationSettings(), "oracle").predict(features)
    with pytest.raises(DataError, match=r"outside 0\.\.2"):
        predict(tensors, "oracle", features, task_ids=ids + 1)


def test_oracle_can_be_held_to_the_classes_of_the_given_task():
    tensors = bank(TASKS, objective="unified")
    features, _, ids = stream()
    for combination in COMBINATIONS:
        chosen = EvaluationSettings.model_validate(
            {
                "combination": combination,
                "router_options": {"oracle": {"own_classes_only": True}},
            }
        )
        found = Predictor(tensors, chosen, "oracle").predict(features, task_ids=ids)
        assert all(int(c) in TASKS[int(t)] for c, t in zip(found.class_index, ids, strict=True))


def test_unknown_routers_and_options_are_refused_with_a_hint():
    with pytest.raises(ValueError, match="did you mean 'prototype'"):
        EvaluationSettings(routers=("prototypes",))
    with pytest.raises(ValueError, match="named twice"):
        EvaluationSettings(routers=("lda", "lda"))
    with pytest.raises(ValueError, match="at least one router"):
        EvaluationSettings(routers=())
    with pytest.raises(ValueError, match="temprature"):
        options(lda={"temprature": 2.0})
    with pytest.raises(SettingsError, match="did you mean 'lda'"):
        Predictor(bank(TASKS), EvaluationSettings(), "lad")


def test_the_shuffled_variant_is_reported_beside_batch_entropy():
    chosen = EvaluationSettings(routers=("lda", "batch_entropy", "oracle"))
    assert chosen.reported_routers == ("lda", "batch_entropy", "batch_entropy_shuffled", "oracle")
    assert EvaluationSettings(routers=("lda",)).reported_routers == ("lda",)


def test_random_features_are_collected_only_when_a_router_asks_for_them():
    asked = EvaluationSettings.model_validate(
        {"routers": ["ridge"], "router_options": {"ridge": {"random_features": 32}}}
    )
    found = asked.projection(width=WIDTH, seed=4, whitening=None)
    assert found is not None
    assert (found.spec.seed, found.spec.width, found.spec.size) == (4, WIDTH, 32)
    assert EvaluationSettings().projection(width=WIDTH, seed=4, whitening=None) is None


def test_random_features_are_collected_for_the_regression_within_lda_ridge():
    pooled = {"lda_ridge": {"ridge": {"random_features": 32}}}
    asked = {"routers": ["lda_ridge"], "router_options": pooled}
    assert EvaluationSettings.model_validate(asked).random_features == 32
    asked["routers"] = ["lda", "ridge"]
    assert EvaluationSettings.model_validate(asked).random_features == 0


@pytest.mark.parametrize(("size", "collected"), [(32, 32), (0, 32), (64, None)])
def test_routers_of_one_bank_share_one_random_feature_space(size, collected):
    asked = {
        "routers": ["lda_ridge", "ridge"],
        "router_options": {
            "ridge": {"random_features": size},
            "lda_ridge": {"ridge": {"random_features": 32}},
        },
    }
    if collected is None:
        with pytest.raises(ValueError, match=r"lda_ridge\.ridge\.random_features for 32|for 64"):
            EvaluationSettings.model_validate(asked)
    else:
        assert EvaluationSettings.model_validate(asked).random_features == collected
