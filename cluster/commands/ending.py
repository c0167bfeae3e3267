"""How a command ends: its exit codes, its last line on stderr, and what a signal makes of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

import typer

from squall.cluster.interrupts import Interrupts
from squall.scenarios.foreign_text import printable

EXIT_ERROR = 1
EXIT_INVALID = 3
EXIT_UNDECIDED = 4
EXIT_BROKEN = 99
"""A promise of the scenario is broken; k6 ends so too."""


def fail(text: str, exit_code: int = EXIT_ERROR) -> NoReturn:
    """Ends the process with one line on stderr."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"squall: {printable(text)}\n")
    sys.exit(exit_code)


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Ends the command with one line that names the signal, where one broke in."""
    interrupts = Interrupts()
    try:
        with interrupts:
            yield interrupts
    except KeyboardInterrupt:
        fail(f"interrupted by {interrupts.name}")


def end_by_promises(verdicts: Sequence[str]) -> None:
    """Ends the command with the exit code of what became of promises; returns where all were kept."""
    from squall.analysis.compare.figures import BROKEN, INVALID, KEPT, worst_verdict

    verdict = worst_verdict(verdicts)
    if verdict != KEPT:
        raise typer.Exit({INVALID: EXIT_INVALID, BROKEN: EXIT_BROKEN}.get(verdict, EXIT_UNDECIDED))
