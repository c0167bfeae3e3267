"""The exact answer of a run of a FIFO queue, request by request, and what server and client added to it.

    scheduled ≤ sent ≤ arrival ≤ start ≤ departure ≤ replied ≤ done          one clock: none may come before another
        └ lag ┘ └ way in ┘  └── exact: the recursion ──┘ └ late ┘ └ way out ┘

The arrivals of the run and the service times that the seed gives are known. The recursion of Lindley (1952), of Kiefer
and Wolfowitz (1955) for several lanes, makes of them the one right departure of each request: the server's own must be
equal to the ns. What follows in time can only be late, by what the host takes. A limit is held to the quickest tenth
of the requests: a fault of a clock or a stamp is in each of them, a wait for a core is not.

Where a limit is broken, the kernel's count of how long server and worker were ready to run and did not (and of what a
hypervisor took) decides whose fault it is. If waits alone made half of the requests late by `limit`, they were half of
`limit` a request on average; an eighth allows for a quarter of it that the way takes anyhow and for waits that three
requests share. A mean wait below that leaves server or client as the cause, one above it leaves nothing to say of them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.statistics.latency import nearest_rank
from squall.analysis.statistics.queueing import departures_ns
from squall.scenarios.records import Frozen
from squall.scenarios.units import digits_text

QUICK = 0.1
"""Share of the requests that a limit is held to: the quickest."""
LATE_LIMIT_NS = 200_000
"""Most by which the server may answer after the exact departure, of the half that it holds longest: a clock that is
10 % slow adds a tenth of what it holds them, 280 us at the least (2 ms of service at half the load)."""
WAY_LIMIT_NS = 500_000
"""Most that each way between client and server may take: half of a stamp that is 1 ms off."""
MEDIAN_LIMIT_NS = 1_000_000
"""Most that client, transport and the server's own lateness may add to a response time at the median."""
_HOST_SHARE = 1 / 8
"""Of a limit: a longer mean wait per request, and what broke the limit may be the host's."""
_NEVER_NS = -1


class Waits(Frozen):
    """How long server and worker were ready to run during the run and did not, by the kernel; None: not known."""

    server_ns: int | None = None
    client_ns: int | None = None

    def per_request_ns(self, n: int, with_client: bool) -> float | None:
        """Mean of the server, or of both, over `n` requests; None where one is not known."""
        parts = [self.server_ns, self.client_ns] if with_client else [self.server_ns]
        known = [part for part in parts if part is not None]
        return sum(known) / n if len(known) == len(parts) else None


class Stamps(Frozen, eq=False):
    """Instants of the same requests by request_id, from client and server; (n,) ns each.

    `accepted`: places of the requests in the order in which the server took them, which equal arrivals do not tell.
    """

    accepted: Int64s
    scheduled_ns: Int64s
    sent_ns: Int64s
    arrival_ns: Int64s
    start_ns: Int64s
    departure_ns: Int64s
    replied_ns: Int64s
    done_ns: Int64s


class Found(Frozen):
    """What the comparison came to. `faults`: of server or client; `doubts`: what the host may have done instead."""

    faults: list[str]
    doubts: list[str]
    figures: dict[str, Any]


def drawn_services(law: str, mean_ns: int, seed: int, n: int) -> Int64s:
    """The first `n` service times in ns that `seed` gives, whatever the server says that it drew."""
    if law == "constant":
        return np.full(n, mean_ns, np.int64)
    return np.rint(np.random.default_rng(seed).exponential(mean_ns, n)).astype(np.int64)


def exact_times(arrivals_ns: Int64s, services_ns: Int64s, n_lanes: int) -> tuple[Int64s, Int64s]:
    """(start, departure) of each request in order of arrival, without rounding; 0 lanes: no request waits."""
    departure_ns = arrivals_ns + services_ns
    if n_lanes:
        departure_ns = departures_ns(arrivals_ns[None], services_ns[None], n_lanes)[0]
    return departure_ns - services_ns, departure_ns


