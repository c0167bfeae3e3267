"""Who had the CPU of a node in a phase, what the server lacked because of it, and what that did to the requests. Pure.

A server whose threads wait for a CPU is not starved by that alone: threads of a full server wait for one another, and a
core that sleeps takes its time to wake. A cause needs means and consequence. **Means**: of each sample (a second) it is
asked how much CPU the server lacked that others had, on its cores, in moments in which none of these was free:

    lacked = min(wait, foreign, full * cores * interval, allowed - had)

    full     share of the sample in which none of its cores was free, at most: what the idlest of them was not idle
    wait     time in which its threads could run and had no CPU, summed over them, less what waking up may cost by
             itself: 50 us for each time one got a CPU where all cores are taken, up to 500 us where they sleep,
             which they do less deeply the less they are idle (50 us + (1 - filled)^2 * 450 us)
    foreign  CPU time of all that is not the server, on the cores that the server may run on
    allowed  CPU time that it could have had at most: its cores, or its quota if that is less, times the interval
    had      its own CPU time

`wait` is 0 where cores are free, `foreign` where the server is alone, and `allowed - had` where it has all it may have,
so that a server that saturates its own cores, and one at the end of its quota, lack nothing. What it lacked is shared
among those who ran meanwhile as their CPU time is. Beside it stands what the hypervisor took: the part of the CPU time
stolen from the node that falls on the server. `taken` is what it lacked by others, over that and what it had: 0.5
means that it got half of the CPU it could have used.

A hypervisor calls it stolen, too, when a virtual core that slept takes its time to wake, and the kernel counts that
time as idle as well. So only what the cores were neither idle nor used counts as taken by other guests.

**Consequence**: of the time of requests in flight the share that the lack explains, of each sample, weighed by how
many were in flight:

    min(full, lacked / max(in flight, had + lacked + stolen)) + stolen / max(in flight, had + lacked + stolen)

    in flight  time of the sample in which the server had at least one request

A request can be slowed down in moments without a free core alone, hence at most `full`; and what is spread over many
cores holds a request up once. This takes each wait to hold up all requests in flight, as where they queue for one
instance. Those that are served side by side, as by a GPU or a model that sleeps, are held up by their own threads
alone: of an open loop it is therefore no more than the larger of

    lacked / sum of the time in flight     what the waits do where each holds up one request
    1 - p5 / mean of the service times     where they hold up others, that shows: a queue is not equally long for all

A thread that the server's own quota holds back counts as waiting, too. So of a second in which it was used up, the
time that it held back is taken off `wait`; and where half of the node was idle then, nothing else made the server wait.
A second in which a quota that the load workers use up too was at its end is shared among them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Floats, Int64s
from squall.analysis.requests.requests import Requests, in_order, numbers
from squall.analysis.statistics.order_statistics import nearest_rank
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import in_memory, records
from squall.analysis.wording import count_text, macros
from squall.scenarios.records import Frozen

OWN = ("clients", "squall")
WAKE_NS = 50_000
"""Of a wait, what a wake-up may cost by itself where no core sleeps: 0.2 to 5 us of a thread that goes before all
others (a machine of 2 cores, Linux 6.18, 2026-11-22), and ten times that as room; behind another's time slice it is
ms."""
SLEEPING_WAKE_NS = 500_000
"""The same where a core sleeps, as an idle virtual one does: 64 to 280 us a wake-up were seen on idle virtual machines
with 2 cores (2026-11-28); about twice that as room, still below the time slice of another thread (1.4 ms there)."""
ROOM_RATIO = 0.5
"""Idle share of a node's CPU in a second beyond which a server whose quota was used up in it was not held back by
others: that second is left out."""
LEAST_REQUESTS = 20
"""Requests of which a p5 is one of them."""
LEAST_RATIO = 0.01
"""Share of the CPU that the server could have used below which nothing is said of who had it."""
_SECONDS = "FROM cpu_samples ORDER BY node, t_ns"
_SHARES = f"""
WITH told AS (
    SELECT *,
        interval_ns::DOUBLE AS ns, ns * n_cores AS all_ns, coalesce(server_ns, 0)::DOUBLE AS had,
        server_ns IS NOT NULL AND server_wait_ns IS NOT NULL AS is_known,
        least(server_cores, n_cores) AS n_own,
        1 - idle_ns / all_ns AS busy,
        -- a quota was used up: one that the load workers use up too, or the server's alone
        server_throttled_periods > 0 AND is_quota_shared IS TRUE AS is_shared_up,
        server_throttled_periods > 0 AND is_quota_shared IS NOT TRUE AS is_own_up,
        -- of other guests: as far as the node's cores were not idle meanwhile
        least(steal_ns, greatest(0, all_ns - had - clients_ns - squall_ns - others_ns - idle_ns)) AS guests_ns,
        -- what the idlest of its cores was not idle; of a run that did not record that, what they were not idle on
        -- average, which is no less; where a shared quota is used up a free core is of no use
        CASE WHEN is_shared_up THEN 1 ELSE greatest(0, least(1, coalesce(
            1 - server_cores_free_ns / ns, server_cores_busy_ns / (n_own * ns), busy))) END AS filled
    FROM seconds WHERE list_contains($phases, phase)),
