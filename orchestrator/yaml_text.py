"""YAML that people write and read: plain data only, no key twice, and every mistake told by line."""

from __future__ import annotations

import re
from typing import Any

import yaml

from workers.errors import SettingsError

# What PyYAML's constructors raise on text that looks like a number, date, set, ... and is none.
_NO_SUCH_VALUE = (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError)
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which neither keeps the last of equal keys nor lets Python's errors through."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except yaml.YAMLError:
            raise
        except _NO_SUCH_VALUE:
            kind = str(node.tag).rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"a value that is no {kind}; put quotes around text", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands there twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep=deep)


# Line ends beside the newline: PyYAML folds them to blanks unless the text around them stands in double quotes.
_OTHER_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


class Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which puts quotes around what :func:`parse_yaml` would read as something else."""

    def represent_text(self, text: str, style: str | None = None) -> yaml.ScalarNode:
        """A text in this style, or in double quotes if it would come back changed."""
        style = '"' if _OTHER_LINE_ENDS.search(text) else style
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(str, Dumper.represent_text)

# PyYAML reads 1e-3 as text, since YAML 1.1 wanted a dot in it; YAML 1.2, and everybody who writes one, means the number.
for _either in (_Loader, Dumper):
    _either.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"),
        list("-+0123456789"),
    )


def write_yaml(value: Any) -> str:
    """Plain data as a YAML text that :func:`parse_yaml` reads back, keys in their order."""
    text: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return text


def parse_yaml(text: str | bytes) -> Any:
    """The one document of a YAML text, as plain data.

    Raises:
        SettingsError: where (line and column) the text is no YAML, and why; the caller says in which file.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise SettingsError("not valid YAML: brackets or lists are nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None)
        if problem and r"'\t'" in problem:
            problem = "a tab where spaces are needed: use spaces"
        raise SettingsError(f"not valid YAML{where}: {problem or 'it cannot be parsed'}") from None
