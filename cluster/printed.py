"""A screen on stdout: as wide as the terminal lets text be read, without blanks behind its lines."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from rich.console import Console, RenderableType

NARROWEST, WIDEST = 80, 140
"""Tables of figures take 80 columns; a line of text beyond 140 is hard to read."""
_BLANKS = re.compile(r" +(?=(?:\x1b\[[0-9;]*m)*$)", re.MULTILINE)


def print_screen(render: Callable[[int], RenderableType]) -> None:
    """Prints what `render` makes for a width: the terminal's, between 80 and 140 columns; 80 where there is none."""
    sys.stdout.write(screen_text(Console(highlight=False), render))
    sys.stdout.flush()


def screen_text(console: Console, render: Callable[[int], RenderableType]) -> str:
    """The same as text, with the colours that `console` has."""
    width = max(NARROWEST, min(console.width, WIDEST))
    with console.capture() as captured:
        console.print(render(width), width=width)
    return _BLANKS.sub("", captured.get())
