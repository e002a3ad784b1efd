"""Named recipes: sets of settings that belong together, put under an experiment's own keys."""

from __future__ import annotations

from typing import Any, TypedDict

from typing_extensions import NotRequired


class Recipe(TypedDict):
    """One recipe.

    Keys:
        description: one sentence for people.
        luca, learning: settings of those names; keys left out keep their defaults.
        whitening: ``none`` or ``first_task``.
        evaluation: settings of that name, where the recipe is also one of predicting.
    """

    description: str
    luca: dict[str, Any]
    learning: dict[str, Any]
    whitening: str
    evaluation: NotRequired[dict[str, Any]]


_AS_PUBLISHED: dict[str, Any] = {
    "epochs": 20,
    "batch_size": 48,
    "learning_rate": 0.025,
    "minimum_learning_rate": 1e-8,
    "momentum": 0.9,
    "l1": 5e-4,
}
"""The optimiser of the published code, which every recipe starts from."""

_LOCAL: dict[str, Any] = {
    **_AS_PUBLISHED,
    "objective": "local",
    "l1_mode": "proximal",
    "l1_parts": ["weights"],
    "initial_scale": 10.0,
}

RECIPES: dict[str, Recipe] = {
    "tosca": {
        "description": (
            "As published: one cosine head over all classes seen so far, trained along with every "
            "module; L1 as subgradient over all of a module; raw features."
        ),
        "luca": {"flow": "tosca", "ratio": 16},
        "learning": {
            **_AS_PUBLISHED,
            "objective": "unified",
            "l1_mode": "subgradient",
            "l1_parts": ["weights", "biases", "norm"],
        },
        "whitening": "none",
    },
    "local": {
        "description": (
            "Independent tasks: cross-entropy over a task's own classes, head started at class means "
            "with scale 10, proximal L1 on the weights; features whitened by the first task."
        ),
        "luca": {"flow": "tosca", "ratio": 16},
        "learning": _LOCAL,
        "whitening": "first_task",
    },
    "local_sparse": {
        "description": (
            "As local with ten times the L1 weight: most weights become exactly zero, at about the "
            "same accuracy where features are whitened."
        ),
        "luca": {"flow": "tosca", "ratio": 16},
        "learning": {**_LOCAL, "l1": 5e-3},
        "whitening": "first_task",
    },
    "refined": {
        "description": (
            "Modules learned as in local, predicted with the strongest router: Gaussian and ridge "
            "classifiers pooled, 2,000 random features, modules refining between the classes of a task."
        ),
        "luca": {"flow": "tosca", "ratio": 16},
        "learning": _LOCAL,
        "whitening": "first_task",
        "evaluation": {
            "routers": ["lda_ridge", "lda", "entropy", "batch_entropy", "oracle"],
            "combination": "refine",
            "router_options": {"lda_ridge": {"ridge": {"random_features": 2000}}},
        },
    },
}
