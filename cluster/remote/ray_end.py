"""The end of a Ray session in bounded time, also where Ray's own processes died or do not answer any more."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil

from squall.actors.process.ending import STUCK
from squall.actors.process.state import wait_until_gone
from squall.cluster.remote.patience import LOOK_EVERY_S, PATIENCE
from squall.cluster.remote.ray_watch import of_session
from squall.scenarios.errors import ClusterError

Answer = TypeVar("Answer")

_SHUTDOWN_S = 5.0
_KILLED_WITHIN_S = 2.0
_FAILED = 1


def children() -> list[psutil.Process]:
    """What this process has started and what came of that, now."""
    with suppress(psutil.Error):
        return list(psutil.Process().children(recursive=True))
    return []


def end_ray(before: list[psutil.Process], folder: Path | None) -> None:
    """Leaves Ray; where that takes too long, without its answer: what was started since `before` is killed then.

    `folder`: of a session of our own; what is left of its processes is killed, whatever became of their parents.
    psutil tells a process from a later one with its pid.
    """
    import ray

    ours = [one for one in children() if one not in before]
    thread = threading.Thread(target=ray.shutdown, name="squall-ray-end", daemon=True)
    thread.start()
    thread.join(_SHUTDOWN_S)
    if thread.is_alive():
        STUCK.append(thread)
        atexit.unregister(ray.shutdown)
    left = [one for one in {*ours, *children()} if one not in before and one.is_running()]
    if folder is not None:
        wait_until_gone(left, _KILLED_WITHIN_S)
    orphans = of_session(folder) if folder is not None else []
    for one in {*orphans, *(left if thread.is_alive() else [])}:
        with suppress(psutil.Error):
            one.kill()
    wait_until_gone([*left, *orphans], _KILLED_WITHIN_S)


def within(timeout_s: float, what: str, ask: Callable[[], Answer]) -> Answer:
    """What Ray answers, in bounded time: asked by a thread, so that a signal is heard meanwhile.

    Raises ClusterError where it takes longer, and what `ask` raises.
    """
    future: Future[Answer] = Future()

    def work() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="squall-ask-ray", daemon=True).start()
    begun = time.monotonic()
    while not future.done():
        left_s = PATIENCE.deadline(begun, timeout_s) - time.monotonic()
        if left_s <= 0:
            raise ClusterError(f"Ray did not say {what} within {timeout_s:g} s")
        with suppress(FutureTimeout):
            future.exception(min(left_s, LOOK_EVERY_S))
    return future.result()


@contextmanager
def never_stuck(timeout_s: float, what: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Ends this process with code 1 where what is within takes longer: Ray's library may wait for a process of its own
    that died or was stopped, and hears no signal then.

    `tell` is called before, with why, in one line; it runs in a thread of its own.
    """
    before = children()

    def give_up() -> None:
        try:
            tell(f"{what} within {timeout_s:g} s")
        finally:
            for one in children():
                if one not in before:
                    with suppress(psutil.Error):
                        one.kill()
            os._exit(_FAILED)

    timer = threading.Timer(timeout_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
