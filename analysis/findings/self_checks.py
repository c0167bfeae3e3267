"""The self-checks of a run: do its own figures agree with one another? They weaken findings, not the verdict.

A check is one entry of `CHECKS`: what is compared, by how much it may be off and why, and what of a run it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.findings.facts import wall_partition
from squall.analysis.findings.littles_law import closed_gap, open_gap
from squall.analysis.findings.rule import Measures
from squall.analysis.findings.self_check import MET, UNASSESSED, UNMET, SelfCheck
from squall.analysis.findings.shares import LATENCY
from squall.analysis.metrics.model_statistics import of_executed
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.record import Number
from squall.analysis.recorded import TABLE as WINDOWS
from squall.analysis.recorded import whole
from squall.analysis.requests.requests import is_open_load
from squall.analysis.requests.users import is_locust_load
from squall.analysis.storage.nsys import DEVICE_TABLES, EVENT_TABLES
from squall.analysis.storage.parquet import literal
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect, records
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from squall.analysis.verdict.measured import cache_hits, unbatched_requests
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import duckdb

TABLES = ("requests", "joined", "batch_costs", "worker_samples", WINDOWS, *EVENT_TABLES)
"""What the self-checks read."""
NOTHING = "nothing in the run that they compare"

COVERAGE_RATIO = 0.99
"""What is not tied to a batch is missing from head, body and tail."""
LAUNCH_CLOCK_NS = 10_000
"""GPU stamps are mapped to the host's clock by the driver, to some microseconds; a launch itself takes 2 or more."""
ROUNDING_RATIO = 1e-6
"""Of sums of whole nanoseconds: they differ by the rounding of two divisions, or by a fault."""

