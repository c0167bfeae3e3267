"""Every table and column of a run directory: name, type, unit and meaning. The one definition of each.

Instants are int64 ns on the run clock (UTC ns of the driver); spans are int64 ns; ratios 0-1; sizes bytes.
`python -m squall.analysis.schema` prints them, and every key of manifest.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

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
from squall.analysis.tables.document import KINDS, LEFT_OUT, Entry, With, entries
from squall.analysis.tables.load import HUNG_UP, OUTCOME_CODE, OUTCOMES
from squall.analysis.tables.manifest import Manifest

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
        lines += [f"| {_key(one)} | {_kind(one.stated)} | {one.meaning} |" for one in entries(section)]
    return lines


def sections(root: type) -> list[type]:
    """`root` and every section within it, once, in the order of the fields."""
    found = [root]
    for section in found:
        for one in (one for entry in entries(section) for one in _within(entry.type)):
            if one not in found:
                found.append(one)
    return found


def _within(type_: Any) -> Iterator[type]:
    if isinstance(type_, type) and (is_dataclass(type_) or hasattr(type_, "model_fields")):
        yield type_
    for one in get_args(type_):
        yield from _within(one)


def _key(one: Entry) -> str:
    may_be_absent = LEFT_OUT in one.marks or any(isinstance(mark, With) for mark in one.marks)
    return "others" if one.is_rest else f"`{one.name}`{'?' if may_be_absent else ''}"


def _kind(type_: Any) -> str:
    arguments = get_args(type_)
    if get_origin(type_) in (Union, UnionType):
        *_, inner = (one for one in arguments if one is not NoneType)
        return f"{_kind(inner)}, or null"
    if get_origin(type_) is tuple:
        return f"list of {_kind(arguments[0])}"
    if arguments:
        return f"by name: {_kind(arguments[1])}"
    if type_ is Any:
        return "any"
    return KINDS[type_][0].removeprefix("a ") if type_ in KINDS else str(type_.__name__)


if __name__ == "__main__":
    print(markdown(), end="")
