"""The figures of one run that runs are compared by: latency, throughput, CPU of a request. Pure over tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.latency import quantile_values
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, measure_spans
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

if TYPE_CHECKING:
    import duckdb

LATENCIES = {"p50_ns": 0.50, "p95_ns": 0.95, "p99_ns": 0.99}
THROUGHPUT, CLIENT_CPU, SERVER_CPU = "throughput_hz", "client_cpu_per_request_ns", "server_cpu_per_request_ns"
METRICS = (*LATENCIES, THROUGHPUT, CLIENT_CPU, SERVER_CPU)
"""p50_ns, p95_ns, p99_ns: quantiles of response time (closed loop: service time), failures infinite.
throughput_hz: requests that ended ok within the phase, per second of it. *_cpu_per_request_ns: CPU time of all
workers (without spin_ns), of the server's processes, within the phase over requests sent in it."""
_CPU = {
    CLIENT_CPU: ("worker_samples", "worker", "cpu_ns - spin_ns"),
    SERVER_CPU: ("host_samples", "node", "server_cpu_ns"),
}
"""Table of samples of processes, whose each is, and the CPU time that was used in (t_ns - interval_ns, t_ns]."""
_LEAST_COVERED = 0.95
"""Share of a phase that the samples of a process must cover: below it, its CPU in the phase is a guess."""


class Reading(Frozen):
    """A figure, or None and why there is none. `is_infinite`: the quantile fell on failures."""

    value: float | None
    reason: str = ""
    is_infinite: bool = False


Readings = dict[str, Reading]


def run_figures(store: RunStore, requests: Requests | None = None) -> Readings:
    """All `METRICS` of a sealed run, over its measured phases together; `requests`: its own, if they were read already.
    Raises MissingTable without."""
    requests = Requests.read(store) if requests is None else requests
    spans = measure_spans(store.manifest)
    with connect(store, [table for table, *_ in _CPU.values() if store.has(table)]) as connection:
        cpu = {
            metric: {span.name: _cpu(connection, span, *source) for span in spans}
            if store.has(source[0])
            else f"the run has no {source[0]}"
            for metric, source in _CPU.items()
        }
    return _readings(requests, spans, cpu)


_Cpu = Mapping[str, str | Mapping[str, float | str]]
"""By metric: CPU time of each phase, ns, or why it is not known."""


def _cpu(
    connection: duckdb.DuckDBPyConnection, span: RunPhase, table: str, series: str, cpu: str
) -> float | str:
    rows = connection.execute(
        f"""SELECT sum(used_ns), min(covered_ns) FROM (
            SELECT
                sum(overlap_ns / greatest(interval_ns, 1) * ({cpu})) AS used_ns, -- at an edge in proportion
                sum(overlap_ns) AS covered_ns
            FROM (
                SELECT *, greatest(0, least(t_ns, $end_ns) - greatest(t_ns - interval_ns, $start_ns)) AS overlap_ns
                FROM {table} WHERE ({cpu}) IS NOT NULL
            ) GROUP BY {series}
        )""",
        {"start_ns": span.start_ns, "end_ns": span.end_ns},
    ).fetchall()
    ((used_ns, covered_ns),) = rows
    if used_ns is None:
        return "the server's processes are not on a node of the run" if table == "host_samples" else 0.0
    if covered_ns < _LEAST_COVERED * (span.end_ns - span.start_ns):
        return "its samples do not cover the phase"
    return float(used_ns)


def _readings(requests: Requests, spans: Sequence[RunPhase], cpu: _Cpu) -> Readings:
    """Rows of all `spans` are merged before a quantile is taken: quantiles are never averaged."""
    measured = requests.in_phases([span.name for span in spans])
    values = quantile_values(measured.latency_ns, list(LATENCIES.values()), ~measured.is_ok)
    found = {
        name: Reading(None if one.value_ns is None else float(one.value_ns), one.reason, one.is_infinite)
        for name, one in zip(LATENCIES, values, strict=True)
    }
    length_s = sum(span.end_ns - span.start_ns for span in spans) / NS_PER_S
    n_ok = sum(_n_ended(requests, span) for span in spans)
    found[THROUGHPUT] = Reading(n_ok / length_s) if n_ok else Reading(None, "no request ended ok")
    n_sent = int(measured.is_sent.sum())
    for metric, of_phases in cpu.items():
        used = [of_phases] if isinstance(of_phases, str) else [of_phases[span.name] for span in spans]
        reasons = [one for one in used if isinstance(one, str)]
        total_ns = sum(one for one in used if isinstance(one, float))
        if not reasons and not n_sent:
            reasons = ["no request was sent"]
        if not reasons and total_ns <= 0:
            reasons = ["its samples show no CPU time"]
        found[metric] = Reading(None, reasons[0]) if reasons else Reading(total_ns / n_sent)
    return found


def _n_ended(requests: Requests, span: RunPhase) -> int:
    """Requests of any phase that ended ok within `span`."""
    is_inside = (requests.done_ns >= span.start_ns) & (requests.done_ns < span.end_ns)
    return int((requests.is_ok & is_inside).sum())