_BATCH_PARTS = "kernel_busy_ns + copy_exposed_ns + sync_wait_ns + launch_idle_ns + head_ns + tail_ns"
_PARTS = "coalesce(lag_ns, 0) + network_ns + queue_ns + input_ns + handover_ns + compute_ns + output_ns + residual_ns"
_REQUESTS = f"""
-- Of ok requests: rows that did not end ok may have been given up before. A server of which nothing is joined has
-- nothing that could be, where it was not to record its batches.
SELECT count(*) AS n,
    CASE WHEN count(clock_error_ns) > 0 THEN count(*) FILTER (sent_ns > batch_start_ns + clock_error_ns) END AS n_early,
    CASE WHEN count(clock_error_ns) > 0 THEN count(*) FILTER (batch_end_ns > done_ns + clock_error_ns) END AS n_late,
    CASE WHEN count({_PARTS}) + count({_BATCH_PARTS}) > 0
        THEN count(*) FILTER ({_PARTS} <> {LATENCY} OR {_BATCH_PARTS} <> compute_ns) END AS n_off,
    greatest(0, count(*) FILTER (join_level = 'none' AND is_joinable) - $n_cached)
        / nullif(count(*) FILTER (is_joinable), 0) AS unjoined,
    quantile_disc(abs(residual_ns) / {LATENCY}::DOUBLE, 0.5) FILTER ({LATENCY} > 0) AS residual
FROM (SELECT *, request_kind <> '' AND ($is_recorded OR target IN (
    SELECT target FROM joined WHERE join_level <> 'none')) AS is_joinable FROM joined)
WHERE outcome = 'ok'
"""
_KEY = "server, instance, instance_device, batch_id"
_SHARES = f"""
WITH shares AS (
    SELECT {_KEY}, sum(kernel_share_ns) AS shares_ns, count(*) AS n
    FROM joined WHERE kernel_share_ns IS NOT NULL AND batch_id IS NOT NULL GROUP BY ALL)
SELECT sum(abs(shares_ns - kernel_ns))::DOUBLE FROM shares JOIN batch_costs USING ({_KEY}) WHERE n = n_requests
"""
_OPERATIONS = f"""
-- Operations of a process on the GPU; those that end before they start are `n_broken` alone.
SELECT '{{table}}' AS source, node, process, count(*) FILTER (end_ns >= start_ns) AS n,
    count(batch_id) FILTER (end_ns >= start_ns) AS n_tied, count(*) FILTER (end_ns < start_ns) AS n_broken,
    count(launch_start_ns) AS n_launched,
    count(*) FILTER (launch_start_ns > start_ns + {LAUNCH_CLOCK_NS}) AS n_early,
    coalesce(sum(end_ns - start_ns) FILTER (batch_id IS NOT NULL AND end_ns >= start_ns), 0)::DOUBLE AS tied_ns
FROM {{table}} WHERE {{of_whole}} GROUP BY node, process
"""
_IN_FLIGHT = """
-- What workers counted against the rows in flight at the same instants, over all their samples.
WITH ends AS (
    SELECT worker, sent_ns AS at_ns, 1 AS more FROM requests WHERE sent_ns IS NOT NULL AND done_ns IS NOT NULL
    UNION ALL SELECT worker, done_ns, -1 FROM requests WHERE sent_ns IS NOT NULL AND done_ns IS NOT NULL),
known AS (
    SELECT worker, at_ns, sum(sum(more)) OVER (PARTITION BY worker ORDER BY at_ns) AS n FROM ends
    GROUP BY worker, at_ns)
SELECT sum(abs(coalesce(n, 0) - n_in_flight))::DOUBLE / nullif(sum(n_in_flight), 0)
FROM (FROM worker_samples WHERE phase <> '') samples ASOF LEFT JOIN known
    ON samples.worker = known.worker AND samples.t_ns >= known.at_ns
"""
_CALLS = """
-- Broken calls, and the share of the calls of serving threads, those with any tied, that are tied.
WITH threads AS (
    SELECT count(*) FILTER (phase <> '') AS n, count(batch_id) FILTER (phase <> '') AS n_tied,
        count(*) FILTER (end_ns < start_ns) AS n_broken
    FROM cuda_api GROUP BY node, process, thread)
SELECT coalesce(sum(n_broken), 0)::BIGINT AS n_broken,
    sum(n_tied) FILTER (n_tied > 0)::DOUBLE / sum(n) FILTER (n_tied > 0) AS tied
FROM threads
"""
_TIED = """
-- Operations of processes of which any is tied, and of those that the report does not name. Ties by time are not on the
-- operations: a batch so tied tells its process. Where one does not, all count; so they do where none is tied.
-- Batches of servers that windows hold are tied exactly there, and what time ties of theirs does not count.
WITH batches_tied AS (
    SELECT DISTINCT node, process, tie FROM batch_costs WHERE tie <> 'none' AND n_kernels + n_copies > 0),
own AS (
    SELECT node, process FROM operations GROUP BY ALL HAVING sum(n_tied) > 0
    UNION SELECT node, process FROM batches_tied WHERE process IS NOT NULL)
SELECT coalesce((
        SELECT sum(n_kernels + n_copies) FROM batch_costs WHERE tie <> 'window' OR server NOT IN {library}), 0)::DOUBLE
    / nullif(sum(n) FILTER (
        process IS NULL OR (node, process) IN (SELECT (node, process) FROM own) OR (SELECT count(*) FROM own) = 0
        OR (SELECT count(*) FROM batches_tied WHERE process IS NULL AND tie = 'window') > 0), 0)
FROM operations
"""
_PROFILED = """
-- Batches of a measured phase count from its first tied one to its last: a recording begins and ends near it.
SELECT avg((tie <> 'none')::INTEGER) FROM batch_costs JOIN (
    SELECT server, phase, min(start_ns) AS first_ns, max(end_ns) AS last_ns FROM batch_costs
    WHERE tie <> 'none' AND list_contains([{phases}]::VARCHAR[], phase) GROUP BY server, phase) USING (server, phase)
WHERE start_ns BETWEEN first_ns AND last_ns AND server NOT IN {library}
"""
_KERNEL_SUMS = """
-- Only where every tie is by range: kernels tied by time carry no batch themselves.
SELECT abs((SELECT sum(kernel_ns)::DOUBLE FROM batch_costs) - sum(tied_ns)) FROM operations
WHERE source = 'kernels' AND (SELECT count(*) FROM batch_costs WHERE tie = 'window') = 0
"""


