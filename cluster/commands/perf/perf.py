"""`squall perf`: perf_analyzer's command line, run as scenarios of squall."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from squall.cluster.commands.ending import interruptible
from squall.cluster.commands.printed import say

if TYPE_CHECKING:
    from squall.cluster.commands.perf.asked import Asked
    from squall.cluster.commands.perf.search import Search
    from squall.cluster.commands.perf.served import Place, Served

UNREAD = {"ignore_unknown_options": True, "help_option_names": []}
"""Settings of the command: every word reaches `perf`, which reads them as perf_analyzer does."""


def perf(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="perf_analyzer's flags: squall perf --help.", metavar="[FLAG]..."),
    ] = None,
) -> None:
    """perf_analyzer's flags, run by squall: the same table, CSV and JSON."""
    from squall.cluster.commands.perf.flags import help_text, parse

    typed = parse(words or [])
    if not typed or "help" in typed:
        typer.echo(help_text())
        return
    if "version" in typed:
        from importlib.metadata import version

        typer.echo(f"squall {version('squall')}, with the flags of perf_analyzer 2.60")
        return
    from squall.cluster.commands.perf.asked import asked_of
    from squall.cluster.commands.perf.honoured import asked_of_model, notes, refuse, refuse_model
    from squall.cluster.commands.perf.served import ask, place_of

    refuse(typed)
    asked = asked_of(typed)
    place = place_of(asked)
    served = ask(asked, place)
    refuse_model(typed, asked, served)
    asked = asked_of_model(typed, asked, served)
    for line in notes(typed, asked, served):
        say(f"squall {line}", on_stderr=True)
    _search(asked, place, served)


def _search(asked: Asked, place: Place, served: Served) -> None:
    from squall.cluster.commands.perf.honoured import refuse_payload
    from squall.cluster.commands.perf.saved import first_load, levels_text, scenario_text
    from squall.cluster.commands.perf.search import Search, settings_lines
    from squall.cluster.driver.run import run_scenario
    from squall.cluster.measured import Measurer, write_text
    from squall.cluster.progress import Screen
    from squall.cluster.remote.session import shared_sessions

    screen = Screen()
    with interruptible() as interrupts, _folder(asked) as folder, shared_sessions():
        measurer = Measurer(folder, asked.ray, interrupts, run_scenario, screen)
        search = Search(asked, place, served, measurer, say, screen.step)
        refuse_payload(asked, search.scenario(first_load(search)), served)
        if asked.save_scenario is not None:
            write_text(asked.save_scenario, scenario_text(search))
        for line in settings_lines(asked):
            say(line)
        if asked.is_dry:
            screen.step(levels_text(asked))
            return
        _run(search)
        if asked.out is not None:
            screen.step(f"runs: {folder}")
    if search.exit_code:
        raise typer.Exit(search.exit_code)


def _run(search: Search) -> None:
    """Also after a Ctrl-C or a run that failed what was measured is told and written."""
    try:
        search.run()
    finally:
        search.write()


@contextlib.contextmanager
def _folder(asked: Asked) -> Iterator[Path]:
    """Where the runs go: kept in --out; else removed, unless one failed, whose place has been told."""
    from squall.cluster.measured import folder_of_runs
    from squall.scenarios.fields import slug

    if asked.out is not None and not asked.is_dry:
        yield folder_of_runs(asked.out, slug(asked.model), "perf")
        return
    folder = Path(tempfile.mkdtemp(prefix="squall-perf-"))
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()  # nothing was run
        raise
    shutil.rmtree(folder, ignore_errors=True)
