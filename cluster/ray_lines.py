"""Lines that Ray's library writes past Python, to descriptor 2: they explain nothing that an error does not say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2


@contextmanager
def without_rays_lines() -> Iterator[None]:
    """What is written to descriptor 2 within goes nowhere; `sys.stderr` stays what the user sees.

    Ray's library has no log file before it has joined, and does not hear RAY_BACKEND_LOG_LEVEL for these lines.
    """
    screen = sys.stderr
    try:
        is_ours = screen.fileno() == _STDERR
    except (OSError, ValueError, AttributeError):  # it is closed, or is no file
        is_ours = False
    if not is_ours:
        yield
        return
    screen.flush()
    with (
        open(os.devnull, "wb") as nowhere,
        os.fdopen(os.dup(_STDERR), "w", buffering=1, encoding=screen.encoding, errors=screen.errors) as own,
    ):
        os.dup2(nowhere.fileno(), _STDERR)
        sys.stderr = own
        try:
            yield
        finally:
            sys.stderr = screen
            own.flush()
            os.dup2(own.fileno(), _STDERR)
