"""Was the client the limit, by what, and what has to be added? One sentence with its evidence.

Asked only where a check says that the client did not keep up. The causes, in the order in which they are looked
for: CPU of the workers, the order of sequences, the cap `max_in_flight`, CPU of their nodes, and a stall that none of
these explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from squall.analysis.arrays import Bools
from squall.analysis.requests.failures import is_cut
from squall.analysis.requests.requests import rows_in
from squall.analysis.requests.users import is_locust_load
from squall.analysis.requests.workers import lane_text, peak_total
from squall.analysis.storage.query import in_memory, records
from squall.analysis.storage.sealed import Bottleneck
from squall.analysis.verdict.client_checks import SATURATED_RATIO, SATURATED_SHARE_RATIO
from squall.analysis.verdict.run_view import RunView
from squall.analysis.verdict.user_checks import USERS_CHECK, waited_texts
from squall.analysis.wording import counted_text, duration_text, share_text
from squall.scenarios.sequences import IN_TURN

ROOMY_RATIO = 0.60
"""CPU of a worker in its busiest second at which bursts within that second still find room: what is advised."""

STOLEN = "was stolen"
CAP = "max_in_flight"
"""What the detail of a request says that the cap held back."""

_WORKERS = f"""
WITH told AS (SELECT *, greatest(cpu_ns - spin_ns, 0) / interval_ns AS busy FROM worker_samples),
samples AS (
    SELECT *, busy >= {SATURATED_RATIO} AS is_full,
        -- of a worker that had no room left
        avg((busy >= {SATURATED_RATIO})::INTEGER) OVER (PARTITION BY worker) > {SATURATED_SHARE_RATIO} AS is_of_full
    FROM told),
-- All workers sample at one instant of the run, late by their event loops: hence the half second. Samples at the run's
-- edges that are shorter than that are no rate.
whole AS (
    SELECT *, (t_ns - min(t_ns) OVER () + 500000000) // 1000000000 AS second FROM samples
    WHERE interval_ns >= 500000000),
seconds AS (
    SELECT sum(busy) AS used_cores, sum(n_due * 1e9 / interval_ns) AS due_hz FROM whole GROUP BY second),
cost AS (SELECT sum(busy * interval_ns) / nullif(sum(n_sent), 0) / 1e9 AS cpu_s FROM whole)
SELECT count(DISTINCT worker) AS n_workers, count(DISTINCT worker) FILTER (is_of_full) AS n_saturated,
    count(*) FILTER (is_of_full) AS n_of_full, count(*) FILTER (is_of_full AND is_full) AS n_full,
    avg(busy) FILTER (is_of_full AND is_full) AS full_ratio, avg(busy) AS busy_ratio,
    count(DISTINCT node) AS n_nodes, max(loop_lag_ns) AS loop_lag_ns, max(gc_pause_ns) AS gc_pause_ns,
    sum(n_write_pauses)::BIGINT AS n_write_pauses, sum(n_socket_errors)::BIGINT AS n_socket_errors,
    -- what the most arrivals of a second cost, as a whole: what a burst within it needs comes on top
    (SELECT coalesce(greatest(max(used_cores), max(due_hz) * any_value(cpu_s)), 0) FROM seconds, cost) AS needed_cores
FROM samples
"""
_NODES = f"""
-- Of a client's node; busy is what is neither idle nor waiting for a disk, so that what other guests took counts.
WITH hosts AS (
    SELECT *, 1 - cpu_idle - cpu_iowait AS busy FROM host_samples WHERE node IN (SELECT node FROM worker_samples)),
workers AS (
    SELECT node, sum(cpu_ns) / sum(interval_ns) * count(DISTINCT worker) AS n_used FROM worker_samples GROUP BY node)
SELECT node, max(n_cores) AS n_cores, avg((1 - busy) * n_cores) AS n_idle, max(cpu_steal) AS steal_ratio,
    avg((busy >= {SATURATED_RATIO})::INTEGER) AS full_share, avg(busy) FILTER (busy >= {SATURATED_RATIO}) AS full_ratio,
    any_value(n_used) / max(n_cores) AS workers_ratio,
    sum(server_cpu_ns) / (sum(interval_ns) * max(n_cores)) AS server_ratio