@dataclass(eq=False)
class SelfCheckView:
    """A run as its self-checks look at it, with the views `tables`. `metrics`: what `run_metrics` returned, None of a
    run without batches."""

    connection: duckdb.DuckDBPyConnection
    tables: Collection[str]
    store: RunStore
    metrics: RunMetrics | None

    def one(self, query: str, **settings: Any) -> Number | None:
        """The one figure of a query, in which `{library}` and `{phases}` stand for the servers that windows of the
        kernel library hold, and for the measure phases."""
        phases = ", ".join(literal(span.name) for span in measure_spans(self.store.manifest))
        library = "(SELECT server FROM recordings)" if WINDOWS in self.tables else "('')"
        ((found,),) = self.connection.execute(
            query.format(library=library, phases=phases), settings
        ).fetchall()
        figure: Number | None = found
        return figure

    @cached_property
    def requests(self) -> dict[str, Number | None]:
        """The row of `_REQUESTS`."""
        manifest, statistics = self.store.manifest, self.statistics
        state = manifest.collectors.get("batches")  # of a run of before that is not stated
        own = of_executed(statistics, manifest)
        models = {name: facts.models for name, facts in manifest.servers.items() if facts.models}
        n_cached = cache_hits(own)
        if own is not None and models:
            servers = own.column("server").cast(pa.string())
            n_cached = sum(
                unbatched_requests(own.filter(pc.equal(servers, name)), facts)
                for name, facts in models.items()
            )
        settings = {"n_cached": n_cached, "is_recorded": state is None or state.status == "on"}
        return records(self.connection.execute(_REQUESTS, settings))[0]

    @cached_property
    def statistics(self) -> pa.Table | None:
        """Triton's."""
        return self.store.read("triton_samples") if self.store.has("triton_samples") else None

    @property
    def has_cached_steps(self) -> bool:
        """Whether the response cache answered for a step of an ensemble under load, of which nothing else is known."""
        servers = self.store.manifest.servers.values()
        steps = {step for facts in servers for one in facts.models for step in one.steps}
        if self.statistics is None or not steps:
            return False
        own = pc.is_in(self.statistics.column("model").cast(pa.string()), pa.array(sorted(steps)))
        return cache_hits(self.statistics.filter(own)) > 0

    @cached_property
    def has_operations(self) -> bool:
        """Whether there are any; from then on they are counted in table `operations`. Those of batches that an edge of
        a recorded window or phase cuts do not count."""
        of_whole = "true"
        if self.has_costs:
            starts = (span.start_ns for span in measure_spans(self.store.manifest))
            of_whole = whole(self.connection, starts, WINDOWS in self.tables)
        counts = [
            _OPERATIONS.format(table=table, of_whole=of_whole)
            for table in DEVICE_TABLES
            if table in self.tables
        ]
        if counts:
            self.connection.execute(
                f"CREATE OR REPLACE TEMP TABLE operations AS {' UNION ALL '.join(counts)}"
            )
        return bool(counts)

    @cached_property
    def calls(self) -> dict[str, Number | None]:
        """The row of `_CALLS`."""
        return records(self.connection.execute(_CALLS))[0]

    @property
    def has_costs(self) -> bool:
        """Whether what each batch cost is known."""
        return "batch_costs" in self.tables

    @cached_property
    def is_tied(self) -> bool:
        """Whether operations of all batches can be tied to them: those of decoupled models are not, nor do all say
        whose they are."""
        query = "SELECT count(*) FROM batch_costs WHERE server = $server AND model = $model"
        return self.has_costs and not any(
            self.one(query, server=name, model=model)
            for name, facts in self.store.manifest.servers.items()
            for model in facts.decoupled
        )


Found = tuple[Number | None, str]
"""A figure, and whose it is; None where it is not assessed."""


class Check(Frozen):
    """A figure that may be `limit` at most, or at least where `is_least`. `tables`: what it takes; `of`: beside them a
    report of nsys, or batches that are recorded."""

    name: str
    figure: str | Callable[[SelfCheckView], Number | Found | None]
    """A query, or a function of the run."""
    limit: Number
    unit: str
    meaning: str
    tables: tuple[str, ...] = ()
    of: Literal["", "report", "batches"] = ""
    is_least: bool = False
    needs: tuple[str, ...] = ()
    """What of the run must be so, by properties of its view."""

    def held(self, view: SelfCheckView) -> SelfCheck:
        """The figure of a run against the limit."""
        if not set(self.tables) <= set(view.tables) or not all(getattr(view, name) for name in self.needs):
            return self.result(None)
        figure = view.one(self.figure) if isinstance(self.figure, str) else self.figure(view)
        return self.result(*figure) if isinstance(figure, tuple) else self.result(figure)

    def result(self, value: Number | None, where: str = "") -> SelfCheck:
        """A figure against the limit."""
        is_met = value is not None and (value >= self.limit if self.is_least else value <= self.limit)
        status = UNASSESSED if value is None else MET if is_met else UNMET
        return SelfCheck(self.name, value, self.limit, self.unit, status, self.meaning, where)


