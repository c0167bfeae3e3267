"""What a worker sends beside its own part: arrivals of workers that are lost, each part by a sender of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from squall.scenarios.errors import ClusterError, SquallError

One = TypeVar("One")


class Taken(Generic[One]):
    """The senders of the parts taken over, `parts`; `errors` says what ended one of them before its time."""

    def __init__(self, stop: Callable[[One], None]) -> None:
        """`stop` makes a sender end at once, from any thread."""
        self._stop = stop
        self.parts: list[One] = []
        self.errors: list[str] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_stopped = False

    def add(self, make: Callable[[], One], run: Callable[[One], None]) -> None:
        """Makes a sender, which may take its time, and has `run` called with it in a thread of its own.

        Raises ClusterError once `close` was called, and what `make` raises.
        """
        with self._lock:
            if self._is_closed:
                raise ClusterError("it has sent all of its own, and ends")
            one = make()
            if self._is_stopped:
                self._stop(one)
            self.parts.append(one)
            thread = threading.Thread(target=self._run, args=(one, run), name="squall-taken", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, one: One, run: Callable[[One], None]) -> None:
        try:
            run(one)
        except SquallError as error:
            self.errors.append(str(error))

    def stop(self) -> None:
        """Ends all of them at once."""
        self._is_stopped = True
        for one in tuple(self.parts):
            self._stop(one)

    def close(self) -> None:
        """Waits for their ends; nothing is taken over any more."""
        with self._lock:
            self._is_closed = True
        for thread in self._threads:
            thread.join()
