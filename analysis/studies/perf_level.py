"""Figures of a level: what clients saw, and what Triton's statistics say of the same time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.storage.query import connect, rows
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.perf_rows import EndedRequests
from squall.analysis.studies.perf_windows import Window, latency_ns, percentiles_ns
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

PERCENTILES = (50, 90, 95, 99)
"""Always told; beside them the one that was asked for."""


class ServerFigures(Frozen):
    """Sums of a model over the samples of the window; times over the requests that succeeded, ns."""

    inference_count: int = 0
    execution_count: int = 0
    request_count: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    success_ns: int = 0

    @property
    def compute_ns(self) -> int:
        return self.compute_input_ns + self.compute_infer_ns + self.compute_output_ns

    def mean_us(self, total_ns: int) -> int:
        """Whole us of a request, 0 without any."""
        return total_ns // (self.request_count * 1_000) if self.request_count else 0


class GpuFigures(Frozen):
    """Of a GPU over the window, None where no sample has it: mean utilisation and power, most memory used."""

    uuid: str
    util_ratio: float | None
    power_w: float | None
    memory_used_bytes: int | None


class LevelFigures(Frozen):
    """Of the windows that count, as one. Times in ns; latency is service time: from the send to the last byte of the
    reply.

    `level`: users, or requests a second. `n_sequences`, `sequence_hz`: that ended, None where requests are of none;
    `response_hz`: of a decoupled model, None of any other. `latency_mean_ns`, `latency_std_ns` and `receive_mean_ns` of
    requests that succeeded; percentiles count failed ones as infinitely slow. `response_ns`: the same percentiles from
    the scheduled instant, and `send_lag_p99_ns`: None of a closed loop. `server`: by model, the one under load first;
    empty where Triton told nothing. `pass_hz` and `pass_latency_ns`: of every window that was looked at.
    """

    level: float
    throughput_hz: float
    n_requests: int
    n_failed: int
    latency_mean_ns: float
    latency_std_ns: float
    percentile_ns: dict[int, float]
    receive_mean_ns: float
    stable_in_ns: float
    response_ns: dict[int, float] | None
    send_lag_p99_ns: float | None
    server: dict[str, ServerFigures]
    gpus: tuple[GpuFigures, ...]
    pass_hz: tuple[float, ...]
    pass_latency_ns: tuple[float, ...]
    first_counted: int
    n_sequences: int | None = None
    sequence_hz: float | None = None
    response_hz: float | None = None


def level_figures(
    level: float,
    n_rows: int,
    percentile: int | None,
    counted: Window,
    windows: Sequence[Window],
    first_counted: int,
    store: RunStore,
) -> LevelFigures:
    """`counted`: the windows that count as one; `windows`: all of the run; `n_rows`: of each request."""
    requests = counted.requests
    service_ns = requests.done_ns - requests.sent_ns
    ok_ns = service_ns[requests.is_ok]
    receive_ns = (requests.done_ns - requests.first_byte_ns)[requests.is_ok]
    shown = sorted({*PERCENTILES, *([] if percentile is None else [percentile])})
    seconds = (counted.end_ns - counted.start_ns) / NS_PER_S
    ends, scheduled_ns = requests.ends_sequence, requests.scheduled_ns
    n_sequences = None if ends is None else int(np.count_nonzero(ends & requests.is_ok))

    def ranked(values_ns: Int64s) -> dict[int, float]:
        return dict(zip(shown, percentiles_ns(values_ns, requests, shown), strict=True))

    return LevelFigures(
        level=level,
        throughput_hz=counted.throughput_hz(n_rows),
        n_requests=len(requests),
        n_failed=len(requests) - counted.n_ok,
        latency_mean_ns=float(np.mean(ok_ns)) if len(ok_ns) else math.nan,
        latency_std_ns=float(np.std(ok_ns, ddof=1)) if len(ok_ns) > 1 else math.nan,
        percentile_ns=ranked(service_ns),
        receive_mean_ns=float(np.mean(receive_ns)) if len(ok_ns) else 0.0,
        stable_in_ns=latency_ns(requests, percentile),
        response_ns=None if scheduled_ns is None else ranked(requests.done_ns - scheduled_ns),
        send_lag_p99_ns=None if scheduled_ns is None else ranked(requests.sent_ns - scheduled_ns)[99],
        server=server_figures(store, counted),
        gpus=gpu_figures(store, counted),
        pass_hz=tuple(window.throughput_hz(n_rows) for window in windows),
        pass_latency_ns=tuple(latency_ns(window.requests, percentile) for window in windows),
        first_counted=first_counted,
        n_sequences=n_sequences,
        sequence_hz=None if n_sequences is None else n_sequences / seconds,
        response_hz=_n_responses(requests) / seconds if _is_decoupled(store) else None,
    )


def _is_decoupled(store: RunStore) -> bool:
    """Whether the model under load is, or a step of it."""
    servers = store.manifest.servers.values()
    return any(not {one.model, *one.steps}.isdisjoint(one.decoupled) for one in servers)


def _n_responses(requests: EndedRequests) -> int:
    """To requests that succeeded."""
    return 0 if requests.responses is None else sum(map(len, requests.responses[requests.is_ok]))


def server_figures(store: RunStore, counted: Window) -> dict[str, ServerFigures]:
    """Of each model that succeeded at anything in the window: those under load, then the steps of an ensemble."""
    sums = ", ".join(f"sum({one.name})::BIGINT AS {one.name}" for one in fields(ServerFigures))
    found = {row.pop("name"): row for row in _sampled(store, "triton_samples", counted, "model", sums)}
    models = [one for server in store.manifest.servers.values() for one in server.models]
    names = dict.fromkeys([one.model for one in models] + [step for one in models for step in one.steps])
    return {
        name: ServerFigures(**{key: value or 0 for key, value in found[name].items()})
        for name in names
        if name and name in found and found[name]["request_count"]
    }


def gpu_figures(store: RunStore, counted: Window) -> tuple[GpuFigures, ...]:
    """Of each whole GPU that was sampled in the window."""
    figures = "avg(util), avg(power_w), max(memory_used_bytes)"
    rows = _sampled(store, "gpu_samples", counted, "gpu_uuid", figures, "mig_instance = ''")
    return tuple(GpuFigures(*row.values()) for row in rows)


def _sampled(
    store: RunStore, table: str, window: Window, key: str, figures: str, of: str = "true"
) -> list[dict[str, Any]]:
    """Figures of each value of column `key`, as `name`: over the samples whose middle lies in the window; of a window
    that is shorter than a sample over those that it touches."""
    if not store.has(table):
        return []
    query = f"""
        WITH near AS (
            SELECT *, t_ns - interval_ns // 2 BETWEEN $start_ns AND $end_ns - 1 AS is_inside,
                t_ns > $start_ns AND t_ns - interval_ns < $end_ns AS is_touched
            FROM {table})
        SELECT {key}::VARCHAR AS name, {figures} FROM near
        WHERE {of} AND CASE WHEN (SELECT bool_or(is_inside) FROM near) THEN is_inside ELSE is_touched END
        GROUP BY name ORDER BY name"""
    with connect(store, [table]) as connection:
        return rows(connection, query, {"start_ns": window.start_ns, "end_ns": window.end_ns})