def compare(stamps: Stamps, services_ns: Int64s, n_lanes: int, waits: Waits) -> Found:
    """Holds a server to the exact answer and a client to the server; `services_ns` in the order of acceptance, one or
    more requests."""
    faults = _unlike_recursion(stamps, services_ns, n_lanes)
    faults += _out_of_order(stamps)
    n = len(stamps.accepted)
    late_ns = stamps.replied_ns - stamps.departure_ns
    held_ns = stamps.departure_ns - stamps.arrival_ns
    ways_ns = {"in": stamps.arrival_ns - stamps.sent_ns, "out": stamps.done_ns - stamps.replied_ns}
    over_ns = stamps.done_ns - stamps.scheduled_ns - held_ns
    if stamps.replied_ns.min() == _NEVER_NS:
        return Found(faults, [], {"over_server_ns": spread(over_ns), "server_late_ns": None, "way_ns": None})
    longest = late_ns[held_ns >= quantile(held_ns, 0.5)]
    limits = [
        ("the server answers late", quantile(longest, QUICK), LATE_LIMIT_NS, False),
        ("the way to the server takes long", quantile(ways_ns["in"], QUICK), WAY_LIMIT_NS, True),
        ("the client stamps replies late", quantile(ways_ns["out"], QUICK), WAY_LIMIT_NS, True),
        ("the median over the server's own time is over its limit", quantile(over_ns, 0.5), MEDIAN_LIMIT_NS, True),
    ]  # fmt: skip
    doubts = []
    for what, found_ns, limit_ns, with_client in limits:
        if found_ns <= limit_ns:
            continue
        said = f"{what}: {digits_text(found_ns / 1e6)} ms of at most {digits_text(limit_ns / 1e6)} ms"
        wait_ns = waits.per_request_ns(n, with_client)
        if wait_ns is None:
            doubts.append(f"{said}; the kernel does not count here how long a process waits for a core")
        elif wait_ns <= limit_ns * _HOST_SHARE:
            faults.append(said)
        else:
            who = "server and client" if with_client else "the server"
            doubts.append(f"{said}; {who} waited {digits_text(wait_ns / 1e6)} ms a request for a core")
    figures = {
        "over_server_ns": spread(over_ns), "server_late_ns": spread(late_ns),
        "way_ns": {name: spread(way_ns) for name, way_ns in ways_ns.items()},
    }  # fmt: skip
    return Found(faults, doubts, figures)


def quantile(values_ns: Int64s, q: float) -> int:
    """The nearest-rank quantile of one value or more."""
    return int(np.sort(values_ns)[nearest_rank(q, len(values_ns)) - 1])


def spread(values_ns: Int64s) -> dict[str, int]:
    """Least, tenth, median and largest."""
    quick, median = quantile(values_ns, QUICK), quantile(values_ns, 0.5)
    return {"min": int(values_ns.min()), "p10": quick, "p50": median, "max": int(values_ns.max())}


def _unlike_recursion(stamps: Stamps, services_ns: Int64s, n_lanes: int) -> list[str]:
    """Requests whose start or departure is not the exact one, to the ns."""
    order = stamps.accepted
    exact = exact_times(stamps.arrival_ns[order], services_ns, n_lanes)
    wrong = (exact[0] != stamps.start_ns[order]) | (exact[1] != stamps.departure_ns[order])
    if not wrong.any():
        return []
    first = int(np.argmax(wrong))
    return [
        f"{np.count_nonzero(wrong)} of {len(order)} departures are not those of the recursion, from arrival {first} on"
    ]


def _out_of_order(stamps: Stamps) -> list[str]:
    """Neighbours of which one came before the other that it follows."""
    names = [name for name in Stamps.__annotations__ if name.endswith("_ns")]
    found = []
    for before, after in pairwise(names):
        n_wrong = int(np.count_nonzero(getattr(stamps, after) < getattr(stamps, before)))
        if n_wrong:
            words = f"{after.removesuffix('_ns')} lies before {before.removesuffix('_ns')}"
            found.append(f"{words} in {n_wrong} of {len(stamps.sent_ns)} requests")
    return found
