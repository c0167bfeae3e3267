"""The keys of `summary.json`, read from the classes: `python -m squall.analysis.report.keys` prints them."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from squall.analysis.report.summary_file import Summary

_HEAD = """# The keys of summary.json

`Summary.from_json` reads the file. A key has the unit that its name ends with. Where a type says None, the run has not
what the figure is made of, or the figure is no finite number (`not_finite` then names it). What is in `metrics` has its
formulas and sources in docs/metrics.md, `findings` and `self_checks` are described in docs/diagnosis.md.
"""


def records(kind: Any) -> Iterator[type]:
    """The record classes that a type is made of, each once, the outer before the inner."""
    seen: dict[type, None] = {}

    def visit(one: Any) -> None:
        if isinstance(one, type) and names_of(one):
            if one in seen:
                return
            seen[one] = None
            hints = get_type_hints(one)
            for name in names_of(one):
                visit(hints[name])
        for inner in get_args(one):
            visit(inner)

    visit(kind)
    return iter(seen)


def names_of(kind: Any) -> tuple[str, ...]:
    """Fields of a dataclass or a named tuple; none of anything else."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return tuple(getattr(kind, "_fields", ()))


def markdown() -> str:
    """A page with a heading and a table for each class, the summary first."""
    return "\n".join([_HEAD, *(_section(one) for one in records(Summary))])


def _section(record: type) -> str:
    told = " ".join((inspect.getdoc(record) or "").split())
    where = record.__module__.removeprefix("squall.").replace(".", "/") + ".py"
    hints = get_type_hints(record)
    rows = [f"| `{name}` | {_type_text(kind)} |" for name, kind in _keys(record, hints)]
    return "\n".join(
        [f"## {record.__name__}", "", f"{told} (`{where}`)", "", "| key | type |", "|---|---|", *rows, ""]
    )


def _keys(record: Any, hints: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in names_of(record):
        yield name, hints[name]
    for name in getattr(record, "STATED", ()):
        yield name, get_type_hints(getattr(record, name).fget)["return"]


def _type_text(kind: Any) -> str:
    """`Mapping[str, Part] | None` as people read it: without modules, a bar escaped for the table."""
    text = re.sub(r"\b[a-z][\w.]*\.(?=[A-Z])", "", inspect.formatannotation(kind))
    return f"`{text}`".replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(markdown())
