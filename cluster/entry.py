"""Where the command `squall` begins and ends: a signal is one line also before and after it can be handled in order."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from squall.actors.process.ending import end_at_once, end_without_destructors
from squall.actors.process.own_python import leave_out_pandas

ORDERLY = frozenset({"run", "demo", "doctor", "selftest", "analyze"})
"""Commands that take the signals themselves as soon as there is something to end in order."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """`squall.cluster.cli.main`, whose imports take a while, and the end of the process, when all has
    been said."""
    for number in _SIGNALS:
        signal.signal(number, _end_now)
    end_without_destructors()
    leave_out_pandas()
    from squall.cluster.cli import is_interruption
    from squall.cluster.cli import main as run

    if not ORDERLY & set(sys.argv[1:2]):
        for number in _SIGNALS:
            signal.signal(number, signal.default_int_handler)  # KeyboardInterrupt, of whichever signal
    try:
        run()
    except BaseException as error:
        _end_signals()
        if is_interruption(error):
            end_at_once(
                1
            )  # Python would end by the signal once it broke into an import, whatever was made of it
        raise
    finally:
        _end_signals()


def _end_signals() -> None:
    """Exit handlers would end in a traceback; one that hangs ends by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_now(number: int, _frame: FrameType | None) -> None:
    """Nothing has been begun, or all is done: an exception would be taken for an import's failure."""
    os.write(sys.stderr.fileno(), f"squall: interrupted by {signal.Signals(number).name}\n".encode())
    end_at_once(1)


if __name__ == "__main__":
    main()
