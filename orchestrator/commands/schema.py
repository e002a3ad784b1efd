"""`luca schema`: the JSON schema of the experiment, with which editors check and complete experiment files."""

from __future__ import annotations

import json
from typing import Any


def print_schema() -> None:
    """Print the schema; the first line of an experiment file can name it for editors that speak YAML:
    ``# yaml-language-server: $schema=experiment.schema.json``."""
    print(json.dumps(experiment_schema(), indent=2, ensure_ascii=False))


def experiment_schema() -> dict[str, Any]:
    """The schema of an experiment file; ``name`` may be left out there, since the file's own name serves."""
    from orchestrator.experiment import Experiment
    from orchestrator.experiment_files import preset_names
    from workers.modeling.recipes import RECIPES

    schema = Experiment.model_json_schema()
    schema["required"] = [key for key in schema["required"] if key != "name"]
    schema["properties"]["recipe"]["enum"] = list(RECIPES)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "luca experiment",
        "$comment": f"presets to begin with: {', '.join(preset_names())}",
        **{key: value for key, value in schema.items() if key != "title"},
    }
