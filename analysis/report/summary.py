"""`summary.json`: every figure that the screen and the report print. All arithmetic ends here."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import pyarrow as pa

from squall.analysis.compare.of_run import diagnosed, hold_run, late_limits
from squall.analysis.compare.repeats import repeat_figures
from squall.analysis.findings.find import find
from squall.analysis.findings.self_checks import self_checks, unassessed_groups, unmet
from squall.analysis.join.counts import join_counts
from squall.analysis.join.join import read_join_report
from squall.analysis.metrics.model_statistics import executed_models, model_figures, of_executed, of_models
from squall.analysis.metrics.run import run_metrics
from squall.analysis.record import to_json
from squall.analysis.recorded import library_windows
from squall.analysis.report.accounting import accounting
from squall.analysis.report.collector_costs import collector_costs
from squall.analysis.report.identities import cost_identities, identities, locust_identities
from squall.analysis.report.profile_figures import latency_under, profile_figures
from squall.analysis.report.sampled import gpu_figures, host_figures, worker_figures
from squall.analysis.report.step_figures import step_figures
from squall.analysis.report.stragglers import stragglers
from squall.analysis.report.summary_file import Summary
from squall.analysis.requests import streams
from squall.analysis.requests import workers as workers_of
from squall.analysis.requests.burst_latency import by_burst
from squall.analysis.requests.cold import cold_figures
from squall.analysis.requests.locust_figures import LocustFigures, locust_figures
from squall.analysis.requests.recording_cost import (
    RecordingCosts,
    one_server,
    place,
    recording_costs,
    undisturbed,
)
from squall.analysis.requests.rejections import rejection_figures
from squall.analysis.requests.requests import Requests, is_open_load, rows_in
from squall.analysis.requests.sequences import run_sequences
from squall.analysis.requests.users import is_locust_load
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, measure_spans, phase_spans, planned_measure_spans
from squall.analysis.verdict.cpu_shares import cpu_lines
from squall.analysis.verdict.figures import phase_figures
from squall.analysis.verdict.gpu_shares import gpu_lines
from squall.analysis.verdict.measured import BATCH_COLUMNS, QUANTILES, RunTables
from squall.analysis.verdict.phase_figures import MeasureFigures, PhaseFigures
from squall.analysis.verdict.profiling import profiling_cost
from squall.analysis.verdict.run_view import RunView, Samples
from squall.analysis.verdict.validity import judge

FAILURES_RULE = (
    "A request that did not end ok counts as infinitely slow in every quantile of response and service time; "
    "none is left out. Response time runs from the scheduled instant."
)
CLOSED_FAILURES_RULE = (
    "A request that did not end ok counts as infinitely slow in every quantile of service time; none is left out. "
    "Closed loop: users wait for the server before they send again, so that there is no response time."
)


_BESIDE_BYTES = 1024**3
"""Memory from which on the figures of requests and of batches are made at once, each with half of it."""


def summarise(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> Summary:
    """The summary of a run, open or sealed. Raises `MissingTable` if it has no requests.

    The verdict is the one the run was sealed with; of an open run, what `validity.judge` says now. Tables
    that are absent leave None under their name.
    """
    manifest = store.manifest
    is_open = is_open_load(manifest)
    spans = measure_spans(manifest)
    names = [span.name for span in spans]
    sampled = Samples.read(store)
    # figures of requests are numpy's, on one core, those of batches DuckDB's: at once where there is memory for both
    is_beside = memory_limit_bytes >= _BESIDE_BYTES
    each = memory_limit_bytes // 2 if is_beside else memory_limit_bytes
    with ThreadPoolExecutor(1) as beside:
        of_batches = beside.submit(run_metrics, store, each) if store.has("batch_costs") else None
        if of_batches is not None and not is_beside:
            wait([of_batches])
        of_requests = _of_requests(store, sampled, each)
        metrics = of_batches.result() if of_batches is not None else None
    pa.default_memory_pool().release_unused()
    sealed, verdict, held = manifest.verdict, of_requests.pop("verdict"), of_requests.pop("held")
    if sealed is not None:  # that of an aborted run has status and reasons alone
        verdict = replace(verdict, **{name: getattr(sealed, name) for name in to_json(sealed)})
    cpus, shares = of_requests["cpu"], of_requests["gpu_use"]
    hosts = host_figures(rows_in(sampled.hosts, names))
    gpus = rows_in(_read(store, "gpu_samples"), names)
    checks = self_checks(store, metrics, memory_limit_bytes)
    findings = find(
        store, metrics, verdict, unmet(checks), cpus, shares, of_requests["cold"], memory_limit_bytes
    )
    of_requests["identities"] += cost_identities(store, memory_limit_bytes)
    made: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in of_requests.items()
    }
    return Summary(
        **made,
        run=store.run,
        scenario=(manifest.scenario or {}).get("name"),
        scenario_digest=manifest.scenario_digest,
        seed=manifest.seed,
        state=manifest.state,
        load="open" if is_open else "closed",
        latency_name="response" if is_open else "service",
        latency_under=latency_under(manifest),
        verdict=verdict,
        promises=diagnosed(store, held, verdict.status, memory_limit_bytes),
        decided=manifest.decided,
        client_bottleneck=verdict.client_bottleneck,
        failures_rule=FAILURES_RULE if is_open else CLOSED_FAILURES_RULE,
        phases=tuple(phase_spans(manifest)),
        repeats=repeat_figures(store.run_dir, QUANTILES),
        metrics=metrics,
        findings=tuple(findings),
        self_checks=tuple(checks),
        self_checks_unassessed=unassessed_groups(checks, store),
        join=read_join_report(store, memory_limit_bytes) if store.has("joined") else None,
        steps=step_figures(store, names, is_open, memory_limit_bytes),
        host=hosts,
        cpu_text=tuple(cpu_lines(cpus, manifest)),
        gpu=gpu_figures(gpus),
        gpu_text=tuple(gpu_lines(shares)),
        stragglers=stragglers(of_requests["measure"].servers, gpus, shares, hosts, manifest),
        workers=worker_figures(rows_in(sampled.workers, names)),
        lane="" if is_locust_load(manifest) else workers_of.lane_text(manifest.workers),
        value_checks=manifest.value_checks,
        collectors=manifest.collectors,
        profile=profile_figures(manifest),
        collector_costs=collector_costs(manifest, profiling_cost(store.run_dir)),
        losses=tuple(manifest.losses),
        notes=tuple(manifest.notes),
        tables={name: store.n_rows(name) for name in store.tables()},
    )


def _of_requests(store: RunStore, sampled: Samples, memory_limit_bytes: int) -> dict[str, Any]:
    """What takes the requests themselves, by its key in the summary: all of it is made while they are held once, and
    they are gone before the rest. `held`: the promises with the requests that break them."""
    manifest, spans = store.manifest, measure_spans(store.manifest)
    names = [span.name for span in spans]
    counts = join_counts(store, memory_limit_bytes)
    groups = dict.fromkeys([tuple(names), *((name,) for name in names)]) if counts is not None else {}
    models = sorted({one.model for own in (counts or {}).values() for one in own if one.model})
    models = models if len(models) > 1 else []
    accounts = {
        (group, model): accounting(store, group, is_open_load(manifest), memory_limit_bytes, model)
        for group in groups
        for model in (None, *models)
    }
    requests = Requests.read(store)
    view = RunView(requests, sampled, manifest)
    every_model = _read(store, "triton_samples")
    samples = of_models(every_model, manifest)
    batches = of_executed(_read(store, "batches", BATCH_COLUMNS), manifest)
    recording, alone = _recording(store, requests, spans)
    responses = _read(store, "responses", streams.COLUMNS)
    sequences = run_sequences(requests, manifest)
    of_users = sampled.locust_users
    tables = RunTables(manifest, requests, counts, batches, samples, responses, sequences, alone, of_users)
    cold = cold_figures(
        store, requests, spans, QUANTILES, late_limits(manifest, requests.is_open), executed_models(manifest),
        memory_limit_bytes,
    )  # fmt: skip

    def figures(own: Sequence[RunPhase]) -> PhaseFigures:
        group = tuple(span.name for span in own)
        of_each = {name: accounts.get((group, name)) for name in models}
        return phase_figures(tables, own, accounts.get((group, None)), of_each)

    measure = MeasureFigures(
        **vars(figures(spans)), models=tuple(model_figures(every_model, names, manifest))
    )
    return {
        "verdict": judge(view),
        "held": hold_run(store, requests, planned_measure_spans(manifest), cold),
        "stimulus": {one.phase: one for one in view.stimuli} if requests.is_open else None,
        "measure": measure,
        "locust": _locust(view),
        "by_phase": {span.name: figures([span]) if len(spans) > 1 else measure for span in spans},
        "identities": [
            *identities(tables, manifest, of_executed(every_model, manifest)),
            *locust_identities(manifest, sampled.locust_rows),
        ],
        "by_burst": by_burst(requests.in_phases(names), spans, QUANTILES),
        "rejections": rejection_figures(requests, samples, names),
        "recording": recording,
        "cold": cold,
        "cpu": view.cpus,
        "gpu_use": view.gpus,
    }


def _locust(view: RunView) -> LocustFigures | None:
    manifest, samples = view.manifest, view.samples
    if not is_locust_load(manifest):
        return None
    return locust_figures(manifest.locust, samples.locust_rows, samples.locust_users, view.users, view.spans)


def _recording(
    store: RunStore, requests: Requests, spans: Sequence[RunPhase]
) -> tuple[RecordingCosts | None, Requests | None]:
    """What the windows of the kernel library cost, and the requests outside them where latencies are of these."""
    windows = one_server(library_windows(store).values())
    if not len(windows.begun_ns):
        return None, None
    placed = place(requests, windows)
    alone = undisturbed(requests, placed, spans)
    headline = "all" if alone is None else "outside"
    return recording_costs(requests, windows, placed, spans, headline), alone


def _read(store: RunStore, table: str, columns: list[str] | None = None) -> pa.Table | None:
    return store.read(table, columns) if store.has(table) else None
