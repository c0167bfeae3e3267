"""Who had the CPU of a node in a phase, what the server lacked because of it, and what that did to the requests. Pure.

A server whose threads wait for a CPU is not starved by that alone: threads of a full server wait for one another, and a
core that sleeps takes its time to wake. A cause needs means and consequence. **Means**: of each sample (a second) it is
asked how much CPU the server lacked that others had, on its cores, in moments in which none of these was free:

    lacked = min(wait, foreign, full * cores * interval, allowed - had)

    full     share of the sample in which none of its cores was free, at most: what the idlest of them was not idle
    wait     time in which its threads could run and had no CPU, summed over them, less what waking up may cost by
             itself: 50 us for each time one got a CPU where all cores are taken, up to 500 us where they sleep,
             which they do less deeply the less they are idle (50 us + (1 - full)^2 * 450 us)
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
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from squall.analysis.arrays import Floats, Int64s
from squall.analysis.requests.requests import Requests, in_order
from squall.analysis.statistics.order_statistics import nearest_rank
from squall.analysis.tables.manifest import Manifest
from squall.analysis.wording import count_text, duration_text, share_text

GROUPS = ("server", "clients", "squall", "others")
"""Who can have the CPU: the server, the load workers, the run's other parts, everybody else."""
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
STEAL = "steal"
OTHER_GUESTS = "other guests"
LEAST_RATIO = 0.01
"""Share of the CPU that the server could have used below which nothing is said of who had it."""


