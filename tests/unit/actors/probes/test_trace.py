"""Calls of planted Chrome traces, and what is left of a trace that leaves its host."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from squall.actors.probes.trace import CALL, TracedCall, names_of_host, scrubbed, traced_calls, write_trace

HOST, CUPTI = 7, 99


def event(
    cat: str, name: str, ts: float, dur: float, correlation: int = 0, tid: int = HOST
) -> dict[str, Any]:
    args = {"correlation": correlation} if correlation else {"External id": 3}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "pid": 1, "args": args}


def trace() -> dict[str, Any]:
    """Two calls of two kernels each, out of order, with what must not count beside them."""
    events = [
        event("user_annotation", CALL, 1000, 50),
        event("user_annotation", CALL, 100, 50),
        event("user_annotation", "ProfilerStep#3", 90, 2000),
        event("gpu_user_annotation", CALL, 110, 90, tid=0),
        event("kernel", "gemm", 130, 4.5, 11, tid=0),
        event("kernel", "add", 145, 1.25, 12, tid=0),
        event(
            "kernel", "gemm", 1030, 5.0, 13, tid=0
        ),  # another launch of that number, below, is not of a call
        event("kernel", "stranger", 1500, 100.0, 14, tid=0),
        event("cuda_runtime", "cudaLaunchKernel", 108, 2, 12),
        event(
            "cuda_driver", "cuLaunchKernelEx", 104, 2, 11, tid=CUPTI
        ),  # CUPTI may name the thread otherwise
        event("cuda_driver", "cuLaunchKernelEx", 1004, 2, 13),
        event("cuda_runtime", "cudaLaunchKernel", 1400, 2, 14),
        event("cpu_op", "aten::matmul", 101, 6),
        event("cpu_op", "aten::mm", 102, 4.5),  # within the one before
        event("cpu_op", "aten::add", 107, 3.5),
        event("cpu_op", "aten::matmul", 1001, 5),
        event("cpu_op", "aten::other", 103, 40, tid=8),
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    ]
    return {"traceEvents": events}


def test_a_calls_kernels_are_those_that_were_launched_within_it() -> None:
    assert traced_calls(trace()) == [TracedCall(9_500, 5_750, 2), TracedCall(5_000, 5_000, 1)]


def test_without_kernels_their_time_is_not_known() -> None:
    document = {"traceEvents": [one for one in trace()["traceEvents"] if one.get("cat") != "kernel"]}
    assert [one.kernel_ns for one in traced_calls(document)] == [None, None]


def test_a_trace_leaves_its_host_without_paths_and_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", "hush-hush")
    monkeypatch.setenv("USER", "somebody")
    document = {
        **trace(), "traceName": "/home/somebody/x.json", "environment": {"A": "b"}, "schemaVersion": 1,
        "deviceProperties": [{"name": "NVIDIA H100"}],
    }  # fmt: skip
    document["traceEvents"].append(event("cpu_op", "aten::x hush-hush of somebody", 1, 1))
    left = scrubbed(document, names_of_host())
    write_trace(left, tmp_path / "trace" / "64.json.gz")
    text = gzip.decompress((tmp_path / "trace" / "64.json.gz").read_bytes()).decode()
    assert "hush-hush" not in text
    assert "somebody" not in text
    assert set(json.loads(text)) == {"schemaVersion", "deviceProperties", "traceEvents"}
    assert traced_calls(json.loads(text)) == traced_calls(trace())
