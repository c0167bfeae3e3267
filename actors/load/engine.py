"""Follows a plan: sends each arrival at its absolute instant, late ones at once, and records how each ended.

plan      |--a0----a1-a2----------a3--|          offsets from the start instant
wake         ^     ^  ^           ^              the loop's timer, armed for the next due arrival
sent         a0    a1 a2          a3             a1 late? sent at once, its lag is recorded
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from squall.actors.clock import Clock
from squall.actors.load.choice import Chooser
from squall.actors.load.client import TOO_LARGE, Client, Exchange
from squall.actors.load.lane import Flight, Lane
from squall.actors.load.lane_turns import LaneTurns
from squall.actors.load.pacing import NEVER_NS, Due, Pacing
from squall.actors.load.recorder import NEVER, Recorder
from squall.actors.load.sequence_turns import Turns
from squall.actors.load.streams import Streams
from squall.actors.messages.template import Template
from squall.actors.net.loop import Loop
from squall.analysis.storage.schema import OUTCOME_CODE
from squall.models.payload import encode_id
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan, kinds_of
from squall.scenarios.promises import DECIDED
from squall.scenarios.sequences import IN_TURN
from squall.scenarios.sizes import LARGEST_PHASE_COUNT

_SENDS_PER_EVENT = 4
"""Overdue arrivals sent before the next reply is read, so that a backlog does not delay the replies' time stamps."""
_TIMEOUT_CHECK_NS = 10_000_000
_MOST_REASONS = 64
_HELD = "held back by max_in_flight"
BEFORE_ITS_TURN = "before its turn"
"""How the detail of an arrival ends that was not due yet when its worker was stopped."""
FAILED_NS = 2**63 - 1
"""Stands for a failed request among recent response times: it counts as infinitely slow."""

Between = Callable[[int], bytes]
"""By request id."""
Ticker = Callable[[int], int]
"""Called with the clock when its time has come; returns when it wants to be called next."""


@dataclass(frozen=True)
class Rules:
    """Limits of a run: a request's timeout from its hand-over to the client, so that the wait for a connection counts,
    and the cap on requests in flight (None: none).

    `phase_timeouts_ns`: other timeouts by phase, for the requests of that phase.
    """

    timeout_ns: int
    max_in_flight: int | None = None
    phase_timeouts_ns: Mapping[int, int] = field(default_factory=dict)

    def timeout_of(self, phase: int) -> int:
        """In ns, for the requests of that phase."""
        return self.phase_timeouts_ns.get(phase, self.timeout_ns)

    @property
    def shortest_ns(self) -> int:
        """The shortest timeout: no request that was sent later has to be looked at."""
        return min((self.timeout_ns, *self.phase_timeouts_ns.values()))


@dataclass
class Counters:
    """What the engine has done so far; read by other threads, written by the engine only."""

    n_sent: int = 0
    n_done: int = 0
    n_failed: int = 0
    n_skipped: int = 0
    lag_max_ns: int = 0
    n_write_pauses: int = 0
    """Of the lane's writes; the clients count their own."""

    def reset_lag(self) -> int:
        """The largest send lag since the last call, in ns."""
        lag, self.lag_max_ns = self.lag_max_ns, 0
        return lag


