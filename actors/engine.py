"""Follows a plan: sends each arrival at its absolute instant, late ones at once, and records how each ended.

plan      |--a0----a1-a2----------a3--|          offsets from the start instant
alarm        ^     ^  ^           ^              one timerfd, armed for the next due arrival
sent         a0    a1 a2          a3             a1 late? sent at once, its lag is recorded
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from actors.client import Exchange
from actors.clock import Alarm, Clock
from actors.collector import NEVER, OUTCOME_CODE, Collector
from actors.wire import RequestTemplate, judge_reply
from models.payload import encode_id
from scenarios.plan import Plan
from scenarios.units import NS_PER_S

_CHUNK_ROWS = 1_024
_SENDS_PER_TURN = 32
"""Arrivals sent before the loop gets to read replies again, so that a burst does not delay their time stamps."""
_TIMEOUT_CHECK_NS = 10_000_000
_HELD = "held back by max_in_flight"
FAILED_NS = 2**63 - 1
"""Stands for a failed request among recent response times: it counts as infinitely slow."""


class Client(Protocol):
    """What the engine needs of a client; `actors.client.HttpClient` is one."""

    def send(self, token: int, head: bytes, tail: bytes) -> None: ...

    def abandon(self, token: int) -> tuple[int, int]: ...

    @property
    def n_connections(self) -> int: ...


@dataclass(frozen=True)
class Rules:
    """Limits of a run: a request's timeout from its send, and the cap on requests in flight (None: none)."""

    timeout_ns: int
    max_in_flight: int | None = None


@dataclass
class Counters:
    """What the engine has done so far; read by other threads, written by the engine only."""

    n_sent: int = 0
    n_done: int = 0
    n_failed: int = 0
    lag_max_ns: int = 0

    def reset_lag(self) -> int:
        """The largest send lag since the last call, in ns."""
        lag, self.lag_max_ns = self.lag_max_ns, 0
        return lag


