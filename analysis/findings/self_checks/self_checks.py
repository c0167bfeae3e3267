"""The self-checks of a run: do its own figures agree with one another? They weaken findings, not the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.clocks.timeline import measure_spans
from squall.analysis.findings.rules.facts import wall_partition
from squall.analysis.findings.rules.rule import Measures
from squall.analysis.findings.self_checks.event_checks import event_checks
from squall.analysis.findings.self_checks.littles_law import in_flight, littles_law
from squall.analysis.findings.self_checks.request_checks import request_checks, share_check
from squall.analysis.findings.self_checks.self_check import SelfCheck, at_most
from squall.analysis.locust.users import is_locust_load
from squall.analysis.metrics.model_statistics import of_executed
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.recorded import TABLE as WINDOWS
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.nsys import EVENT_TABLES
from squall.analysis.verdict.measured import cache_hits, unbatched_requests

if TYPE_CHECKING:
    import duckdb

WALL_RATIO = 1e-6
"""The parts of the wall are sums of whole nanoseconds over one length."""

TABLES = ("requests", "joined", "batch_costs", "worker_samples", WINDOWS, *EVENT_TABLES)
"""What the self-checks read."""


def self_checks(
    store: RunStore, metrics: RunMetrics | None, memory_limit_bytes: int = MEMORY_LIMIT_BYTES
) -> list[SelfCheck]:
    """All self-checks, those first that are about the load. What is not in the run is not assessed.

    `metrics`: what `run_metrics` returned, None of a run without batches.
    """
    tables = [name for name in TABLES if store.has(name)]
    with connect(store, tables, memory_limit_bytes) as connection:
        return checks_over(connection, tables, store, metrics)


def checks_over(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[str], store: RunStore, metrics: RunMetrics | None
) -> list[SelfCheck]:
    """All self-checks over the views `tables`, of TABLES."""
    has = set(tables)
    phases = measure_spans(store.manifest)
    facts = store.manifest.servers.items()
    is_locust = is_locust_load(store.manifest)  # whose workers count users that are not asleep
    decoupled = [(server, model) for server, one in facts for model in one.decoupled]
    return [
        littles_law(store, connection if {"requests", "joined"} <= has else None),
        in_flight(connection if {"requests", "worker_samples"} <= has and not is_locust else None),
        *request_checks(
            connection if "joined" in has else None,
            _n_cached(store),
            _is_recorded(store.manifest),
            _has_cached_steps(store),
        ),
        share_check(connection if {"joined", "batch_costs"} <= has else None),
        wall_check(metrics.measures if metrics is not None else {}),
        *event_checks(
            connection, tables, "batch_costs" in has, phases, decoupled if "batch_costs" in has else ()
        ),
        *clock_checks(store.manifest),
    ]


def unmet(checks: Sequence[SelfCheck]) -> list[str]:
    """Names of those that are not met."""
    return [one.name for one in checks if one.status == "unmet"]


def _is_recorded(manifest: Manifest) -> bool:
    """Whether batches of every server were to be recorded; of a run of before that is not stated."""
    state = manifest.collectors.get("batches")
    return state is None or state.status == "on"


def _n_cached(store: RunStore) -> int:
    samples = store.read("triton_samples") if store.has("triton_samples") else None
    own = of_executed(samples, store.manifest)
    models = {name: facts.models for name, facts in store.manifest.servers.items() if facts.models}
    if own is None or not models:
        return cache_hits(own)
    servers = own.column("server").cast(pa.string())
    return sum(
        unbatched_requests(own.filter(pc.equal(servers, name)), facts) for name, facts in models.items()
    )


def _has_cached_steps(store: RunStore) -> bool:
    """Whether the response cache answered for a step of an ensemble under load."""
    samples = store.read("triton_samples") if store.has("triton_samples") else None
    steps = {step for facts in store.manifest.servers.values() for one in facts.models for step in one.steps}
    if samples is None or not steps:
        return False
    own = pc.is_in(samples.column("model").cast(pa.string()), pa.array(sorted(steps)))
    return cache_hits(samples.filter(own)) > 0


def wall_check(measures: Mapping[tuple[str, str], Measures]) -> SelfCheck:
    """The instance whose parts of the wall miss 1 by most. `measures`: by phase and instance."""
    off = {
        f"{phase}, {key}": abs(unexplained)
        for (phase, key), own in measures.items()
        if (unexplained := wall_partition(own)["unexplained"]) is not None
        and own.get("wall_edges_ratio") is not None
    }
    where = max(off, key=lambda one: off[one], default="")
    meaning = "what the parts of an instance's wall miss to all of it"
    return at_most("wall", off.get(where), WALL_RATIO, "ratio", meaning, where)


def clock_checks(manifest: Manifest) -> list[SelfCheck]:
    """Steps of the nodes' clocks and reports whose clock is taken on trust, as the manifest notes them."""
    steps = {
        node: len(facts.clock_track.steps)
        for node, facts in manifest.nodes.items()
        if facts.clock_track is not None
    }
    reports = manifest.nsys.reports
    trusted = [phase for phase, report in reports.items() if report.clock is None or report.clock.is_assumed]
    n_steps = sum(steps.values()) if steps else None
    n_trusted = len(trusted) if reports else None
    stepped = ", ".join(node for node, count in steps.items() if count)
    meaning = "steps of the nodes' clocks while they were read"
    marked = "reports whose clock no mark confirms"
    return [
        at_most("clock steps", n_steps, 0, "count", meaning, stepped),
        at_most("report clock", n_trusted, 0, "count", marked, ", ".join(trusted)),
    ]
