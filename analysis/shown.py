"""Text that somebody else may have written, as screens, XML, HTML and Markdown show it: nothing in it is a command to a
terminal, or markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from squall.scenarios.foreign_text import escaped, printable

FORMULA = r"\A[=+\-@\t\r]"
"""How a text begins that a spreadsheet takes for a formula."""
_HARMLESS = "\n\N{NO-BREAK SPACE}"
_MARKDOWN = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])|^#|^[+-](?= )")
"""What begins or ends markup; `_` does at the edge of a word alone, the last two in front of a line."""


def escaped_lines(text: str) -> str:
    """`text` with control characters written as their escapes, but for line ends. XML can hold all of what is left."""
    if text.isprintable():
        return text
    return "".join(one if one in _HARMLESS else escaped(one) for one in text)


def html_text(text: str) -> str:
    """`text` as the content of an element, or as plotly takes it, which reads tags in all that it is given; a line end
    is `<br>`."""
    return escape(escaped_lines(text), quote=False).replace("\n", "<br>")


def markdown_text(text: str) -> str:
    """`text` on one line, as GitHub's Markdown shows it in a paragraph, a list, a heading or a cell of a table."""
    return _MARKDOWN.sub(r"\\\g<0>", escape(printable(text), quote=False))


def markdown_row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(markdown_text, cells))} |"
