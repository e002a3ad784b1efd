"""LuCA modules: shapes, counts, starts, and one module against many."""

from __future__ import annotations

import pytest
import torch

from workers.errors import SettingsError
from workers.modeling.luca import (
    apply,
    init_parameters,
    nonzero_count,
    parameter_count,
    part_of,
    stack,
)
from workers.modeling.luca_settings import PARAMETER_NAMES, LucaSettings


def fresh(width: int, seed: int = 0, dtype: torch.dtype = torch.float32, **settings):
    generator = torch.Generator().manual_seed(seed)
    return init_parameters(width, LucaSettings(**settings), generator=generator, dtype=dtype)


def disturbed(width: int, seed: int, **settings):
    """A module none of whose parameters is special, in float64."""
    generator = torch.Generator().manual_seed(100 + seed)
    module = fresh(width, seed, torch.float64, **settings)
    return {
        name: value + 0.1 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in module.items()
    }


@pytest.mark.parametrize(
    ("flow", "count"),
    [("tosca", 149_808), ("tosca_r", 149_808), ("adapter", 76_080), ("calibrator", 73_728)],
)
def test_parameter_counts_at_vit_base_width_are_the_published_ones(flow, count):
    assert parameter_count(fresh(768, flow=flow)) == count


@pytest.mark.parametrize("width", [1, 7, 64, 385])
@pytest.mark.parametrize("flow", list(PARAMETER_NAMES))
def test_every_flow_keeps_any_width(flow, width):
    module = fresh(width, flow=flow, adapter_rank=3, calibrator_rank=2)
    output = apply(module, torch.randn(5, width), flow)
    assert output.shape == (5, width)
    assert bool(torch.isfinite(output).all())


def test_adapter_and_calibrator_ranks_are_set_separately():
    module = fresh(32, adapter_rank=5, calibrator_rank=3)
    assert module["mlp.0.weight"].shape == (5, 32)
    assert module["se.2.weight"].shape == (32, 3)


def test_one_given_rank_leaves_the_other_to_the_ratio():
    assert LucaSettings(adapter_rank=9).ranks(64) == (9, 4)


def test_ratio_above_width_is_refused_with_what_would_work():
    with pytest.raises(SettingsError, match=r"luca\.ratio is 16.*width 8.*at most 8"):
        LucaSettings().ranks(8)


def test_start_is_xavier_with_zero_biases_and_neutral_norm():
    module = fresh(96)
    bound = (6 / (96 + 6)) ** 0.5
    for name, value in module.items():
        if part_of(name) == "weights":
            assert 0.9 * bound < float(value.abs().max()) <= bound
    assert float(module["mlp.0.bias"].abs().max()) == 0.0
    assert bool((module["norm.weight"] == 1).all())
    assert float(module["norm.bias"].abs().max()) == 0.0


def test_start_depends_on_the_generator_alone_whatever_the_dtype():
    single, double = fresh(32, seed=3), fresh(32, seed=3, dtype=torch.float64)
    other = fresh(32, seed=4)
    assert torch.equal(single["se.0.weight"], double["se.0.weight"].float())
    assert not torch.equal(single["se.0.weight"], other["se.0.weight"])


@pytest.mark.parametrize("flow", list(PARAMETER_NAMES))
@pytest.mark.parametrize("shared", [True, False])
def test_stacked_modules_give_what_each_gives_alone(flow, shared):
    modules = [disturbed(16, seed, flow=flow, ratio=4) for seed in range(3)]
    shape = (9, 16) if shared else (3, 9, 16)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = apply(stack(modules), x, flow)
    alone = [apply(m, x if shared else x[i], flow) for i, m in enumerate(modules)]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-12, atol=1e-12)


def test_modules_of_different_rank_are_not_stacked():
    with pytest.raises(SettingsError, match="different shapes"):
        stack([fresh(16, ratio=4), fresh(16, ratio=2)])


def test_no_modules_are_not_stacked():
    with pytest.raises(SettingsError, match="at least one"):
        stack([])


def test_nonzero_count_counts_exact_zeros_out():
    module = fresh(16, ratio=4, flow="calibrator")
    module["se.0.weight"][0] = 0.0
    assert nonzero_count(module) == parameter_count(module) - 16


def test_parts_are_told_by_name():
    parts = {name: part_of(name) for name in PARAMETER_NAMES["tosca"]}
    assert [name for name, part in parts.items() if part == "biases"] == [
        "mlp.0.bias",
        "mlp.2.bias",
    ]
    assert [name for name, part in parts.items() if part == "norm"] == ["norm.weight", "norm.bias"]
