"""A screen is as wide as the terminal lets it be read, and carries no blanks behind its lines."""

from __future__ import annotations

import io
import shlex

import pytest
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from squall.cluster.commands.printed import screen_text, typed


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


@pytest.mark.parametrize(
    "option",
    [
        "--set 'clients.headers={Authorization: Bearer s3cret}'",
        "--set='clients.headers={Authorization: Bearer s3cret}'",
        "--set 'clients={headers: {Authorization: Bearer s3cret}}'",
        "--set-a 'clients.headers={Authorization: Bearer s3cret}'",
        "--set-b='clients.headers={Authorization: Bearer s3cret}'",
        """--set "clients.headers.'X-Key'=s3cret" """,
        "--set clients.headers.Authorization='Bearer s3cret'",
        "-H 'Authorization: Bearer s3cret'",
        "-HAuthorization:s3cret",
        "--header='Authorization: s3cret'",
    ],
)
def test_the_command_is_kept_without_values_of_headers(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/squall", *shlex.split(f"check a.yaml {option} --set seed=3")])
    words = shlex.split(typed())
    assert words[:3] == ["squall", "check", "a.yaml"]
    assert words[-2:] == ["--set", "seed=3"]
    assert len(words) == len(shlex.split(option)) + 5
    assert "s3cret" not in typed()
    assert "${" in typed()
