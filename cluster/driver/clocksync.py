"""The run clock, and how far each node's clock is from it, probed all through a run.

The run clock is the driver's CLOCK_MONOTONIC plus one anchor, read once at the start, that makes it UTC. Processes
that share the driver's kernel and time namespace share its monotonic clock: their offset is the anchor, exactly.
Another node's clock is probed by four time stamps, t1 and t4 at the driver, t2 and t3 at the responder of the node
(`squall.actors.sampling.clock_responder`); what they prove stands in `squall.analysis.storage.clock_brackets`, the
track through them in `squall.analysis.storage.clock_fit`.
"""

from __future__ import annotations

import random
import selectors
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from squall.actors.clock import Clock, SystemClock
from squall.analysis.storage.clock_brackets import Brackets
from squall.analysis.storage.clock_fit import fit_track
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.schema import arrow_schema
from squall.cluster.driver.clock_links import ClockLink, Protocol
from squall.scenarios.errors import AnalysisError, ClusterError
from squall.scenarios.units import NS_PER_S

_BURST_PROBES = 5
_BURST_INTERVAL_NS = NS_PER_S // 4
_MOST_CPU = 0.05
"""Of a core, for all probes while the load runs: with hundreds of nodes each is read less often."""
_SETTLE_BURSTS = 6
_SETTLE_PROBES = 10
_SETTLE_PAUSE_S = 0.1
_GROUP = 8
"""Nodes probed at once: more wait for each other's answers to be read, fewer for the slowest of them."""
_LEAST_WAIT_S = 0.05
_MOST_WAIT_S = 1.0
_SILENT_NS = 2 * NS_PER_S
"""A node that has not answered for so long is lost until it does."""
_PATIENCE: tuple[tuple[Protocol, float], ...] = (("udp", 2.0), ("tcp", 4.0))
"""How long a protocol may give no answer before the next one is tried."""


