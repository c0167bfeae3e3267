"""The figures of a level in perf_analyzer's words: its lines, its units, its rounding.

Lines and their order are those of its `src/inference_profiler.cc` (`Report…`) and `src/perf_analyzer.cc`
(`WriteReport`), checked against what perf_analyzer 2.60 printed. What it has no line for stands in lines that begin
with `squall`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from squall.analysis.perf.level import GpuFigures, LevelFigures, ServerFigures
from squall.analysis.perf.windows import IN_A_ROW

_MODES = {"concurrency": "Concurrency", "request rate": "Request Rate", "intervals": "Request Rate"}


def number(value: float) -> str:
    """As C++ streams print a double: six digits."""
    return f"{value:.6g}"


def microseconds(value_ns: float) -> str:
    """Whole us, cut off; `inf` where a failed request stands there, `nan` where nothing does."""
    return str(int(value_ns // 1_000)) if math.isfinite(value_ns) else str(value_ns)


def heading(mode: str, level: float) -> str:
    """The first line of a level; empty of request intervals."""
    if mode == "concurrency":
        return f"Request concurrency: {number(level)}"
    return f"Request Rate: {number(level)} inference requests per second" if mode == "request rate" else ""


def level_lines(figures: LevelFigures, percentile: int | None, is_grpc: bool, is_verbose: bool) -> list[str]:
    """Passes where asked for, then client, server and GPUs."""
    lines = _passes(figures, percentile) if is_verbose else []
    lines += ["  Client: ", *_client(figures, percentile, is_grpc, is_verbose)]
    if figures.server:
        lines += ["  Server: ", *_server(list(figures.server.items()))]
    return lines


def metrics_lines(gpus: Sequence[GpuFigures]) -> list[str]:
    """What --collect-metrics prints."""
    return [
        "  Server Prometheus Metrics: ",
        "    Avg GPU Utilization:",
        *(
            f"      {one.uuid} : {number(one.util_ratio * 100)}%"
            for one in gpus
            if one.util_ratio is not None
        ),
        "    Avg GPU Power Usage:",
        *(f"      {one.uuid} : {number(one.power_w)} watts" for one in gpus if one.power_w is not None),
        "    Max GPU Memory Usage:",
        *(
            f"      {one.uuid} : {one.memory_used_bytes} bytes"
            for one in gpus
            if one.memory_used_bytes is not None
        ),
        "    Total GPU Memory:",
    ]


def summary_lines(mode: str, levels: Sequence[LevelFigures], percentile: int | None) -> list[str]:
    """What stands at the end: a line for each level."""
    if not levels:
        return []
    of = "Average" if percentile is None else f"p{percentile}"
    return [
        f"Inferences/Second vs. Client {of} Batch Latency",
        *(
            f"{_MODES[mode]}: {number(one.level)}, throughput: {number(one.throughput_hz)} infer/sec, latency"
            f" {microseconds(one.stable_in_ns)} usec"
            for one in levels
        ),
    ]


def _passes(figures: LevelFigures, percentile: int | None) -> list[str]:
    of = "Avg" if percentile is None else f"p{percentile}"
    counted = range(figures.first_counted, figures.first_counted + IN_A_ROW)
    return [
        f"  Pass [{index + 1}] throughput: {number(hz)} infer/sec. {of} latency: {microseconds(latency)} usec"
        f"{'' if index in counted else ' (not counted)'}"
        for index, (hz, latency) in enumerate(zip(figures.pass_hz, figures.pass_latency_ns, strict=True))
    ]


def _client(figures: LevelFigures, percentile: int | None, is_grpc: bool, is_verbose: bool) -> list[str]:
    lines = [f"Request count: {figures.n_requests}"]
    if figures.n_sequences is not None and figures.sequence_hz is not None:
        lines.append(f"Sequence count: {figures.n_sequences} ({number(figures.sequence_hz)} seq/sec)")
    lines.append(f"Throughput: {number(figures.throughput_hz)} infer/sec")
    if figures.response_hz is not None:
        lines.append(f"Response Throughput: {number(figures.response_hz)} infer/sec")
    if figures.n_failed:
        share = 100 * figures.n_failed / figures.n_requests
        lines.append(
            f"[WARNING] {figures.n_failed} of them failed ({number(share)} %): percentiles count these as infinitely"
            " slow, throughput and average leave them out"
        )
    if percentile is None:
        deviation = microseconds(figures.latency_std_ns)
        lines.append(
            f"Avg latency: {microseconds(figures.latency_mean_ns)} usec (standard deviation {deviation} usec)"
        )
    lines += [f"p{one} latency: {microseconds(value)} usec" for one, value in figures.percentile_ns.items()]
    lines.append(_transport(figures, is_grpc, is_verbose))
    if figures.response_ns is not None:
        told = ", ".join(f"p{one} {microseconds(value)}" for one, value in figures.response_ns.items())
        lag = microseconds(figures.send_lag_p99_ns if figures.send_lag_p99_ns is not None else math.nan)
        lines.append(f"squall: from the scheduled instant {told} usec; send lag p99 {lag} usec")
    return [f"    {line}" for line in lines]


def _transport(figures: LevelFigures, is_grpc: bool, is_verbose: bool) -> str:
    """Of a request: reply's bytes, and the wait for its first. What the send takes is in the wait."""
    mean = figures.latency_mean_ns
    receive = microseconds(figures.receive_mean_ns)
    wait = microseconds(mean - figures.receive_mean_ns)
    if is_grpc:
        parts = (f"marshal 0 usec + response wait {wait} usec + unmarshal {receive} usec" if is_verbose
                 else f"(un)marshal request/response {receive} usec + response wait {wait} usec")  # fmt: skip
        return f"Avg gRPC time: {microseconds(mean)} usec ({parts})"
    parts = (f"send 0 usec + response wait {wait} usec + receive {receive} usec" if is_verbose
             else f"send/recv {receive} usec + response wait {wait} usec")  # fmt: skip
    return f"Avg HTTP time: {microseconds(mean)} usec ({parts})"


