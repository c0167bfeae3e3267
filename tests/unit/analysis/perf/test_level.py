"""Figures of a level, from a run directory with known times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.analysis.perf.level import LevelFigures, gpu_figures, level_figures, server_figures
from squall.analysis.perf.report import Experiment, export_json
from squall.analysis.perf.rows import EndedRequests
from squall.analysis.perf.windows import Window, time_windows
from squall.analysis.storage.store import RunStore
from squall.scenarios.units import NS_PER_S
from tests.plain_runs import START_NS, plain_run

S = NS_PER_S
MS = S // 1_000
SERVERS = {
    "server-0": {
        "node": "node-0",
        "url": "http://a:1",
        "model": "top",
        "version": "1",
        "steps": ["first", "second"],
    }
}


def request(sent_ms: int, service_ms: int, **more: Any) -> dict[str, Any]:
    sent = START_NS + sent_ms * MS
    done = sent + service_ms * MS
    return {"sent_ns": sent, "first_byte_ns": done - MS, "done_ns": done, "outcome": "ok", "rows": 2, **more}


def sample(model: str, at_ms: int, n: int, queue_ms: int = 1) -> dict[str, Any]:
    """Of the 100 ms up to an instant."""
    return {
        "model": model, "t_ns": START_NS + at_ms * MS, "interval_ns": 100 * MS, "request_count": n,
        "inference_count": 2 * n, "execution_count": n, "queue_ns": n * queue_ms * MS, "compute_input_ns": n * 2 * MS,
        "compute_infer_ns": n * 3 * MS, "compute_output_ns": n * 4 * MS, "success_ns": n * 12 * MS,
    }  # fmt: skip


def a_run(folder: Path, **tables: Any) -> RunStore:
    return plain_run(folder, tables, servers=SERVERS)


def figures_of(store: RunStore, percentile: int | None = None) -> LevelFigures:
    requests = EndedRequests.read(store)
    windows = time_windows(requests, START_NS, START_NS + 3 * S, S)
    counted = Window(START_NS, START_NS + 3 * S, requests.between(START_NS, START_NS + 3 * S))
    return level_figures(4.0, 2, percentile, counted, windows, 0, store)


def test_figures_are_those_of_the_rows(tmp_path: Path) -> None:
    rows = [request(10 * index, 5 + index % 7) for index in range(200)]
    found = figures_of(a_run(tmp_path, requests=rows), 75)
    service = np.array([5 + index % 7 for index in range(200)]) * MS
    assert (found.n_requests, found.n_failed) == (200, 0)
    assert found.throughput_hz == pytest.approx(400 / 3)
    assert found.latency_mean_ns == pytest.approx(np.mean(service))
    assert found.latency_std_ns == pytest.approx(np.std(service, ddof=1))
    assert found.percentile_ns == {
        one: np.percentile(service, one, method="inverted_cdf") for one in (50, 75, 90, 95, 99)
    }
    assert found.stable_in_ns == found.percentile_ns[75]
    assert found.receive_mean_ns == MS
    assert (found.response_ns, found.send_lag_p99_ns, found.server, found.gpus) == (None, None, {}, ())
    assert len(found.pass_hz) == 3


def responses_of(request_id: int, *at_ms: float) -> list[dict[str, Any]]:
    """In the wrong order: the table has none."""
    found = [
        {"request_id": request_id, "index": index, "t_ns": START_NS + int(at * MS)}
        for index, at in enumerate(at_ms)
    ]
    return found[::-1]


def test_a_stream_ends_with_its_last_response_and_each_of_them_is_exported(tmp_path: Path) -> None:
    rows = [
        request(0, 30, request_id=7),
        request(10, 50, request_id=3),
        request(20, 40, request_id=5, outcome="timeout"),
        request(30, 5, request_id=9),
    ]
    streamed = [*responses_of(3, 20, 21, 40), *responses_of(7, 25), *responses_of(5, 22, 23)]
    server = {**SERVERS["server-0"], "decoupled": ["second"]}
    store = plain_run(tmp_path, {"requests": rows, "responses": streamed}, servers={"server-0": server})
    found = figures_of(store)
    assert (found.n_requests, found.n_failed) == (4, 1)
    assert found.latency_mean_ns == pytest.approx((25 + 30 + 5) / 3 * MS)
    assert found.response_hz == pytest.approx(4 / 3)
    (experiment,) = export_json([Experiment("concurrency", 1.0, [], EndedRequests.read(store))], "v")[
        "experiments"
    ]
    told = [
        [(one["timestamp"] - START_NS) // MS, [(at - START_NS) // MS for at in one["response_timestamps"]]]
        for one in experiment["requests"]
    ]
    assert told == [[0, [25]], [30, []], [10, [20, 21, 40]]]
    assert [len(one["response_outputs"]) for one in experiment["requests"]] == [1, 0, 3]


def test_only_a_decoupled_model_has_a_rate_of_responses(tmp_path: Path) -> None:
    tables = {"requests": [request(0, 30, request_id=7)], "responses": responses_of(7, 25)}
    assert figures_of(plain_run(tmp_path, tables, servers=SERVERS)).response_hz is None


def test_sequences_that_ended_ok_are_counted(tmp_path: Path) -> None:
    rows = [
        request(10 * one, 5, request_id=one, outcome="timeout" if one == 4 else "ok") for one in range(12)
    ]
    scenario = {
        "name": "a", "seed": 1, "model": {"name": "top"}, "server": {"url": "http://h:1"},
        "clients": {"sequences": {"length": 3, "concurrent": 2}},
        "phases": [
            {"name": "main", "kind": "measure", "duration": "1s", "arrivals": {"kind": "constant", "rate": "9/s"}},
            {"name": "drain", "kind": "drain", "duration": "1s"},
        ],
    }  # fmt: skip
    found = figures_of(plain_run(tmp_path, {"requests": rows}, servers=SERVERS, scenario=scenario))
    assert found.n_sequences == 3  # ids 4, 5, 10 and 11 end one, and 4 failed
    assert found.sequence_hz == pytest.approx(1)


def test_of_a_schedule_response_times_stand_beside_service_times(tmp_path: Path) -> None:
    rows = [request(10 * one, 5, scheduled_ns=START_NS + (10 * one - 2) * MS) for one in range(100)]
    found = figures_of(a_run(tmp_path, requests=rows))
    assert found.response_ns == dict.fromkeys((50, 90, 95, 99), 7 * MS)
    assert found.send_lag_p99_ns == 2 * MS
    assert found.percentile_ns[50] == 5 * MS


def test_failures_are_counted_and_infinitely_slow(tmp_path: Path) -> None:
    rows = [request(10 * one, 5, outcome="ok" if one % 10 else "timeout") for one in range(100)]
    found = figures_of(a_run(tmp_path, requests=rows))
    assert (found.n_requests, found.n_failed) == (100, 10)
    assert (found.percentile_ns[90], found.percentile_ns[95]) == (5 * MS, math.inf)
    assert found.throughput_hz == pytest.approx(2 * 90 / 3)
    assert found.latency_mean_ns == 5 * MS


def test_the_server_is_told_of_samples_whose_middle_lies_in_the_window(tmp_path: Path) -> None:
    samples = [sample("top", at, 10) for at in (40, 60, 160, 2_960, 3_060)] + [sample("other", 500, 3)]
    store = a_run(tmp_path, requests=[request(0, 5)], triton_samples=samples)
    found = server_figures(store, Window(START_NS, START_NS + 3 * S, EndedRequests.read(store)))
    assert list(found) == ["top"]
    own = found["top"]
    assert (own.request_count, own.inference_count, own.execution_count) == (30, 60, 30)
    assert [own.mean_us(one) for one in (own.queue_ns, own.compute_ns, own.success_ns)] == [
        1_000,
        9_000,
        12_000,
    ]


def test_a_window_shorter_than_a_sample_has_the_sample_that_it_lies_in(tmp_path: Path) -> None:
    samples = [sample("top", at, at // 100) for at in (100, 200, 300)]
    store = a_run(tmp_path, requests=[request(0, 5)], triton_samples=samples)
    short = Window(START_NS + 160 * MS, START_NS + 190 * MS, EndedRequests.read(store))
    assert server_figures(store, short)["top"].request_count == 2


def test_an_ensemble_comes_before_its_steps(tmp_path: Path) -> None:
    samples = [sample(name, 500, 10) for name in ("second", "top", "first", "stranger")]
    store = a_run(tmp_path, requests=[request(0, 5)], triton_samples=samples)
    window = Window(START_NS, START_NS + S, EndedRequests.read(store))
    assert list(server_figures(store, window)) == ["top", "first", "second"]


def test_every_model_under_load_comes_before_the_steps_of_any(tmp_path: Path) -> None:
    others = [{"model": "beside", "version": "1", "steps": ["second", "third"], "batch_record": None}]
    servers = {"server-0": {**SERVERS["server-0"], "others": others}}
    samples = [sample(name, 500, 10) for name in ("third", "second", "top", "beside", "first", "stranger")]
    store = plain_run(tmp_path, {"requests": [request(0, 5)], "triton_samples": samples}, servers=servers)
    window = Window(START_NS, START_NS + S, EndedRequests.read(store))
    assert list(server_figures(store, window)) == ["top", "beside", "first", "second", "third"]


def test_gpus_are_told_one_by_one_without_their_parts(tmp_path: Path) -> None:
    def gpu(uuid: str, at_ms: int, util: float | None, **more: Any) -> dict[str, Any]:
        return {
            "gpu_uuid": uuid,
            "t_ns": START_NS + at_ms * MS,
            "interval_ns": 100 * MS,
            "util": util,
            **more,
        }

    samples = [
        gpu("GPU-a", 500, 0.2, power_w=50.0, memory_used_bytes=5),
        gpu("GPU-a", 600, 0.4, memory_used_bytes=7),
        gpu("GPU-a", 9_000, 1.0),
        gpu("GPU-b", 600, None),
        gpu("GPU-b", 600, 0.9, mig_instance="1/0"),
    ]
    store = a_run(tmp_path, requests=[request(0, 5)], gpu_samples=samples)
    a, b = gpu_figures(store, Window(START_NS, START_NS + S, EndedRequests.read(store)))
    assert a.util_ratio == pytest.approx(0.3)
    assert (a.uuid, a.power_w, a.memory_used_bytes) == ("GPU-a", 50.0, 7)
    assert (b.uuid, b.util_ratio, b.power_w, b.memory_used_bytes) == ("GPU-b", None, None, None)