def _in_flight(view: SelfCheckView) -> Number | None:
    """Locust's workers count users that are not asleep."""
    return None if is_locust_load(view.store.manifest) else view.one(_IN_FLIGHT)


def _wall(view: SelfCheckView) -> Found:
    """The instance whose parts of the wall miss 1 by most."""
    return wall_gap(view.metrics.measures if view.metrics is not None else {})


def wall_gap(measures: Mapping[tuple[str, str], Measures]) -> Found:
    """What the parts of the wall miss to all of it, where that is most. `measures`: by phase and instance."""
    off = {
        f"{phase}, {key}": abs(unexplained)
        for (phase, key), own in measures.items()
        if (unexplained := wall_partition(own)["unexplained"]) is not None
        and own.get("wall_edges_ratio") is not None
    }
    where = max(off, key=lambda one: off[one], default="")
    return off.get(where), where


def _broken_events(view: SelfCheckView) -> Found:
    counts: dict[str, Number] = {}
    for table in EVENT_TABLES:
        if table in DEVICE_TABLES and table in view.tables and view.has_operations:
            query = "SELECT coalesce(sum(n_broken), 0)::BIGINT FROM operations WHERE source = $table"
            counts[table] = view.one(query, table=table) or 0
        elif table == "cuda_api" and table in view.tables:
            counts[table] = view.calls["n_broken"] or 0
        elif table in view.tables:
            counts[table] = view.one(f"SELECT count(*) FROM {table} WHERE end_ns < start_ns") or 0
    return sum(counts.values()) if counts else None, ", ".join(table for table, n in counts.items() if n)


def _clock_steps(view: SelfCheckView) -> Found:
    nodes = view.store.manifest.nodes.items()
    steps = {node: len(facts.clock_track.steps) for node, facts in nodes if facts.clock_track is not None}
    return sum(steps.values()) if steps else None, ", ".join(node for node, n in steps.items() if n)


def _report_clock(view: SelfCheckView) -> Found:
    reports = view.store.manifest.nsys.reports
    trusted = [phase for phase, report in reports.items() if report.clock is None or report.clock.is_assumed]
    return len(trusted) if reports else None, ", ".join(trusted)