@dataclass(frozen=True)
class CpuShares:
    """The CPU of a node in a phase. `cores`: mean cores that each of GROUPS, `steal` and `idle` had.

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


@dataclass(frozen=True, eq=False)
class InFlight:
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

    def any_ns(self, rows: pa.Table) -> Floats:
        """Time of each sample in which there was at least one."""
        starts, ends = _bounds(rows)
        return _until(ends, self.begin_ns, self.end_ns) - _until(starts, self.begin_ns, self.end_ns)

    def sum_ns(self, rows: pa.Table) -> Floats:
        """The time of each sample times the mean number of them in it."""
        starts, ends = _bounds(rows)
        return _until(ends, self.sent_ns, self.done_ns) - _until(starts, self.sent_ns, self.done_ns)

    def spread(self, rows: pa.Table) -> float:
        """1 - p5 / mean of the service times of those sent in the samples; 1 of a closed loop, whose queue may be
        equally long for all, and of fewer than have a p5."""
        starts, ends = _bounds(rows)
        first, last = np.searchsorted(self.sent_ns, [starts.min(initial=0), ends.max(initial=0)])
        own = self.service_ns[first:last]
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
    samples: pa.Table | None,
    phases: Sequence[str],
    in_flight: Mapping[str, InFlight] | None = None,
) -> list[CpuShares]:
    """The shares of each node in each of `phases` that has samples (`cpu_samples`), by phase and node.

    `in_flight`: `in_flight_by_node`; without a node's the consequence is not known there.
    """
    if samples is None:
        return []
    for group in ("server", "clients"):
        samples = _with_waits_when_they_passed(samples, group)
    names, nodes = (np.array(samples.column(name).to_pylist(), dtype=object) for name in ("phase", "node"))
    return [
        _shares(
            samples.filter(pa.array((names == phase) & (nodes == node))),
            str(node),
            phase,
            (in_flight or {}).get(str(node)),
        )
        for phase in phases
        for node in sorted(set(nodes[names == phase]))
    ]


def _with_waits_when_they_passed(samples: pa.Table, group: str) -> pa.Table:
    """The samples with what a group waited counted in those in which it did so.

    The kernel counts a wait when the thread gets its core: one that began before the sample (of waits longer than the
    sample on average at least one did) is told too late. What is beyond the sample's length a run of its threads moves
    back, at most the length of a sample to each.
    """
    name, runs = f"{group}_wait_ns", _numbers(samples, f"{group}_runs")
    interval, waits = _numbers(samples, "interval_ns"), _numbers(samples, name).copy()
    too_long = np.where(runs > 0, np.maximum(0.0, waits - runs * interval), 0.0)
    if not too_long.any():
        return samples
    nodes = np.array(samples.column("node").to_pylist(), dtype=object)
    order = np.lexsort((_bounds(samples)[1], nodes))
    before = dict(zip(order[1:], order, strict=False))
    for at in order[too_long[order] > 0]:
        left, back = too_long[at], before.get(at)
        while left > 0 and back is not None and nodes[back] == nodes[at]:
            moved = min(left, max(0.0, interval[back] - waits[back]))
            waits[back], waits[at], left = waits[back] + moved, waits[at] - moved, left - moved
            back = before.get(back)
    index = samples.schema.get_field_index(name)
    moved_waits = pa.array(waits, mask=_is_null(samples, name)).cast(
        samples.schema.field(index).type, safe=False
    )
    return samples.set_column(index, samples.schema.field(index), moved_waits)


def cpu_line(shares: CpuShares, has_server: bool = True) -> str:
    """`CPU of node-0: server 18 %, clients 5 %, …, of 200 %; server threads waited to run 74 % of their time`.

    `has_server`: the node is the server's, so that it is said where nothing is known of it.
    """
    parts = [f"{name} {share_text(shares.cores[name])}" for name in GROUPS if name in shares.cores]
    if shares.cores.get(STEAL, 0.0) >= 0.01:
        parts.append(f"{OTHER_GUESTS} {share_text(shares.cores[STEAL])}")
    text = f"CPU of {shares.node}: {', '.join(parts)} of {shares.n_cores * 100} %"
    if shares.taken is None:
        return f"{text}; the server's not assessed: {shares.reason}" if has_server else text
    text += f"; server threads waited to run {share_text(shares.server_wait_ratio)} of their time"
    if shares.server_wake_ns is not None:
        text += f", {duration_text(shares.server_wake_ns)} a wake-up"
    text += f", with no core of its free in up to {share_text(shares.full_ratio)} of it"
    if shares.throttled_ratio:
        text += f", quota used up in {share_text(shares.throttled_ratio)} of periods"
    if (shares.taken_ratio or 0.0) >= LEAST_RATIO:
        text += f"; {taken_text(shares)}"
    return text


def taken_text(shares: CpuShares) -> str:
    """`of the 63 % of a core that the server could have used others had 51 %, clients 2 %: 40 % of the response times`,
    those that had a share worth telling, the largest first."""
    taken = sorted((shares.taken or {}).items(), key=lambda item: -item[1])
    wanted = shares.cores.get("server", 0.0) + (shares.lacked_cores or 0.0)
    had = [
        f"{OTHER_GUESTS if name == STEAL else name} {'had ' if not index else ''}{share_text(share)}"
        for index, (name, share) in enumerate(one for one in taken if one[1] >= LEAST_RATIO)
    ]
    made = "not known what that did to the response times"
    if shares.consequence_ratio is not None:
        made = f"that made {share_text(shares.consequence_ratio)} of the response times"
    return f"of the {share_text(wanted)} of a core that the server could have used {', '.join(had)}: {made}"


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


def _shares(rows: pa.Table, node: str, phase: str, in_flight: InFlight | None) -> CpuShares:
    wall_ns = _sum(rows, "interval_ns")
    had = {
        name: float(_steal(rows).sum()) if name == STEAL else _sum(rows, f"{name}_ns")
        for name in (*GROUPS, STEAL, "idle")
        if rows.column(f"{name}_ns").null_count < rows.num_rows
    }
    cores = {name: each_ns / wall_ns if wall_ns else 0.0 for name, each_ns in had.items()}
    n_cores = int(_numbers(rows, "n_cores").max(initial=0))
    found = CpuShares(
        node, phase, rows.num_rows, n_cores, cores,
        _wait_ratio(rows, "server"), _wait_ratio(rows, "clients"),
        taken_from_clients=_taken_from_clients(rows),
        psi_some_ratio=_of_wall(rows, "psi_cpu_some_ns"),
        server_psi_some_ratio=_of_wall(rows, "server_psi_some_ns"),
    )  # fmt: skip
    reason = _why_not(rows)
    if reason:
        return replace(found, reason=reason)
    known = rows.filter(pa.array(~_is_null(rows, "server_ns") & ~_is_null(rows, "server_wait_ns")))
    lack = _lack(known)
    total = float(lack.wanted.sum())
    taken = {name: float(each.sum()) / total if total else 0.0 for name, each in lack.by_whom.items()}
    lacked = lack.wanted - lack.had
    of_wanted = np.divide(lacked, lack.wanted, out=np.zeros_like(lacked), where=lack.wanted > 0)
    known_ns, runs = _sum(known, "interval_ns"), _sum(known, "server_runs")
    periods = _sum(rows, "server_periods")
    quotas = _known(rows, "server_quota_cores")
    return replace(
        found,
        taken=taken,
        worst_second_ratio=float(of_wanted.max(initial=0.0)),
        quota_cores=float(quotas.min()) if len(quotas) else None,
        throttled_ratio=_sum(rows, "server_throttled_periods") / periods if periods else None,
        is_quota_shared=bool(_flags(rows, "is_quota_shared").any()) if len(quotas) else None,
        full_ratio=float((lack.full * _numbers(known, "interval_ns")).sum()) / known_ns if known_ns else None,
        lacked_cores=float(lacked.sum()) / known_ns if known_ns else None,
        server_wake_ns=_sum(known, "server_wait_ns") / runs if runs else None,
        consequence_ratio=_consequence(known, lack, in_flight) if in_flight is not None else None,
    )


def _why_not(rows: pa.Table) -> str:
    """Why it is not known whether the server starved here; empty if it is."""
    if not len(_known(rows, "server_ns")):
        return "no process of the server is known here"
    if not len(_known(rows, "server_wait_ns")):
        return "the kernel does not tell how long threads wait for a CPU (schedstat)"
    return ""


@dataclass(frozen=True, eq=False)
class _Lack:
    """CPU time of each sample that the server `had`, `wanted`, and lacked `by_whom` (others, clients, squall, steal).

    `full`: share of the sample in which none of its cores was free, at most.
    """

    had: Floats
    wanted: Floats
    by_whom: Mapping[str, Floats]
    full: Floats


def _lack(rows: pa.Table) -> _Lack:
    interval, had = (_numbers(rows, name) for name in ("interval_ns", "server_ns"))
    is_own_quota = (_numbers(rows, "server_throttled_periods") > 0) & _flags(rows, "is_quota_shared")
    full = np.where(is_own_quota, 1.0, _full(rows))  # where it is used up a free core is of no use
    wait = _waits_for_others(rows, full)
    by_whom = {name: _numbers(rows, f"{name}_ns") for name in ("others", *OWN)}
    by_whom["others"] = np.where(is_own_quota, 0.0, by_whom["others"])
    foreign: Floats = np.sum(list(by_whom.values()), axis=0)
    on_its_cores = np.maximum(0.0, _numbers(rows, "server_cores_busy_ns", float("inf")) - had)
    cores = np.minimum(_numbers(rows, "server_cores", float("inf")), _numbers(rows, "n_cores"))
    allowed = np.minimum(cores, _numbers(rows, "server_quota_cores", float("inf"))) * interval
    lacked = np.minimum.reduce(
        [wait, foreign, on_its_cores, full * cores * interval, np.maximum(0.0, allowed - had)]
    )
    stolen = _stolen(rows, had)
    share = np.divide(lacked, foreign, out=np.zeros_like(lacked), where=foreign > 0)
    shared = {name: share * cpu for name, cpu in by_whom.items()}
    return _Lack(had, had + lacked + stolen, {**shared, STEAL: stolen}, full)


def _consequence(rows: pa.Table, lack: _Lack, in_flight: InFlight) -> float | None:
    """Of the time of requests in flight, what the lack explains; None where there were none."""
    weights = in_flight.sum_ns(rows)
    if weights.sum() <= 0:
        return None
    span = np.maximum(in_flight.any_ns(rows), lack.wanted)
    stolen = lack.by_whom[STEAL]
    lacked = lack.wanted - lack.had - stolen
    parts = (np.divide(one, span, out=np.zeros_like(one), where=span > 0) for one in (lacked, stolen))
    of_lacked, of_stolen = parts
    of_all = float((weights * (np.minimum(lack.full, of_lacked) + of_stolen)).sum() / weights.sum())
    of_each = float((lacked + stolen).sum() / weights.sum())
    return min(of_all, max(of_each, in_flight.spread(rows)))


def _full(rows: pa.Table) -> Floats:
    """Share of each sample in which none of the server's cores was free, at most: what the idlest of them was not
    idle. Of a run that did not record that, what they were not idle on average, which is no less."""
    interval = _numbers(rows, "interval_ns")
    cores = np.minimum(_numbers(rows, "server_cores", float("inf")), _numbers(rows, "n_cores"))
    busy = 1.0 - _numbers(rows, "idle_ns") / (_numbers(rows, "n_cores") * interval)
    own = _numbers(rows, "server_cores_busy_ns", float("nan")) / (cores * interval)
    busy = np.where(np.isnan(own), busy, own)
    idlest = 1.0 - _numbers(rows, "server_cores_free_ns", float("nan")) / interval
    return np.clip(np.where(np.isnan(idlest), busy, idlest), 0.0, 1.0)


def _steal(rows: pa.Table) -> Floats:
    """CPU time that other guests had of the node: what was stolen, as far as its cores were not idle meanwhile."""
    used: Floats = np.sum([_numbers(rows, f"{name}_ns") for name in (*GROUPS, "idle")], axis=0)
    left = _numbers(rows, "interval_ns") * _numbers(rows, "n_cores") - used
    return np.minimum(np.maximum(left, 0.0), _numbers(rows, "steal_ns"))


def _stolen(rows: pa.Table, had: Floats) -> Floats:
    """Of the CPU time stolen from the node what falls on the server: as much as of the time that was not."""
    steal, idle = _steal(rows), _numbers(rows, "idle_ns")
    busy = np.maximum(had, _numbers(rows, "interval_ns") * _numbers(rows, "n_cores") - steal - idle)
    return np.divide(steal * had, busy, out=np.zeros_like(had), where=busy > 0)


def _taken_from_clients(rows: pa.Table) -> dict[str, float] | None:
    """As `taken`, of the load workers: by others, and by the server on a node that they share."""
    rows = rows.filter(pa.array(~_is_null(rows, "clients_wait_ns")))
    if not rows.num_rows:
        return None
    interval, had = (_numbers(rows, name) for name in ("interval_ns", "clients_ns"))
    wait = _waits(rows, "clients", 1.0 - _numbers(rows, "idle_ns") / (_numbers(rows, "n_cores") * interval))
    by_whom = {name: _numbers(rows, f"{name}_ns") for name in ("others", "server", "squall")}
    foreign: Floats = np.sum(list(by_whom.values()), axis=0)
    allowed = (
        np.minimum(_numbers(rows, "clients_quota_cores", float("inf")), _numbers(rows, "n_cores")) * interval
    )
    lacked = np.minimum(np.minimum(wait, foreign), np.maximum(0.0, allowed - had))
    total = float((had + lacked).sum())
    share = np.divide(lacked, foreign, out=np.zeros_like(lacked), where=foreign > 0)
    return {name: float((share * cpu).sum()) / total if total else 0.0 for name, cpu in by_whom.items()}


def _waits(rows: pa.Table, group: str, full: Floats) -> Floats:
    """What the threads of a group waited for a CPU in each sample, beyond what waking up costs."""
    wake_ns = WAKE_NS + (1.0 - full) ** 2 * (SLEEPING_WAKE_NS - WAKE_NS)
    return np.maximum(0.0, _numbers(rows, f"{group}_wait_ns") - wake_ns * _numbers(rows, f"{group}_runs"))


def _waits_for_others(rows: pa.Table, full: Floats) -> Floats:
    """What the server's threads waited in each sample, less what a quota of its own made them wait."""
    waits = _waits(rows, "server", full)
    is_used_up = (_numbers(rows, "server_throttled_periods") > 0) & ~_flags(rows, "is_quota_shared")
    held_back = np.where(is_used_up, _numbers(rows, "server_throttled_ns"), 0.0)
    room = ROOM_RATIO * _numbers(rows, "interval_ns") * _numbers(rows, "n_cores")
    is_room = is_used_up & (_numbers(rows, "idle_ns") > room)
    return np.where(is_room, 0.0, np.maximum(0.0, waits - held_back))


