"""What the driver asks of a process that makes load, squall's own or Locust's, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from squall.actors.lateness import LateCounts
from squall.actors.messages.value_check import Tally
from squall.scenarios.records import AddressFacts, Frozen, SenderScheduling


class Progress(Frozen):
    """How a worker stands: counts since the start, and the last second's response times in ns, at most 4,096;
    `FAILED_NS` for a request that failed. `late`: where late requests are counted, up to its last whole second.
    `why_failed`: how many failed with which detail, of at most 64 details; empty of Locust."""

    n_sent: int
    n_done: int
    n_failed: int
    n_in_flight: int
    recent_response_ns: np.ndarray[Any, np.dtype[np.int64]]
    late: LateCounts | None = None
    why_failed: Mapping[str, int] = field(default_factory=dict)


class Account(Frozen):
    """What a worker had while it ran: how its sending thread was scheduled, at its end; how often its priority was
    taken from it because it computed too much, and for how many ns in all; how long before the start instant it was
    ready to send (negative: it came too late; None: it never ran, or is Locust's, whose users its master starts);
    what it had of each address of its servers."""

    scheduling: SenderScheduling
    n_demotions: int
    demoted_ns: int
    ready_before_ns: int | None
    addresses: tuple[AddressFacts, ...] = ()


class Standing(Frozen):
    """`progress` of a worker; why it cannot spill its records, empty while it can."""

    progress: Progress
    spill_error: str = ""


class ClientWorker(Protocol):
    """One process that makes load, once prepared: `run` once, then `leftovers`; from other threads at any time the
    rest."""

    def run(self, start_ns: int) -> None:
        """Makes its load from `start_ns` (node's clock) and closes everything."""

    def status(self) -> Standing:
        """How it stands. Raises LostActor where what makes the load has died."""

    def cease(self, offset_ns: int) -> None:
        """Sends nothing that is due more than `offset_ns` after the start instant."""

    def stop(self) -> None:
        """Ends `run` at once."""

    def no_lane(self) -> str:
        """Why the common case of its requests does not run in C; empty where it does."""

    def addresses(self) -> tuple[AddressFacts, ...]:
        """What it had of each address of its servers, once prepared; none of Locust's."""

    def scheduling(self) -> SenderScheduling:
        """Of the thread that sends, once prepared."""

    def account(self) -> Account:
        """What it had while it ran; after `run`."""

    def tally(self) -> Tally:
        """Replies whose values it has compared."""

    def n_issued(self) -> int:
        """Requests that it has sent or was to send."""

    def leftovers(self) -> list[pa.Table]:
        """Rows that its spill files could not take: what each is says its schema."""
