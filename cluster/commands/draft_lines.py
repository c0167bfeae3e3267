"""Lines of a scenario file, each with the comment that says why it is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from squall.scenarios.records import Frozen

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./:-]*(?<!:)")
_WORDS = ("true", "false", "null")
_WIDEST = 44
"""Comments of longer lines stand further to the right."""


class Line(Frozen):
    """`text` with its indentation; without it `why` is a comment by itself."""

    text: str
    why: str = ""


def scalar(text: str) -> str:
    """The text as YAML 1.2 reads it back, on one line: quoted where it would be anything else than itself."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in quoted)


def written(lines: Iterable[Line]) -> str:
    """The file: its comments begin at one column, but for long lines."""
    listed = list(lines)
    column = max((len(line.text) for line in listed if len(line.text) <= _WIDEST), default=0)
    return "".join(f"{_written(line, column)}\n" for line in listed)


def _written(line: Line, column: int) -> str:
    if not line.why:
        return line.text
    return f"{line.text:<{column}}  # {line.why}" if line.text else f"# {line.why}"
