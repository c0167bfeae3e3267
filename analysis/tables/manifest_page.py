"""The part of docs/schema.md on manifest.json, from its types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from squall.analysis.tables.document import KINDS, LEFT_OUT, Entry, With, entries
from squall.analysis.tables.manifest import Manifest


def manifest_lines() -> list[str]:
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
    if isinstance(type_, type) and is_dataclass(type_):
        yield type_
    for one in get_args(type_):
        yield from _within(one)


def _key(one: Entry) -> str:
    may_be_absent = LEFT_OUT in one.marks or any(isinstance(mark, With) for mark in one.marks)
    return "others" if one.is_rest else f"`{one.name}`{'?' if may_be_absent else ''}"


def _kind(type_: Any) -> str:
    arguments = get_args(type_)
    if get_origin(type_) in (Union, UnionType):
        (inner,) = (one for one in arguments if one is not NoneType)
        return f"{_kind(inner)}, or null"
    if get_origin(type_) is tuple:
        return f"list of {_kind(arguments[0])}"
    if arguments:
        return f"by name: {_kind(arguments[1])}"
    if type_ is Any:
        return "any"
    return KINDS[type_][0].removeprefix("a ") if type_ in KINDS else str(type_.__name__)
