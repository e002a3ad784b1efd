"""Validation against KubeRay's resource schemas, which are data outside this project."""

from __future__ import annotations

import copy
import gzip
import json
import os
from pathlib import Path
from typing import Any

FILES = {"RayJob": "rayjobs.v1.json.gz", "RayCluster": "rayclusters.v1.json.gz"}


def schema_folder() -> Path | None:
    """LUCA_KUBERAY_SCHEMAS, or a folder beside the repository, when it is there."""
    named = os.environ.get("LUCA_KUBERAY_SCHEMAS")
    folder = Path(named) if named else Path(__file__).parents[3] / "shared" / "kuberay"
    return folder if folder.is_dir() else None


def load_schema(kind: str) -> dict[str, Any]:
    folder = schema_folder()
    assert folder is not None
    with gzip.open(folder / FILES[kind], "rt", encoding="utf-8") as file:
        schema: dict[str, Any] = json.load(file)
    return schema


def strict(schema: Any) -> Any:
    """A Kubernetes structural schema as JSON Schema: unknown keys refused, k8s extensions translated."""
    if isinstance(schema, list):
        return [strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        result["type"] = ["integer", "string"]
    elif schema.get("nullable") and isinstance(schema.get("type"), str):
        result["type"] = [schema["type"], "null"]
    properties = schema.get("properties")
    closed = not schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(properties, dict) and "type" in schema and closed:
        result.setdefault("additionalProperties", False)
    return result


def with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """What the API server does first: fill in the schema's defaults."""
    if isinstance(value, dict):
        filled = dict(value)
        for key, below in schema.get("properties", {}).items():
            if key in filled:
                filled[key] = with_defaults(filled[key], below)
            elif "default" in below:
                filled[key] = copy.deepcopy(below["default"])
        return filled
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [with_defaults(entry, schema["items"]) for entry in value]
    return value


def schema_problems(document: dict[str, Any]) -> list[str]:
    """All violations, each with its place."""
    import jsonschema

    schema = load_schema(document["kind"])
    open_schema = strict(schema)
    open_schema["properties"]["metadata"] = {"type": "object"}
    validator = jsonschema.Draft7Validator(open_schema)
    filled = with_defaults(document, schema)
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"
        for error in validator.iter_errors(filled)
    ]
