"""Figures of a probe's run, from its tables and `probe.json`: no GPU and no torch.

Medians are of the active calls. Of an operator, the host's time of a call is that with nothing recorded beside it, and
what the kernels take is known from the profiler alone; `kernel_of_cpu_ratio` compares with the time in aten operators
under the profiler, as its own table does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.storage.intact import require_intact
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError
from squall.scenarios.foreign_text import json_of
from squall.scenarios.published.probe import BASE, STAGES, WHOLE
from squall.scenarios.units import NS_PER_S

FILE = "probe.json"
RowFigures = dict[str, float | str]
ON_DEVICE = ("h2d", "preprocess", "inference", "fused", "d2h")
_FLOP_PER_NS_AND_T = 1_000  # 1 operation a ns is 10^9 a second


def probe_figures(run_dir: Path) -> dict[str, RowFigures]:
    """Row name to figures, named as in `scenarios/published/figures.py`: a row a size and `all sizes`, or a variant.

    Raises AnalysisError for a run that is not a sealed one of a probe, or that was broken off.
    """
    store = RunStore.open(run_dir)
    probe = store.manifest.probe
    if probe is None:
        raise AnalysisError(f"{store.where} is not the run of a probe")
    if not store.is_sealed or store.manifest.status not in ("VALID", "INVALID"):
        raise AnalysisError(f"{store.where} was broken off, and has no figures")
    require_intact(store)
    facts = json_of(store.read_text(FILE))["facts"]
    if probe["kind"] == "operator":
        rows = store.read("probe_calls") if store.has("probe_calls") else None
        return operator_figures(rows, probe["sizes"], facts["left_out"], facts["no_kernels"])
    rows = store.read("probe_stages") if store.has("probe_stages") else None
    return pipeline_figures(rows, facts["left_out"])


def operator_figures(
    calls: pa.Table | None, sizes: Sequence[int], left_out: Mapping[str, str], no_kernels: str
) -> dict[str, RowFigures]:
    """Of table `probe_calls`. `left_out`: why a size has no calls; `no_kernels`: why no kernel was recorded, or ""."""
    found: dict[str, RowFigures] = {}
    spans: list[tuple[int, float, float]] = []  # size, host and kernels
    for size in sizes:
        name = str(size)
        if name in left_out or calls is None:
            found[name] = {"not_measured": left_out.get(name, "the run has no calls")}
            continue
        found[name] = _of_size(calls.filter(pc.equal(calls["size"], size)), size)
        host, kernels = found[name].get("warm_call_ns"), found[name].get("call_kernel_ns")
        if isinstance(host, float) and isinstance(kernels, float):
            spans.append((size, host, kernels))
    if spans:
        found[WHOLE] = _crossover(spans)
    else:
        found[WHOLE] = {"not_measured": no_kernels or "no size was measured"}
    return found


def _of_size(calls: pa.Table, size: int) -> RowFigures:
    first = calls.filter(pc.equal(calls["part"].cast(pa.string()), "first"))
    warm, profiled = _active(calls, "nothing"), _active(calls, "profiler")
    found: dict[str, float | None] = {
        "first_call_ns": _median(first, "host_ns"),
        "first_synced_ns": _median(first, "synced_ns"),
        "warm_call_ns": _median(warm, "host_ns"),
        "warm_synced_ns": _median(warm, "synced_ns"),
        "call_event_ns": _median(warm, "event_ns"),
        "profiled_call_ns": _median(profiled, "host_ns"),
        "op_cpu_ns": _median(profiled, "op_cpu_ns"),
        "call_kernel_ns": _median(profiled, "kernel_ns"),
        "call_kernels_count": _median(profiled, "n_kernels"),
    }
    kernel_ns, first_ns, warm_ns = found["call_kernel_ns"], found["first_call_ns"], found["warm_call_ns"]
    figures: RowFigures = {name: value for name, value in found.items() if value is not None}
    if first_ns is not None and warm_ns:
        figures["first_of_warm_ratio"] = first_ns / warm_ns
    if kernel_ns is None:
        return figures
    for ratio, of in (("kernel_of_cpu_ratio", "op_cpu_ns"), ("kernel_of_first_ratio", "first_call_ns")):
        whole = found[of]
        if whole:
            figures[ratio] = kernel_ns / whole
    figures["compute_tflops"] = (2 * size**3 + size**2) / kernel_ns / _FLOP_PER_NS_AND_T
    if warm_ns is not None:
        figures["bound"] = "compute" if kernel_ns > warm_ns else "overhead"
    return figures


def _crossover(spans: Sequence[tuple[int, float, float]]) -> RowFigures:
    """The smallest size at which the kernels take longer than the host's call.

    log(kernels / host) is taken for straight in log(size) between the two sizes around its zero.
    """
    above = [index for index, (_, host, kernels) in enumerate(spans) if kernels > host]
    if not above:
        return {"bound": f"overhead at every size up to {spans[-1][0]}"}
    if above[0] == 0:
        return {"bound": f"compute at every size from {spans[0][0]}"}
    (low, *before), (high, *behind) = spans[above[0] - 1], spans[above[0]]
    under, over = math.log(before[1] / before[0]), math.log(behind[1] / behind[0])
    share = -under / (over - under)
    return {
        "crossover_size_count": math.exp(math.log(low) + share * (math.log(high) - math.log(low))),
        "bound": "overhead below the crossover, compute above it",
    }


def pipeline_figures(stages: pa.Table | None, left_out: Mapping[str, str]) -> dict[str, RowFigures]:
    """Of table `probe_stages`, by variant. Throughput is in calls, one behind the other: batches a second."""
    found: dict[str, RowFigures] = {}
    if stages is not None:
        active = stages.filter(pc.equal(stages["part"].cast(pa.string()), "active"))
        for variant in pc.unique(active["variant"].cast(pa.string())).to_pylist():
            if variant not in left_out:
                found[variant] = _of_variant(
                    active.filter(pc.equal(active["variant"].cast(pa.string()), variant))
                )
    base = found.get(BASE.name, {}).get("throughput_hz")
    for figures in found.values():
        throughput = figures["throughput_hz"]
        if isinstance(base, float) and isinstance(throughput, float):
            figures["gain_ratio"] = throughput / base - 1
    return found | {name: {"not_measured": why} for name, why in left_out.items()}


def _of_variant(stages: pa.Table) -> RowFigures:
    spans = {name: _spans(stages, name) for name in (*STAGES, "total")}
    figures: RowFigures = {
        f"stage_{name}_ns": float(np.median(spans[name])) for name in STAGES if len(spans[name])
    }
    on_device = [spans[name] for name in ON_DEVICE if len(spans[name])]
    if on_device:  # call by call: each stage has a row of every call, in the same order
        figures["device_ns"] = float(np.median(np.sum(on_device, axis=0)))
    total = spans["total"]
    figures["pipeline_ns"] = float(np.median(total))
    figures["throughput_hz"] = len(total) * NS_PER_S / float(np.sum(total))
    return figures


def _spans(stages: pa.Table, name: str) -> Any:
    return stages.filter(pc.equal(stages["stage"].cast(pa.string()), name))["span_ns"].to_numpy()


def _active(calls: pa.Table, under: str) -> pa.Table:
    of_schedule = pc.equal(calls["part"].cast(pa.string()), "active")
    return calls.filter(pc.and_(of_schedule, pc.equal(calls["under"].cast(pa.string()), under)))


def _median(calls: pa.Table, column: str) -> float | None:
    """Of what is not null; None of nothing."""
    values = calls[column].drop_null().to_numpy()
    return float(np.median(values)) if len(values) else None
