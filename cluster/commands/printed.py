"""What a command prints on stdout: JSON, or a screen as wide as the terminal lets text be read."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from squall.scenarios.foreign_text import kept_header

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from squall.analysis.summary.summary_file import Summary

NARROWEST, WIDEST = 80, 140
"""Tables of figures take 80 columns; a line of text beyond 140 is hard to read."""
_HEADER = re.compile(
    r"(?:(?:-H|--header)[ =]?|(?:--set(?:-[ab])?=)?clients\.headers\.)(?P<name>[A-Za-z0-9_.-]+)\s*[:=](?P<value>.*)",
    re.DOTALL,
)
"""An argument that names a header and its value."""
_BLANKS = re.compile(r" +(?=(?:\x1b\[[0-9;]*m)*$)", re.MULTILINE)


def typed() -> str:
    """The command as it was typed, quoted for a shell: what makes a result again; but for values of headers, which may
    be secrets."""
    shown = ["squall"]
    for before, argument in zip(sys.argv, sys.argv[1:], strict=False):
        whole = f"{before} {argument}" if before in ("-H", "--header") else argument
        found = _HEADER.fullmatch(whole)
        if found is None:
            shown.append(argument)
            continue
        front = argument[: len(argument) - len(found["value"])]
        shown.append(front + kept_header(found["name"], found["value"].strip()))
    return shlex.join(shown)


def print_result(result: Mapping[str, Any], render: Callable[[int], RenderableType], as_json: bool) -> None:
    """Prints `result` as JSON, or what `render` makes of it for a width: the terminal's, between 80 and 140 columns;
    80 where there is none."""
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    from rich.console import Console

    sys.stdout.write(screen_text(Console(highlight=False), render))
    sys.stdout.flush()


def print_summary(summary: Summary | None, where: str, as_json: bool) -> None:
    """Prints the summary of a run; nothing of a run without requests, which has none."""
    if summary is None:
        return

    def screen(width: int) -> RenderableType:
        from squall.analysis.render.screen import render

        return render(summary, where, width)

    print_result(summary.to_json(), screen, as_json)


def screen_text(console: Console, render: Callable[[int], RenderableType]) -> str:
    """A screen as text, with the colours that `console` has, without blanks behind its lines."""
    width = max(NARROWEST, min(console.width, WIDEST))
    with console.capture() as captured:
        console.print(render(width), width=width)
    return _BLANKS.sub("", captured.get())
