"""Experiments from presets and YAML files, with ``-o key=value`` overrides laid over them."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.experiment import Experiment, merge
from orchestrator.settings_errors import Override, explain
from orchestrator.yaml_text import parse_yaml
from workers.errors import SettingsError


def preset_names() -> list[str]:
    """The experiments shipped with the package."""
    folder = resources.files("orchestrator.presets")
    return sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml"))


def read_source(source: str) -> dict[str, Any]:
    """The raw mapping of a preset or a YAML file.

    Raises:
        SettingsError: there is no such preset or file, or it is not a YAML mapping.
    """
    if source in preset_names():
        text = (resources.files("orchestrator.presets") / f"{source}.yaml").read_text("utf-8")
    else:
        if os.path.isdir(source):
            raise SettingsError(
                f"{source!r} is a folder, not an experiment file: "
                f"`luca init {shlex.quote(source)}` writes an experiment file for the data in it"
            )
        if not os.path.isfile(source):
            near = difflib.get_close_matches(source, preset_names(), n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SettingsError(
                f"there is no experiment file or preset {source!r}: {hint}presets are "
                f"{', '.join(preset_names())}; `luca init` writes a file for your own data"
            )
        try:
            text = Path(source).read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{source}: the experiment file cannot be read ({error})") from None
    try:
        data = parse_yaml(text)
    except SettingsError as error:
        raise SettingsError(f"{source}: {error}") from None
    if not isinstance(data, dict):
        raise SettingsError(f"{source}: an experiment is a mapping of settings, found {kind(data)}")
    return data


def kind(value: object) -> str:
    """How a value read from YAML is called in a message."""
    names = {dict: "a mapping", list: "a list", str: "text", type(None): "nothing"}
    return names.get(type(value), f"{type(value).__name__} {value!r}")


def parse_override(text: str) -> tuple[list[str], Any]:
    """``key.sub=value`` as path and YAML-parsed value.

    Raises:
        SettingsError: no ``=``, an empty key, or a value that is not YAML.
    """
    key, separator, value = text.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or not all(path):
        raise SettingsError(f"-o {text!r}: write key=value, for instance -o seed=7")
    try:
        return path, parse_yaml(value)
    except SettingsError:
        raise SettingsError(f"-o {text!r}: the value {value!r} is not valid YAML") from None


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """``data`` with every ``-o key=value`` laid over it, in order."""
    for text in overrides:
        path, value = parse_override(text)
        nested: Any = value
        for part in reversed(path):
            nested = {part: nested}
        if isinstance(value, dict):
            data = merge(data, nested)
        else:
            data = merge(_without(data, path), nested)
    return data


def _without(data: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """A copy of ``data`` in which the value at ``path`` is gone, so that a scalar can replace it."""
    if path[0] not in data:
        return data
    if len(path) == 1:
        return {key: value for key, value in data.items() if key != path[0]}
    below = data[path[0]]
    if not isinstance(below, dict):
        return {key: value for key, value in data.items() if key != path[0]}
    return {**data, path[0]: _without(below, path[1:])}


def load_experiment(source: str = "demo", overrides: Sequence[str] = ()) -> Experiment:
    """Read, override and validate an experiment.

    Args:
        source: a preset's name or a path to a YAML file.
        overrides: ``key=value`` texts with dotted keys; values are YAML.

    Raises:
        SettingsError: one sentence about the first thing that is wrong.
    """
    data = apply_overrides(read_source(source), overrides)
    if "name" not in data and source not in preset_names():
        data["name"] = Path(source).stem
    return parse_experiment(data, where=source, overrides=overrides)


def parse_experiment(
    data: Mapping[str, Any], *, where: str = "experiment", overrides: Sequence[str] = ()
) -> Experiment:
    """Validate a mapping as an experiment.

    Args:
        data: with the overrides laid over it.
        where: what a message names as the place of a mistake.
        overrides: one of these is named instead, where the mistake is in it.

    Raises:
        SettingsError: one sentence about the first thing that is wrong.
    """
    try:
        return Experiment.model_validate(dict(data))
    except ValidationError as error:
        laid = [Override(*parse_override(text), text) for text in overrides]
        raise SettingsError(explain(error, Experiment, where, laid)) from None
