"""What is said of a Locust process that had to be killed: code that blocks only where the load itself was over."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.actors.locust.locust_worker import LocustWorker
from squall.scenarios.errors import LostActor

HOUR_NS = 3_600 * 10**9


class StuckChild:
    """Runs until it is killed."""

    end = "was killed"

    def __init__(self) -> None:
        self._is_killed = False

    def has_ended(self, within_s: float = 0.0) -> bool:
        del within_s
        return self._is_killed

    def kill(self) -> None:
        self._is_killed = True

    def order(self, *words: object) -> None:
        del words

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("ended_ns_ago", "is_stopped", "how"),
    [
        (HOUR_NS, False, "did not end with the load, since code of the locustfile blocks, and was killed"),
        (HOUR_NS, True, "did not end with the load, since code of the locustfile blocks, and was killed"),
        (-HOUR_NS, True, "did not end within 10 s of the stop, and was killed"),
    ],
)
def test_the_reason_is_the_end_that_it_missed(ended_ns_ago: int, is_stopped: bool, how: str) -> None:
    settings = SimpleNamespace(name="worker 0", node="node-0", load_end_ns=0, stop_timeout_ns=0)
    worker = LocustWorker(cast(Any, settings))
    worker._child = cast(Any, StuckChild())
    worker._files = {}
    worker._reader = cast(Any, SimpleNamespace(take=lambda: SimpleNamespace(records=())))
    if is_stopped:
        worker._stop_by_s = time.monotonic() - 1.0
    with pytest.raises(LostActor, match=f"^worker 0 on node-0 {how}: its 0 users are gone"):
        worker.run(time.monotonic_ns() - ended_ns_ago)
