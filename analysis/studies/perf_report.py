"""The files that perf_analyzer writes: the CSV of `-f`, and the JSON of `--profile-export-file`.

Columns and their order are those of its `src/report_writer.cc`, keys those of `src/profile_data_exporter.cc`; both
were checked against files that perf_analyzer 2.60 wrote.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from squall.analysis.studies.perf_level import GpuFigures, LevelFigures, ServerFigures
from squall.analysis.studies.perf_rows import EndedRequests
from squall.analysis.studies.perf_words import microseconds, number
from squall.scenarios.records import Frozen

_SERVER_COLUMNS = (
    "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output",
)  # fmt: skip
_GPU_COLUMNS: dict[str, Callable[[GpuFigures], float | None] | None] = {
    "Avg GPU Utilization": lambda one: one.util_ratio,
    "Avg GPU Power Usage": lambda one: one.power_w,
    "Max GPU Memory Usage": lambda one: one.memory_used_bytes,
    "Total GPU Memory": None,
}
"""NVML's samples have no total: that column is empty."""


class ReportOptions(Frozen):
    """What the CSV holds. `mode`: concurrency, request rate or intervals."""

    mode: str
    percentile: int | None
    is_verbose: bool
    has_metrics: bool


def csv_text(levels: Sequence[LevelFigures], options: ReportOptions) -> str:
    """A row for each level, in order of throughput; times in us. Without a level there is nothing to be written."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    has_server = any(one.server for one in levels)
    rows = [_row(one, options, has_server) for one in sorted(levels, key=lambda one: one.throughput_hz)]
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return out.getvalue()


def _row(figures: LevelFigures, options: ReportOptions, has_server: bool) -> dict[str, str]:
    row = {
        "Concurrency" if options.mode == "concurrency" else "Request Rate": number(figures.level),
        "Inferences/Second": number(figures.throughput_hz),
    }
    if figures.response_hz is not None:
        row["Response Throughput"] = number(figures.response_hz)
    row["Client Send"] = "0"
    if has_server:
        own = next(iter(figures.server.values()), None)
        row |= dict.fromkeys(_SERVER_COLUMNS, "") if own is None else _server(figures, own)
    row["Client Recv"] = microseconds(figures.receive_mean_ns)
    row |= {f"p{one} latency": microseconds(value) for one, value in figures.percentile_ns.items()}
    if options.is_verbose:
        if options.percentile is None:
            row["Avg latency"] = microseconds(figures.latency_mean_ns)
        row["request/response"] = microseconds(figures.receive_mean_ns)
        row["response wait"] = microseconds(figures.latency_mean_ns - figures.receive_mean_ns)
        if options.has_metrics:
            row |= {name: _by_gpu(figures.gpus, value) for name, value in _GPU_COLUMNS.items()}
    return row


def _server(figures: LevelFigures, own: ServerFigures) -> dict[str, str]:
    """Means of a request; the first column is what of the latency neither they nor the reply's bytes took."""
    accounted_ns = (own.queue_ns + own.compute_ns) / own.request_count
    network_ns = max(0.0, figures.latency_mean_ns - figures.receive_mean_ns - accounted_ns)
    parts = (own.queue_ns, own.compute_input_ns, own.compute_infer_ns, own.compute_output_ns)
    values = [microseconds(network_ns), *(str(own.mean_us(part)) for part in parts)]
    return dict(zip(_SERVER_COLUMNS, values, strict=True))


def _by_gpu(gpus: Sequence[GpuFigures], value: Callable[[GpuFigures], float | None] | None) -> str:
    known = [(one.uuid, value(one)) for one in gpus] if value is not None else []
    return "".join(f"{uuid}:{number(one)};" for uuid, one in known if one is not None)


class Experiment(Frozen):
    """A level as the export has it: `mode` and `level`, the edges of its windows, and the requests that ended in
    these."""

    mode: str
    level: float
    edges_ns: Sequence[int]
    requests: EndedRequests


def export_json(experiments: Sequence[Experiment], version: str) -> dict[str, Any]:
    """The document. `version`: of the program that wrote it."""
    return {
        "experiments": [_experiment(one) for one in experiments],
        "version": version,
        "service_kind": "triton",
        "endpoint": "",
    }


def _experiment(one: Experiment) -> dict[str, Any]:
    is_concurrency = one.mode == "concurrency"
    return {
        "experiment": {
            "mode": "concurrency" if is_concurrency else "request_rate",
            "value": int(one.level) if is_concurrency else float(one.level),
        },
        "requests": _requests(one.requests),
        "window_boundaries": list(one.edges_ns),
    }


def _requests(requests: EndedRequests) -> list[Mapping[str, Any]]:
    """Those that succeeded, in the order in which they ended; UTC ns. Tensors are not kept, so that those are empty."""
    ok = requests.is_ok
    if requests.responses is None:
        ends = [[done] for done in requests.done_ns[ok].tolist()]
    else:
        ends = [own.tolist() for own in requests.responses[ok]]
    return [
        {
            "timestamp": sent,
            "request_inputs": {},
            "response_timestamps": at,
            "response_outputs": [{}] * len(at),
        }
        for sent, at in zip(requests.sent_ns[ok].tolist(), ends, strict=True)
    ]
