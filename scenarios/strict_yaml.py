"""YAML text to plain Python values, without its traps.

A key given twice is an error, and plain scalars follow the YAML 1.2 core schema (section 10.3.2), so that
`nsys: off` is the text "off", `1:30` is not 90, a date stays a text and `1e3` is a number.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from squall.scenarios.errors import ScenarioError

MOST_VALUES = 1_000_000
"""Of a document, its keys among them, each use of an alias counted: ten lines of aliases of aliases are billions."""


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2, unique keys, and parts of its own for each use of an alias, so that a
    change of one changes no other."""

    # Emptied here, so that `add_implicit_resolver` below fills a dictionary of this class only.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_document(self, node: Any) -> Any:
        """The value of the whole document, once it is known how many values that has."""
        _count_values(node, {})
        return super().construct_document(node)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """The value of the node, whole and new."""
        del deep
        if node in self.recursive_objects:
            raise _fault(node, "an alias (*name) refers to a part that holds it")
        self.constructed_objects.pop(node, None)
        return super().construct_object(node, deep=True)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Keys as their texts; `<<` is a key like any other and nothing is merged."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _fault(key_node, "a key must be a text")
            if key_node.value in seen:
                raise _fault(key_node, f"the key {key_node.value!r} is given twice")
            seen.add(key_node.value)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}


def _count_values(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Returns how many values the node has written out, itself and keys among them; `known` has those of other nodes.

    A part that holds itself ends the count there: `construct_object` refuses it. Raises above `MOST_VALUES`.
    """
    if node not in known:
        known[node] = 0
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[node] = 1 + sum(_count_values(part, known) for part in parts)
        if known[node] > MOST_VALUES:
            raise _fault(node, f"more than {MOST_VALUES:,} values, aliases (*name) written out")
    return known[node]


def _fault(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
):
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(rf"^(?:{_pattern})$"),
        ["" if c == "\0" else c for c in _first],
    )


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))  # SafeLoader's own reads 010 as octal, as YAML 1.1 did


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def parse_yaml(text: str, origin: str) -> Any:
    """Value of the one document in `text`, None if empty. Raises ScenarioError with line and column."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        problem = " ".join((error.problem or error.context or "not YAML").split())
        raise ScenarioError(f"{origin}: {place}{problem}") from error
    except RecursionError as error:
        raise ScenarioError(f"{origin}: lists and mappings are nested too deep") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ScenarioError(f"{origin}: {' '.join(str(error).split())}") from error


class _StrictDumper(yaml.SafeDumper):
    """SafeDumper that quotes what `_StrictLoader` would read as another value."""

    yaml_implicit_resolvers = _StrictLoader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        """Parts that are equal are written out."""
        del data
        return True


def yaml_text(mapping: dict[str, Any]) -> str:
    """YAML that `parse_yaml` reads back as an equal value: keys in their order, short parts on one line."""
    return str(
        yaml.dump(
            mapping,
            Dumper=_StrictDumper,
            sort_keys=False,
            default_flow_style=None,
            allow_unicode=True,
            width=100,
        )
    )