def _wait_ratio(rows: pa.Table, group: str) -> float | None:
    known = ~_is_null(rows, f"{group}_wait_ns") & ~_is_null(rows, f"{group}_ns")
    rows = rows.filter(pa.array(known))
    waited, had = _sum(rows, f"{group}_wait_ns"), _sum(rows, f"{group}_ns")
    return waited / (waited + had) if waited + had else None


def _of_wall(rows: pa.Table, name: str) -> float | None:
    rows = rows.filter(pa.array(~_is_null(rows, name)))
    return _sum(rows, name) / _sum(rows, "interval_ns") if rows.num_rows else None


def _bounds(rows: pa.Table) -> tuple[Int64s, Int64s]:
    """Start and end of each sample, ns on the run clock."""
    ends = np.asarray(rows.column("t_ns").to_numpy(), dtype=np.int64)
    return ends - _numbers(rows, "interval_ns").astype(np.int64), ends


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


def _is_null(rows: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    return np.asarray(rows.column(name).is_null().to_numpy(), dtype=np.bool_)


def _known(rows: pa.Table, name: str) -> Floats:
    return np.asarray(rows.column(name).drop_null().to_numpy(), dtype=np.float64)


def _numbers(rows: pa.Table, name: str, null: float = 0.0) -> Floats:
    """The column, with `null` for what is null, as all is of a column that a run of before does not have."""
    if name not in rows.column_names:
        return np.full(rows.num_rows, null)
    found = rows.column(name).cast(pa.float64()).fill_null(null)
    return np.asarray(found.to_numpy(), dtype=np.float64)


def _flags(rows: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    return np.asarray(rows.column(name).fill_null(False).to_numpy(), dtype=np.bool_)


def _sum(rows: pa.Table, name: str) -> float:
    return float(_numbers(rows, name).sum())
