"""Logistic regression is solved to its optimum."""

from __future__ import annotations

import pytest
import torch

from tests.workers.modeling.banks import samples
from workers.modeling.softmax_regression import Design, fit


def loss(weights, inputs, targets, penalty):
    scores = inputs.double() @ weights[:-1].double() + weights[-1].double()
    error = torch.nn.functional.cross_entropy(scores, targets)
    return float(error + 0.5 * penalty * weights[:-1].double().square().sum())


@pytest.mark.parametrize("penalty", [1e-1, 1e-3])
def test_it_reaches_the_optimum_that_another_library_finds(penalty):
    from sklearn.linear_model import LogisticRegression

    inputs, targets = samples(range(4), each=25, seed=3)
    found = fit(Design.of(inputs), targets, classes=4, penalty=penalty, tolerance=1e-6, steps=200)
    other = LogisticRegression(C=1 / (penalty * len(inputs)), tol=1e-10, max_iter=5000)
    other.fit(inputs.double().numpy(), targets.numpy())
    weights = torch.cat([torch.from_numpy(other.coef_.T), torch.from_numpy(other.intercept_)[None]])
    mine, theirs = (loss(w, inputs, targets, penalty) for w in (found, weights))
    assert abs(mine - theirs) < 2e-5
    decided = [(inputs.double() @ w[:-1].double() + w[-1]).argmax(1) for w in (found, weights)]
    assert torch.equal(decided[0], decided[1])


def test_where_it_begins_does_not_matter():
    inputs, targets = samples(range(3), each=25, seed=3)
    cold = fit(Design.of(inputs), targets, classes=3, penalty=0.01, tolerance=1e-8, steps=200)
    start = torch.randn(cold.shape, generator=torch.Generator().manual_seed(1))
    warm = fit(
        Design.of(inputs), targets, classes=3, penalty=0.01, tolerance=1e-8, steps=200, start=start
    )
    assert torch.allclose(warm[:-1], cold[:-1], atol=2e-2)
    assert abs(loss(warm, inputs, targets, 0.01) - loss(cold, inputs, targets, 0.01)) < 1e-6


def test_a_class_without_samples_is_never_chosen_and_disturbs_nothing():
    inputs, targets = samples(range(2), each=25, seed=3)
    two = fit(Design.of(inputs), targets, classes=2, penalty=0.01, tolerance=1e-6, steps=200)
    three = fit(Design.of(inputs), targets, classes=3, penalty=0.01, tolerance=1e-6, steps=200)
    assert torch.isneginf(three[-1, 2])
    assert torch.allclose(three[:, :2], two, atol=1e-4)
    again = fit(
        Design.of(inputs), targets, classes=3, penalty=0.01, tolerance=1e-6, steps=200, start=three
    )
    assert torch.isfinite(again[:, :2]).all()
