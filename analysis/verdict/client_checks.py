"""Figures of the checks that times of the server's node and the clients' compare, and of the workers that send: whether
their event loops were on time, and their CPU had room."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from squall.analysis.record import Number
from squall.analysis.requests.users import is_locust_load
from squall.analysis.requests.workers import busy_ratios
from squall.analysis.statistics.order_statistics import rank_value
from squall.analysis.storage.manifest import Manifest
from squall.analysis.verdict.check import Figure
from squall.analysis.verdict.run_view import RunView

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


def saturated_share(samples: pa.Table) -> float:
    """Share of the samples of workers in which these were full."""
    return float((busy_ratios(samples) >= SATURATED_RATIO).mean())


def clock_bound(view: RunView) -> Figure:
    """Largest sum of both clocks' bounds over the pairs of client node and server node; 0 on one node."""
    errors = {name: node.clock_error_ns for name, node in view.manifest.nodes.items()}
    servers = {server.node for server in view.manifest.servers.values()}
    pairs = [(errors.get(a), errors.get(b)) for a in view.measured.node.counts() for b in servers if a != b]
    bounds = [one + other for one, other in pairs if one is not None and other is not None]
    latency_ns = rank_value(view.measured.latency_ns[view.measured.is_ok], 0.50) or 0
    return Figure(
        max(bounds, default=0) if len(bounds) == len(pairs) else None,
        round(0.10 * latency_ns),
        excuse="" if view.measured.is_ok.any() else "no request ended ok, whose parts it would blur",
    )


def of_workers(
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