waited AS (
    SELECT *,
        {WAKE_NS} + (1 - filled) ** 2 * {SLEEPING_WAKE_NS - WAKE_NS} AS wake_ns,
        greatest(0, server_wait_ns - wake_ns * coalesce(server_runs, 0)) AS awake_ns,
        -- less what a quota of its own made its threads wait; with room beside it nothing else did
        CASE WHEN is_own_up AND idle_ns > {ROOM_RATIO} * all_ns THEN 0
            WHEN is_own_up THEN greatest(0, awake_ns - coalesce(server_throttled_ns, 0)) ELSE awake_ns END AS wait,
        -- those outside of a shared quota do not use it up
        CASE WHEN is_shared_up THEN 0 ELSE others_ns END AS rivals_ns,
        rivals_ns + clients_ns + squall_ns AS foreign_ns,
        least(n_own, server_quota_cores) * ns AS allowed,
        -- the same of the load workers
        {WAKE_NS} + (1 - busy) ** 2 * {SLEEPING_WAKE_NS - WAKE_NS} AS clients_wake_ns,
        others_ns + had + squall_ns AS clients_foreign_ns,
        CASE WHEN clients_wait_ns IS NOT NULL THEN least(
            greatest(0, clients_wait_ns - clients_wake_ns * coalesce(clients_runs, 0)), clients_foreign_ns,
            greatest(0, least(clients_quota_cores, n_cores) * ns - clients_ns)) END AS clients_lacked,
        coalesce(clients_lacked / nullif(clients_foreign_ns, 0), 0) AS clients_share
    FROM told),
lack AS (
    SELECT *,
        least(wait, foreign_ns, greatest(0, coalesce(server_cores_busy_ns, 'inf'::DOUBLE) - had), filled * n_own * ns,
            greatest(0, allowed - had)) AS lacked,
        coalesce(lacked / nullif(foreign_ns, 0), 0) AS share,
        -- of what other guests had, as much as of the time that they had not
        coalesce(guests_ns * had / nullif(greatest(had, all_ns - guests_ns - idle_ns), 0), 0) AS stolen,
        had + lacked + stolen AS wanted,
        nullif(greatest(any_in_flight_ns, wanted), 0) AS span_ns
    FROM waited),
of_node AS (
    SELECT phase, node, count(*) AS n_samples, max(n_cores) AS n_cores,
        {{
            'server': sum(server_ns) / greatest(1, sum(ns)), 'clients': sum(clients_ns) / greatest(1, sum(ns)),
            'squall': sum(squall_ns) / greatest(1, sum(ns)), 'others': sum(others_ns) / greatest(1, sum(ns)),
            'steal': sum(guests_ns) / greatest(1, sum(ns)), 'idle': sum(idle_ns) / greatest(1, sum(ns))
        }} AS cores,
        sum(server_wait_ns) FILTER (is_known) / nullif(sum(server_wait_ns + had) FILTER (is_known), 0)
            AS server_wait_ratio,
        sum(clients_wait_ns) / nullif(sum(clients_wait_ns + clients_ns), 0) AS clients_wait_ratio,
        nullif(sum(clients_ns + clients_lacked), 0) AS clients_wanted,
        CASE WHEN count(clients_wait_ns) > 0 THEN {{
            'others': coalesce(sum(clients_share * others_ns) / clients_wanted, 0),
            'server': coalesce(sum(clients_share * had) / clients_wanted, 0),
            'squall': coalesce(sum(clients_share * squall_ns) / clients_wanted, 0)
        }} END AS taken_from_clients,
        sum(psi_cpu_some_ns) / sum(ns) FILTER (psi_cpu_some_ns IS NOT NULL) AS psi_some_ratio,
        sum(server_psi_some_ns) / sum(ns) FILTER (server_psi_some_ns IS NOT NULL) AS server_psi_some_ratio,
        CASE WHEN count(server_ns) = 0 THEN 'no process of the server is known here'
            WHEN count(server_wait_ns) = 0
            THEN 'the kernel does not tell how long threads wait for a CPU (schedstat)' ELSE '' END AS reason
    FROM lack GROUP BY phase, node),
