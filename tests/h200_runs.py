"""Run directories made of the real nsys exports in tests/fixtures/h200: what a run holds, but for requests.

The capture has a model instance per process and one NVTX range per batch; a phase is a process's time from its first
range to its last. In `two_heads` process 575 is linear_head (568 batches), 576 seqlen_head (489 batches).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.tables import EventLabels, event_tables
from squall.analysis.storage.manifest import read_manifest
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import assign_phase, phase_spans

START_NS = 1_795_250_252_000_000_000
"""Start of the collection on the run clock: what the report counts from."""


class Shifted:
    """The report's clock on the run clock, without drift."""

    def convert(self, source_ns: NDArray[np.int64], /) -> NDArray[np.int64]:
        return source_ns + START_NS


def write_h200_run(parent: Path, report: NsysReport, models: dict[str, str] | None = None) -> RunStore:
    """A sealed run of `report`, whose ranges must be ours. `models`: name of the model by instance; else the instance.

    Tables: those of the report, and `batches` with a row a range (1 row, no request ids). The report lies in
    nsys/server-0/ under the first phase, though it covers all.
    """
    store = RunStore.create(parent, "h200", START_NS, read_manifest({
        "scenario": {"name": "h200", "seed": 1, "profile": {"nsys": "required"}}, "plan": {"load": "open"},
        "nodes": {"node-0": {"clock_error_ns": 0, "n_cores": 16, "gpus": ["NVIDIA H200"]}},
        "servers": {"server-0": {"node": "node-0", "model": "two_heads", "version": "1"}},
    }))  # fmt: skip
    tables: dict[str, list[pa.Table]] = {}
    for name, rows in event_tables(report, EventLabels(store.run, "node-0", "server-0"), Shifted()):
        tables.setdefault(name, []).append(rows)
    batches = _batches(store.run, pa.concat_tables(tables["nvtx"]), models or {})
    store.amend(replace(store.manifest, phases=read_manifest({"phases": _phases(batches)}).phases))
    spans = phase_spans(store.manifest)
    for name, pieces in {**tables, "batches": [batches]}.items():
        for rows in pieces:
            store.append(name, assign_phase(name, rows, spans))
    shutil.copytree(report._folder, store.run_dir / "nsys" / "server-0" / spans[0].name)
    store.seal(Verdict(status="VALID"))
    return store


def _batches(run: str, nvtx: pa.Table, models: dict[str, str]) -> pa.Table:
    ours = nvtx.filter(pc.is_valid(nvtx["batch_id"])).sort_by("start_ns")
    n = ours.num_rows
    instances = ours["instance"].cast(pa.string()).to_pylist()
    columns: dict[str, Any] = {
        "run": [run] * n, "phase": [""] * n, "node": ["node-0"] * n, "server": ["server-0"] * n,
        "model": [models.get(one, one) for one in instances], "version": ["1"] * n, "instance": instances,
        "instance_device": ours["instance_device"], "batch_id": ours["batch_id"], "start_ns": ours["start_ns"],
        "end_ns": ours["end_ns"], "rows": [1] * n,
        "n_requests": [0] * n, "request_ids": pa.array([[]] * n, pa.list_(pa.int64())),
        "n_foreign": [0] * n, "recorded_by": ["model"] * n,
        **dict.fromkeys(("exec_start_ns", "exec_end_ns", "n_failed"), pa.nulls(n, pa.int64())),
    }  # fmt: skip
    names = arrow_schema("batches").names
    return pa.table([columns[name] for name in names], names=names)


def _phases(batches: pa.Table) -> list[dict[str, Any]]:
    """A measure phase for each instance, named as its model."""
    spans = batches.group_by("model").aggregate([("start_ns", "min"), ("end_ns", "max")]).to_pylist()
    return [
        {
            "name": one["model"],
            "kind": "measure",
            "start_ns": one["start_ns_min"],
            "end_ns": one["end_ns_max"],
        }
        for one in spans
    ]
