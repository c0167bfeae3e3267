"""Was the client the limit, by what, and what has to be added? One sentence with its evidence.

Asked only where a check says that the client did not keep up. The causes, in the order in which they are looked
for: CPU of the workers, the order of sequences, the cap `max_in_flight`, CPU of their nodes, and a stall that none of
these explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from squall.analysis.verdict.checks import LATE_CHECK, USERS_CHECK
from squall.analysis.verdict.client_checks import SATURATED_RATIO, SATURATED_SHARE_RATIO
from squall.analysis.verdict.run_view import RunView
from squall.analysis.verdict.user_checks import seen_text
from squall.analysis.wording import duration_text, macros, share_text
from squall.scenarios.sequences import IN_TURN

ROOMY_RATIO = 0.60
"""CPU of a worker in its busiest second at which bursts within that second still find room: what is advised."""

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
    def n_in_turn(self) -> int:
        """Those that waited for the request before them in their sequence."""
        return self.n_held(IN_TURN)

    @cached_property
    def n_capped(self) -> int:
        """Those that the cap held back."""
        return self.n_held(CAP)

    @property
    def cap(self) -> int | None:
        """The cap, as the scenario states it."""
        found: int | None = (self.run.manifest.scenario or {}).get("clients", {}).get(CAP)
        return found

    @property
    def lane(self) -> str:
        """Which workers send in Python, and why."""
        return lane_text(self.run.manifest.workers)

    @cached_property
    def inside_ratio(self) -> float:
        """Share of the users' time that a closed loop spent inside the client, 0 where that is allowed."""
        users = self.run.users
        return users.gap_ratio if users is not None and USERS_CHECK.name in self.run.unmet() else 0.0

    @cached_property
    def waited(self) -> Sequence[str]:
        """Clauses of what users of Locust waited for it, beyond what is allowed."""
        unmet, facts, users = self.run.unmet(), self.run.manifest.locust, self.run.watched
        told = [seen_text(self.run.users)] if self.run.users is not None and USERS_CHECK.name in unmet else []
        if LATE_CHECK.name in unmet and users is not None and facts is not None:
            late = f"more than {duration_text(facts.late_ns)} late"
            told.append(f"{share_text(users.late_ratio)} of the users' wakes were {late}")
        return told if self.is_locust else ()

    @property
    def has_long_gc(self) -> bool:
        """Whether a garbage collection was longer than a median lag may be."""
        return bool(self.workers["gc_pause_ns"] > self.run.allowed.p50_ns)

    @property
    def steal_ratio(self) -> float:
        """The largest share of a node's CPU that a sample saw stolen; 0 without samples."""
        return max((node["steal_ratio"] for node in self.nodes), default=0.0)

    @property
    def busiest(self) -> dict[str, Any] | None:
        """The node that was full for longest."""
        return max(self.nodes, key=lambda one: one["full_share"], default=None)

    @property
    def fullest(self) -> dict[str, Any] | None:
        """The node with the fewest cores idle."""
        return min(self.nodes, key=lambda one: one["n_idle"], default=None)

    @property
    def needed(self) -> dict[str, int]:
        """How many workers the load takes, on a node as it is and where it has room for `n_room` only."""
        n_workers, n_nodes, node = self.workers["n_workers"], self.workers["n_nodes"], self.fullest
        n = max(n_workers + 1, math.ceil(self.workers["needed_cores"] / ROOMY_RATIO))
        n_room = math.ceil(n_workers / n_nodes) + int(node["n_idle"] if node is not None else 0)
        return {
            "n": n,
            "n_per_node": math.ceil(n / n_nodes),
            "n_room": n_room,
            "n_nodes": math.ceil(n / n_room),
        }


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
    cause = next((cause for cause, (_, is_it) in _CAUSES.items() if is_it(client)), None)
    if cause is None:
        return None
    evidence, advice = (
        getattr(macros(__package__, "bottleneck.j2"), f"{cause.replace(' ', '_')}_{what}")(client)
        for what in ("evidence", "advice")
    )
    sentence = f"The client was the bottleneck{_CAUSES[cause][0]}: {evidence}; {advice}."
    return Bottleneck(cause=cause, sentence=sentence, evidence=evidence, advice=advice)


def _is_capped(client: _Client) -> bool:
    """Held back for the most part, of those late or of those waiting."""
    n_held = client.peak("n_held")
    is_late = client.n_capped > 0 and 2 * client.n_capped >= client.n_late
    return is_late or (n_held > 0 and 2 * n_held >= client.peak("n_backlog"))


def _is_stalled(client: _Client) -> bool:
    allowed_ns = client.run.allowed.p50_ns
    is_late = client.n_late or client.inside_ratio > 0 or client.waited
    # what a lost worker left unsent is no stall
    return bool(is_late or client.workers["loop_lag_ns"] > allowed_ns) and not client.run.manifest.losses


def _is_slow_path(client: _Client) -> bool:
    """A closed loop whose users waited inside workers that send in Python: that is what the path takes, no stall. What
    was stolen can hold up as large a share of the users' time; the other signs stop a worker."""
    stops = client.workers["n_write_pauses"] or client.workers["n_socket_errors"] or client.has_long_gc
    is_inside = client.inside_ratio > 0 and client.steal_ratio <= client.inside_ratio / 2
    return is_inside and not stops and not client.is_locust and bool(client.lane) and _is_stalled(client)


_CAUSES: Mapping[str, tuple[str, Callable[[_Client], bool]]] = {
    "worker cpu": ("", lambda client: client.workers["n_saturated"] > 0),
    "sequence order": (
        " by the order of sequences, not by its CPU",
        lambda client: client.n_in_turn > 0 and 2 * client.n_in_turn >= client.n_late,
    ),
    CAP: (" by its cap, not by its CPU", _is_capped),
    "node cpu": (
        ", for want of CPU on its node",
        lambda client: client.busiest is not None and client.busiest["full_share"] > SATURATED_SHARE_RATIO,
    ),
    "slow path": (", by its slower path in Python", _is_slow_path),
    "stall": (", though not by its CPU", _is_stalled),
}
"""In the order in which they are looked for: how each limited the client, and whether it did."""
