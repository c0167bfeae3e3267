"""Steps that wait for other machines, all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

_MOST_THREADS = 64


def side_by_side(steps: Sequence[Callable[[], None]]) -> None:
    """Runs every step in a thread of its own and waits for all; raises what the first of them that failed raised."""
    if not steps:
        return
    with ThreadPoolExecutor(min(len(steps), _MOST_THREADS), "squall-nodes") as pool:
        running = [pool.submit(step) for step in steps]
    for one in running:
        one.result()
