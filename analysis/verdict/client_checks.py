"""The checks that the load reached the server, that times of its node and the clients' compare, and of the workers
that send: whether their event loops were on time, and their CPU had room."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from squall.analysis.limits import LIMITS
from squall.analysis.record import Number
from squall.analysis.requests.users import is_locust_load
from squall.analysis.requests.workers import busy_ratios
from squall.analysis.statistics.order_statistics import rank_value
from squall.analysis.storage.manifest import Manifest
from squall.analysis.verdict.check import CLIENT, Check, Figure
from squall.analysis.verdict.run_view import RunView, has_measured

SATURATED_RATIO = 0.90
"""CPU time, less that spent waiting busily, over wall time from which a single-threaded worker has no room
for a burst; of a node, over all its cores."""
SATURATED_SHARE_RATIO = 0.05
"""Share of samples that may be saturated, or whose event loop may be late."""
LEAST_SAMPLES = 20
"""Samples, or wakes of users, below which one alone is more than the share that may be saturated or late."""


def more_workers(manifest: Manifest) -> str:
    """What helps a client that is full."""
    if is_locust_load(manifest):
        return "add clients.workers_per_node or nodes: a Locust worker has one core"
    return "add client workers or nodes"


def _clock_bound(view: RunView) -> Figure:
    """Largest sum of both clocks' bounds over the pairs of client node and server node; 0 on one node."""
    nodes = view.manifest.nodes
    servers = {server.node for server in view.manifest.servers.values()}
    pairs = [(a, b) for a in view.measured.node.counts() for b in servers if a != b]
    ends = {node for pair in pairs for node in pair}
    bounds = {node: nodes[node].clock_error_ns for node in ends & nodes.keys()}
    known = {node: bound for node, bound in bounds.items() if bound is not None}
    latency_ns = rank_value(view.measured.latency_ns[view.measured.is_ok], 0.50) or 0
    return Figure(
        max((known[a] + known[b] for a, b in pairs), default=0) if ends == known.keys() else None,
        round(0.10 * latency_ns),
        excuse="" if view.measured.is_ok.any() else "no request ended ok, whose parts it would blur",
    )


def _of_workers(
    figure: Callable[[pa.Table], Number | None], limit: Callable[[RunView], Number | None] = lambda _: None
) -> Callable[[RunView], Figure]:
    """`figure` of the samples of the workers. In an open loop each send is a sample of the loop's lateness, and there
    are many more of them than of its own timer's: where these kept to their schedule it had no consequence."""

    def found(view: RunView) -> Figure:
        is_on_time = view.everything.is_open and not view.is_late
        excuse = "the sends kept to their schedule all the same" if is_on_time else ""
        if view.workers is None:
            return Figure(None, limit(view))
        if view.workers.num_rows < LEAST_SAMPLES:
            excuse = f"{view.workers.num_rows} samples, it takes {LEAST_SAMPLES}"
        return Figure(figure(view.workers), limit(view), advice=more_workers(view.manifest), excuse=excuse)

    return found


CLIENT_CHECKS = (
    Check(
        name="clock bound",
        figure=_clock_bound,
        limit=0,
        unit="ns",
        reason="a tenth of the latency p50: beyond it wait and reply of `joined` are mostly clock",
        meaning="bound on the error between client and server clocks",
        advice="probe the clocks longer, or use a better clock source (PTP, chrony)",
        where=has_measured,
    ),
    Check(
        name="event-loop lag p95",
        figure=_of_workers(
            lambda samples: rank_value(samples.column("loop_lag_ns").to_numpy(), 1.0 - SATURATED_SHARE_RATIO),
            lambda view: view.allowed.p95_ns,
        ),
        limit=LIMITS.lag_ns,
        unit="ns",
        reason="a tenth of the latency p95, and what a timer on a busy host costs in any case",
        meaning="event-loop lag p95 of the workers",
        where=has_measured,
        shows=CLIENT,
    ),
    Check(
        name="worker saturation",
        figure=_of_workers(lambda samples: float((busy_ratios(samples) >= SATURATED_RATIO).mean())),
        limit=SATURATED_SHARE_RATIO,
        unit="ratio",
        reason="one sample in twenty of a full worker is a burst that it had no room for",
        meaning=f"share of worker samples with at least {SATURATED_RATIO:.0%} CPU",
        where=has_measured,
        shows=CLIENT,
    ),
)
