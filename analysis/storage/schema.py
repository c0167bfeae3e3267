"""Every table and column of a run directory: name, type, unit and meaning. The one definition of each.

Instants are int64 ns on the run clock (UTC ns of the driver); spans are int64 ns; ratios 0-1; sizes bytes.
`python -m squall.analysis.storage.schema` prints them, and every key of manifest.json.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

import pyarrow as pa

from squall.actors.sampling import sampled
from squall.analysis.columns import (
    INSTANT,
    NO_DEVICE,
    SCHEMA_VERSION,
    TEXT,
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
    from jinja2 import Template

    from squall.analysis.storage.manifest import Manifest

    text = files("squall.analysis.storage").joinpath("schema.md.j2").read_text()
    template = Template(text, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    page: str = template.render(tables=_TABLES, sections=sections(Manifest), keys=_keys, TEXT=TEXT)
    return page


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


def _keys(section: type[Record]) -> Iterator[tuple[str, str, bool, str]]:
    """Name, type, whether it may be absent, and meaning of each key of a section."""
    for name, meaning in meanings(section).items():
        stated = section.__annotations__[name]
        type_ = re.sub(r"^Led\[(.*)\]$|^LeftOut\[(.*?)(?: \| None)?\]$", r"\1\2", stated)
        shown = re.sub(r"\w+", lambda word: _JSON.get(word[0], word[0]), type_).replace("|", "\\|")
        yield name, shown, type_ != stated, meaning


if __name__ == "__main__":
    print(markdown(), end="")
