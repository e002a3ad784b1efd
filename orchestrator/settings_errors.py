"""A validation error as one sentence: the field, what was found, and the nearest valid name for a misspelt key."""

from __future__ import annotations

import datetime
import difflib
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from orchestrator.yaml_text import parse_yaml
from workers.errors import SettingsError

_MEMBER = re.compile(
    r"(constrained-|function-|literal\[|list\[|tuple\[|dict\[).*|int|float|str|bool|none"
)
"""How pydantic calls a member of a union in a location; the key before it is what the user wrote."""

_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of settings",
    "model_type": "a mapping of settings",
    "model_attributes_type": "a mapping of settings",
}
"""Pydantic's complaints about a type, in the words of YAML rather than of Python."""

_SHOULD_BE = "Input should be "

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxlevel = 3


@dataclass(frozen=True)
class Override:
    """One ``-o key=value``: the key's parts, the value as YAML has it, and both as they were written."""

    path: Sequence[str]
    value: Any
    text: str

    def sets(self, loc: Sequence[str]) -> bool:
        """Whether the value at this place is, or holds, what was given here."""
        if len(self.path) > len(loc):
            return list(self.path[: len(loc)]) == list(loc)
        if list(loc[: len(self.path)]) != list(self.path):
            return False
        value = self.value
        for part in loc[len(self.path) :]:
            if not isinstance(value, Mapping):
                break
            if part not in value:
                return False
            value = value[part]
        return True


