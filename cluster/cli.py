"""The command `squall`: which commands there are, and how it ends. Each stands in `cluster/commands/`."""

from __future__ import annotations

from typing import Annotated

import typer

from squall.actors.process.ending import leave
from squall.cluster.commands.analyze import analyze
from squall.cluster.commands.bundle import bundle
from squall.cluster.commands.decisions.capacity import capacity
from squall.cluster.commands.decisions.check import check
from squall.cluster.commands.decisions.compare import compare
from squall.cluster.commands.decisions.reproduce import reproduce
from squall.cluster.commands.decisions.sweep import sweep
from squall.cluster.commands.demo import demo
from squall.cluster.commands.deploy import deploy
from squall.cluster.commands.doctor import doctor
from squall.cluster.commands.ending import fail
from squall.cluster.commands.init import init
from squall.cluster.commands.inject import inject
from squall.cluster.commands.models import models_app
from squall.cluster.commands.perf.perf import UNREAD, perf
from squall.cluster.commands.report import report
from squall.cluster.commands.resume import resume
from squall.cluster.commands.run import run
from squall.cluster.commands.selftest import selftest
from squall.cluster.commands.sql import sql
from squall.cluster.commands.trace import trace_app
from squall.scenarios.errors import SquallError

_TYPER_INTERRUPTED = 130
"""What Typer makes of KeyboardInterrupt."""

app = typer.Typer(
    help="Replays bursty traffic against Triton servers, profiles them, joins every latency with its batch.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip
for command in (
    demo, init, run, check, sweep, capacity, compare, reproduce, doctor, inject, analyze, resume, report, sql,
    selftest, bundle, deploy,
):  # fmt: skip
    app.command()(command)
app.command(context_settings=UNREAD)(perf)
app.add_typer(models_app, name="models")
app.add_typer(trace_app, name="trace")


def _say_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"squall {version('squall')}")
        raise typer.Exit


@app.callback()
def _top(
    is_version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_say_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    del is_version


def main() -> None:
    """Entry point: every error and Ctrl-C is one line on stderr and an exit code."""
    try:
        _main()
    except SystemExit as done:
        if isinstance(done.code, int) or done.code is None:
            leave(done.code or 0)
        raise


def _main() -> None:
    try:
        app()
    except SquallError as error:
        fail(str(error), error.exit_code)
    except SystemExit as done:
        if done.code == _TYPER_INTERRUPTED:
            fail("interrupted")
        raise
    except KeyboardInterrupt:
        fail("interrupted")
    except MemoryError:
        fail(
            "out of memory: free some, or raise the limit (ulimit -v, the control group's); what was written is kept"
        )
    except Exception as error:  # the process's edge: a fault of ours
        if is_interruption(error):
            fail("interrupted")
        fail(f"internal error: {type(error).__name__}: {error}; traceback: {_keep_traceback()}")


def is_interruption(error: BaseException) -> bool:
    """Whether Ctrl-C broke into a library's import, which tells it as a failure of its own."""
    below = [one for one in (error.__cause__, error.__context__) if one is not None]
    return isinstance(error, KeyboardInterrupt) or any(is_interruption(one) for one in below)


def _keep_traceback() -> str:
    """Path of a file with the traceback of the current exception; its end where no file can be made."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="squall-error-", suffix=".txt", delete=False) as file:
            file.write(traceback.format_exc())
    except OSError:
        return traceback.format_exc().splitlines()[-3].strip()
    return file.name


if __name__ == "__main__":
    main()
