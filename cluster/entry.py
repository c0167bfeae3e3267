"""Where the command `squall` begins and ends: Ctrl-C is one line also before and after it can be handled in order."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from squall.actors.process.ending import end_at_once, end_without_destructors
from squall.actors.process.own_python import leave_out_pandas

ORDERLY = frozenset({"run", "demo", "doctor", "selftest", "analyze"})
"""Commands that take the signals themselves as soon as there is something to end in order."""


def main() -> None:
    """`squall.cluster.cli.main`, whose imports take a while, and the end of the process, when all has
    been said."""
    signal.signal(signal.SIGINT, _end_now)
    end_without_destructors()
    leave_out_pandas()
    from squall.cluster.cli import is_interruption
    from squall.cluster.cli import main as run

    if not ORDERLY & set(sys.argv[1:2]):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if is_interruption(error):
            end_at_once(
                1
            )  # Python would end by the signal once it broke into an import, whatever was made of it
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # exit handlers would end in a traceback


def _end_now(number: int, _frame: FrameType | None) -> None:
    """Nothing has been begun, or all is done: an exception would be taken for an import's failure."""
    os.write(sys.stderr.fileno(), f"squall: interrupted by {signal.Signals(number).name}\n".encode())
    end_at_once(1)


if __name__ == "__main__":
    main()
