"""Named recipes."""

from __future__ import annotations

import json

import pytest

from workers.modeling.evaluation_settings import EvaluationSettings
from workers.modeling.learning_settings import LearningSettings
from workers.modeling.luca_settings import LucaSettings
from workers.modeling.recipes import RECIPES


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_recipe_is_valid_settings_with_a_description(name):
    recipe = RECIPES[name]
    LucaSettings.model_validate(recipe["luca"])
    LearningSettings.model_validate(recipe["learning"])
    EvaluationSettings.model_validate(recipe.get("evaluation", {}))
    assert recipe["whitening"] in ("none", "first_task")
    assert len(recipe["description"]) > 20


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_recipe_can_be_written_to_a_file(name):
    assert json.loads(json.dumps(RECIPES[name])) == RECIPES[name]


def test_tosca_is_what_was_published():
    learning = LearningSettings.model_validate(RECIPES["tosca"]["learning"])
    assert learning.objective == "unified"
    assert (learning.epochs, learning.batch_size, learning.learning_rate) == (20, 48, 0.025)
    assert (learning.momentum, learning.l1, learning.l1_mode) == (0.9, 5e-4, "subgradient")
    assert set(learning.l1_parts) == {"weights", "biases", "norm"}
    assert learning.threshold is None
    assert RECIPES["tosca"]["whitening"] == "none"


def test_defaults_are_the_local_recipe():
    assert LearningSettings.model_validate(RECIPES["local"]["learning"]) == LearningSettings()
    assert LucaSettings.model_validate(RECIPES["local"]["luca"]) == LucaSettings()


def test_refined_learns_as_local():
    for part in ("luca", "learning", "whitening"):
        assert RECIPES["refined"][part] == RECIPES["local"][part]
