"""The table, held to lines that perf_analyzer 2.60 printed for a model on the same Triton."""

from __future__ import annotations

import math
import re

import pytest

from squall.analysis.perf.words import (
    heading,
    level_lines,
    metrics_lines,
    microseconds,
    number,
    summary_lines,
)
from tests.unit.analysis.perf.figures import GPUS, OWN, figures

PRINTED = """\
  Client: 
    Request count: 2020
    Throughput: 560.294 infer/sec
    Avg latency: 1776 usec (standard deviation 1087 usec)
    p50 latency: 1694 usec
    p90 latency: 1970 usec
    p95 latency: 2131 usec
    p99 latency: 2605 usec
    Avg HTTP time: 1776 usec (send/recv 53 usec + response wait 1723 usec)
  Server: 
    Inference count: 2020
    Execution count: 2020
    Successful request count: 2020
    Avg request latency: 1580 usec (overhead 4 usec + queue 1107 usec + compute input 23 usec + compute infer 372 usec \
+ compute output 74 usec)"""  # noqa: W291
"""But for the overhead: theirs were means over other requests than the parts."""
PRINTED_GRPC = """\
  Pass [1] throughput: 39.9829 infer/sec. p95 latency: 3207 usec
  Client: 
    Request count: 154
    Throughput: 42.7464 infer/sec
    p50 latency: 2802 usec
    p90 latency: 3144 usec
    p95 latency: 3207 usec
    p99 latency: 3502 usec
    Avg gRPC time: 2735 usec (marshal 14 usec + response wait 2718 usec + unmarshal 3 usec)
  Server: 
    Inference count: 154
    Execution count: 143
    Successful request count: 154
    Avg request latency: 2161 usec (overhead 4 usec + queue 1114 usec + compute input 45 usec + compute infer 803 usec \
+ compute output 194 usec)"""  # noqa: W291


def shape(text: str) -> list[str]:
    """Its lines without their figures."""
    return re.sub(r"\d+(\.\d+)?", "#", text).splitlines()


def test_a_level_is_told_as_perf_analyzer_does() -> None:
    assert level_lines(figures(), None, is_grpc=False, is_verbose=False) == PRINTED.splitlines()


def test_sequences_and_responses_stand_where_perf_analyzer_has_them() -> None:
    told = figures(n_sequences=1340, sequence_hz=371.1664, response_hz=321.331)
    assert level_lines(told, None, is_grpc=True, is_verbose=False)[1:5] == [
        "    Request count: 2020",
        "    Sequence count: 1340 (371.166 seq/sec)",
        "    Throughput: 560.294 infer/sec",
        "    Response Throughput: 321.331 infer/sec",
    ]


def test_with_v_windows_and_parts_are_told() -> None:
    told = level_lines(figures(pass_hz=(39.98,), pass_latency_ns=(3e6,)), 95, is_grpc=True, is_verbose=True)
    assert shape("\n".join(told)) == shape(PRINTED_GRPC)
    four = level_lines(figures(), None, is_grpc=False, is_verbose=True)
    assert [line.endswith("(not counted)") for line in four[:4]] == [False, False, False, True]
    assert "(send 0 usec + response wait 1723 usec + receive 53 usec)" in "\n".join(four)


def test_what_it_has_no_line_for_begins_with_squall_or_is_a_warning() -> None:
    open_loop = figures(response_ns={50: 2e6, 99: math.inf}, send_lag_p99_ns=30_000.0)
    assert (
        "    squall: from the scheduled instant p50 2000, p99 inf usec; send lag p99 30 usec"
        in level_lines(open_loop, None, is_grpc=False, is_verbose=False)
    )
    failed = level_lines(figures(n_failed=202), None, is_grpc=False, is_verbose=False)
    assert failed[3].startswith("    [WARNING] 202 of them failed (10 %)")


def test_an_ensemble_has_its_steps_behind_it() -> None:
    told = level_lines(
        figures(server={"top": OWN, "first": OWN, "second": OWN}), None, is_grpc=False, is_verbose=False
    )
    text = "\n".join(told)
    assert "    Avg request latency: 1580 usec (overhead 0 usec + queue 2214 usec + compute 938 usec)" in told
    assert text.index("Composing models: ") < text.index("  first") < text.index("  second")


def test_without_statistics_there_is_no_server() -> None:
    assert not any(
        "Server" in line for line in level_lines(figures(server={}), None, is_grpc=False, is_verbose=False)
    )


def test_the_end_has_a_line_for_each_level() -> None:
    levels = [figures(), figures(level=2.0, throughput_hz=1_038.12345)]
    assert summary_lines("concurrency", levels, None) == [
        "Inferences/Second vs. Client Average Batch Latency",
        "Concurrency: 1, throughput: 560.294 infer/sec, latency 1776 usec",
        "Concurrency: 2, throughput: 1038.12 infer/sec, latency 1776 usec",
    ]
    assert (
        summary_lines("request rate", levels[:1], 95)[0] == "Inferences/Second vs. Client p95 Batch Latency"
    )
    assert summary_lines("intervals", levels[:1], None)[1].startswith("Request Rate: 1, throughput")
    assert summary_lines("concurrency", [], None) == []


def test_a_level_begins_with_what_is_asked() -> None:
    assert heading("concurrency", 2.0) == "Request concurrency: 2"
    assert heading("request rate", 0.5) == "Request Rate: 0.5 inference requests per second"
    assert heading("intervals", 375.0) == ""


def test_gpus_are_told_by_uuid() -> None:
    assert metrics_lines(()) == [
        "  Server Prometheus Metrics: ", "    Avg GPU Utilization:", "    Avg GPU Power Usage:",
        "    Max GPU Memory Usage:", "    Total GPU Memory:",
    ]  # fmt: skip
    told = metrics_lines(GPUS)
    assert "      GPU-a : 33%" in told
    assert "      GPU-a : 55.25 watts" in told
    assert not any("GPU-b" in line and "watts" in line for line in told)


@pytest.mark.parametrize(
    ("value", "shown"), [(1_038.1234, "1038.12"), (50.0, "50"), (1e7, "1e+07"), (0.1, "0.1")]
)
def test_numbers_are_those_of_a_c_stream(value: float, shown: str) -> None:
    assert number(value) == shown


def test_times_are_cut_to_whole_microseconds() -> None:
    assert [microseconds(one) for one in (1_999.0, math.inf, math.nan)] == ["1", "inf", "nan"]
