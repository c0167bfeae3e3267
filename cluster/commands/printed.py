"""What a command prints on stdout: JSON, or a screen as wide as the terminal lets text be read."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from squall.analysis.shown import escaped_lines
from squall.scenarios.foreign_text import kept_headers

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    from squall.analysis.report.summary_file import Summary

NARROWEST, WIDEST = 80, 140
"""Tables of figures take 80 columns; a line of text beyond 140 is hard to read."""
_SECRET = re.compile(r"(?P<option>-H[ =]?|--header[ =]|--set(?:-[ab])?[ =])(?P<text>.*)", re.DOTALL)
"""An option that may hold the value of a header, and its text."""
_BLANKS = re.compile(r" +(?=(?:\x1b\[[0-9;]*m)*$)", re.MULTILINE)


def typed() -> str:
    """The command as it was typed, quoted for a shell: what makes a result again; but for values of headers, which may
    be secrets."""
    from squall.scenarios.config.overrides import kept_override

    shown = ["squall"]
    for before, argument in zip(sys.argv, sys.argv[1:], strict=False):
        is_value = before in ("-H", "--header", "--set", "--set-a", "--set-b")
        found = _SECRET.fullmatch(f"{before} {argument}" if is_value else argument)
        if found is None:
            shown.append(argument)
            continue
        text = found["text"]
        if found["option"].startswith("--set"):
            kept = kept_override(text)
        else:
            name, colon, value = text.partition(":")
            kept = f"{name}{colon}{kept_headers({name.strip(): value.strip()})[name.strip()]}"
        shown.append(argument.removesuffix(text) + kept)
    return shlex.join(shown)


def print_result(result: Mapping[str, Any], render: Callable[[int], RenderableType], as_json: bool) -> None:
    """Prints `result` as JSON, or what `render` makes of it for a width: the terminal's, between 80 and 140 columns;
    80 where there is none."""
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    print_screen(render)


def print_screen(render: Callable[[int], RenderableType], on_stderr: bool = False) -> None:
    """Prints what `render` makes of a width; see `print_result`. Square brackets and colons in texts are no markup."""
    from rich.console import Console

    console = Console(stderr=on_stderr, markup=False, emoji=False, highlight=False)
    stream = sys.stderr if on_stderr else sys.stdout
    stream.write(screen_text(console, render))
    stream.flush()


def say(text: str, on_stderr: bool = False) -> None:
    """Prints a line, or several, that may hold words of others."""
    typer.echo(escaped_lines(text), err=on_stderr)


def print_summary(summary: Summary | None, where: str, as_json: bool, is_verbose: bool = False) -> None:
    """Prints the summary of a run; nothing of a run without requests, which has none. `is_verbose`: all of it, not what
    decides alone."""
    if summary is None:
        return

    def screen(width: int) -> RenderableType:
        from squall.analysis.report.screen import render

        return render(summary, where, width, is_verbose)

    print_result(summary.to_json(), screen, as_json)


def screen_text(console: Console, render: Callable[[int], RenderableType]) -> str:
    """A screen as text, with the colours that `console` has, without blanks behind its lines; control characters in its
    content are escaped."""
    width = max(NARROWEST, min(console.width, WIDEST))
    with console.capture() as captured:
        console.print(_Escaped(render(width)), width=width)
    return _BLANKS.sub("", captured.get())


class _Escaped:
    """What `whole` renders to, where the styles are rich's and the text may be anybody's."""

    def __init__(self, whole: RenderableType) -> None:
        self._whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._whole, options):
            yield segment if segment.control else segment._replace(text=escaped_lines(segment.text))
