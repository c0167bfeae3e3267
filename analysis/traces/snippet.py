"""A fit as a piece of a scenario file."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

WIDTH = 78


def snippet_text(scenario: Mapping[str, Any], comment: str) -> str:
    """`arrivals:` of a phase as YAML, at most 78 columns, with `comment` above it."""
    lines = [f"# {line}" for line in textwrap.wrap(comment, WIDTH - 2)]
    lines.append("arrivals:")
    lines += [line for key, value in scenario.items() for line in _entry(key, value)]
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name}: {_scalar(one)}" for name, one in value.items())
        return [f"  {key}: {{{inner}}}"]
    if isinstance(value, list | tuple):
        text = f"{key}: [{', '.join(_scalar(one) for one in value)}]"
        return textwrap.wrap(
            text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False
        )
    return [f"  {key}: {_scalar(value)}"]


def _scalar(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