FROM hosts JOIN workers USING (node) GROUP BY node ORDER BY node
"""


@dataclass(eq=False)
class _Client:
    """What the measure phases show of the client: the row of `_WORKERS`, and a row of `_NODES` for each of its nodes
    that was sampled."""

    run: RunView
    workers: dict[str, Any]
    nodes: list[dict[str, Any]]

    @cached_property
    def is_late(self) -> Bools:
        """Whether each request left too late, or never because the client did not come to it."""
        own = self.run.measured
        never = own.outcome.is_any_of(["unsent"]) & ~is_cut(own)
        return never | (own.is_sent & own.is_open & (own.lag_ns > self.run.allowed.p50_ns))

    @property
    def n_late(self) -> int:
        """How many did."""
        return int(self.is_late.sum())

    def n_held(self, why: str) -> int:
        """Of those never sent or late, the ones whose detail says that this held them back."""
        own = self.run.measured
        is_held = own.detail.is_any_of([word for word in own.detail.words if why in word])
        is_late = ~own.is_sent | (own.lag_ns > self.run.allowed.p50_ns)
        return int((is_held & is_late).sum()) if own.is_open else 0

    def peak(self, name: str) -> int:
        """The most of a count of the workers in a second."""
        return peak_total(self.run.workers, name) if self.run.workers is not None else 0

    @property
    def is_locust(self) -> bool:
        """Whether its load was Locust's."""
        return is_locust_load(self.run.manifest)

    @cached_property
    def inside_ratio(self) -> float:
        """Share of the users' time that a closed loop spent inside the client, 0 where that is allowed."""
        users = self.run.users
        return users.gap_ratio if users is not None and USERS_CHECK.name in self.run.unmet() else 0.0

    @cached_property
    def waited(self) -> Sequence[str]:
        """Clauses of what users of Locust waited for it, beyond what is allowed."""
        return waited_texts(self.run) if self.is_locust else ()

    @property
    def lateness(self) -> str:
        """What waited for the client, as a clause; empty if nothing shows that anything did."""
        if backlog := self.peak("n_backlog"):
            return f"{counted_text(backlog, 'arrival was', 'arrivals were')} due and unsent"
        if self.n_late:
            words = counted_text(self.n_late, "request left", "requests left")
            return f"{words} more than {duration_text(self.run.allowed.p50_ns)} late"
        inside = f"{share_text(self.inside_ratio)} of the users' time passed inside it"
        return ", ".join([*([inside] if self.inside_ratio > 0 else []), *self.waited])

    @property
    def busy_text(self) -> str:
        """CPU of the workers on average."""
        return f"{share_text(self.workers['busy_ratio'])} CPU"

    @property
    def steal_ratio(self) -> float:
        """The largest share of a node's CPU that a sample saw stolen; 0 without samples."""
        return max((node["steal_ratio"] for node in self.nodes), default=0.0)


def find_bottleneck(run: RunView) -> Bottleneck | None:
    """The client's bottleneck, of a run of which a check shows that the client was the limit.

    None without samples of its workers, and where nothing but requests that a lost worker or a refused connection left
    unsent is amiss.
    """
    if run.workers is None:
        return None
    hosts = rows_in(run.samples.hosts, [span.name for span in run.spans])
    with in_memory(worker_samples=run.workers, host_samples=hosts) as connection:
        (workers,), nodes = (records(connection.execute(query)) for query in (_WORKERS, _NODES))
    client = _Client(run, workers, nodes)
    causes = (_by_worker_cpu, _by_order, _by_cap, _by_node_cpu, _by_stall)
    return next((found for cause in causes if (found := cause(client)) is not None), None)


def _by_worker_cpu(client: _Client) -> Bottleneck | None:
    full = client.workers
    if not full["n_saturated"]:
        return None
    evidence = f"{full['n_saturated']} of {counted_text(full['n_workers'], 'worker')} "
    evidence += f"{'was' if full['n_saturated'] == 1 else 'were'} at {share_text(full['full_ratio'])} CPU"
    if full["n_full"] < full["n_of_full"]:
        evidence += f" in {full['n_full']} of {full['n_of_full']} samples"
    evidence += f" while {client.lateness}" if client.lateness else ""
    advice = _more_workers(client)
    if client.is_locust:
        advice += "; a Locust worker has one core"
    return _bottleneck("worker cpu", "", evidence, advice)


def _more_workers(client: _Client) -> str:
    n_workers, n_nodes = client.workers["n_workers"], client.workers["n_nodes"]
    n_needed = max(n_workers + 1, math.ceil(client.workers["needed_cores"] / ROOMY_RATIO))
    n_needed_per_node = math.ceil(n_needed / n_nodes)
    here = f"use about {n_needed} workers (clients.workers_per_node: {n_needed_per_node})"
    if not client.nodes:
        return f"{here} or more nodes"
    node = min(client.nodes, key=lambda one: one["n_idle"])
    n_room = math.ceil(n_workers / n_nodes) + int(node["n_idle"])
    if n_needed_per_node <= n_room:
        return f"{here}: {node['node']} had {node['n_idle']:.1f} cores idle"
    there = f"(clients.workers_per_node: {n_room}) on {math.ceil(n_needed / n_room)} client nodes"
    return f"use about {n_needed} workers {there}: {node['node']} had only {node['n_idle']:.1f} cores idle"