def _server(models: Sequence[tuple[str, ServerFigures]]) -> list[str]:
    """The model under load; with an ensemble what its steps took together, and each of these."""
    (_, own), *steps = models
    if not steps:
        return _server_block(own, 1)
    queue = sum(one.mean_us(one.queue_ns) for _, one in steps)
    compute = sum(one.mean_us(one.compute_ns) for _, one in steps)
    total = own.mean_us(own.success_ns)
    lines = [
        *_counts(own, 1),
        f"    Avg request latency: {total} usec (overhead {max(0, total - queue - compute)} usec + queue {queue} usec +"
        f" compute {compute} usec)",
        "  Composing models: ",
    ]
    for name, one in steps:
        lines += [f"  {name}", *_server_block(one, 2)]
    return lines


def _server_block(one: ServerFigures, depth: int) -> list[str]:
    ident = "  " * depth
    total, queue = one.mean_us(one.success_ns), one.mean_us(one.queue_ns)
    overhead = max(0, total - queue - one.mean_us(one.compute_ns))
    return [
        *_counts(one, depth),
        f"{ident}  Avg request latency: {total} usec (overhead {overhead} usec + queue {queue} usec + compute input"
        f" {one.mean_us(one.compute_input_ns)} usec + compute infer {one.mean_us(one.compute_infer_ns)} usec + compute"
        f" output {one.mean_us(one.compute_output_ns)} usec)",
    ]


def _counts(one: ServerFigures, depth: int) -> list[str]:
    ident = "  " * depth
    return [
        f"{ident}  Inference count: {one.inference_count}",
        f"{ident}  Execution count: {one.execution_count}",
        f"{ident}  Successful request count: {one.request_count}",
    ]