class Engine:
    """The hot loop of one worker. Create and run it in one thread; `request_stop` from any.

    `run` returns when every arrival has been recorded: at the latest `length_ns` after the start, when what is in
    flight is `cancelled` and what was not sent is `unsent`.
    """

    def __init__(
        self,
        pacing: Pacing,
        length_ns: int,
        rules: Rules,
        recorder: Recorder,
        loop: Loop,
        clock: Clock,
        lane: Lane | None = None,
        chooser: Chooser | None = None,
        streams: Streams | None = None,
        between: Between | None = None,
        turns: Turns[Due] | LaneTurns[Due] | None = None,
    ) -> None:
        """With a `lane`, its pacing is `squall.actors.load.lane.lane_pacing`, and it chooses servers itself; else a
        `chooser` does, if any. With `streams` each request is answered response by response; `between` gives what each
        has of its own behind its id, and `turns` whose turn it is in each sequence."""
        self.counters = Counters()
        self.why_failed: dict[str, int] = {}
        self.recent_response_ns: list[int] = []
        self._pacing = pacing
        self._length_ns = length_ns
        self._rules = rules
        self._recorder = recorder
        self._loop = loop
        self._now = clock.monotonic_ns
        self._clients: Sequence[Client] = ()
        # by token, in order of their sends: (sent at, what, detail, id on the wire)
        self._in_flight: dict[int, tuple[int, Due, str, bytes]] = {}
        self._held: deque[tuple[Due, str]] = deque()  # with the detail that says why
        self._lane = lane
        self._chooser = chooser
        self._streams = streams
        self._between = between
        self._turns = turns
        self._timeouts_ns = np.array(
            [rules.timeout_of(phase) for phase in range(LARGEST_PHASE_COUNT)], np.int64
        )
        self._readopted: set[int] = set()  # tokens in flight that came back from the lane: out of order
        self._is_stopped = False
        self._cease_ns = NEVER_NS
        self._has_ceased = False

    @property
    def n_in_flight(self) -> int:
        """Requests that were handed to the client, or sent by the lane, and have not ended."""
        return len(self._in_flight) + (self._lane.core.n_in_flight if self._lane is not None else 0)

    @property
    def spun_ns(self) -> int:
        """What its loop spent waiting busily."""
        return self._loop.spun_ns

    @property
    def n_held(self) -> int:
        """Arrivals held back now, by `max_in_flight` or for the one before in their sequence."""
        return len(self._held) + (self._turns.n_waiting if self._turns is not None else 0)

    @property
    def n_backlog(self) -> int:
        """Arrivals that are due but held back or waiting for their turn to be sent."""
        counters = self.counters
        return max(0, self._pacing.n_due_by(self._now()) - counters.n_sent - counters.n_skipped)

    def n_due_by(self, at_ns: int) -> int:
        """Requests that were due by then, in ns of the node's clock."""
        return self._pacing.n_due_by(at_ns)

    def run(self, clients: Sequence[Client], start_ns: int, ticker: Ticker, tick_ns: int = NEVER_NS) -> None:
        """Follows the plan from `start_ns` (node's clock) to its end; calls `ticker` from `tick_ns` on.

        Client i sends what is for target i.

        Whatever is raised in it, each arrival has its record.
        """
        self._clients = clients
        self._pacing.begin(start_ns)
        try:
            self._read_what_came()
            for client in clients:
                client.begin()
            self._follow(start_ns + self._length_ns, ticker, tick_ns)
        finally:
            self._record_rest()

    def _read_what_came(self) -> None:
        """Connections that servers have ended since they were opened carry no request, however late the start is."""
        loop = self._loop
        while True:
            is_over = not loop.has_callbacks  # else `wait` does those alone
            ready = loop.wait(0)
            for fd, events in ready:
                loop.handlers[fd](events)
            if is_over and not ready:
                return

    def _follow(self, end_ns: int, ticker: Ticker, tick_ns: int) -> None:
        now, pacing, handlers = self._now, self._pacing, self._loop.handlers
        clients = self._clients
        check_ns = now() + _TIMEOUT_CHECK_NS
        while not self._is_done():
            now_ns = now()
            if now_ns >= end_ns:
                return
            if now_ns >= tick_ns:
                tick_ns = ticker(now_ns)
            if now_ns >= check_ns:
                self._expire(now_ns)
                check_ns = now_ns + _TIMEOUT_CHECK_NS
            if now_ns >= self._cease_ns and pacing.cease(self._cease_ns):
                self._has_ceased, self._cease_ns = True, NEVER_NS
            if now_ns >= pacing.next_ns:
                self._send_due()
            ready = self._wait(min(pacing.next_ns, check_ns, tick_ns, end_ns, self._cease_ns))
            for fd, events in ready:
                handlers[fd](events)
                if now() >= pacing.next_ns:
                    self._send_due()
            for client in clients:
                client.flush()

    def _wait(self, until_ns: int) -> list[tuple[int, int]]:
        """What is ready; with a lane, all that it could not do itself by then."""
        if self._lane is None or self._loop.has_callbacks:
            return self._loop.wait(until_ns)
        ready, items = self._lane.core.turn(until_ns)
        self._count_lane()
        if items:
            self.readopt(items)
        return ready

    def _count_lane(self) -> None:
        assert self._lane is not None
        counters = self.counters
        n_sent, n_done, lag_max_ns, spun_ns, n_write_pauses = self._lane.core.counts()
        counters.n_sent += n_sent
        counters.n_done += n_done
        self._lane.n_done += n_done
        counters.lag_max_ns = max(counters.lag_max_ns, lag_max_ns)
        counters.n_write_pauses += n_write_pauses
        self._loop.spun_ns += spun_ns

    def readopt(self, items: list[Any]) -> None:
        """Takes back what the lane returns: the requests are the engine's again, the connections their clients'."""
        assert self._lane is not None
        strays = self._lane.read(items)
        for flight in (Flight._make(values) for stray in strays for values in stray.flights):
            wire_id = encode_id(flight.token)
            due, detail = self._lane.due_of(flight), self._lane.detail_of(flight)
            self._in_flight[flight.token] = (flight.sent_ns, due, detail, wire_id)
            self._readopted.add(flight.token)
        for stray in strays:
            stray.owner.take_back(stray)

    def lend(self, token: int) -> tuple[int, int, int, int, int]:
        """Gives a request in flight to the lane; what it must know of it."""
        assert self._lane is not None
        _, due, _, _ = self._in_flight.pop(token)
        self._readopted.discard(token)
        user = self._pacing.user_of(token)
        return due.at_ns, due.scheduled_ns, due.phase, self._lane.number_of(due.template), user

    def take_recent(self) -> list[int]:
        """Response times since the last call, in ns; of the lane's the first 4,096."""
        recent, self.recent_response_ns = self.recent_response_ns, []
        if self._lane is not None:
            recent += np.frombuffer(self._lane.core.recent(), np.int64).tolist()
        return recent

    def request_stop(self) -> None:
        """Makes `run` end at once: what is in flight is recorded as cancelled, the rest as unsent. Thread-safe."""
        self._is_stopped = True
        self._loop.wake()

    def cease(self, at_ns: int) -> None:
        """What is due after `at_ns` of the node's clock is not sent; `run` ends when all else has. Thread-safe.

        Those arrivals are `unsent`, with the detail `decided`. Where some were sent before this was heard, the rest.
        """
        self._cease_ns = at_ns
        self._loop.wake()

    def _is_done(self) -> bool:
        is_all_sent = self._pacing.is_over and not self._held
        return self._is_stopped or (is_all_sent and not self.n_in_flight)

    # sending

    def _send_due(self) -> None:
        pacing, cap = self._pacing, self._rules.max_in_flight
        for _ in range(_SENDS_PER_EVENT):
            if pacing.next_ns > self._now():
                break
            due = pacing.take()
            detail = self._turn_of(due, self._turns) if self._turns is not None else ""
            if detail is None:
                continue
            if cap is not None and len(self._in_flight) >= cap:
                self._held.append((due, _HELD))
            else:
                self._send(due, detail)
        for client in self._clients:
            client.flush()

    def _turn_of(self, due: Due, turns: Turns[Due] | LaneTurns[Due]) -> str | None:
        """The detail of a request of a sequence that is sent now; None: it is held back, or recorded as never sent."""
        turn, why = turns.comes(due.token, due)
        if turn == "never":
            self._skip(due, why)
        return why if turn == "now" else None

    def _skip(self, due: Due, why: str) -> None:
        self.counters.n_skipped += 1
        self._record_unsent(due, why)
        self._pacing.left_out(due)

    def _send(self, due: Due, detail: str) -> None:
        now_ns = self._now()
        lag_ns = now_ns - due.at_ns
        counters = self.counters
        counters.n_sent += 1
        if lag_ns > counters.lag_max_ns:
            counters.lag_max_ns = lag_ns
        token, template = due.token, due.template
        if self._chooser is not None:
            template = self._chosen(token, template, self._chooser)
            due = due._replace(template=template)
        wire_id = encode_id(token)
        self._in_flight[token] = (now_ns, due, detail, wire_id)
        head = template.head + wire_id
        if self._between is not None:
            head += self._between(token)
        key = self._turns.key_of(token) if self._turns is not None else None
        self._clients[template.target].send(token, head, template.tail, key)

    def _chosen(self, token: int, template: Template, chooser: Chooser) -> Template:
        """The request for the server that is chosen: of a sequence at its first request."""
        if not isinstance(self._turns, Turns):
            return chooser.sent(token, template)
        template = chooser.sent(token, template, self._turns.target_of(token))
        self._turns.takes(token, template.target)
        return template

    # endings

    def on_response(self, token: int, t_ns: int, message: bytes) -> bool:
        """The client's callback for one of several responses; see `OnResponse`."""
        assert self._streams is not None
        _, due, _, wire_id = self._in_flight[token]
        return self._streams.take(token, t_ns, message, due.template, wire_id)

    def on_reply(self, exchange: Exchange) -> None:
        """The client's callback for a whole reply."""
        token = exchange.token
        _, due, detail, wire_id = self._in_flight[token]
        template = due.template
        outcome, why = template.judge(exchange, wire_id)
        n_bytes = len(exchange.body)
        if self._streams is not None:
            outcome, why, n_bytes = self._streams.end(token, due.phase, template, outcome, why)
        self._recorder.record(
            token, due.scheduled_ns, exchange.sent_ns, exchange.first_ns, exchange.done_ns, n_bytes,
            template.rows, template.n_bytes, due.phase, OUTCOME_CODE[outcome], why or detail, template.target,
            template.kind,
        )  # fmt: skip
        del self._in_flight[token]
        is_ok = outcome == "ok"
        if not is_ok:
            self._note_failure(why or outcome)
        if self._lane is not None:
            self._readopted.discard(token)
            if is_ok:
                self._lane.learn(template)
        begun_ns = due.scheduled_ns if due.scheduled_ns != NEVER else exchange.sent_ns
        self.recent_response_ns.append(exchange.done_ns - begun_ns if is_ok else FAILED_NS)
        self._ended(due, exchange.done_ns, is_ok)

    def on_failure(self, token: int, sent_ns: int, first_ns: int, why: str) -> None:
        """The client's callback for a request that the transport failed."""
        outcome = "bad_reply" if why.startswith(("malformed", TOO_LARGE)) else "transport_error"
        self._record_failure(token, sent_ns, first_ns, outcome, why)

    def _record_failure(self, token: int, sent_ns: int, first_ns: int, outcome: str, why: str) -> None:
        _, due, _, _ = self._in_flight.pop(token)
        self._readopted.discard(token)
        template = due.template
        n_bytes = template.n_bytes if sent_ns != NEVER else 0
        done_ns, n_received = NEVER if outcome == "unsent" else self._now(), 0
        if self._streams is not None:
            outcome, why, n_received = self._streams.end(token, due.phase, template, outcome, why)
        self._recorder.record(
            token, due.scheduled_ns, sent_ns, first_ns, done_ns, n_received, template.rows, n_bytes, due.phase,
            OUTCOME_CODE[outcome], why, template.target, template.kind,
        )  # fmt: skip
        self.recent_response_ns.append(FAILED_NS)
        self._note_failure(why)
        self._ended(due, self._now(), False)

    def _note_failure(self, why: str) -> None:
        """For who watches the run while it goes on."""
        if why in self.why_failed or len(self.why_failed) < _MOST_REASONS:
            self.why_failed[why] = self.why_failed.get(why, 0) + 1

    def _ended(self, due: Due, at_ns: int, is_ok: bool) -> None:
        if self._turns is not None and not self._is_stopped:
            self._pass_on(due, is_ok, self._turns)
        self._pacing.ended(due, at_ns)
        if self._chooser is not None:
            self._chooser.ended(due.template.target)
        self.counters.n_done += 1
        if not is_ok:
            self.counters.n_failed += 1
        if self._held and not self._is_stopped:
            self._send(*self._held.popleft())

    def _pass_on(self, due: Due, is_ok: bool, turns: Turns[Due] | LaneTurns[Due]) -> None:
        """What the end of a request means for the others of its sequence."""
        key = turns.key_of(due.token)
        passed = turns.ended(due.token, is_ok)
        if key is not None and passed.is_over:
            self._clients[due.template.target].unpin(key)
        for one in passed.never:
            self._skip(one, passed.why)
        if passed.next is not None:
            self._held.append((passed.next, IN_TURN))

    def _expire(self, now_ns: int) -> None:
        """Gives up the requests that are past their deadline; those in flight stand in order of their sends."""
        rules, in_flight = self._rules, self._in_flight
        oldest_ns = now_ns - rules.shortest_ns
        if self._lane is not None:
            self.readopt(self._lane.core.expire(oldest_ns, (now_ns - self._timeouts_ns).tobytes()))
        sent_by_then = takewhile(lambda token: in_flight[token][0] <= oldest_ns, in_flight)
        for token in {*self._readopted, *sent_by_then}:
            sent_at_ns, due, _, _ = in_flight[token]
            if sent_at_ns + rules.timeout_of(due.phase) <= now_ns:
                sent_ns, first_ns = self._clients[due.template.target].abandon(token)
                self._record_failure(token, sent_ns, first_ns, "timeout", "no whole reply within the timeout")

    def _record_rest(self) -> None:
        """The end of the run: cancelled if sent, unsent if not."""
        self._is_stopped = True
        if self._lane is not None:
            self._lane.is_over = True
            self._count_lane()
            self.readopt(self._lane.core.expire(NEVER_NS, b""))
        for token, (_, due, _, _) in list(self._in_flight.items()):
            sent_ns, first_ns = self._clients[due.template.target].abandon(token)
            if sent_ns == NEVER:
                why = "the run ended while it waited for a connection"
                self._record_failure(token, sent_ns, first_ns, "unsent", why)
            else:
                why = "the run ended before the reply"
                self._record_failure(token, sent_ns, first_ns, "cancelled", why)
        waiting = [(due, IN_TURN) for due in self._turns.rest()] if self._turns is not None else []
        for due, held in (*self._held, *waiting):
            self._record_unsent(due, f"the run ended while it was {held}")
        self._held.clear()
        for due in self._pacing.rest():
            self._record_unsent(due, DECIDED if self._has_ceased else f"the run ended {BEFORE_ITS_TURN}")

    def _record_unsent(self, due: Due, why: str) -> None:
        is_planned = self._chooser is None and (self._lane is None or not self._lane.is_chooser)
        self._recorder.record(
            due.token, due.scheduled_ns, NEVER, NEVER, NEVER, 0, due.template.rows, 0, due.phase,
            OUTCOME_CODE["unsent"], why, due.template.target if is_planned else self._recorder.unchosen,
            due.template.kind,
        )  # fmt: skip


def templates_needed(plan: Plan | ClosedPlan, target: int | None = None) -> set[tuple[int, int]]:
    """The distinct (rows, variant) of a plan, or of its arrivals for one target."""
    rows, variants = kinds_of(plan.kind_codes(target))
    return set(zip(rows.tolist(), variants.tolist(), strict=True))