CHECKS = (
    Check(
        "Little's law",
        lambda view: open_gap(view.store, view.connection),
        ROUNDING_RATIO,
        "ratio",
        "difference of the mean number in the system from rate x mean response, over it",
        ("requests", "joined"),
    ),
    Check(
        "in flight",
        _in_flight,
        0.05,  # a sample is stamped before or after the sends and replies that its turn of the event loop handles
        "ratio",
        "requests in flight as workers counted them against the rows, mean difference over the mean",
        ("requests", "worker_samples"),
    ),
    Check(
        "sent before batch",
        lambda view: view.requests["n_early"],
        0,
        "count",
        "ok requests whose batch began before they were sent",
        ("joined",),
        "batches",
    ),
    Check(
        "batch before reply",
        lambda view: view.requests["n_late"],
        0,
        "count",
        "ok requests answered before the end of their batch",
        ("joined",),
        "batches",
    ),
    Check(
        "unjoined",
        lambda view: view.requests["unjoined"],
        0.0,
        "ratio",
        "ok requests of a model of which nothing that served them is known",
        ("joined",),
        "batches",
    ),
    Check(
        "parts add up",
        lambda view: view.requests["n_off"],
        0,
        "count",
        "ok requests whose parts do not add up to their latency, to 1 ns",
        ("joined",),
        "batches",
    ),
    Check(
        "residual",
        lambda view: None if view.has_cached_steps else view.requests["residual"],
        0.05,  # more, and the parts explain too little to be ranked
        "ratio",
        "median of the unexplained part of the latency, over it",
        ("joined",),
        "batches",
    ),
    Check(
        "kernel shares",
        _SHARES,
        0,
        "ns",
        "kernel time of whole batches that the shares of their requests do not add up to",
        ("joined", "batch_costs"),
        "report",
    ),
    Check(
        "wall",
        _wall,
        ROUNDING_RATIO,
        "ratio",
        "what the parts of an instance's wall miss to all of it",
        ("batch_costs",),
        "batches",
    ),
    Check(
        "launched before run",
        "SELECT CASE WHEN sum(n_launched) > 0 THEN sum(n_early) END FROM operations",
        0,
        "count",
        "operations on the GPU that began before the call that launched them",
        of="report",
        needs=("has_operations",),
    ),
    Check(
        "operations tied",
        _TIED,
        COVERAGE_RATIO,
        "ratio",
        "kernels, copies and sets of processes with batches tied to a batch",
        of="report",
        is_least=True,
        needs=("is_tied", "has_operations"),
    ),
    Check(
        "calls tied",
        lambda view: view.calls["tied"] if "cuda_api" in view.tables else None,
        COVERAGE_RATIO,
        "ratio",
        "CUDA calls of serving threads tied to a batch",
        of="report",
        is_least=True,
    ),
    Check(
        "batches profiled",
        _PROFILED,
        COVERAGE_RATIO,
        "ratio",
        "profiled batches of measured phases, from the first to the last of each",
        ("batch_costs",),
        "report",
        is_least=True,
        needs=("is_tied",),
    ),
    Check(
        "kernel sums",
        _KERNEL_SUMS,
        0,
        "ns",
        "kernel time that ranges tie to a batch and its costs do not hold, or the other way round",
        of="report",
        needs=("has_costs", "has_operations"),
    ),
    Check(
        "broken events",
        _broken_events,
        0,
        "count",
        "events of the report that end before they start; they are left out",
        of="report",
    ),
    Check("clock steps", _clock_steps, 0, "count", "steps of the nodes' clocks while they were read"),
    Check("report clock", _report_clock, 0, "count", "reports whose clock no mark confirms", of="report"),
)
"""Those first that are about the load."""
_CLOSED_LAW = (
    "difference of users from throughput x (service + think), over them: time inside the load generator"
)


def self_checks(
    store: RunStore, metrics: RunMetrics | None, memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> list[SelfCheck]:
    """All self-checks, in their order. What is not in the run is not assessed.

    `metrics`: what `run_metrics` returned, None of a run without batches.
    """
    tables = [name for name in TABLES if store.has(name)]
    with connect(store, tables, memory_limit_bytes) as connection:
        return checks_over(SelfCheckView(connection, tables, store, metrics))


def checks_over(view: SelfCheckView) -> list[SelfCheck]:
    """All self-checks of a run. Of a closed loop Little's law is of its users."""
    law, *others = CHECKS
    if is_open_load(view.store.manifest):
        first = law.held(view)
    else:
        gap, limit = closed_gap(view.store)
        first = replace(law, limit=limit, meaning=_CLOSED_LAW).result(gap)
    return [first, *(check.held(view) for check in others)]


def unmet(checks: Sequence[SelfCheck]) -> list[str]:
    """Names of those that are not met."""
    return [one.name for one in checks if one.status == UNMET]


def unassessed_groups(checks: Sequence[SelfCheck], store: RunStore) -> dict[str, tuple[str, ...]]:
    """Names of the checks that were not assessed, by reason: what the run has not, which they would read."""
    by_name = {check.name: check for check in CHECKS}
    found: dict[str, tuple[str, ...]] = {}
    for one in checks:
        if one.status == UNASSESSED:
            reason = _reason(by_name[one.name], store)
            found[reason] = (*found.get(reason, ()), one.name)
    return found


def _reason(check: Check, store: RunStore) -> str:
    missing = [table for table in check.tables if not store.has(table)]
    collectors = store.manifest.collectors
    if check.of == "report" and not store.manifest.nsys.reports:
        why = collectors["nsys"].reason if "nsys" in collectors else ""
        return f"no nsys report{f': {why}' if why else ''}"
    if missing:
        return f"no table {', '.join(missing)}"
    batches = collectors.get("batches")
    if check.of == "batches" and batches is not None and batches.status != "on":
        return f"no batches: {batches.reason}"
    return NOTHING