def _by_cap(client: _Client) -> Bottleneck | None:
    """Held back for the most part, of those late or of those waiting."""
    n_held, held_peak = client.n_held(CAP), client.peak("n_held")
    is_late = n_held and 2 * n_held >= client.n_late
    if not is_late and not (held_peak and 2 * held_peak >= client.peak("n_backlog")):
        return None
    cap = (client.run.manifest.scenario or {}).get("clients", {}).get(CAP)
    held = (
        counted_text(n_held, "request") if n_held else f"up to {counted_text(held_peak, 'arrival')} at once"
    )
    return _bottleneck(
        CAP,
        " by its cap, not by its CPU",
        f"{CAP}{f' {cap}' if cap else ''} held back {held} while the workers were at {client.busy_text}, so that the "
        "lag is the cap's",
        f"the server was slower than the load: raise or remove clients.{CAP}, or lower the rate",
    )


def _by_order(client: _Client) -> Bottleneck | None:
    """Most of those late waited for the request before them in their sequence."""
    n_held = client.n_held(IN_TURN)
    if not n_held or 2 * n_held < client.n_late:
        return None
    return _bottleneck(
        "sequence order",
        " by the order of sequences, not by its CPU",
        f"{counted_text(n_held, 'request')} waited for the one before in the same sequence while the workers were at "
        f"{client.busy_text}, so that the lag is the order's",
        "the server was slower than requests of a sequence are due: raise clients.sequences.concurrent, or lower the "
        "rate",
    )


def _by_node_cpu(client: _Client) -> Bottleneck | None:
    node = max(client.nodes, key=lambda one: one["full_share"], default=None)
    if node is None or node["full_share"] <= SATURATED_SHARE_RATIO:
        return None
    took = f"the workers took {share_text(node['workers_ratio'])}"
    if node["server_ratio"] is not None:
        took += f" and the server {share_text(node['server_ratio'])}"
    evidence = (
        f"the {counted_text(node['n_cores'], 'core')} of {node['node']} were {share_text(node['full_ratio'])} busy in "
        f"{share_text(node['full_share'])} of samples, of which {took} on average"
    )
    evidence += f", while {client.lateness}" if client.lateness else ""
    advice = "add client nodes, or move what else runs there away: more workers on this node would not help"
    return _bottleneck("node cpu", ", for want of CPU on its node", evidence, advice)


def _by_stall(client: _Client) -> Bottleneck | None:
    """Late without a full CPU and without a cap: says what else was seen."""
    loop_ns, lateness = client.workers["loop_lag_ns"], client.lateness
    is_late = client.n_late or client.inside_ratio > 0 or client.waited or loop_ns > client.run.allowed.p50_ns
    if not is_late or client.run.manifest.losses:  # what a lost worker left unsent is no stall
        return None
    signs = _signs(client)
    # a closed loop whose users waited inside workers that send in Python: that is what the path takes, no stall. What
    # was stolen can hold up as large a share of the users' time; the other signs stop a worker
    is_slow_path = client.inside_ratio > 0 and not client.is_locust
    is_slow_path = is_slow_path and any(one.no_lane for one in client.run.manifest.workers)
    is_slow_path = is_slow_path and client.steal_ratio <= client.inside_ratio / 2
    if is_slow_path and all(STOLEN in sign for sign in signs):
        return _bottleneck(
            "slow path",
            ", by its slower path in Python",
            f"{lateness}, in workers at {client.busy_text}: {lane_text(client.run.manifest.workers)}",
            "mend what keeps them from the C lane, or share the users among more workers (clients.workers_per_node)",
        )
    evidence = f"{lateness}, though " if lateness else ""
    seen = ", ".join([f"its event loops were up to {duration_text(loop_ns)} late", *signs])
    evidence += f"its workers were at {client.busy_text}; {seen}"
    advice = "see what else stops the workers (other processes, steal, power saving), or use more nodes"
    if client.is_locust:
        advice = f"see what users do that is no request and no wait (calls that fire no event), {advice[4:]}"
    if client.workers["n_write_pauses"]:
        advice = "the server or the network took requests in too slowly: raise clients.connections, or lower the rate"
    return _bottleneck("stall", ", though not by its CPU", evidence, advice)


def _signs(client: _Client) -> list[str]:
    """What the samples show beside CPU, where there is any of it."""
    workers, steal = client.workers, client.steal_ratio
    signs = {
        f"{counted_text(workers['n_write_pauses'], 'send')} found the socket full": workers["n_write_pauses"],
        f"{counted_text(workers['n_socket_errors'], 'connection')} failed or broke": workers[
            "n_socket_errors"
        ],
        f"garbage collections took up to {duration_text(workers['gc_pause_ns'])} of a sample": workers[
            "gc_pause_ns"
        ]
        > client.run.allowed.p50_ns,
        f"up to {share_text(steal)} of its node's CPU {STOLEN}": steal > 0.01,
    }
    return [sign for sign, is_seen in signs.items() if is_seen]


def _bottleneck(cause: str, how: str, evidence: str, advice: str) -> Bottleneck:
    """`how`: behind `The client was the bottleneck`."""
    sentence = f"The client was the bottleneck{how}: {evidence}; {advice}."
    return Bottleneck(cause=cause, sentence=sentence, evidence=evidence, advice=advice)
