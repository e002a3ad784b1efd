"""The hand-written gradients and the weight update, against autograd and closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workers.modeling.flat import FlatState, Update, soft_threshold
from workers.modeling.heads import cosine_logits
from workers.modeling.luca import Parameters, apply, init_parameters
from workers.modeling.luca_settings import PARAMETER_NAMES, LucaSettings
from workers.modeling.step import Step

WIDTH, CLASSES, BATCH = 12, 4, 7


def random_start(flow: str, seed: int) -> tuple[Parameters, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    luca = LucaSettings(flow=flow, adapter_rank=5, calibrator_rank=3)
    module = init_parameters(WIDTH, luca, generator=generator, dtype=torch.float64)
    module = {name: value + 0.2 * noise(*value.shape) for name, value in module.items()}
    return module, noise(CLASSES, WIDTH), noise().abs() + 1


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 + seed)
    features = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)
    return features, torch.randint(0, CLASSES, (BATCH,), generator=generator)


def autograd(start: tuple[Parameters, Tensor, Tensor], x: Tensor, y: Tensor, flow: str):
    module, head, scale = start
    leaves = {**module, "head": head, "scale": scale}
    leaves = {name: value.clone().requires_grad_() for name, value in leaves.items()}
    outputs = apply(leaves, x, flow)
    logits = cosine_logits(outputs, leaves["head"], leaves["scale"])
    loss = torch.nn.functional.cross_entropy(logits, y)
    loss.backward()
    return {name: leaf.grad for name, leaf in leaves.items()}, loss.detach()


def by_hand(starts, batches, flow: str):
    state = FlatState(
        *zip(*starts, strict=True), penalised=frozenset(["se.0.weight"]), with_gradient=False
    )
    state.velocity.fill_(2.0)
    step = Step(state, flow, momentum=0.5)
    features = torch.stack([x for x, _ in batches])
    labels = torch.stack([y for _, y in batches]).unsqueeze(-1)
    if len(starts) == 1:
        features, labels = features[0], labels[0]
    slot = torch.zeros(() if len(starts) == 1 else len(starts), dtype=torch.float64)
    with torch.no_grad():
        step.gradients(features, labels, size=BATCH, slot=slot)
    velocity = state.views(state.velocity)
    return velocity, slot


@pytest.mark.parametrize("flow", list(PARAMETER_NAMES))
@pytest.mark.parametrize("count", [1, 3])
def test_gradients_are_those_of_autograd(flow, count):
    starts = [random_start(flow, seed) for seed in range(count)]
    batches = [batch(seed) for seed in range(count)]
    velocity, slot = by_hand(starts, batches, flow)
    for index, (start, (x, y)) in enumerate(zip(starts, batches, strict=True)):
        expected, loss = autograd(start, x, y, flow)
        own = slot if count == 1 else slot[index]
        torch.testing.assert_close(own / -BATCH, loss, rtol=1e-12, atol=1e-12)
        for name, gradient in expected.items():
            found = velocity[name] if count == 1 else velocity[name][index]
            # the momentum buffer held 2 everywhere and decays by one half
            torch.testing.assert_close(
                found.reshape(gradient.shape), gradient + 1.0, rtol=1e-10, atol=1e-10
            )


def test_a_zero_row_gets_the_gradient_over_the_norm_floor():
    module, head, scale = random_start("tosca", 0)
    head[2] = 0.0
    x, y = batch(0)
    velocity, _ = by_hand([(module, head, scale)], [(x, y)], "tosca")
    expected, _ = autograd((module, head, scale), x, y, "tosca")
    assert float(expected["head"][2].abs().max()) > 1e9
    torch.testing.assert_close(velocity["head"], expected["head"] + 1.0, rtol=1e-10, atol=1e-6)


def quadratic_minimum(*, proximal: bool, l1: float, momentum: float) -> Tensor:
    """Where momentum SGD with the L1 term comes to rest on 0.5 |p - target|^2."""
    target = torch.tensor([[0.5, -0.3, 0.05, -0.02]], dtype=torch.float64)
    start = {"w.weight": torch.ones(1, 4, dtype=torch.float64)}
    state = FlatState(
        [start],
        [torch.zeros(0, 4, dtype=torch.float64)],
        [torch.zeros((), dtype=torch.float64)],
        penalised=frozenset(start),
        with_gradient=False,
    )
    update = Update(state, l1=[l1], proximal=proximal, momentum=momentum)
    update.set_rates([0.005])
    for _ in range(3000):
        state.velocity.mul_(momentum)
        state.velocity[:, :4] += state.values[:, :4] - target
        update.apply()
    return state.values[0, :4]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_both_l1_modes_come_to_rest_at_the_minimum_of_loss_plus_l1(momentum):
    expected = torch.tensor([0.4, -0.2, 0.0, 0.0], dtype=torch.float64)
    found = quadratic_minimum(proximal=True, l1=0.1, momentum=momentum)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    found = quadratic_minimum(proximal=False, l1=0.1, momentum=momentum)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01)


def test_only_the_proximal_step_reaches_exact_zeros():
    assert quadratic_minimum(proximal=True, l1=0.1, momentum=0.9)[2:].tolist() == [0.0, 0.0]
    assert 0.0 not in quadratic_minimum(proximal=False, l1=0.1, momentum=0.9)[2:].tolist()


def test_soft_threshold_moves_towards_zero_and_stops_there():
    values = torch.tensor([0.5, -0.5, 0.1, -0.1])
    soft_threshold(values, 0.2)
    torch.testing.assert_close(values, torch.tensor([0.3, -0.3, 0.0, 0.0]))


def test_a_threshold_for_every_row_does_what_each_does_alone():
    values = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    limits = [0.0, 0.3, 1.0]
    together, alone = values.clone(), values.clone()
    soft_threshold(together, torch.tensor(limits).unsqueeze(1))
    for row, limit in zip(alone, limits, strict=True):
        soft_threshold(row, limit)
    assert torch.equal(together, alone)