class Engine:
    """The hot loop of one worker. Create and run it in its event loop's thread; `request_stop` from any thread.

    `templates[(rows, variant)]` holds the pre-encoded requests. `run` returns when every arrival of the plan has
    been recorded: at the latest at the end of the plan's last phase, when what is in flight is `cancelled` and what
    was not sent is `unsent`.
    """

    def __init__(
        self,
        plan: Plan,
        templates: dict[tuple[int, int], RequestTemplate],
        rules: Rules,
        collector: Collector,
        clock: Clock,
    ) -> None:
        self.counters = Counters()
        self.recent_response_ns: list[int] = []
        self._plan = plan
        self._templates = templates
        self._rules = rules
        self._collector = collector
        self._clock = clock
        self._client: Client | None = None
        self._start_ns = 0
        self._chunk: Sequence[tuple[int, int, int, int, int]] = ()
        self._chunk_at = 0
        self._n_taken = 0  # rows of the plan that are in this chunk or in those before
        self._next_due_ns: int | None = None
        # token is the request's id: (scheduled_ns, phase, template, detail)
        self._in_flight: dict[int, tuple[int, int, RequestTemplate, str]] = {}
        self._deadlines: deque[tuple[int, int]] = deque()
        self._held: deque[tuple[int, int, int, RequestTemplate]] = deque()
        self._finished: asyncio.Event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm: Alarm | None = None
        self._is_stop_requested = False

    @property
    def n_in_flight(self) -> int:
        """Requests handed to the client and not ended."""
        return len(self._in_flight)

    @property
    def n_backlog(self) -> int:
        """Arrivals that are due but held back or waiting for their turn to be sent."""
        due = self._n_due_by(self._clock.monotonic_ns())
        return max(0, due - self.counters.n_sent)

    def _n_due_by(self, now_ns: int) -> int:
        return int(np.searchsorted(self._plan.offset_ns, now_ns - self._start_ns, side="right"))

    def n_due_between(self, from_ns: int, to_ns: int) -> int:
        """Arrivals scheduled in (from, to], in ns of the node's clock."""
        return self._n_due_by(to_ns) - self._n_due_by(from_ns)

    async def run(self, client: Client, start_ns: int) -> None:
        """Follows the plan from `start_ns` (node's clock) to its end. Cancelling it leaves arrivals unrecorded."""
        self._client = client
        self._start_ns = start_ns
        self._loop = asyncio.get_running_loop()
        if self._is_stop_requested:  # after _loop is set, so that no request falls between
            self._finished.set()
        self._alarm = Alarm()
        end_ns = start_ns + self._plan.spans[-1].end_ns
        try:
            self._loop.add_reader(self._alarm.fd, self._on_alarm)
            self._load_chunk()
            self._arm()
            self._finish_if_done()
            while not self._finished.is_set():
                now_ns = self._clock.monotonic_ns()
                if now_ns >= end_ns:
                    break
                await self._wait(min(_TIMEOUT_CHECK_NS, end_ns - now_ns))
                self._expire()
        finally:
            self._loop.remove_reader(self._alarm.fd)
            self._alarm.close()
            self._alarm = None
        self._record_rest()

    async def _wait(self, for_ns: int) -> None:
        try:
            async with asyncio.timeout(for_ns / NS_PER_S):
                await self._finished.wait()
        except TimeoutError:
            return

    def request_stop(self) -> None:
        """Makes `run` end at once: what is in flight is recorded as cancelled, the rest as unsent. Thread-safe."""
        self._is_stop_requested = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the run is over and its loop closed
                self._loop.call_soon_threadsafe(self._finished.set)

    # sending

    def _load_chunk(self) -> None:
        """The next rows of the plan as Python numbers: the whole plan at once would take 20 times its size."""
        first, last = self._n_taken, min(self._n_taken + _CHUNK_ROWS, len(self._plan))
        rows = slice(first, last)
        plan = self._plan
        self._chunk = tuple(
            zip(
                (plan.offset_ns[rows] + self._start_ns).tolist(),
                plan.seq[rows].tolist(),
                plan.phase[rows].tolist(),
                plan.rows[rows].tolist(),
                plan.variant[rows].tolist(),
                strict=True,
            )
        )
        self._chunk_at = 0
        self._n_taken = last
        self._next_due_ns = self._chunk[0][0] if self._chunk else None

    def _arm(self) -> None:
        if self._next_due_ns is not None and self._alarm is not None:
            self._alarm.arm(self._next_due_ns)

    def _on_alarm(self) -> None:
        assert self._alarm is not None
        self._alarm.clear()
        self._send_due()

    def _send_due(self) -> None:
        for _ in range(_SENDS_PER_TURN):
            due_ns = self._next_due_ns
            if due_ns is None:
                return
            if due_ns > self._clock.monotonic_ns():
                break
            self._send_next()
        self._arm()  # at once where the next is due already: the loop reads replies in between

    def _send_next(self) -> None:
        scheduled_ns, seq, phase, rows, variant = self._chunk[self._chunk_at]
        self._chunk_at += 1
        if self._chunk_at == len(self._chunk):
            self._load_chunk()
        else:
            self._next_due_ns = self._chunk[self._chunk_at][0]
        template = self._templates[rows, variant]
        cap = self._rules.max_in_flight
        if cap is not None and len(self._in_flight) >= cap:
            self._held.append((seq, scheduled_ns, phase, template))
            return
        self._send(seq, scheduled_ns, phase, template, "")

    def _send(self, seq: int, scheduled_ns: int, phase: int, template: RequestTemplate, detail: str) -> None:
        assert self._client is not None
        now_ns = self._clock.monotonic_ns()
        lag_ns = now_ns - scheduled_ns
        counters = self.counters
        counters.n_sent += 1
        if lag_ns > counters.lag_max_ns:
            counters.lag_max_ns = lag_ns
        self._in_flight[seq] = (scheduled_ns, phase, template, detail)
        self._deadlines.append((now_ns + self._rules.timeout_ns, seq))
        self._client.send(seq, template.head + encode_id(seq), template.tail)

    # endings

    def on_reply(self, exchange: Exchange) -> None:
        """The client's callback for a whole reply."""
        seq = exchange.token
        scheduled_ns, phase, template, detail = self._in_flight[seq]
        body = exchange.body
        outcome, why = judge_reply(
            exchange.status, exchange.n_json_bytes, body, encode_id(seq), template.reply_bytes
        )
        self._collector.record(
            seq, scheduled_ns, exchange.sent_ns, exchange.first_ns, exchange.done_ns, len(body), template.rows,
            template.n_bytes, phase, OUTCOME_CODE[outcome], why or detail,
        )  # fmt: skip
        del self._in_flight[seq]
        is_ok = outcome == "ok"
        self.recent_response_ns.append(exchange.done_ns - scheduled_ns if is_ok else FAILED_NS)
        self._ended(is_ok)

    def on_failure(self, token: int, sent_ns: int, first_ns: int, why: str) -> None:
        """The client's callback for a request that the transport failed."""
        outcome = "bad_reply" if why.startswith("malformed") else "transport_error"
        self._record_failure(token, sent_ns, first_ns, outcome, why)

    def _record_failure(self, token: int, sent_ns: int, first_ns: int, outcome: str, why: str) -> None:
        scheduled_ns, phase, template, _ = self._in_flight.pop(token)
        n_bytes = template.n_bytes if sent_ns != NEVER else 0
        done_ns = NEVER if outcome == "unsent" else self._clock.monotonic_ns()
        self._collector.record(
            token, scheduled_ns, sent_ns, first_ns, done_ns, 0, template.rows, n_bytes, phase,
            OUTCOME_CODE[outcome], why,
        )  # fmt: skip
        self.recent_response_ns.append(FAILED_NS)
        self._ended(False)

    def _ended(self, is_ok: bool) -> None:
        self.counters.n_done += 1
        if not is_ok:
            self.counters.n_failed += 1
        if self._held and not self._finished.is_set():
            seq, scheduled_ns, phase, template = self._held.popleft()
            self._send(seq, scheduled_ns, phase, template, _HELD)
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self._next_due_ns is None and not self._in_flight and not self._held:
            self._finished.set()

    def _expire(self) -> None:
        """Gives up the requests that are past their deadline. All have one timeout, so the oldest send is first."""
        assert self._client is not None
        now_ns = self._clock.monotonic_ns()
        while self._deadlines and (
            self._deadlines[0][0] <= now_ns or self._deadlines[0][1] not in self._in_flight
        ):
            _, seq = self._deadlines.popleft()
            if seq in self._in_flight:
                sent_ns, first_ns = self._client.abandon(seq)
                self._record_failure(seq, sent_ns, first_ns, "timeout", "no whole reply within the timeout")

    def _record_rest(self) -> None:
        """The end of the run: cancelled if sent, unsent if not."""
        assert self._client is not None
        self._finished.set()
        for seq in list(self._in_flight):
            sent_ns, first_ns = self._client.abandon(seq)
            if sent_ns == NEVER:
                why = "the run ended while it waited for a connection"
                self._record_failure(seq, sent_ns, first_ns, "unsent", why)
            else:
                why = "the run ended before the reply"
                self._record_failure(seq, sent_ns, first_ns, "cancelled", why)
        for seq, scheduled_ns, phase, template in self._held:
            self._record_unsent(
                seq, scheduled_ns, phase, template.rows, "the run ended while it was " + _HELD
            )
        self._held.clear()
        while self._next_due_ns is not None:
            for scheduled_ns, seq, phase, rows, _ in self._chunk[self._chunk_at :]:
                self._record_unsent(seq, scheduled_ns, phase, rows, "the run ended before its turn")
            self._load_chunk()

    def _record_unsent(self, seq: int, scheduled_ns: int, phase: int, rows: int, why: str) -> None:
        self._collector.record(
            seq, scheduled_ns, NEVER, NEVER, NEVER, 0, rows, 0, phase, OUTCOME_CODE["unsent"], why
        )


def templates_needed(plan: Plan) -> NDArray[np.int64]:
    """(n, 2) int64: the distinct (rows, variant) of a plan."""
    pairs = np.stack([plan.rows.astype(np.int64), plan.variant.astype(np.int64)], axis=1)
    return np.unique(pairs, axis=0) if len(pairs) else pairs
