"""Laws that every baseline keeps, and what each of them computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.modeling.banks import WIDTH, samples
from workers.errors import DataError, SettingsError
from workers.modeling.baselines import BASELINES, BaselineContext
from workers.modeling.baselines.joint_linear import CANDIDATES
from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings

TASKS = ((0, 1), (2,), (3, 4, 5))
NAMES = sorted(BASELINES)
# What a sample is decided on is the same however tasks came, up to round-off.
ORDER_FREE = ("simplecil", "slda", "ranpac", "fecam", "joint_linear")
QUICK = settings(max_examples=4, deadline=None)


def fresh(name, **options):
    context = BaselineContext(
        width=WIDTH,
        seed=3,
        luca=LucaSettings(ratio=4),
        learning=LearningSettings(epochs=10, batch_size=8),
    )
    if name == "ranpac":
        options = {"random_features": 64, **options}
    kind = BASELINES[name]
    return kind.create(context, kind.Options.model_validate(options))


def learn(name, tasks=TASKS, rename=None, **options):
    baseline = fresh(name, **options)
    for position, task in enumerate(tasks):
        features, labels = samples(task, each=10, seed=position + 1)
        if rename is not None:
            labels = torch.tensor(rename)[labels]
            task = [rename[index] for index in task]
        baseline.observe(features, labels, list(task))
    return baseline


@pytest.fixture(scope="module")
def learned():
    return {name: learn(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_prediction_does_not_depend_on_batch_neighbours(name, learned):
    features, _ = samples(range(6), each=4, seed=8)
    whole = learned[name].predict(features)
    for index in ([0], [3, 3, 1], list(range(len(features)))[::-1]):
        alone = learned[name].predict(features[index])
        assert torch.equal(alone.class_index, whole.class_index[index])
        assert torch.allclose(alone.log_probs, whole.log_probs[index], atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_relabelling_classes_permutes_predictions_and_changes_nothing_else(name, learned):
    features, labels = samples(range(6), each=4, seed=8)
    before = learned[name].predict(features)
    rename = [4, 2, 0, 5, 3, 1]
    after = learn(name, rename=rename).predict(features)
    assert torch.equal(after.class_index, torch.tensor(rename)[before.class_index])
    assert torch.allclose(
        after.label_log_prob(torch.tensor(rename)[labels]),
        before.label_log_prob(labels),
        atol=1e-6,
    )


@pytest.mark.parametrize("name", ORDER_FREE)
@QUICK
@given(st.permutations(range(3)))
def test_the_order_of_tasks_does_not_matter(name, order):
    features, _ = samples(range(6), each=4, seed=8)

    def learn_in(sequence):
        baseline = fresh(name)
        for position in sequence:
            x, y = samples(TASKS[position], each=10, seed=position + 1)
            baseline.observe(x, y, TASKS[position])
        return baseline.predict(features)

    expected, found = learn_in(range(3)), learn_in(order)
    assert torch.equal(found.class_index, expected.class_index)


@pytest.mark.parametrize("name", NAMES)
def test_it_decides_among_all_classes_seen_so_far(name):
    baseline = fresh(name)
    features, labels = samples(range(6), each=4, seed=8)
    for position, task in enumerate(TASKS[:2]):
        baseline.observe(*samples(task, each=10, seed=position + 1), task)
        found = baseline.predict(features)
        seen = {index for earlier in TASKS[: position + 1] for index in earlier}
        assert set(found.class_index.tolist()) <= seen
        assert sorted(found.classes.tolist()) == sorted(seen)
        total = found.log_probs.exp().sum(dim=1)
        assert torch.allclose(total, torch.ones_like(total), atol=1e-6)
    assert torch.isinf(found.label_log_prob(labels)[labels == 5]).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sequential_linear"])
def test_it_tells_gaussian_classes_apart(name, learned):
    features, labels = samples(range(6), each=20, seed=8)
    found = learned[name].predict(features)
    assert (found.class_index == labels).double().mean() > 0.85
    assert found.confidence.min() > 1 / 6


@pytest.mark.parametrize("name", NAMES)
def test_classes_that_come_again_in_another_domain_are_one_class(name):
    baseline = fresh(name)
    for seed in (1, 2):
        baseline.observe(*samples([0, 1], each=10, seed=seed), [0, 1])
    features, labels = samples([0, 1], each=10, seed=8)
    found = baseline.predict(features)
    assert found.classes.tolist() == [0, 1]
    assert (found.class_index == labels).double().mean() > 0.9


@pytest.mark.parametrize("name", NAMES)
def test_one_class_or_one_sample_a_class_is_enough(name):
    baseline = fresh(name)
    baseline.observe(*samples([0], each=1), [0])
    features, _ = samples([0, 1], each=3, seed=8)
    assert (baseline.predict(features).class_index == 0).all()
    baseline.observe(*samples([1], each=1), [1])
    assert torch.isfinite(baseline.predict(features).log_probs).all()


@pytest.mark.parametrize("offset", [0.0, 3.0, 30.0])
@pytest.mark.parametrize("each", [1, 2, 5])
def test_ranpac_learns_from_far_fewer_samples_than_random_features(each, offset):
    features, labels = samples([0, 1], each=each)
    baseline = fresh("ranpac", random_features=2000)
    baseline.observe(features + offset, labels, [0, 1])
    assert torch.equal(baseline.predict(features + offset).class_index, labels)


@pytest.mark.parametrize("name", NAMES)
def test_features_that_are_all_alike_are_no_problem(name):
    baseline = fresh(name)
    features, labels = torch.full((20, WIDTH), 1.7), torch.arange(20) % 2
    baseline.observe(features, labels, [0, 1])
    assert torch.isfinite(baseline.predict(features).log_probs).all()


@pytest.mark.parametrize(("name", "copies"), [("slda", 3), ("fecam", 3000)])
def test_classes_without_spread_are_told_apart_by_distance(name, copies):
    """What is left of their sums is round-off, and no covariance."""
    kept, asked = (samples(range(40), each=1, seed=seed)[0] / 3 + 5 for seed in (0, 8))
    baseline = fresh(name)
    for index, row in enumerate(kept):
        baseline.observe(row.repeat(copies, 1), torch.full((copies,), index), [index])
    left, right = asked.double(), kept.double()
    if name == "fecam":
        left, right = (torch.nn.functional.normalize(x, dim=1) for x in (left, right))
    temperature = baseline.Options().temperature if name == "slda" else 1.0
    expected = torch.log_softmax(-0.5 * torch.cdist(left, right).square() / temperature, dim=1)
    torch.testing.assert_close(
        baseline.predict(asked).log_probs.double(), expected, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("name", NAMES)
def test_constant_features_are_no_problem(name):
    baseline = fresh(name)
    features, labels = samples([0, 1], each=10)
    features[:, 3] = 2.5
    baseline.observe(features, labels, [0, 1])
    assert torch.isfinite(baseline.predict(features).log_probs).all()


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_refused_and_changes_nothing(name):
    baseline = learn(name)
    features, labels = samples([0], each=4)
    expected = baseline.predict(features).log_probs
    for bad, marks, words in (
        (torch.full((2, WIDTH), torch.nan), labels[:2], "NaN"),
        (torch.zeros(2, WIDTH + 1), labels[:2], "shape"),
        (features, labels + 4, "label 4"),
        (features, labels - 1, "label -1"),
        (features, labels[:3], "one label a feature"),
    ):
        for task in ([0], [0, 9]):
            with pytest.raises(DataError, match=words):
                baseline.observe(bad, marks, task)
    with pytest.raises(DataError, match="NaN"):
        baseline.predict(torch.full((2, WIDTH), torch.nan))
    assert torch.equal(baseline.predict(features).log_probs, expected)


@pytest.mark.parametrize("name", NAMES)
def test_predicting_before_learning_is_refused(name):
    with pytest.raises(DataError, match="no task was observed"):
        fresh(name).predict(torch.zeros(1, WIDTH))


def test_bounds_and_memories_are_flagged():
    assert {name for name in NAMES if BASELINES[name].Options.bound == "upper"} == {
        "joint_linear",
        "joint_luca",
    }
    assert {name for name in NAMES if BASELINES[name].Options.bound == "lower"} == {
        "sequential_linear"
    }
    for name in NAMES:
        assert BASELINES[name].exemplar_free == (BASELINES[name].Options.bound != "upper")
        assert BASELINES[name].Options().final_only == (name == "joint_luca")


@pytest.mark.parametrize("name", ["joint_linear", "joint_luca"])
def test_joint_bounds_are_scored_as_often_as_they_are_asked_to(name):
    for cadence in ("every_task", "final"):
        assert BASELINES[name].Options(cadence=cadence).final_only == (cadence == "final")


def test_the_joint_bound_is_the_same_whether_or_not_earlier_tasks_were_scored(learned):
    features, _ = samples(range(6), each=4, seed=8)
    asked = fresh("joint_linear")
    for position, task in enumerate(TASKS):
        asked.observe(*samples(task, each=10, seed=position + 1), list(task))
        asked.predict(features)
    expected = learned["joint_linear"].predict(features)
    assert torch.equal(asked.predict(features).log_probs, expected.log_probs)


def test_simplecil_is_the_cosine_to_class_means(learned):
    features, _ = samples(range(6), each=4, seed=8)
    means = torch.cat(
        [
            samples(task, each=10, seed=p + 1)[0].reshape(len(task), 10, WIDTH).mean(1)
            for p, task in enumerate(TASKS)
        ]
    )
    cosines = torch.nn.functional.cosine_similarity(features[:, None], means[None], dim=2)
    assert torch.equal(learned["simplecil"].predict(features).class_index, cosines.argmax(1))


def test_sequential_training_forgets_what_joint_training_keeps(learned):
    features, labels = samples([0, 1], each=20, seed=8)
    hits = {
        name: float((learned[name].predict(features).class_index == labels).double().mean())
        for name in ("sequential_linear", "joint_linear")
    }
    assert hits["sequential_linear"] < hits["joint_linear"]


def test_fecam_is_the_mahalanobis_distance_of_its_formula():
    features, labels = samples([0], each=30)
    other, other_labels = samples([1], each=30)
    baseline = fresh("fecam", diagonal_shrinkage=0.5, off_diagonal_shrinkage=0.25)
    baseline.observe(torch.cat([features, other]), torch.cat([labels, other_labels]), [0, 1])
    query, _ = samples([0, 1], each=2, seed=8)
    distances = []
    for mine in (features.double().numpy(), other.double().numpy()):
        covariance = np.cov(mine.T)
        off = (covariance.sum() - np.trace(covariance)) / (WIDTH * (WIDTH - 1))
        shrunk = covariance + 0.5 * np.diag(covariance).mean() * np.eye(WIDTH)
        shrunk += 0.25 * off * (1 - np.eye(WIDTH))
        scale = np.sqrt(np.diag(shrunk))
        inverse = np.linalg.inv(shrunk / np.outer(scale, scale))
        x = query.double().numpy()
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        gap = x - mine.mean(0) / np.linalg.norm(mine.mean(0))
        distances.append(np.einsum("nd,de,ne->n", gap, inverse, gap))
    found = baseline.predict(query).log_probs
    expected = torch.log_softmax(-0.5 * torch.tensor(np.stack(distances, 1)), dim=1)
    assert torch.allclose(found, expected, atol=1e-4)


def test_joint_linear_chooses_its_penalty_without_test_data(learned):
    learned["joint_linear"].predict(torch.zeros(1, WIDTH))
    assert learned["joint_linear"].penalty in CANDIDATES
    assert learn("joint_linear", penalty=0.05).predict(torch.zeros(1, WIDTH)) is not None


def test_joint_luca_needs_the_settings_it_learns_with():
    kind = BASELINES["joint_luca"]
    with pytest.raises(SettingsError, match="luca and learning settings"):
        kind.create(BaselineContext(width=WIDTH), kind.Options())


def test_unknown_baselines_are_refused_with_a_hint():
    with pytest.raises(ValueError, match="did you mean 'ranpac'"):
        EvaluationSettings(baselines=("ranpack",))
    with pytest.raises(ValueError, match="random_features"):
        EvaluationSettings.model_validate({"baseline_options": {"ranpac": {"random_features": 0}}})
