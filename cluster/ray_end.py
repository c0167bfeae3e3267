"""The end of a Ray session in bounded time, also where Ray's own processes died or do not answer any more."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

import psutil

_SHUTDOWN_S = 5.0
_KILLED_WITHIN_S = 2.0
_stuck: list[threading.Thread] = []


def children() -> list[psutil.Process]:
    """What this process has started and what came of that, now."""
    with suppress(psutil.Error):
        return list(psutil.Process().children(recursive=True))
    return []


def end_ray(before: list[psutil.Process]) -> None:
    """Leaves Ray; where that takes too long, without its answer: what was started since `before` is killed then.

    psutil tells a process from a later one with its pid.
    """
    import ray

    ours = [one for one in children() if one not in before]
    thread = threading.Thread(target=ray.shutdown, name="squall-ray-end", daemon=True)
    thread.start()
    thread.join(_SHUTDOWN_S)
    if thread.is_alive():
        _stuck.append(thread)
        atexit.unregister(ray.shutdown)
    left = [one for one in {*ours, *children()} if one not in before and one.is_running()]
    for one in left if thread.is_alive() else []:
        with suppress(psutil.Error):
            one.kill()
    psutil.wait_procs(left, _KILLED_WITHIN_S)


def leave(code: int) -> NoReturn:
    """As sys.exit, but where Ray is stuck without its destructors, which would wait for it."""
    if not any(thread.is_alive() for thread in _stuck):
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
