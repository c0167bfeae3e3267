"""Text as a hostile server or run directory has it, put into whatever is shown, and what must not become of it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from typing import Any

HOSTILE = (
    "\x1b]0;x\x07\x1b[31m\x9b2J</script><script>alert(1)</script>|`*_x_*[a](javascript:x)\u202e\x00\x7f]]>"
    "[red]b[/][/x]:smile:<a href=javascript:x onclick='y'>&\"'$\\frac{$\n# c"
)
"""Commands to a terminal, tags, an end of CDATA, Markdown, rich's markup and TeX."""


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of records, mappings and sequences in which `change` was made of every text, whatever their types say."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {changed(key, change): changed(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        each_changed = [changed(each, change) for each in value]
        return type(value)(*each_changed) if hasattr(value, "_fields") else type(value)(each_changed)
    if not type(value).__module__.startswith("squall."):
        return value
    found = copy.copy(value)
    for name, each in vars(value).items():
        object.__setattr__(found, name, changed(each, change))
    return found


def renamed(value: Any, words: str, name: str) -> Any:
    """`value` with `name` before each of the words that `words`, an expression, finds in its texts."""
    return changed(value, lambda text: re.sub(rf"\b({words})\b", lambda found: f"{name}{found[0]}", text))


def control_characters(text: str) -> set[str]:
    """Those that a terminal could obey, or that turn text round."""
    return {one for one in text if not one.isprintable() and one not in "\n\N{NO-BREAK SPACE}"}


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}",))


def elements(page: str) -> list[tuple[str, ...]]:
    """Tags of a page in their order, each with the names of its attributes."""
    parser = _Elements()
    parser.feed(page)
    parser.close()
    return parser.found


def without_plotly(page: str) -> str:
    """The page without the library's own code."""
    return re.sub(r"<script>/\*\*.*?</script>", "", page, count=1, flags=re.DOTALL)
