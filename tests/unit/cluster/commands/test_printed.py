"""A screen is as wide as the terminal lets it be read, and carries no blanks behind its lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from squall.cluster.commands.printed import screen_text


@pytest.mark.parametrize(("terminal", "width"), [(60, 80), (80, 80), (120, 120), (200, 140)])
def test_the_width_is_the_terminals_within_bounds(terminal: int, width: int) -> None:
    seen: list[int] = []

    def render(given: int) -> Text:
        seen.append(given)
        return Text("")

    screen_text(Console(width=terminal, file=io.StringIO()), render)
    assert seen == [width]


@pytest.mark.parametrize("colours", [None, "truecolor"])
def test_no_line_ends_in_blanks_and_no_colour_is_lost(colours: str | None) -> None:
    table = Table.grid()
    table.add_column(width=40)
    table.add_row(Text("short", style="bold red"))
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=colours)  # type: ignore[arg-type]
    text = screen_text(console, lambda _: Group(table, Text("a  b ")))
    plain = [line for line in text.splitlines() if line]
    assert not any(line.endswith(" ") or " \x1b" in line for line in plain)
    assert "a  b" in text
    assert ("\x1b[1;31mshort" in text) == (colours is not None)
