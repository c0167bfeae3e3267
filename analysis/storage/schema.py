"""Every table and column of a run directory: name, type, unit and meaning. The one definition of each.

Instants are int64 ns on the run clock (UTC ns of the driver); spans are int64 ns; ratios 0-1; sizes bytes.
`python -m squall.analysis.storage.schema` prints them, and every key of manifest.json.
"""

from __future__ import annotations

import inspect
import re
from functools import cache

import pyarrow as pa

from squall.actors.sampling import sampled
from squall.analysis.columns import (
    INSTANT,
    NO_DEVICE,
    SCHEMA_VERSION,
    TEXT,
    PhaseAt,
    PhaseFrom,
    Table,
)
from squall.analysis.storage import derived, load, locust, node, nsys, probes, server
from squall.analysis.storage.load import HUNG_UP, OUTCOME_CODE, OUTCOMES
from squall.scenarios.records import Record

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
    *sampled.TABLES,
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
        kind = f"derived by `{table.made_in}`: `squall analyze` makes it again" if table.is_derived else "raw"
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
    from squall.analysis.storage.manifest import Manifest

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
        lines += ["| key | type | meaning |", "|---|---|---|"]
        lines += [_key_line(section, name, meaning) for name, meaning in meanings(section).items()]
    return lines


def sections(root: type[Record]) -> list[type[Record]]:
    """`root` and every section within it, once, in the order of the fields."""
    known = {section.__name__: section for section in Record.__subclasses__()}
    found = [root]
    for section in found:
        names = re.findall(r"\w+", " ".join(section.__annotations__.values()))
        found += [known[name] for name in dict.fromkeys(names) if name in known and known[name] not in found]
    return found


def meanings(section: type[Record]) -> dict[str, str]:
    """What each field of a record means: the text below it in the source."""
    texts = re.findall(r'\n    (\w+): .*\n    """((?:.|\n)+?)"""', inspect.getsource(section))
    return {name: " ".join(text.split()) for name, text in texts}


_JSON = {"Listed": "list", "Mapping": "dict", "Int": "int", "Float": "float", "Name": "str", "SubPath": "str"}
"""Types of fields, as a reader of the JSON knows them."""


def _key_line(section: type[Record], name: str, meaning: str) -> str:
    stated = section.__annotations__[name]
    type_ = re.sub(r"^Led\[(.*)\]$|^LeftOut\[(.*?)(?: \| None)?\]$", r"\1\2", stated)
    key = "others" if name == section.REST else f"`{name}`{'' if type_ == stated else '?'}"
    shown = re.sub(r"\w+", lambda word: _JSON.get(word[0], word[0]), type_).replace("|", "\\|")
    return f"| {key} | `{shown}` | {meaning} |"


if __name__ == "__main__":
    print(markdown(), end="")
