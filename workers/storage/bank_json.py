"""The JSON of a bank's files: canonical, sealed, and read with suspicion.

*Sealed* means: canonical JSON that carries the sha256 of the rest of itself, and is refused unless its bytes are
exactly what writing it again would give, so no byte of it can change unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from workers.errors import BankError, CorruptionError

JsonObject = dict[str, Any]
_T = TypeVar("_T")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def is_name(text: object) -> bool:
    """Whether this may stand in a path: 1 to 100 letters, digits, '.', '_', '-', the first no '.' or '-'."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def check_name(what: str, name: object) -> str:
    """The name itself when it may stand in a path.

    Raises:
        BankError: it is not 1 to 100 letters, digits, '.', '_' or '-', or starts with '.' or '-'.
    """
    if not isinstance(name, str) or not is_name(name):
        raise BankError(
            f"{what} {str(name)[:120]!r} is not a usable name: 1 to 100 of A-Z a-z 0-9 . _ - "
            "and neither '.' nor '-' first"
        )
    return name


def is_text(text: object) -> bool:
    """Whether this is one line that a terminal may show: a string without control characters."""
    return isinstance(text, str) and _CONTROL.search(text) is None


def is_digest(text: object) -> bool:
    """Whether this is a sha256 in lower-case hexadecimal."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def sha256(data: bytes | memoryview) -> str:
    """The digest by which the bank names bytes."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: object) -> bytes:
    """The one way this value is written as JSON: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def plain(what: str, value: Mapping[str, Any]) -> JsonObject:
    """A JSON object equal to ``value`` after a round trip (tuples become lists, keys become strings).

    Raises:
        BankError: it holds something that JSON does not, such as an array or NaN; ``what`` names the field.
    """
    try:
        result: JsonObject = json.loads(canonical(dict(value)))
    except (TypeError, ValueError) as error:
        raise BankError(
            f"{what} is not plain JSON ({error}): give strings, finite numbers, lists"
        ) from error
    return result


def seal(body: JsonObject) -> bytes:
    """The bytes of a sealed file: canonical JSON with a ``check`` over the rest, and a newline."""
    return canonical({**body, "check": sha256(canonical(body))}) + b"\n"


def unseal(data: bytes, where: str) -> JsonObject:
    """The body of a sealed file.

    Raises:
        CorruptionError: any byte differs from what was written.
    """
    value = parse_json(data, where)
    body = {key: item for key, item in value.items() if key != "check"}
    try:
        intact = seal(body) == data
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise CorruptionError(f"{where} is damaged: its content does not match its own check")
    return body


def parse_json(data: bytes, where: str) -> JsonObject:
    """A JSON object.

    Raises:
        CorruptionError: the bytes are not one.
    """
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{where} is damaged: it is not valid JSON") from error
    if not isinstance(value, dict):
        raise CorruptionError(f"{where} is damaged: it is not a JSON object")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


class Fields:
    """Reads the fields of one JSON object; anything missing, extra or of another type is corruption."""

    def __init__(self, value: object, where: str) -> None:
        self._where = where
        if not isinstance(value, dict):
            self._refuse("an object is missing")
        self._left: JsonObject = dict(value)

    def take(self, name: str, kind: type[_T]) -> _T:
        """A field of that type."""
        value = self._left.pop(name, None)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self._refuse(f"field '{name}' is missing or not a {kind.__name__}")
        return value

    def take_digest(self, name: str) -> str:
        """A sha256."""
        value = self._left.pop(name, None)
        if not is_digest(value):
            self._refuse(f"field '{name}' is not a sha256")
        return str(value)

    def take_size(self, name: str) -> int:
        """A whole number that is not negative."""
        value = self.take(name, int)
        if value < 0:
            self._refuse(f"field '{name}' is negative")
        return value

    def take_optional(self, name: str, kind: type[_T]) -> _T | None:
        """A field of that type, or None when it is null or missing."""
        if self._left.get(name) is None:
            self._left.pop(name, None)
            return None
        return self.take(name, kind)

    def finish(self) -> None:
        """Refuses fields that nobody asked for."""
        if self._left:
            self._refuse(f"unknown field '{min(self._left)[:80]}'")

    def _refuse(self, reason: str) -> NoReturn:
        raise CorruptionError(f"{self._where} is damaged or from a newer program: {reason}")