of_server AS (
    SELECT phase, node,
        sum(ns) FILTER (is_known) AS known_ns,
        nullif(sum(wanted) FILTER (is_known), 0) AS all_wanted,
        {{
            'others': coalesce(sum(share * rivals_ns) FILTER (is_known) / all_wanted, 0),
            'clients': coalesce(sum(share * clients_ns) FILTER (is_known) / all_wanted, 0),
            'squall': coalesce(sum(share * squall_ns) FILTER (is_known) / all_wanted, 0),
            'steal': coalesce(sum(stolen) FILTER (is_known) / all_wanted, 0)
        }} AS taken,
        coalesce(max((wanted - had) / nullif(wanted, 0)) FILTER (is_known), 0) AS worst_second_ratio,
        min(server_quota_cores) AS quota_cores,
        sum(coalesce(server_throttled_periods, 0)) / nullif(sum(server_periods), 0) AS throttled_ratio,
        CASE WHEN count(server_quota_cores) > 0 THEN bool_or(is_quota_shared IS TRUE) END AS is_quota_shared,
        sum(filled * ns) FILTER (is_known) / known_ns AS full_ratio,
        sum(wanted - had) FILTER (is_known) / known_ns AS lacked_cores,
        sum(server_wait_ns) FILTER (is_known) / nullif(sum(server_runs) FILTER (is_known), 0) AS server_wake_ns,
        -- the consequence, where each wait holds up all requests in flight, and where it holds up one
        nullif(sum(in_flight_ns) FILTER (is_known), 0) AS all_in_flight_ns,
        sum(in_flight_ns * (least(filled, coalesce(lacked / span_ns, 0)) + coalesce(stolen / span_ns, 0)))
            FILTER (is_known) / all_in_flight_ns AS of_all_ratio,
        sum(lacked + stolen) FILTER (is_known) / all_in_flight_ns AS of_each_ratio,
        max(t_ns) FILTER (is_known) AS last_ns
    FROM lack GROUP BY phase, node)
SELECT of_node.* EXCLUDE (clients_wanted), of_server.* EXCLUDE (phase, node, known_ns, all_wanted, all_in_flight_ns)
FROM of_node LEFT JOIN of_server
    ON of_node.phase = of_server.phase AND of_node.node = of_server.node AND reason = ''
