"""`summary.json`: every figure that the screen and the report print. All arithmetic ends here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis import workers as workers_of
from analysis.accounting import accounting
from analysis.burst_latency import by_burst
from analysis.collector_costs import collector_costs
from analysis.cpu_shares import cpu_lines, cpu_shares
from analysis.figures import BATCH_COLUMNS, QUANTILES, RunTables, mean, phase_figures, rank_value, rows_in
from analysis.findings.find import find
from analysis.findings.self_checks import self_checks, unmet
from analysis.findings.unassessed import unassessed_groups
from analysis.identities import Identity, cost_identities, identities
from analysis.join import read_join_report
from analysis.join_counts import JoinCounts, join_counts
from analysis.metrics.run import run_metrics
from analysis.model_statistics import model_figures, of_models
from analysis.overhead import find_overhead
from analysis.profile_figures import latency_under, profile_figures
from analysis.query import MEMORY_LIMIT_BYTES
from analysis.rejections import rejection_figures
from analysis.repeats import repeat_figures
from analysis.requests import Requests, is_open_load
from analysis.store import RunStore
from analysis.timeline import RunPhase, measure_spans, phase_spans
from analysis.validity import Samples, judge, run_stimuli

FAILURES_RULE = (
    "A request that did not end ok counts as infinitely slow in every quantile of response and service time; "
    "none is left out. Response time runs from the scheduled instant."
)
CLOSED_FAILURES_RULE = (
    "A request that did not end ok counts as infinitely slow in every quantile of service time; none is left out. "
    "Closed loop: users wait for the server before they send again, so that there is no response time."
)


def summarise(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> dict[str, Any]:
    """The summary of a run, open or sealed. Raises `MissingTable` if it has no requests.

    The verdict is the one the run was sealed with; of an open run, what `validity.judge` says now. Tables
    that are absent leave None under their name.
    """
    manifest = store.manifest
    is_open = is_open_load(manifest)
    spans = measure_spans(manifest)
    names = [span.name for span in spans]
    sampled = Samples.read(store)
    of_requests = _request_figures(store, _accounts(store, spans, memory_limit_bytes), sampled)
    pa.default_memory_pool().release_unused()
    verdict = {**of_requests.verdict, **manifest.get("verdict", {})}
    cpus = cpu_shares(_read(store, "cpu_samples"), names)
    metrics = run_metrics(store, memory_limit_bytes) if store.has("batch_costs") else None
    checks = self_checks(store, metrics or {}, memory_limit_bytes)
    findings = find(store, metrics or {}, verdict, unmet(checks), memory_limit_bytes)
    return {
        "run": store.run,
        "scenario": (manifest.get("scenario") or {}).get("name"),
        "scenario_digest": manifest.get("scenario_digest"),
        "seed": manifest.get("seed"),
        "state": manifest["state"],
        "load": "open" if is_open else "closed",
        "latency_name": "response" if is_open else "service",
        "latency_under": latency_under(manifest),
        "verdict": verdict,
        "client_bottleneck": verdict["client_bottleneck"],
        "failures_rule": FAILURES_RULE if is_open else CLOSED_FAILURES_RULE,
        "phases": [span._asdict() for span in phase_spans(manifest)],
        "stimulus": of_requests.stimulus,
        "measure": of_requests.measure,
        "by_phase": of_requests.by_phase,
        "identities": [
            {**asdict(one), "is_met": one.is_met}
            for one in (*of_requests.identities, *cost_identities(store, memory_limit_bytes))
        ],
        "by_burst": of_requests.by_burst,
        "repeats": repeat_figures(store.run_dir, QUANTILES),
        "metrics": metrics,
        "findings": [one.to_mapping() for one in findings],
        "self_checks": [one.to_mapping() for one in checks],
        "self_checks_unassessed": unassessed_groups(
            [one.to_mapping() for one in checks],
            store.tables(),
            manifest.get("collectors", {}),
            bool(manifest.get("nsys", {}).get("reports")),
        ),
        "rejections": of_requests.rejections,
        "join": asdict(read_join_report(store, memory_limit_bytes)) if store.has("joined") else None,
        "host": _host_figures(rows_in(sampled.hosts, names)),
        "cpu": [one.to_mapping() for one in cpus],
        "cpu_text": cpu_lines(cpus, manifest),
        "gpu": _gpu_figures(rows_in(_read(store, "gpu_samples"), names)),
        "workers": _worker_figures(rows_in(sampled.workers, names)),
        "lane": workers_of.lane_text(manifest.get("workers", [])),
        "value_checks": manifest.get("value_checks"),
        "collectors": manifest.get("collectors", {}),
        "profile": profile_figures(manifest),
        "collector_costs": collector_costs(manifest, find_overhead(store.run_dir)),
        "losses": manifest.get("losses", []),
        "notes": manifest.get("notes", []),
        "tables": {name: sum(_n_rows(store, name)) for name in store.tables()},
    }


@dataclass(frozen=True)
class _Accounts:
    """What is known of `joined` before the requests are read: its counts, and where the time went, by phases."""

    counts: Mapping[str, JoinCounts] | None
    by_phases: Mapping[tuple[str, ...], Mapping[str, Any] | None]


def _accounts(store: RunStore, spans: Sequence[RunPhase], memory_limit_bytes: int) -> _Accounts:
    counts = join_counts(store, memory_limit_bytes)
    is_open = is_open_load(store.manifest)
    names = tuple(span.name for span in spans)
    groups = dict.fromkeys([names, *((name,) for name in names)]) if counts is not None else {}
    return _Accounts(
        counts, {group: accounting(store, group, is_open, memory_limit_bytes) for group in groups}
    )


@dataclass(frozen=True)
class _RequestFigures:
    """What takes the requests themselves, all of it made while they are held once: they are gone before the rest."""

    verdict: dict[str, Any]
    stimulus: dict[str, Any] | None
    measure: dict[str, Any]
    by_phase: dict[str, Any]
    identities: list[Identity]
    by_burst: dict[str, Any] | None
    rejections: dict[str, Any] | None


def _request_figures(store: RunStore, accounts: _Accounts, sampled: Samples) -> _RequestFigures:
    manifest = store.manifest
    requests = Requests.read(store)
    every_model = _read(store, "triton_samples")
    samples = of_models(every_model, manifest)
    tables = RunTables(manifest, requests, accounts.counts, _read(store, "batches", BATCH_COLUMNS), samples)
    spans = measure_spans(manifest)
    names = [span.name for span in spans]
    stimuli = run_stimuli(requests, manifest)

    def figures(own: Sequence[RunPhase]) -> dict[str, Any]:
        return phase_figures(tables, own, accounts.by_phases.get(tuple(span.name for span in own)))

    measure = {**figures(spans), "models": model_figures(every_model, names, manifest)}
    return _RequestFigures(
        verdict=judge(requests, sampled, manifest, stimuli=stimuli).to_mapping(),
        stimulus={one.phase: one.figures() for one in stimuli} if requests.is_open else None,
        measure=measure,
        by_phase={span.name: figures([span]) for span in spans} if len(spans) != 1 else {names[0]: measure},
        identities=identities(tables, manifest),
        by_burst=by_burst(requests.in_phases(names), spans, QUANTILES),
        rejections=rejection_figures(requests, samples, names),
    )


def _read(store: RunStore, table: str, columns: list[str] | None = None) -> pa.Table | None:
    return store.read(table, columns) if store.has(table) else None


def _n_rows(store: RunStore, table: str) -> list[int]:
    return [pq.read_metadata(part).num_rows for part in store.path(table)]


def _by(table: pa.Table, key: str) -> list[tuple[str, pa.Table]]:
    """The rows of each value of text column `key`."""
    texts = table.column(key).cast(pa.string())
    values = texts.to_numpy()
    return [(name, table.filter(pa.array(values == name))) for name in sorted(set(texts.to_pylist()))]


def _numbers(table: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(table.column(name).drop_null().to_numpy(), dtype=np.float64)


def _mean_and_max(table: pa.Table, names: Sequence[str]) -> dict[str, float | None]:
    """`<name>_mean` and `<name>_max` of each column, over its samples; None of none."""
    figures: dict[str, float | None] = {}
    for name in names:
        values = _numbers(table, name)
        figures[f"{name}_mean"] = mean(values)
        figures[f"{name}_max"] = float(values.max()) if len(values) else None
    return figures


def _host_figures(samples: pa.Table | None) -> dict[str, Any] | None:
    """CPU of each node in the measure phases, as ratios of all its cores; busy is not idle, nor iowait."""
    if samples is None:
        return None
    figures = {}
    for node, own in _by(samples, "node"):
        busy = 1.0 - _numbers(own, "cpu_idle") - _numbers(own, "cpu_iowait")
        figures[node] = {
            "n_samples": own.num_rows,
            "n_cores": int(_numbers(own, "n_cores").max(initial=0)),
            "cpu_busy_mean": mean(busy),
            "cpu_busy_max": float(busy.max()) if len(busy) else None,
            **_mean_and_max(own, ["cpu_steal", "run_queue"]),
            "network_drops_count": int(_numbers(own, "network_drops").sum()),
        }
    return figures


def _gpu_figures(samples: pa.Table | None) -> dict[str, Any] | None:
    """Means over the measure phases of each GPU. `util` is time with any kernel, not how full the GPU was."""
    if samples is None:
        return None
    names = ["util", "sm_util", "sm_occupancy", "tensor_util", "dram_util", "power_w", "memory_used_bytes"]
    return {
        gpu: {"n_samples": own.num_rows, **_mean_and_max(own, names)} for gpu, own in _by(samples, "gpu_uuid")
    }


def _worker_figures(samples: pa.Table | None) -> dict[str, Any] | None:
    """The load generators during the measure phases: is there room left? CPU is without `spin_ns`, which has its
    own ratio; backlog and held are the largest sums over the workers."""
    if samples is None:
        return None
    busy = workers_of.busy_ratios(samples)
    return {
        "n_workers": len(set(samples.column("worker").to_pylist())),
        "cpu_mean_ratio": mean(busy),
        "cpu_max_ratio": float(busy.max()) if len(busy) else None,
        "spin_mean_ratio": mean(_numbers(samples, "spin_ns") / _numbers(samples, "interval_ns")),
        "loop_lag_p95_ns": rank_value(samples.column("loop_lag_ns").to_numpy(), 0.95),
        "backlog_max_count": workers_of.peak_total(samples, "n_backlog"),
        "held_max_count": workers_of.peak_total(samples, "n_held"),
        "in_flight_max_count": rank_value(samples.column("n_in_flight").to_numpy(), 1.0),
        "socket_errors_count": int(_numbers(samples, "n_socket_errors").sum()),
        "write_pauses_count": int(_numbers(samples, "n_write_pauses").sum()),
        "gc_count": int(_numbers(samples, "gc_count").sum()),
        "gc_pause_ns": int(_numbers(samples, "gc_pause_ns").sum()),
    }
