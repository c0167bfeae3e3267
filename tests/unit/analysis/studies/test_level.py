"""Figures of a level, held to loops over the rows of run directories."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import yaml

from squall.analysis.studies.perf_level import (
    GpuFigures,
    ServerFigures,
    gpu_figures,
    level_figures,
    server_figures,
)
from squall.analysis.studies.perf_report import Experiment, export_json
from squall.analysis.studies.perf_rows import EndedRequests
from squall.analysis.studies.perf_windows import Window, time_windows
from squall.scenarios.units import NS_PER_S
from tests.plain_runs import START_NS, Row, plain_run
from tests.unit.analysis.studies.rows import ended

CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text())
S = NS_PER_S
MS = S // 1_000
SERVER = {
    "node": "node-0", "model": "top", "version": "1", "steps": ["first", "second"], "decoupled": ["second"],
}  # fmt: skip
SCENARIO = {
    "name": "a", "seed": 1, "model": {"name": "top"}, "server": {"url": "http://h:1"},
    "clients": {"sequences": {"length": 3, "concurrent": 2}},
    "phases": [
        {"name": "main", "kind": "measure", "duration": "1s", "arrivals": {"kind": "constant", "rate": "9/s"}},
        {"name": "drain", "kind": "drain", "duration": "1s"},
    ],
}  # fmt: skip
WHOLE = Window(START_NS, START_NS + 3 * S, ended([], []))


def request(number: int, service_ms: int, is_ok: bool = True, lag_ms: int | None = None) -> Row:
    """One each 10 ms, of two rows."""
    sent = START_NS + 10 * number * MS
    done = sent + service_ms * MS
    return {
        "request_id": number, "scheduled_ns": None if lag_ms is None else sent - lag_ms * MS, "sent_ns": sent,
        "first_byte_ns": done - MS, "done_ns": done, "outcome": "ok" if is_ok else "timeout", "rows": 2,
    }  # fmt: skip


def nearest(values: list[int], n: int) -> dict[int, float]:
    """Percentiles of n requests, those without a value infinitely slow."""
    ranked = [*map(float, sorted(values)), *[math.inf] * (n - len(values))]
    return {percent: ranked[-(-percent * n // 100) - 1] for percent in (50, 75, 90, 95, 99)}


@pytest.mark.parametrize(
    ("rows", "n_sequences"),
    [
        ([request(number, 5 + number % 7) for number in range(200)], 66),
        ([request(number, 5, is_ok=number % 10 > 0) for number in range(100)], None),
        ([request(number, 5 + number % 7, lag_ms=number % 3) for number in range(100)], None),
        ([request(number, 5, is_ok=number != 4) for number in range(12)], 3),  # ids 4, 5, 10 and 11 end one
    ],
    ids=["closed loop", "failures", "schedule", "sequences"],
)
def test_figures_are_those_of_the_rows(tmp_path: Path, rows: list[Row], n_sequences: int | None) -> None:
    stated = {"servers": {"server-0": SERVER}} | ({"scenario": SCENARIO} if n_sequences else {})
    store = plain_run(tmp_path, {"requests": rows}, **stated)
    requests = EndedRequests.read(store)
    windows = time_windows(requests, START_NS, START_NS + 3 * S, S)
    counted = Window(START_NS, START_NS + 3 * S, requests)
    found = level_figures(4.0, 2, 75, counted, windows, 0, store)

    ok = [row for row in rows if row["outcome"] == "ok"]
    service = [row["done_ns"] - row["sent_ns"] for row in ok]
    assert (found.n_requests, found.n_failed) == (len(rows), len(rows) - len(ok))
    assert found.throughput_hz == pytest.approx(2 * len(ok) / 3)
    assert found.latency_mean_ns == pytest.approx(mean(service))
    assert found.latency_std_ns == pytest.approx(stdev(service))
    assert found.percentile_ns == nearest(service, len(rows))
    assert found.stable_in_ns == found.percentile_ns[75]
    assert found.receive_mean_ns == MS
    if rows[0]["scheduled_ns"] is None:
        assert (found.response_ns, found.send_lag_p99_ns) == (None, None)
    else:
        assert found.response_ns == nearest([row["done_ns"] - row["scheduled_ns"] for row in ok], len(rows))
        assert found.send_lag_p99_ns == 2 * MS
    assert len(found.pass_hz) == len(found.pass_latency_ns) == 3
    assert (found.n_sequences, found.server, found.gpus, found.response_hz) == (n_sequences, {}, (), 0)
    assert found.sequence_hz == (None if n_sequences is None else pytest.approx(n_sequences / 3))


@pytest.mark.parametrize("decoupled", [["second"], []])
def test_a_stream_ends_with_its_last_response_and_each_of_them_is_exported(
    tmp_path: Path, decoupled: list[str]
) -> None:
    rows = [request(0, 30), request(1, 50), request(2, 40, is_ok=False), request(3, 5)]
    at_ms = {1: [20, 21, 40], 0: [25], 2: [22, 23]}
    streamed = [
        {"request_id": number, "index": index, "t_ns": START_NS + at * MS}
        for number, instants in at_ms.items()
        for index, at in reversed([*enumerate(instants)])
    ]
    servers = {"server-0": {**SERVER, "decoupled": decoupled}}
    store = plain_run(tmp_path, {"requests": rows, "responses": streamed}, servers=servers)
    requests = EndedRequests.read(store)
    found = level_figures(1.0, 2, None, Window(START_NS, START_NS + 3 * S, requests), [], 0, store)
    assert (found.n_requests, found.n_failed) == (4, 1)
    assert found.latency_mean_ns == pytest.approx((25 + 30 + 5) / 3 * MS)
    assert found.response_hz == (pytest.approx(4 / 3) if decoupled else None)
    (experiment,) = export_json([Experiment("concurrency", 1.0, [], requests)], "v")["experiments"]
    assert [
        [(one["timestamp"] - START_NS) // MS, [(at - START_NS) // MS for at in one["response_timestamps"]]]
        for one in experiment["requests"]
    ] == [[0, [25]], [30, []], [10, [20, 21, 40]]]
    assert [len(one["response_outputs"]) for one in experiment["requests"]] == [1, 0, 3]


@pytest.mark.parametrize("case", CASES["samples"])
def test_the_server_is_told_of_its_samples_in_the_window(tmp_path: Path, case: dict[str, Any]) -> None:
    each = {
        "request_count": 1, "inference_count": 2, "execution_count": 1, "queue_ns": MS, "compute_input_ns": 2 * MS,
        "compute_infer_ns": 3 * MS, "compute_output_ns": 4 * MS, "success_ns": 12 * MS,
    }  # fmt: skip
    rows = [
        {"model": model, "t_ns": START_NS + at_ms * MS, "interval_ns": 100 * MS}
        | {name: n * value for name, value in each.items()}
        for model, at_ms, n in case["samples"]
    ]
    servers = {"server-0": {**SERVER, "others": case.get("others", [])}}
    store = plain_run(tmp_path, {"requests": [request(0, 5)], "triton_samples": rows}, servers=servers)
    start_ns, end_ns = (START_NS + case.get(*edge) * MS for edge in (("start", 0), ("end", 1_000)))
    found = server_figures(store, Window(start_ns, end_ns, ended([], [])))
    assert [*found.items()] == [
        (model, ServerFigures(**{name: n * value for name, value in each.items()}))
        for model, n in case["has"].items()
    ]
    own = found["top"]
    assert [own.mean_us(ns) for ns in (own.queue_ns, own.compute_ns, own.success_ns)] == [
        1_000,
        9_000,
        12_000,
    ]


def test_gpus_are_told_one_by_one_without_their_parts(tmp_path: Path) -> None:
    keys = ("gpu_uuid", "t_ns", "util", "power_w", "memory_used_bytes", "mig_instance")
    samples = [
        ("GPU-a", 500, 0.25, 50.0, 5, ""),
        ("GPU-a", 600, 0.5, None, 7, ""),
        ("GPU-a", 9_000, 1.0, None, None, ""),
        ("GPU-b", 600, None, None, None, ""),
        ("GPU-b", 600, 0.9, None, None, "1/0"),
    ]
    rows: list[Any] = [dict(zip(keys, sample, strict=True)) for sample in samples]
    for row in rows:
        row |= {"t_ns": START_NS + row["t_ns"] * MS, "interval_ns": 100 * MS}
    store = plain_run(
        tmp_path, {"requests": [request(0, 5)], "gpu_samples": rows}, servers={"server-0": SERVER}
    )
    assert gpu_figures(store, WHOLE) == (
        GpuFigures("GPU-a", 0.375, 50.0, 7),
        GpuFigures("GPU-b", None, None, None),
    )
