"""Learning: what it computes, what it depends on, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.workers.modeling.learning_cases import (
    LUCA,
    RecordingView,
    assert_close,
    assert_same_bits,
    clusters,
    learn,
    settings,
)
from workers.errors import DataError, SettingsError
from workers.modeling import batches
from workers.modeling.heads import UnifiedHead, cosine_logits
from workers.modeling.learner import Execution, learn_local, learn_unified, task_generator
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca import apply, init_parameters, nonzero_count, part_of
from workers.modeling.luca_settings import LucaSettings


def accuracy(learned, features, labels, flow="tosca"):
    logits = cosine_logits(apply(learned.module, features, flow), learned.head, learned.scale)
    return float((logits.argmax(1) == labels).float().mean())


def plain_loop(features, labels, orders, module, head, scale, learning):
    """The recipe as anyone would write it: autograd, L1 in the graph, torch.optim.SGD."""
    leaves = {name: value.clone().requires_grad_() for name, value in module.items()}
    head, scale = head.clone().requires_grad_(), scale.clone().requires_grad_()
    optimiser = torch.optim.SGD(
        [*leaves.values(), head, scale], lr=learning.learning_rate, momentum=learning.momentum
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimiser, T_max=learning.epochs, eta_min=learning.minimum_learning_rate
    )
    losses = []
    for order in orders:
        for rows in torch.split(order, learning.batch_size):
            logits = cosine_logits(apply(leaves, features[rows], "tosca"), head, scale)
            loss = torch.nn.functional.cross_entropy(logits, labels[rows])
            loss = loss + learning.l1 * sum(leaf.abs().sum() for leaf in leaves.values())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        schedule.step()
    return {name: leaf.detach() for name, leaf in leaves.items()}, head.detach(), losses


def test_a_batch_larger_than_a_task_is_the_whole_task():
    whole = learn(learning=settings(batch_size=40))
    assert_same_bits(learn(learning=settings(batch_size=2**53)), whole)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-4), (torch.float64, 1e-9)])
def test_learning_equals_a_plain_autograd_loop(dtype, rtol):
    features, labels = clusters(samples=50)
    features = features.to(dtype)
    learning = settings(l1_mode="subgradient", l1_parts=("weights", "biases", "norm"))
    module = init_parameters(24, LUCA, generator=task_generator(3, "start"), dtype=dtype)
    head = UnifiedHead(torch.randn(3, 24, dtype=dtype), torch.ones((), dtype=dtype))
    orders = torch.stack([torch.randperm(50) for _ in range(learning.epochs)])
    learned = learn_unified(
        [features],
        labels,
        new_classes=range(3),
        previous=None,
        luca=LUCA,
        learning=learning,
        seed=0,
        task_key="t",
        init=module,
        init_head=head,
        order=orders,
        execution=Execution(dtype=dtype, keep_step_losses=True),
    )
    expected, _, losses = plain_loop(
        features, labels, orders, module, head.weight, head.scale, learning
    )
    for name, value in expected.items():
        torch.testing.assert_close(learned.module[name], value, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(learned.step_losses.numpy(), losses, rtol=rtol)


def test_learning_lowers_the_loss_and_fits_the_task():
    features, labels = clusters(samples=90)
    learned = learn(features, labels, learning=settings(epochs=15))
    assert learned.losses[-1] < learned.losses[0]
    assert accuracy(learned, features, labels) > 0.97
    assert learned.steps == 15 * 6


@pytest.mark.parametrize("flow", ["tosca", "tosca_r", "adapter", "calibrator"])
def test_every_flow_learns(flow):
    features, labels = clusters(samples=60)
    learned = learn(
        features, labels, luca=LucaSettings(flow=flow, ratio=8), learning=settings(epochs=15)
    )
    assert accuracy(learned, features, labels, flow) > 0.9


def test_the_same_seed_and_task_give_the_same_bits():
    assert_same_bits(learn(), learn())


def test_another_task_key_or_seed_gives_another_module():
    base = learn()
    for change in ({"seed": 1}, {"task_key": "other"}):
        assert not torch.equal(base.head, learn(**change).head)


def test_global_random_state_is_neither_read_nor_written():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = learn()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert_same_bits(first, learn())


def test_results_can_be_trained_further_with_autograd():
    module = learn().module
    leaf = module["se.0.weight"].requires_grad_()
    apply({**module, "se.0.weight": leaf}, torch.randn(2, 24), "tosca").sum().backward()
    assert leaf.grad is not None


def test_one_sample_of_one_class_can_be_learned():
    learned = learn(torch.randn(1, 24), torch.zeros(1, dtype=torch.int64), classes=1)
    assert learned.head.shape == (1, 24)
    assert all(bool(torch.isfinite(value).all()) for value in learned.module.values())


def test_a_class_without_samples_keeps_a_finite_row():
    features, labels = clusters(classes=2)
    learned = learn(features, labels, classes=3)
    assert float(learned.head[2].norm()) < 10


def test_proximal_l1_gives_exact_zeros_in_the_named_parts_only():
    learned = learn(learning=settings(l1=0.01, l1_parts=("weights",)))
    for name, value in learned.module.items():
        zeros = int((value == 0).sum())
        if part_of(name) == "weights":
            assert zeros > 0
        elif part_of(name) == "norm":
            assert zeros == 0


def test_subgradient_l1_gives_no_zeros():
    learned = learn(learning=settings(l1=0.01, l1_mode="subgradient"))
    assert all(bool((value != 0).all()) for value in learned.module.values())


def test_more_l1_leaves_fewer_parameters():
    counts = [nonzero_count(learn(learning=settings(l1=l1)).module) for l1 in (1e-4, 1e-3, 1e-2)]
    assert counts[0] > counts[1] > counts[2]


def test_threshold_zeroes_small_weights_where_accuracy_allows():
    learned = learn(learning=settings(l1=0.0, threshold=0.05))
    assert learned.threshold == 0.05
    weights = [value for name, value in learned.module.items() if part_of(name) == "weights"]
    assert all(bool(((value == 0) | (value.abs() >= 0.05)).all()) for value in weights)
    assert any(bool((value == 0).any()) for value in weights)


def test_threshold_that_costs_accuracy_is_halved_until_it_does_not():
    features, labels = clusters(samples=120, classes=6)
    learning = settings(epochs=30, l1=0.0, l1_parts=("weights", "norm"), learning_rate=0.1)
    arguments = {"classes": 6, "check": (features, labels)}
    plain = learn(features, labels, learning=learning, **arguments)
    pruned = learn(
        features,
        labels,
        learning=learning.model_copy(update={"threshold": 4.0, "threshold_tolerance": 0.0}),
        **arguments,
    )
    assert 0.0 < pruned.threshold < 4.0
    assert accuracy(pruned, features, labels) >= accuracy(plain, features, labels)


def test_epochs_cycle_through_the_views_and_means_come_from_the_test_view(monkeypatch):
    monkeypatch.setattr(batches, "MATERIALISE_BYTES", 0)
    features, labels = clusters()
    views = [RecordingView(features + shift) for shift in (0.0, 0.1)]
    test = RecordingView(features)
    learn_local(
        views,
        labels,
        classes=3,
        luca=LUCA,
        learning=settings(epochs=3),
        seed=0,
        task_key="t",
        test_view=test,
    )
    # one row each to learn the width, then whole epochs; the test view is read once, for the means
    assert [view.gathers for view in views] == [[1, 40, 40], [1, 40]]
    assert test.gathers == [1, 40]


def test_large_views_are_read_in_blocks_with_the_same_result(monkeypatch):
    features, labels = clusters(samples=100)
    whole = learn(features, labels)
    monkeypatch.setattr(batches, "MATERIALISE_BYTES", 0)
    monkeypatch.setattr(batches, "BLOCK_BYTES", 32 * 24 * 4)
    monkeypatch.setattr(batches, "PASS_BYTES", 32 * 24 * 4)
    view = RecordingView(features)
    blocked = learn(view, labels)
    assert max(view.gathers) == 32
    assert_close(whole, blocked, rtol=1e-5, atol=1e-6)


def test_small_views_are_read_once():
    features, labels = clusters()
    view = RecordingView(features)
    assert_same_bits(learn(features, labels), learn(view, labels))
    assert view.gathers == [1, 40]


def test_unified_rows_of_the_task_are_class_means_and_older_rows_are_trained():
    first, labels = clusters(classes=2)
    arguments = {"luca": LUCA, "learning": settings(), "seed": 0}
    one = learn_unified(
        [first], labels, new_classes=[0, 1], previous=None, task_key="0", **arguments
    )
    second, _ = clusters(classes=2, seed=5)
    previous = UnifiedHead(one.head, one.scale)
    two = learn_unified(
        [second], labels + 2, new_classes=[2, 3], previous=previous, task_key="1", **arguments
    )
    outputs = apply(two.module, second, "tosca")
    means = torch.stack([outputs[labels == c].mean(0) for c in range(2)])
    torch.testing.assert_close(two.head[2:], means, rtol=1e-5, atol=1e-6)
    assert two.head.shape == (4, 24)
    assert not torch.equal(two.head[:2], one.head)
    assert float(two.scale) != float(one.scale)


def test_known_classes_in_another_domain_keep_the_size_of_the_head_and_get_new_means():
    features, labels = clusters(classes=2)
    previous = UnifiedHead(torch.randn(3, 24), torch.tensor(1.0))
    kept = previous.weight.clone()
    learned = learn_unified(
        [features],
        labels,
        new_classes=[],
        previous=previous,
        luca=LUCA,
        learning=settings(),
        seed=0,
        task_key="another domain",
    )
    assert torch.equal(previous.weight, kept)
    outputs = apply(learned.module, features, "tosca")
    means = torch.stack([outputs[labels == c].mean(0) for c in range(2)])
    torch.testing.assert_close(learned.head[:2], means, rtol=1e-5, atol=1e-6)
    assert learned.head.shape == (3, 24)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(bad):
    features, labels = clusters()
    features[7, 3] = bad
    with pytest.raises(DataError, match="NaN or infinite"):
        learn(features, labels)


def test_a_task_without_samples_is_refused():
    with pytest.raises(DataError, match="no samples"):
        learn(torch.zeros(0, 24), torch.zeros(0, dtype=torch.int64))


def test_labels_outside_the_classes_are_refused():
    features, labels = clusters()
    with pytest.raises(DataError, match=r"0\.\.2, outside the classes 0\.\.1"):
        learn(features, labels, classes=2)


def test_unified_labels_of_other_tasks_are_refused():
    features, labels = clusters()
    with pytest.raises(DataError, match=r"classes \[0\], which are neither new nor known"):
        learn_unified(
            [features],
            labels,
            new_classes=[1, 2],
            previous=None,
            luca=LUCA,
            learning=settings(),
            seed=0,
            task_key="t",
        )


def test_labels_of_another_length_are_refused():
    features, labels = clusters()
    with pytest.raises(DataError, match="for 40 samples"):
        learn(features, labels[:-1])


def test_views_of_different_width_are_refused():
    features, labels = clusters()
    with pytest.raises(DataError, match="differ in shape"):
        learn(features, labels, test_view=features[:, :20])


def test_an_order_that_is_no_permutation_is_refused():
    features, labels = clusters()
    with pytest.raises(DataError, match="permutation of 40 samples"):
        learn_unified(
            [features],
            labels,
            new_classes=range(3),
            previous=None,
            luca=LUCA,
            learning=settings(),
            seed=0,
            task_key="t",
            order=np.zeros((3, 40), dtype=np.int64),
        )


def test_divergence_is_reported_with_the_rate_to_lower():
    with pytest.raises(SettingsError, match=r"diverged.*learning_rate"):
        learn(learning=settings(learning_rate=1e30, minimum_learning_rate=1e30))


def test_a_schedule_that_would_rise_is_refused():
    with pytest.raises(ValidationError, match="minimum_learning_rate"):
        LearningSettings(learning_rate=1e-9)
