"""The end of a process: its exit handlers run, the destructors of its libraries' globals do not.

Threads of Arrow may be starting or ending at that moment, and C++ aborts a program that destroys a thread which nobody
has joined (https://github.com/apache/arrow/issues/34314): a command that had done its work ended by SIGABRT.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

STUCK: list[threading.Thread] = []
"""Threads in a library whose exit handlers would wait for them, for ever."""
_codes: list[int] = []


def end_without_destructors() -> None:
    """Called before all else: whoever ends by `leave` then runs every later exit handler, and nothing after them."""
    atexit.register(_end_by_code)


def leave(code: int) -> NoReturn:
    """As sys.exit, but without exit handlers where a thread is stuck."""
    if any(thread.is_alive() for thread in STUCK):
        end_at_once(code)
    _codes.append(code)
    sys.exit(code)


def end_at_once(code: int) -> NoReturn:
    """Ends without exit handlers, when what was written has been handed on."""
    for stream in (sys.stdout, sys.stderr):
        # RuntimeError: a signal came within a write
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            stream.flush()
    os._exit(code)


def _end_by_code() -> None:
    if not _codes:
        return  # an exception that Python has yet to print
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return  # Python says so, and ends with 120
    end_at_once(_codes[-1])