ORDER BY list_position($phases, of_node.phase), of_node.node
"""


class CpuShares(Frozen):
    """The CPU of a node in a phase. `cores`: mean cores that each group had: the server, the load workers
    (clients), the run's other parts (squall), everybody else (others), other guests (steal) and nobody (idle).

    `taken`: of the server's CPU, by whom (others, clients, squall, steal); None where it is not assessed: then `reason`
    says why. `taken_from_clients` is the same of the load workers. `throttled_ratio`: periods in which the server's
    quota was used up, None without one.

    `full_ratio`: share of the phase in which none of the server's cores was free, at most. `lacked_cores`: mean cores
    that the server lacked and others had, what was stolen included. `server_wake_ns`: mean wait of its threads each
    time one got a CPU. `consequence_ratio`: of the time of requests in flight, what the lack explains; None without
    any. `programs`: of the CPU of other processes the share of each program that had a tenth or more, in the whole run.
    """

    node: str
    phase: str
    n_samples: int
    n_cores: int
    cores: Mapping[str, float]
    server_wait_ratio: float | None = None
    clients_wait_ratio: float | None = None
    taken: Mapping[str, float] | None = None
    taken_from_clients: Mapping[str, float] | None = None
    reason: str = ""
    worst_second_ratio: float | None = None
    psi_some_ratio: float | None = None
    server_psi_some_ratio: float | None = None
    quota_cores: float | None = None
    throttled_ratio: float | None = None
    is_quota_shared: bool | None = None
    full_ratio: float | None = None
    lacked_cores: float | None = None
    server_wake_ns: float | None = None
    consequence_ratio: float | None = None
    programs: Mapping[str, float] = field(default_factory=dict)

    STATED: ClassVar = ("taken_ratio",)

    @property
    def taken_ratio(self) -> float | None:
        """Share of the CPU that the server could have used and somebody else had."""
        return None if self.taken is None else sum(self.taken.values())

    @property
    def is_told(self) -> bool:
        """Whether that is enough to say who had it."""
        return (self.taken_ratio or 0.0) >= LEAST_RATIO

    @property
    def could_have_used(self) -> float:
        """Mean cores that the server could have used."""
        return self.cores.get("server", 0.0) + (self.lacked_cores or 0.0)


class InFlight(Frozen, eq=False):
    """Requests that a node's servers had. Instants are ns on the run clock, each array sorted.

    `service_ns`: done - sent of each, in the order of `sent_ns`. `begin_ns` and `end_ns` bound the stretches in which
    there was at least one, which do not overlap. `is_open`: they followed a schedule.
    """

    sent_ns: Int64s
    done_ns: Int64s
    service_ns: Int64s
    begin_ns: Int64s
    end_ns: Int64s
    is_open: bool

    @classmethod
    def of(cls, sent_ns: Int64s, done_ns: Int64s, is_open: bool = True) -> InFlight:
        """From the instants of each request, in any order."""
        order = np.argsort(sent_ns, kind="stable")
        sent, done = sent_ns[order], done_ns[order]
        latest = np.maximum.accumulate(done)
        is_first = np.ones(len(sent), dtype=np.bool_)
        is_first[1:] = sent[1:] > latest[:-1]
        is_last = np.append(is_first[1:], True)[: len(sent)]
        return cls(sent, in_order(done_ns), done - sent, sent[is_first], latest[is_last], is_open)

    def any_ns(self, starts_ns: Int64s, ends_ns: Int64s) -> Floats:
        """Time of each sample in which there was at least one."""
        return _until(ends_ns, self.begin_ns, self.end_ns) - _until(starts_ns, self.begin_ns, self.end_ns)

    def sum_ns(self, starts_ns: Int64s, ends_ns: Int64s) -> Floats:
        """The time of each sample times the mean number of them in it."""
        return _until(ends_ns, self.sent_ns, self.done_ns) - _until(starts_ns, self.sent_ns, self.done_ns)

    def spread(self, last_ns: int) -> float:
        """1 - p5 / mean of the service times of those sent until `last_ns`; 1 of a closed loop, whose queue may be
        equally long for all, and of fewer than have a p5."""
        own = self.service_ns[: np.searchsorted(self.sent_ns, last_ns)]
        if not self.is_open or len(own) < LEAST_REQUESTS:
            return 1.0
        return 1.0 - float(np.partition(own, k := nearest_rank(0.05, len(own)) - 1)[k]) / float(own.mean())


def in_flight_by_node(requests: Requests, manifest: Manifest) -> dict[str, InFlight]:
    """Of each node with servers the requests that these had. One that never ended was there until the last end."""
    targets: dict[str, list[str]] = {}
    for name, server in manifest.servers.items():
        targets.setdefault(server.node, []).append(name)
    last_ns = int(requests.done_ns.max(initial=0))
    found = {}
    for node, names in targets.items():
        is_own = requests.target.is_any_of(names) & requests.is_sent
        sent_ns, is_done = requests.sent_ns[is_own], requests.is_done[is_own]
        done_ns = np.where(is_done, requests.done_ns[is_own], np.maximum(sent_ns, last_ns))
        found[node] = InFlight.of(sent_ns, done_ns, requests.is_open)
    return found


def cpu_shares(
    samples: pa.Table, phases: Sequence[str], in_flight: Mapping[str, InFlight]
) -> list[CpuShares]:
    """The shares of each node in each of `phases` that has samples (`cpu_samples`), by phase and node.

    `in_flight`: `in_flight_by_node`; without a node's the consequence is not known there.
    """
    with in_memory(cpu_samples=samples) as connection:
        seconds = connection.sql(_SECONDS).to_arrow_table()
        for group in ("server", "clients"):
            seconds = _with_waits_when_they_passed(
                seconds, f"{group}_wait_ns", numbers(seconds, f"{group}_runs")
            )
        connection.register("seconds", _with_requests(seconds, in_flight))
        found = records(connection.execute(_SHARES, {"phases": list(phases)}))
    return [_shares(row, in_flight.get(row["node"])) for row in found]


def _shares(row: dict[str, Any], in_flight: InFlight | None) -> CpuShares:
    """`row`: of `_SHARES`, with what no process of the node had as null."""
    of_all, of_each, last_ns = (row.pop(name) for name in ("of_all_ratio", "of_each_ratio", "last_ns"))
    cores = {name: each for name, each in row.pop("cores").items() if each is not None}
    consequence = None
    if in_flight is not None and of_all is not None:
        consequence = min(of_all, max(of_each, in_flight.spread(last_ns)))
    return CpuShares(**row, cores=cores, consequence_ratio=consequence)


def _with_waits_when_they_passed(seconds: pa.Table, name: str, runs: Int64s) -> pa.Table:
    """The samples with what a group waited counted in those in which it did so.

    The kernel counts a wait when the thread gets its core: one that began before the sample (of waits longer than the
    sample on average at least one did) is told too late. What is beyond the sample's length a run of its threads moves
    back, at most the length of a sample to each.
    """
    interval, waits = numbers(seconds, "interval_ns"), numbers(seconds, name).copy()
    nodes = seconds["node"].to_pylist()
    for at in np.flatnonzero((runs > 0) & (waits > runs * interval)):
        left, back = waits[at] - runs[at] * interval[at], at - 1
        while left > 0 and back >= 0 and nodes[back] == nodes[at]:
            moved = min(left, max(0, interval[back] - waits[back]))
            waits[back], waits[at], left = waits[back] + moved, waits[at] - moved, left - moved
            back -= 1
    told = pa.array(waits, mask=np.asarray(seconds[name].is_null()))
    return seconds.set_column(seconds.column_names.index(name), name, told)


def _with_requests(seconds: pa.Table, in_flight: Mapping[str, InFlight]) -> pa.Table:
    """The samples with the time in which requests were in flight at their node, and that times how many were; null
    where that is not known."""
    ends = numbers(seconds, "t_ns")
    starts, nodes = (
        ends - numbers(seconds, "interval_ns"),
        np.array(seconds["node"].to_pylist(), dtype=object),
    )
    some, summed = np.full((2, len(ends)), np.nan)
    for node, own in in_flight.items():
        here = nodes == node
        some[here] = own.any_ns(starts[here], ends[here])
        summed[here] = own.sum_ns(starts[here], ends[here])
    columns = {"any_in_flight_ns": some, "in_flight_ns": summed}
    for name, values in columns.items():
        seconds = seconds.append_column(name, pa.array(values, from_pandas=True))
    return seconds


def cpu_line(shares: CpuShares, has_server: bool = True) -> str:
    """Who had the CPU of a node. `has_server`: the node is the server's, so that it is said where nothing is known of
    it."""
    return str(macros(__package__, "cpu_shares.j2").cpu(shares, has_server))


def programs_of(manifest: Manifest, node: str) -> dict[str, float]:
    """The programs of others that had most CPU there, as its observer told: `python3`, or `24 x python3`."""
    observing = manifest.observers.get(node)
    cost = observing.samplers.get("cpu_samples") if observing is not None else None
    told = cost.told.get("others") if cost is not None else None
    return {
        f"{count_text(one['n'])} x {name}" if one["n"] > 1 else name: float(one["ratio"])
        for name, one in (told or {}).items()
    }


def cpu_lines(found: Sequence[CpuShares], manifest: Manifest) -> list[str]:
    """A line for each node, of a run with several measure phases for each phase; and that the server's is not known."""
    if not found:
        return []
    has_phases = len({one.phase for one in found}) > 1
    nodes = {server.node for server in manifest.servers.values()}
    return [f"{f'{one.phase}: ' if has_phases else ''}{cpu_line(one, one.node in nodes)}" for one in found]


def _until(at_ns: Int64s, begin_ns: Int64s, end_ns: Int64s) -> Floats:
    """Sum over intervals of their time before each of `at_ns`; both bounds sorted, each by itself."""
    return _since(at_ns, begin_ns) - _since(at_ns, end_ns)


def _since(at_ns: Int64s, sorted_ns: Int64s) -> Floats:
    """Sum of the time from each instant to each of `at_ns` that comes after it."""
    if not len(at_ns) or not len(sorted_ns):
        return np.zeros(len(at_ns))
    first = int(min(at_ns.min(), sorted_ns[0]))  # so that sums of large instants do not lose ns
    sums = np.concatenate([[0.0], np.cumsum((sorted_ns - first).astype(np.float64))])
    n_before = np.searchsorted(sorted_ns, at_ns)
    return np.asarray(n_before * (at_ns - first).astype(np.float64) - sums[n_before])
