"""A screen is as wide as the terminal lets it be read, and carries no blanks behind its lines."""

from __future__ import annotations

import io
import shlex
import sys

import numpy as np
import pytest
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from squall.actors.client_worker import Progress
from squall.cluster.commands.printed import print_result, print_screen, say, screen_text, typed
from squall.cluster.progress import Screen
from squall.scenarios.plan.plan import PhaseSpan
from tests.hostile_text import HOSTILE, control_characters


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


def test_words_of_others_reach_no_terminal_as_commands_nor_rich_as_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE, no_wrap=True)
    table.add_row("[red]a[/] [/x] :smile: [link=file:///x]b")
    print_screen(lambda _: Group(HOSTILE, table, Text(HOSTILE, style="bold")))
    print_screen(lambda _: HOSTILE, on_stderr=True)
    print_result({HOSTILE: HOSTILE}, lambda _: HOSTILE, as_json=True)
    say(HOSTILE)
    say(HOSTILE, on_stderr=True)
    for shown in capsys.readouterr():
        assert control_characters(shown) == set()
        assert "\\x1b]0;x\\x07\\x1b[31m\\x9b2J</script>" in shown
    print_screen(lambda _: table)
    assert "[red]a[/] [/x] :smile: [link=file:///x]b" in capsys.readouterr().out


def test_colours_are_ours_alone() -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    text = screen_text(console, lambda _: Text("\x1b[32mname", style="bold red"))
    assert text == "\x1b[1;31m\\x1b[32mname\x1b[0m\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_show_names_of_phases_and_reasons_of_failures_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    worker = Progress(9, 9, 9, 0, np.empty(0, np.int64), why_failed={"[/red]\x1b]0;x\x07": 9})
    with Screen() as screen:
        screen.show([PhaseSpan("[/x]\x1b]0;x\x07", "measure", 0, 10**9)], 1, [worker])
        screen.step(HOSTILE)
        screen.missing(HOSTILE, HOSTILE, HOSTILE)
    shown = terminal.getvalue()
    assert "[/x]\\x1b]0;x\\x07" in shown
    assert "most: [/red]\\x1b]0;x\\x07" in shown
    assert not {"\x07", "\x00", "\u202e", "\x9b"} & set(shown)
    assert "\x1b]" not in shown