def explain(
    error: ValidationError,
    model: type[BaseModel],
    where: str,
    overrides: Sequence[Override] = (),
) -> str:
    """The first problem of a validation as one sentence, with the nearest valid name for a misspelt key.

    ``overrides`` were laid over what ``where`` names: the last that set the faulty field is named instead of it.
    """
    problems = error.errors(include_url=False)
    unknown = [p for p in problems if p["type"] == "extra_forbidden"]
    problem = (unknown or problems)[0]
    loc = _visible(problem["loc"], model)
    path = ".".join(loc)
    where = _origin(problem, loc, where, overrides)
    more = f" ({len(problems) - 1} more after this one)" if len(problems) > 1 else ""
    if problem["type"] == "extra_forbidden":
        siblings = sorted(set(_fields_at(problem["loc"][:-1], model)))
        everywhere = sorted(set(_all_paths(model)))
        return f"{where}: unknown key {path!r}{_suggest(path, loc[-1], siblings, everywhere)}{more}"
    if problem["type"] == "missing":
        return f"{where}: {path!r} is missing and has no default{more}"
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        context = problem.get("ctx", {})
        key = str(context.get("discriminator", "kind")).strip("'")
        known = str(context.get("expected_tags", ""))
        found = context.get("tag")
        if found is None:
            options = f" ({known})" if known else ""
            return f"{where}: {path}.{key} is missing: say which one{options}{more}"
        near = difflib.get_close_matches(str(found), [k.strip(" '") for k in known.split(",")], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{where}: {path}.{key} is {found!r}; known are {known}{hint}{more}"
    # A field that may be of several types has one problem for each of them.
    same = [
        other
        for other in problems
        if other["input"] is problem["input"] and _visible(other["loc"], model) == loc
    ]
    rest = len(problems) - len(same)
    more = f" ({rest} more after this one)" if rest else ""
    return f"{where}: {path or 'the experiment'}: {_complaint(same)}{more}"


def _origin(problem: Any, loc: Sequence[str], where: str, overrides: Sequence[Override]) -> str:
    """What to blame for a problem: an override, or else ``where``."""
    if problem["type"].startswith("union_tag_"):
        loc = [*loc, str(problem.get("ctx", {}).get("discriminator", "kind")).strip("'")]
    for override in reversed(overrides):
        # What several keys below contradict each other about is nobody's fault alone.
        beyond = problem["type"] == "value_error" and len(override.path) > len(loc)
        if loc and not beyond and override.sets(loc):
            return f"-o {override.text if len(override.text) <= 80 else f'{override.text[:77]}...'}"
    return where


def _complaint(problems: Sequence[Any]) -> str:
    """What is wrong with one value: what it should be, in any of the ways that would do, and what was found."""
    kind, found = problems[0]["type"], problems[0]["input"]
    wanted = [_WANTED.get(problem["type"]) or problem["msg"] for problem in problems]
    if all(p["type"] in _WANTED or p["msg"].startswith(_SHOULD_BE) for p in problems):
        ways = dict.fromkeys(text.removeprefix(_SHOULD_BE) for text in wanted)
        message = f"input should be {' or '.join(ways)}"
    else:
        message = (
            problems[0]["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        )
        message = message[:1].lower() + message[1:] if message[:2].istitle() else message
    found_text = "" if isinstance(found, Mapping) else f"found {_as_written(found)}"
    if found_text:  # our own sentences have a second half, or end as a question
        found_text = f" ({found_text})" if kind == "value_error" else f", {found_text}"
    return f"{message}{found_text}{_advice(kind, found)}"


def _as_written(value: Any) -> str:
    """A value as YAML would have it, cut when it is long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, datetime.date):
        return value.isoformat()
    return _SHORT.repr(value)


def _advice(kind: str, found: Any) -> str:
    """How to write what was probably meant, where a value has another type than its field."""
    if kind == "string_type" and isinstance(found, (bool, int, float, datetime.date)):
        return " (put text in quotes)"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(found, str):
        try:
            meant = parse_yaml(found)
        except SettingsError:
            return ""
        number = isinstance(meant, (int, float)) and not isinstance(meant, bool)
        if number if kind != "bool_type" else isinstance(meant, bool):
            return " (write it without quotes)"
    if kind in ("list_type", "tuple_type") and isinstance(found, str):
        return f" (one value is written [{found}])"
    return ""


def _suggest(path: str, key: str, siblings: Sequence[str], everywhere: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, siblings, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    if path in everywhere:
        return f"; only other kinds of it have this key, known here: {', '.join(siblings)}"
    same = [p for p in everywhere if p.split(".")[-1] == key]
    if same:
        return f"; did you mean {same[0]!r}?"
    others = [p for p in everywhere if not path.startswith(f"{p}.")]
    far = difflib.get_close_matches(path, others, n=1, cutoff=0.6)
    if far:
        return f"; did you mean {far[0]!r}?"
    return f"; known here: {', '.join(siblings)}"


def _members(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every settings model that an annotation can hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType, list, tuple, dict):
        for part in get_args(annotation):
            yield from _members(part)


def _walk(
    loc: Iterable[int | str], model: type[BaseModel]
) -> tuple[list[type[BaseModel]], list[str]]:
    """The models at a location, and the location without the tags of discriminated unions."""
    current, visible = [model], []
    for part in loc:
        owners = [m for m in current if isinstance(part, str) and part in m.model_fields]
        if owners:
            visible.append(str(part))
            current = [m for o in owners for m in _members(o.model_fields[str(part)].annotation)]
        elif isinstance(part, str) and any(part in _tags(m) for m in current):
            current = [m for m in current if part in _tags(m)]
        elif isinstance(part, str) and visible and _MEMBER.fullmatch(part):
            continue
        else:
            visible.append(str(part))
    return current, visible


def _tags(model: type[BaseModel]) -> set[str]:
    """The values a model's discriminating Literal field can take, and its class name."""
    tags = {model.__name__}
    for field in model.model_fields.values():
        if get_origin(field.annotation) is typing.Literal:
            tags.update(str(value) for value in get_args(field.annotation))
    return tags


def _visible(loc: Iterable[int | str], model: type[BaseModel]) -> list[str]:
    return _walk(loc, model)[1]


def _fields_at(loc: Iterable[int | str], model: type[BaseModel]) -> list[str]:
    return [name for m in _walk(loc, model)[0] for name in m.model_fields]


def _all_paths(model: type[BaseModel], prefix: str = "", depth: int = 4) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        if depth:
            for member in _members(field.annotation):
                yield from _all_paths(member, f"{prefix}{name}.", depth - 1)
