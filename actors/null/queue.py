"""The queue of the null server: service times from a seed, exact virtual times, and the record of both.

A FIFO queue with c lanes. For request n, arrived at a_n, with service time s_n:

    start_n     = max(a_n, earliest instant at which a lane is free)
    departure_n = start_n + s_n

Source: Kiefer and Wolfowitz (1955), "On the theory of queues with many servers"; for c = 1 it is Lindley (1952). Only
the stamps of arrivals enter, so that an answer written late never delays the next departure.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Literal, Self

import numpy as np

from squall.scenarios.units import parse_duration

_CHUNK = 4_096
NOT_REPLIED = -1
"""`replied_ns` of a request whose client left before the answer."""
NO_ID = -1
"""`request_id` of a request without an id or whose id is no whole number."""


@dataclass(frozen=True)
class Service:
    """Distribution of service times: all `mean_ns`, or exponential with that mean."""

    law: Literal["constant", "exponential"]
    mean_ns: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `constant:0`, `constant:2ms` or `exponential:2ms`. Raises ValueError that says what to write."""
        law, colon, length = text.partition(":")
        if law not in ("constant", "exponential") or not colon:
            raise ValueError(f"{text!r} is no service, write for example constant:2ms or exponential:2ms")
        mean_ns = 0 if length == "0" else parse_duration(length)
        return cls("constant" if law == "constant" else "exponential", mean_ns)

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """(n,) int64 ns, the next of `rng`; chunks of any sizes join to the same stream."""
        if self.law == "constant":
            return np.full(n, self.mean_ns, np.int64)
        return np.rint(rng.exponential(self.mean_ns, n)).astype(np.int64)


def service_times(service: Service, seed: int) -> Iterator[int]:
    """The endless stream of service times in ns: the n-th belongs to the n-th accepted request."""
    rng = np.random.default_rng(seed)
    while True:
        yield from service.draw(_CHUNK, rng).tolist()


class Lanes:
    """`n_lanes` lanes that serve first come, first served; 0: as many as there are requests.

    `max_queue`: how many requests may wait for a lane, None for any number. A rejected request takes no service time
    from the stream.
    """

    def __init__(self, service: Service, seed: int, n_lanes: int, max_queue: int | None) -> None:
        if n_lanes < 0 or (max_queue is not None and max_queue < 0):
            raise ValueError("the numbers of lanes and of waiting requests are 0 or more")
        self._next_service = service_times(service, seed).__next__
        self._free_ns = [0] * n_lanes
        heapify(self._free_ns)
        self._max_queue = max_queue
        self._starts_ns: deque[int] = deque()

    def enter(self, arrival_ns: int) -> tuple[int, int] | None:
        """(start_ns, departure_ns) of a request; None: rejected. `arrival_ns` must not decrease between calls."""
        if not self._free_ns:
            return arrival_ns, arrival_ns + self._next_service()
        start_ns = max(arrival_ns, self._free_ns[0])
        if self._max_queue is not None and not self._takes(start_ns, arrival_ns, self._max_queue):
            return None
        departure_ns = start_ns + self._next_service()
        heapreplace(self._free_ns, departure_ns)
        return start_ns, departure_ns

    def _takes(self, start_ns: int, arrival_ns: int, max_queue: int) -> bool:
        """Starts never decrease, so those that wait at `arrival_ns` are the end of the line."""
        waiting = self._starts_ns
        while waiting and waiting[0] <= arrival_ns:
            waiting.popleft()
        if start_ns > arrival_ns:
            if len(waiting) >= max_queue:
                return False
            waiting.append(start_ns)
        return True


class Record:
    """Columns of accepted requests in order of arrival, at most `n_most` rows of 40 bytes; ns of CLOCK_MONOTONIC."""

    def __init__(self, n_most: int) -> None:
        self._n_most = n_most
        self._n_over = 0
        self._columns = tuple(array("q") for _ in range(5))

    def add(self, wire_id: bytes, arrival_ns: int, start_ns: int, departure_ns: int) -> int:
        """The row of a request; -1 when the record is full (counted, see `save`)."""
        ids, arrivals, starts, departures, replies = self._columns
        row = len(ids)
        if row >= self._n_most:
            self._n_over += 1
            return -1
        ids.append(number_of(wire_id))
        arrivals.append(arrival_ns)
        starts.append(start_ns)
        departures.append(departure_ns)
        replies.append(NOT_REPLIED)
        return row

    def stamp(self, rows: list[int], now_ns: int) -> None:
        """The answers of `rows` go to the kernel now."""
        replies = self._columns[4]
        for row in rows:
            replies[row] = now_ns

    def save(self, path: Path, n_rejected: int) -> None:
        """Writes an npz: request_id, arrival_ns, start_ns, departure_ns (virtual), replied_ns (stamped just before
        the answer's first bytes are written), each (n,) int64; and n_rejected, n_over (rows beyond the limit)."""
        names = ("request_id", "arrival_ns", "start_ns", "departure_ns", "replied_ns")
        counts = {"n_rejected": np.int64(n_rejected), "n_over": np.int64(self._n_over)}
        columns = {
            name: np.frombuffer(column, np.int64) if column else np.empty(0, np.int64)
            for name, column in zip(names, self._columns, strict=True)
        }
        partial = path.with_name(path.name + ".part")
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **columns, **counts)
        partial.replace(path)


def number_of(wire_id: bytes) -> int:
    """The id as a number; NO_ID for anything but up to 18 decimal digits."""
    return int(wire_id) if wire_id.isdigit() and len(wire_id) < 19 else NO_ID
