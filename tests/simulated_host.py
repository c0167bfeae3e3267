"""A simulated host with a server, its clients and others on its cores, whose truth is known: what the waiting of the
server's threads for cores that others had did to each request.

Work-conserving: a thread that wakes gets an idle core, after what waking that core costs, else it waits behind those
that wait already; a thread that computes on is put to their end after each time slice.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from squall.analysis.storage.schema import arrow_schema
from squall.analysis.verdict.cpu_shares import CpuShares, InFlight, cpu_shares

S = 1_000_000_000
MS = 1_000_000
US = 1_000
TICK_NS = 10 * MS
"""In which /proc/stat counts the time of cores."""
GROUPS = ("server", "clients", "squall", "others")


@dataclass(frozen=True)
class Host:
    """What runs where. CPU times in us.

    A request is `n_hops` wake-ups of a thread of the server, one after another, each with `hop_us` of CPU, and in the
    middle `sleep_ms` off the CPU, as on a GPU; before it the client computes for `client_us`, after it again.
    `spinners` of a group never sleep; with `spin_ms` and `pause_ms` all of them compute and sleep in turn. The other
    parts of the run compute for `squall_us` ten times a second, and ask the server each time, which takes it `n_hops`.
    """

    n_cores: int = 2
    rate_hz: float = 20.0
    duration_s: int = 6
    wake_us: float = 100.0
    n_hops: int = 8
    hop_us: float = 40.0
    sleep_ms: float = 0.0
    client_us: float = 60.0
    squall_us: float = 1_000.0
    spinners: dict[str, int] = field(default_factory=dict)
    spin_ms: float = 0.0
    pause_ms: float = 0.0
    slice_ms: float = 3.0
    seed: int = 0


@dataclass
class _Thread:
    """Something that computes for `left_ns`, and then does `then`."""

    group: str
    left_ns: int
    then: Callable[[], None]
    ready_ns: int = 0
    waited_ns: int = 0
    """Behind others, for a core."""


class _Run:
    def __init__(self, host: Host) -> None:
        self.host, self.random = host, Random(host.seed)
        self.now_ns, self.end_ns = 0, host.duration_s * S
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.idle, self.waiting = set(range(host.n_cores)), deque[_Thread]()
        n = host.duration_s
        self.cpu = {group: np.zeros(n) for group in GROUPS}
        self.core = np.zeros((host.n_cores, n))
        self.wait, self.runs = (
            {group: np.zeros(n) for group in GROUPS},
            {group: np.zeros(n) for group in GROUPS},
        )
        self.requests: list[tuple[int, int]] = []
        self.waited_ns = 0

    def at(self, t_ns: int, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (t_ns, len(self.events) + self.random.getrandbits(30), what))

    def run(self) -> None:
        while self.events:
            self.now_ns, _, what = heapq.heappop(self.events)
            if self.now_ns >= self.end_ns:
                return
            what()

    def compute(self, group: str, us: float, then: Callable[[], None]) -> _Thread:
        """A thread of the group wakes, and computes for that long."""
        jitter = 0.5 + self.random.random()
        thread = _Thread(group, max(1, round(us * jitter * US)), then)
        self.ready(thread)
        return thread

    def ready(self, thread: _Thread) -> None:
        thread.ready_ns = self.now_ns
        if not self.idle:
            self.waiting.append(thread)
            return
        core = self.random.choice(sorted(self.idle))
        self.idle.discard(core)
        wake_ns = round(self.host.wake_us * US * (0.5 + self.random.random()))
        self.at(self.now_ns + wake_ns, lambda: self.start(core, thread))

    def start(self, core: int, thread: _Thread) -> None:
        second = min(self.now_ns // S, self.host.duration_s - 1)
        self.wait[thread.group][second] += self.now_ns - thread.ready_ns
        self.runs[thread.group][second] += 1
        begun_ns, part_ns = self.now_ns, min(thread.left_ns, round(self.host.slice_ms * MS))
        self.at(begun_ns + part_ns, lambda: self.stop(core, thread, begun_ns))

    def stop(self, core: int, thread: _Thread, begun_ns: int) -> None:
        at_ns = begun_ns
        while at_ns < self.now_ns:
            upto_ns = min(self.now_ns, (at_ns // S + 1) * S)
            self.cpu[thread.group][at_ns // S] += upto_ns - at_ns
            self.core[core][at_ns // S] += upto_ns - at_ns
            at_ns = upto_ns
        thread.left_ns -= self.now_ns - begun_ns
        if thread.left_ns > 0:
            thread.ready_ns = self.now_ns
            self.waiting.append(thread)
        else:
            thread.then()
        if self.waiting:
            following = self.waiting.popleft()
            following.waited_ns += self.now_ns - following.ready_ns
            self.start(core, following)
        else:
            self.idle.add(core)

    def spin(self, group: str) -> None:
        host = self.host
        if not host.pause_ms:
            self.ready(_Thread(group, self.end_ns, lambda: None))
            return
        again_ns = self.now_ns + round((host.spin_ms + host.pause_ms) * MS)
        self.ready(_Thread(group, round(host.spin_ms * MS), lambda: None))
        self.at(again_ns, lambda: self.spin(group))

    def hops(self, n: int, then: Callable[[int], None], sleep_ms: float = 0.0, waited_ns: int = 0) -> None:
        """`then` is told how long all of them waited behind others."""
        host = self.host
        if n == 0:
            then(waited_ns)
        elif sleep_ms and n <= host.n_hops // 2:
            self.at(self.now_ns + round(sleep_ms * MS), lambda: self.hops(n, then, 0.0, waited_ns))
        else:
            thread = self.compute(
                "server",
                host.hop_us,
                lambda: self.hops(n - 1, then, sleep_ms, waited_ns + thread.waited_ns),
            )

    def request(self) -> None:
        host = self.host

        def send() -> None:
            sent_ns = self.now_ns
            self.hops(host.n_hops, lambda waited_ns: done(sent_ns, waited_ns), host.sleep_ms)

        def done(sent_ns: int, waited_ns: int) -> None:
            self.requests.append((sent_ns, self.now_ns))
            self.waited_ns += waited_ns
            if host.client_us:
                self.compute("clients", host.client_us, lambda: None)

        if host.client_us:
            self.compute("clients", host.client_us, send)
        else:
            send()

    def poll(self) -> None:
        def ask() -> None:
            self.hops(self.host.n_hops, lambda _: None)

        if self.host.squall_us:
            self.compute("squall", self.host.squall_us, ask)
        else:
            ask()


@dataclass(frozen=True)
class Truth:
    """What squall finds of a simulated host, and what is so.

    `true_ratio`: of the time of requests with the server, what their threads waited behind others for a core.
    """

    shares: CpuShares
    true_ratio: float


def truth_of(host: Host) -> Truth:
    """A phase of so many seconds, with a row of `cpu_samples` each."""
    run = _Run(host)
    arrivals, at_ns = Random(host.seed + 1), 0.0
    while (at_ns := at_ns + arrivals.expovariate(host.rate_hz) * S) < run.end_ns:
        run.at(round(at_ns), run.request)
    for tenth in range(10 * host.duration_s):
        run.at(tenth * S // 10, run.poll)
    for group, n in host.spinners.items():
        for _ in range(n):
            run.at(0, partial(run.spin, group))
    run.run()
    sent_ns, done_ns = (np.array([one[i] for one in run.requests], dtype=np.int64) for i in (0, 1))
    (shares,) = cpu_shares(_samples(run), ["m"], {"node-0": InFlight.of(sent_ns, done_ns)})
    return Truth(shares, run.waited_ns / max(1, int((done_ns - sent_ns).sum())))


def _samples(run: _Run) -> pa.Table:
    host = run.host
    idle = S - np.diff(np.floor(np.cumsum(run.core, axis=1) / TICK_NS) * TICK_NS, axis=1, prepend=0)
    rows: list[dict[str, Any]] = []
    for second in range(host.duration_s):
        had = {f"{group}_ns": round(run.cpu[group][second]) for group in GROUPS}
        free = idle[:, second]
        rows.append({
            "run": "r", "phase": "m", "node": "node-0", "t_ns": (second + 1) * S, "interval_ns": S,
            "n_cores": host.n_cores, "server_cores": host.n_cores, "steal_ns": 0, "idle_ns": round(free.sum()),
            "server_cores_busy_ns": round(host.n_cores * S - free.sum()), "server_cores_free_ns": round(free.max()),
            "server_wait_ns": round(run.wait["server"][second]), "server_runs": int(run.runs["server"][second]),
            "clients_wait_ns": round(run.wait["clients"][second]), "clients_runs": int(run.runs["clients"][second]),
            **had,
        })  # fmt: skip
    return pa.Table.from_pylist(rows, schema=arrow_schema("cpu_samples"))
