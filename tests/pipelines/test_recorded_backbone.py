"""A bank's backbone is loaded again from its manifest, whatever settings it was made with, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from pipelines.recorded_backbone import load_recorded
from workers.errors import BackboneError
from workers.modeling.backbone import Backbone, BackboneSettings

TINY = "vit_tiny_patch16_224"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"image_size": 32},
        {"image_size": 64},
        {"crop_pct": 0.8},
        {"normalise": False},
        {"normalise": False, "crop_pct": 0.9, "image_size": 48},
    ],
)
def test_every_way_of_feeding_it_is_found_again(settings: dict[str, Any]) -> None:
    made = Backbone.load(BackboneSettings(**settings))
    assert load_recorded(made.info()).fingerprint == made.fingerprint


def test_precision_is_part_of_it() -> None:
    made = Backbone.load(BackboneSettings(), precision="bfloat16")
    found = load_recorded(made.info())
    assert (found.precision, found.fingerprint) == ("bfloat16", made.fingerprint)


def test_a_weights_file_may_lie_elsewhere_now(tmp_path: Path) -> None:
    made = Backbone.load(BackboneSettings(name=TINY, weights="random", image_size=32))
    save_file(
        {k: v.contiguous() for k, v in made._model.state_dict().items()},
        tmp_path / "w.safetensors",
    )
    found = load_recorded(made.info(), weights=str(tmp_path / "w.safetensors"))
    assert found.fingerprint == made.fingerprint


def test_other_weights_are_refused_with_what_differs() -> None:
    recorded = Backbone.load(BackboneSettings()).info()
    with pytest.raises(BackboneError, match=r"'demo_vit'.*the weights differ.*--weights PATH"):
        load_recorded(recorded, weights="random")


def test_another_architecture_is_refused_with_what_differs() -> None:
    recorded = Backbone.load(BackboneSettings()).info()
    with pytest.raises(BackboneError, match="architecture and weights and transform differ"):
        load_recorded(recorded, name=TINY, weights="random")


def test_weights_that_cannot_be_had_say_where_to_give_them() -> None:
    recorded = Backbone.load(BackboneSettings(name=TINY, weights="random")).info()
    with pytest.raises(BackboneError, match=r"hub cannot be reached.*--weights PATH"):
        load_recorded(recorded)


def test_banks_of_ready_features_have_none() -> None:
    recorded = {"name": "ready-features", "width": 4, "fingerprint": "ready-features-4"}
    with pytest.raises(BackboneError, match="ready features of width 4"):
        load_recorded(recorded)
