"""Named recipes: sets of settings that belong together, put under an experiment's own keys."""

from __future__ import annotations

from typing import Any, TypedDict


class Recipe(TypedDict):
    """One recipe.

    Keys:
        description: one sentence for people.
        luca, learning: settings of those names; keys left out keep their defaults.
        whitening: ``none`` or ``first_task``.
    """

    description: str
    luca: dict[str, Any]
    learning: dict[str, Any]
    whitening: str


RECIPES: dict[str, Recipe] = {
    "tosca": {
        "description": "As published: one head over all classes, L1 as subgradient, no whitening.",
        "luca": {"flow": "tosca", "ratio": 16},
        "learning": {
            "objective": "unified",
            "epochs": 20,
            "batch_size": 48,
            "learning_rate": 0.025,
            "minimum_learning_rate": 1e-8,
            "momentum": 0.9,
            "l1": 5e-4,
            "l1_mode": "subgradient",
            "l1_parts": ("weights", "biases", "norm"),
        },
        "whitening": "none",
    },
    "local": {
        "description": "Independent tasks: own classes only, proximal L1, whitened features.",
        "luca": {"flow": "tosca", "ratio": 16},
        "learning": {"objective": "local", "l1_mode": "proximal"},
        "whitening": "first_task",
    },
}
