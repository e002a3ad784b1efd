"""A validation error as one sentence: the field, what was found, and the nearest valid name for a misspelt key."""

from __future__ import annotations

import difflib
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

_MEMBER = re.compile(
    r"(constrained-|function-|literal\[|list\[|tuple\[|dict\[).*|int|float|str|bool|none"
)
"""How pydantic calls a member of a union in a location; the key before it is what the user wrote."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxlevel = 3


def explain(error: ValidationError, model: type[BaseModel], where: str) -> str:
    """The first problem of a validation as one sentence, with the nearest valid name for a misspelt key."""
    problems = error.errors(include_url=False)
    unknown = [p for p in problems if p["type"] == "extra_forbidden"]
    problem = (unknown or problems)[0]
    loc = _visible(problem["loc"], model)
    path = ".".join(loc)
    more = f" ({len(problems) - 1} more after this one)" if len(problems) > 1 else ""
    if problem["type"] == "extra_forbidden":
        siblings = sorted(set(_fields_at(problem["loc"][:-1], model)))
        everywhere = sorted(set(_all_paths(model)))
        return f"{where}: unknown key {path!r}{_suggest(path, loc[-1], siblings, everywhere)}{more}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if problem["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "input should be a mapping of settings"
    message = message[:1].lower() + message[1:] if message[:2].istitle() else message
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
    found_text = (
        "" if isinstance(problem["input"], Mapping) else f", found {_SHORT.repr(problem['input'])}"
    )
    return f"{where}: {path or 'the experiment'}: {message}{found_text}{more}"


def _suggest(path: str, key: str, siblings: Sequence[str], everywhere: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, siblings, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
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
