"""The schema that editors check experiment files with."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.commands.schema import experiment_schema
from tests.orchestrator.commands.command_line import CommandLine


def preset(name: str) -> dict[str, Any]:
    text = (resources.files("orchestrator.presets") / f"{name}.yaml").read_text("utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def test_the_command_prints_a_valid_schema(typed: CommandLine) -> None:
    schema = json.loads(typed("schema").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == experiment_schema()
    assert "description" in schema["properties"]["seed"]


def test_experiments_pass_and_mistakes_do_not() -> None:
    validator = jsonschema.Draft202012Validator(experiment_schema())
    data = preset("demo")
    validator.validate(data)
    del data["name"]
    validator.validate(data)
    for wrong in (
        {**data, "sede": 1},
        {**data, "seed": "many"},
        {**data, "recipe": "toska"},
        {**data, "stream": {**data["stream"], "source": {"kind": "demos"}}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)


def test_presets_lack_nothing_but_their_path() -> None:
    validator = jsonschema.Draft202012Validator(experiment_schema())
    data = preset("cub_inc10")
    data["stream"]["source"]["path"] = "DIR"
    validator.validate(data)