class ClockWatch:
    """Probes the nodes' clocks from the driver: `add` each, `settle`, `start`, `burst` at edges, `stop`.

    All but the thread that `start` begins is for one thread; `anchor_ns`: the run clock minus the driver's clock.
    """

    def __init__(self, anchor_ns: int, clock: Clock | None = None) -> None:
        self._anchor_ns = anchor_ns
        self._clock = SystemClock() if clock is None else clock
        self._own: list[str] = []
        self._links: dict[str, ClockLink] = {}
        self._selector = selectors.DefaultSelector()
        self._probing = threading.Lock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._ended_ns: int | None = None
        self._fitted: dict[str, tuple[int, ClockTrack]] = {}
        self._cpu_ns = 0
        self._order = random.Random(0)

    def add_own(self, label: str) -> None:
        """A node whose clock is the driver's."""
        self._own.append(label)

    def add(self, label: str, address: tuple[str, int], token: bytes) -> None:
        """A node whose responder listens at `address` for probes with `token`. Raises ClusterError without a route."""
        link = ClockLink(address, token, self._clock)
        try:
            link.open(self._selector, "udp")
        except OSError as error:
            raise ClusterError(f"clock of {label}: no address for {address[0]}: {error.strerror}") from error
        self._links[label] = link

    def settle(self) -> None:
        """Probes until each clock is known, over TCP where UDP gives no answer; then some more, for about a second.

        Raises ClusterError where a node answers over neither.
        """
        for protocol, patience_s in _PATIENCE:
            self._wait_for_answers(protocol, patience_s)
        silent = [label for label, link in self._links.items() if not len(link.log)]
        if silent:
            where = ", ".join(f"{label} at {_text(self._links[label].address)}" for label in silent)
            raise ClusterError(
                f"no answer to clock probes from {where}: let UDP or TCP pass from the driver to that port (it changes"
                " from run to run: open the node's ephemeral ports, /proc/sys/net/ipv4/ip_local_port_range)"
            )
        for _ in range(_SETTLE_BURSTS if self._links else 0):
            self._probe(_SETTLE_PROBES)
            self._wake.wait(_SETTLE_PAUSE_S)

    def start(self) -> None:
        """Probes from now on in a thread of its own: four times a second, less often where nodes are many."""
        if self._links and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="squall-clock-watch", daemon=True)
            self._thread.start()

    def burst(self) -> None:
        """Probes now, without waiting for it where the thread runs: call it at the edges of phases."""
        if self._thread is None:
            self._probe(_SETTLE_PROBES)
        else:
            self._wake.set()

    def stop(self) -> None:
        """A last burst; then no more probes. May be called twice."""
        if self._ended_ns is not None:
            return
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._probe(_SETTLE_PROBES)
        self._ended_ns = self._clock.monotonic_ns()
        for link in self._links.values():
            link.close()
        self._selector.close()

    def tracks(self) -> dict[str, ClockTrack]:
        """Each node's clock to the run clock, by all probes so far. Raises ClusterError for a node without any."""
        return {
            **{label: ClockTrack.constant(self._anchor_ns) for label in self._own},
            **{label: self._track(label, link) for label, link in self._links.items()},
        }

    def probes(self, run: str) -> Iterator[pa.Table]:
        """Rows of `clock_probes`, a table per node, not yet assigned to phases."""
        schema, texts = arrow_schema("clock_probes"), {"run": run, "phase": ""}
        for label, link in self._links.items():
            sent_ns, got_ns, answered_ns, back_ns = link.log.stamps()
            columns = {
                "sent_ns": sent_ns + self._anchor_ns, "node_received_ns": got_ns, "node_sent_ns": answered_ns,
                "received_ns": back_ns + self._anchor_ns,
                **{name: pa.repeat(text, len(sent_ns)) for name, text in {**texts, "node": label}.items()},
            }  # fmt: skip
            yield pa.table(
                {name: pa.array(columns[name]).cast(schema.field(name).type) for name in schema.names}, schema
            )

    def losses(self) -> list[str]:
        """Nodes that stopped to answer, and clocks that did more than a clock may."""
        ended_ns = self._clock.monotonic_ns() if self._ended_ns is None else self._ended_ns
        found = []
        for label, link in self._links.items():
            if link.last_back_ns is not None and ended_ns - link.last_back_ns > _SILENT_NS:
                since = _utc(link.last_back_ns + self._anchor_ns)
                found.append(
                    f"clock of {label}: no answer since {since}; later instants there are less certain"
                )
            if len(link.log):
                found += [
                    f"clock of {label}: it stepped or slewed between {_utc(first_ns)} and {_utc(last_ns)}; instants in"
                    " between are as uncertain as that step is wide"
                    for first_ns, last_ns in _steps_on_target(self._track(label, link))
                ]
        return found

    def cost(self) -> tuple[int, int]:
        """Answered probes so far, and the CPU time in ns that the driver spent on all."""
        return sum(len(link.log) for link in self._links.values()), self._cpu_ns

    def _track(self, label: str, link: ClockLink) -> ClockTrack:
        n_probes = len(link.log)
        if label not in self._fitted or self._fitted[label][0] != n_probes:
            sent_ns, got_ns, answered_ns, back_ns = link.log.stamps()
            brackets = Brackets.of_probes(
                sent_ns + self._anchor_ns, got_ns, answered_ns, back_ns + self._anchor_ns
            )
            try:
                self._fitted[label] = (n_probes, fit_track(brackets))
            except AnalysisError as error:
                raise ClusterError(f"clock of {label}: {error}") from error
        return self._fitted[label][1]

    def _wait_for_answers(self, protocol: Protocol, patience_s: float) -> None:
        """Until each node has answered, or `patience_s` are over; those that have not speak `protocol`."""
        end_ns = self._clock.monotonic_ns() + round(patience_s * NS_PER_S)
        for link in self._links.values():
            if not len(link.log) and link.protocol != protocol:
                link.open(self._selector, protocol)
        while self._clock.monotonic_ns() < end_ns:
            silent = [link for link in self._links.values() if not len(link.log)]
            if not silent:
                return
            self._exchange(silent, _LEAST_WAIT_S)

    def _run(self) -> None:
        due_ns = self._clock.monotonic_ns()
        while not self._is_stopping:
            spent_ns = self._probe(_BURST_PROBES)
            interval_ns = max(_BURST_INTERVAL_NS, round(spent_ns / _MOST_CPU))
            due_ns = max(due_ns + interval_ns, self._clock.monotonic_ns())
            self._wake.wait((due_ns - self._clock.monotonic_ns()) / NS_PER_S)
            self._wake.clear()

    def _probe(self, n_probes: int) -> int:
        """`n_probes` to each node that answers, in another order each time; one, not waited for, to each silent one.

        Returns the CPU time that it took, in ns.
        """
        with self._probing:
            begun_ns, begun_cpu_ns = self._clock.monotonic_ns(), time.thread_time_ns()
            links = list(self._links.values())
            heard = [link for link in links if begun_ns - (link.last_back_ns or 0) <= _SILENT_NS]
            self._exchange([link for link in links if link not in heard], 0.0)
            for _ in range(n_probes):
                self._order.shuffle(heard)
                for first in range(0, len(heard), _GROUP):
                    group = heard[first : first + _GROUP]
                    self._exchange(group, _wait_s(group))
            spent_ns = time.thread_time_ns() - begun_cpu_ns
            self._cpu_ns += spent_ns
        return spent_ns

    def _exchange(self, links: Sequence[ClockLink], wait_s: float) -> None:
        """A probe to each; waits until each has answered, for `wait_s` at most. Late answers count when read."""
        waiting = set(links)
        for link in links:
            link.send()
        end_ns = self._clock.monotonic_ns() + round(wait_s * NS_PER_S)
        while True:
            left_s = (end_ns - self._clock.monotonic_ns()) / NS_PER_S
            for key, _ in self._selector.select(max(left_s, 0.0) if waiting else 0.0):
                if key.data.receive():
                    waiting.discard(key.data)
            if not waiting or left_s <= 0:
                return


def _wait_s(links: Sequence[ClockLink]) -> float:
    """Four times the least round trip of the slowest: what takes longer says little."""
    delays_ns = [link.log.least_delay_ns or 0 for link in links]
    return min(max(4 * max(delays_ns, default=0) / NS_PER_S, _LEAST_WAIT_S), _MOST_WAIT_S)


def _steps_on_target(track: ClockTrack) -> list[tuple[int, int]]:
    """Begin and end of each step on the run clock, as the track has them on its either side."""
    return [(track.target_ns(first_ns), track.target_ns(last_ns)) for first_ns, last_ns in track.steps]


def _utc(run_ns: int) -> str:
    return datetime.fromtimestamp(run_ns / NS_PER_S, UTC).strftime("%H:%M:%S.%f")[:-3] + " UTC"


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]} port {address[1]}"
