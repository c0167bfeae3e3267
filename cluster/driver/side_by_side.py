"""Steps that wait for other machines, all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

_MOST_THREADS = 64


def side_by_side(steps: Sequence[Callable[[], None]]) -> None:
    """Runs every step in a thread of its own and waits for all; raises what the first of them that failed raised."""
    if not steps:
        return
    with ThreadPoolExecutor(min(len(steps), _MOST_THREADS), "squall-nodes") as pool:
        running = [pool.submit(step) for step in steps]
    for one in running:
        one.result()


def as_they_end(steps: Mapping[str, Callable[[], None]]) -> Iterator[str]:
    """As `side_by_side`; gives the name of each as soon as it has ended, and raises what it raised in its place."""
    if not steps:
        return
    with ThreadPoolExecutor(min(len(steps), _MOST_THREADS), "squall-nodes") as pool:
        running = {pool.submit(step): name for name, step in steps.items()}
        for one in as_completed(running):
            one.result()
            yield running[one]
