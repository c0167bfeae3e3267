"""The figures of one run that runs are compared by: latency, throughput, CPU of a request. Pure over tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from squall.analysis.arrays import Floats
from squall.analysis.clocks.timeline import RunPhase, measure_spans
from squall.analysis.requests.requests import Requests, numbers
from squall.analysis.statistics.latency import quantiles
from squall.analysis.storage.store import RunStore
from squall.scenarios.units import NS_PER_S

LATENCIES = {"p50_ns": 0.50, "p95_ns": 0.95, "p99_ns": 0.99}
THROUGHPUT, CLIENT_CPU, SERVER_CPU = "throughput_hz", "client_cpu_per_request_ns", "server_cpu_per_request_ns"
METRICS = (*LATENCIES, THROUGHPUT, CLIENT_CPU, SERVER_CPU)
"""p50_ns, p95_ns, p99_ns: quantiles of response time (closed loop: service time), failures infinite.
throughput_hz: requests that ended ok within the phase, per second of it. *_cpu_per_request_ns: CPU time of all
workers (without spin_ns), of the server's processes, within the phase over requests sent in it."""
_LEAST_COVERED = 0.95
"""Share of a phase that the samples of a process must cover: below it, its CPU in the phase is a guess."""


@dataclass(frozen=True)
class Reading:
    """A figure, or None and why there is none. `is_infinite`: the quantile fell on failures."""

    value: float | None
    reason: str = ""
    is_infinite: bool = False


Readings = dict[str, Reading]


@dataclass(frozen=True)
class RunFigures:
    """Readings by metric, of all measured phases together and of each. `latency_name`: response or service."""

    pooled: Readings
    by_phase: dict[str, Readings]
    latency_name: str


def run_figures(store: RunStore) -> RunFigures:
    """All `METRICS` of a sealed run. Raises MissingTable for one without requests."""
    manifest = store.manifest
    requests = Requests.read(store)
    spans = measure_spans(manifest)
    cpu = [_client_cpu(store), _server_cpu(store)]
    return RunFigures(
        _readings(requests, spans, cpu),
        {span.name: _readings(requests, [span], cpu) for span in spans},
        requests.latency_name,
    )


@dataclass(frozen=True, eq=False)
class CpuSamples:
    """(n,) samples of processes: `cpu_ns` used in (t - interval, t]; `series` says whose. `name`: of the metric."""

    name: str
    series: npt.NDArray[np.object_]
    t_ns: npt.NDArray[np.int64]
    interval_ns: npt.NDArray[np.int64]
    cpu_ns: Floats
    reason: str = ""

    def within(self, span: RunPhase) -> float | None:
        """CPU time in the span, that of a sample at its edge in proportion to the overlap; None where the samples of a
        process leave more than 5 % of the span out."""
        length_ns = span.end_ns - span.start_ns
        overlap_ns = np.minimum(self.t_ns, span.end_ns) - np.maximum(
            self.t_ns - self.interval_ns, span.start_ns
        )
        share = np.clip(overlap_ns, 0, None) / np.maximum(self.interval_ns, 1)
        for one in set(self.series.tolist()):
            covered_ns = np.clip(overlap_ns[self.series == one], 0, None).sum()
            if covered_ns < _LEAST_COVERED * length_ns:
                return None
        return float((share * self.cpu_ns).sum())


def _client_cpu(store: RunStore) -> CpuSamples:
    if not store.has("worker_samples"):
        return _no_samples(CLIENT_CPU, "the run has no worker_samples")
    table = store.read("worker_samples", ["node", "worker", "t_ns", "interval_ns", "cpu_ns", "spin_ns"])
    cpu_ns = (numbers(table, "cpu_ns") - numbers(table, "spin_ns")).astype(np.float64)
    return _samples(CLIENT_CPU, table, "worker", cpu_ns)


def _server_cpu(store: RunStore) -> CpuSamples:
    if not store.has("host_samples"):
        return _no_samples(SERVER_CPU, "the run has no host_samples")
    table = store.read("host_samples", ["node", "t_ns", "interval_ns", "server_cpu_ns"])
    table = table.filter(table.column("server_cpu_ns").is_valid())
    if not len(table):
        return _no_samples(SERVER_CPU, "the server's processes are not on a node of the run")
    return _samples(SERVER_CPU, table, "node", numbers(table, "server_cpu_ns").astype(np.float64))


def _samples(name: str, table: pa.Table, series: str, cpu_ns: Floats) -> CpuSamples:
    owners = np.array(table.column(series).to_pylist(), dtype=object)
    return CpuSamples(name, owners, numbers(table, "t_ns"), numbers(table, "interval_ns"), cpu_ns)


def _no_samples(name: str, reason: str) -> CpuSamples:
    none = np.empty(0, dtype=np.int64)
    return CpuSamples(name, np.empty(0, dtype=object), none, none, none.astype(np.float64), reason)


def _readings(requests: Requests, spans: Sequence[RunPhase], cpu: Sequence[CpuSamples]) -> Readings:
    """Rows of all `spans` are merged before a quantile is taken: quantiles are never averaged."""
    measured = requests.in_phases([span.name for span in spans])
    found = {}
    for name, one in zip(
        LATENCIES, quantiles(measured.latency_ns, list(LATENCIES.values()), ~measured.is_ok), strict=True
    ):
        value = None if one.value_ns is None else float(one.value_ns)
        found[name] = Reading(value, one.reason, one.is_infinite)
    length_s = sum(span.end_ns - span.start_ns for span in spans) / NS_PER_S
    n_ok = sum(_n_ended(requests, span) for span in spans)
    found[THROUGHPUT] = Reading(n_ok / length_s) if n_ok else Reading(None, "no request ended ok")
    for samples in cpu:
        found[samples.name] = _cpu_reading(samples, measured, spans)
    return found


def _n_ended(requests: Requests, span: RunPhase) -> int:
    """Requests of any phase that ended ok within `span`."""
    is_inside = (requests.done_ns >= span.start_ns) & (requests.done_ns < span.end_ns)
    return int((requests.is_ok & is_inside).sum())


def _cpu_reading(samples: CpuSamples, measured: Requests, spans: Sequence[RunPhase]) -> Reading:
    n_sent = int(measured.is_sent.sum())
    if samples.reason:
        return Reading(None, samples.reason)
    used_ns = [samples.within(span) for span in spans]
    if any(value is None for value in used_ns):
        return Reading(None, "its samples do not cover the phase")
    total_ns = sum(value for value in used_ns if value is not None)
    if not n_sent or total_ns <= 0:
        return Reading(None, "no request was sent" if not n_sent else "its samples show no CPU time")
    return Reading(total_ns / n_sent)
