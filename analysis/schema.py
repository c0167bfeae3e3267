"""Every table and column of a run directory: name, type, unit and meaning. The one definition of each.

Instants are int64 ns on the run clock (UTC ns of the driver); spans are int64 ns; ratios 0-1; sizes bytes.
`python -m squall.analysis.schema` prints them, and every key of manifest.json.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from squall.analysis.tables import derived, load, locust, node, nsys, probes, server
from squall.analysis.tables.columns import (
    INSTANT,
    NO_DEVICE,
    SCHEMA_VERSION,
    TEXT,
    PhaseAt,
    PhaseFrom,
    Table,
)
from squall.analysis.tables.load import HUNG_UP, OUTCOME_CODE, OUTCOMES
from squall.scenarios.records import LED, LEFT_OUT, Record

__all__ = [
    "HUNG_UP",
    "INSTANT",
    "NO_DEVICE",
    "OUTCOMES",
    "OUTCOME_CODE",
    "SCHEMA_VERSION",
    "TABLES",
    "TEXT",
    "arrow_schema",
    "markdown",
]

_TABLES = (
    *load.TABLES,
    *locust.TABLES,
    *derived.TABLES,
    *server.TABLES,
    *node.TABLES,
    *nsys.TABLES,
    *probes.TABLES,
)
TABLES: dict[str, Table] = {table.name: table for table in _TABLES}


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Arrow schema of `table`. Raises KeyError for a name that is not in `TABLES`."""
    return TABLES[table].arrow()


def markdown() -> str:
    """A page of every table and column, and of every key of manifest.json."""
    lines = [
        "# Tables of a run",
        "",
        "Unit `instant` is int64 ns on the run clock: UTC ns of the driver. Every file carries unit and",
        "meaning of each column in its Parquet metadata. A table whose source was not there is absent.",
        "",
        "Phases are half-open in time; a row outside all of them has an empty `phase`.",
    ]
    for table in _TABLES:
        kind = "derived: `squall analyze` makes it again" if table.is_derived else "raw"
        lines += [
            "",
            f"## `{table.name}`",
            "",
            f"One row per {table.row} ({kind}). {_phase_rule(table.phase)}",
            "",
        ]
        lines += ["| column | type | unit | meaning |", "|---|---|---|---|"]
        for column in table.columns:
            null = ", null" if column.nullable else ""
            type_name = "text" if column.type == TEXT else str(column.type).replace("element: ", "")
            lines.append(f"| `{column.name}` | {type_name}{null} | {column.unit} | {column.meaning} |")
    return "\n".join([*lines, *_manifest_lines()]) + "\n"


def _phase_rule(phase: PhaseAt | PhaseFrom) -> str:
    """Which phase a row belongs to, in a sentence."""
    match phase:
        case PhaseAt(instant, only_measured):
            dropped = "; rows outside measured phases are dropped" if only_measured else ""
            return f"Phase: the one that holds `{instant}`{dropped}."
        case PhaseFrom(source):
            return f"Phase: that of {source}."


def _manifest_lines() -> list[str]:
    """A table for each section, the manifest's own first, each where it is first met."""
    from squall.analysis.tables.manifest import Manifest

    lines = [
        "",
        "# manifest.json",
        "",
        "Of a run directory: what ran, where, when, and the verdict; of a run killed before, what was known by then.",
        "`?`: a key that is absent while there is nothing to say.",
    ]
    for section in sections(Manifest):
        title = "manifest.json" if section is Manifest else section.__name__
        lines += ["", f"## {title}", "", str(section.__doc__).strip(), ""]
        lines += ["| key | what | meaning |", "|---|---|---|"]
        texts = meanings(section)
        for name, hint in get_type_hints(section, include_extras=True).items():
            if name in texts:
                lines.append(f"| {_key(section, name, hint)} | {_kind(hint)} | {texts[name]} |")
    return lines


def sections(root: type[Record]) -> list[type[Record]]:
    """`root` and every section within it, once, in the order of the fields."""
    found = [root]
    for section in found:
        for hint in get_type_hints(section).values():
            found += [one for one in _within(hint) if one not in found]
    return found


def _within(hint: Any) -> Iterator[type[Record]]:
    if isinstance(hint, type) and issubclass(hint, Record):
        yield hint
    for one in get_args(hint):
        yield from _within(one)


def meanings(section: type) -> dict[str, str]:
    """What each field of a record means: the text below it in the source."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _key(section: type[Record], name: str, hint: Any) -> str:
    may_be_absent = {LED, LEFT_OUT}.intersection(getattr(hint, "__metadata__", ()))
    return "others" if name == section.REST else f"`{name}`{'?' if may_be_absent else ''}"


_KINDS = {int: "whole number", float: "number", str: "text", bool: "truth value", Any: "any"}


def _kind(hint: Any) -> str:
    """What JSON has of a type, in words. One that is left out while it has its default is never null."""
    inner, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    arguments = [one for one in get_args(inner) if one is not NoneType]
    if get_origin(inner) in (Union, UnionType):
        return _kind(arguments[0]) + ("" if LEFT_OUT in marks else ", or null")
    if get_origin(inner) is tuple:
        return f"list of {_kind(arguments[0])}"
    if arguments:
        return f"by name: {_kind(arguments[1])}"
    return _KINDS.get(inner) or str(inner.__name__)


if __name__ == "__main__":
    print(markdown(), end="")
