"""One report by the schemas of several versions of nsys: a SQLite file of each gives what the real folder gives.

What the versions differ in was read from `nsys export --lazy=false` of 2022.4.2 and 2023.4.4, from exports of 2025.3.2
and from the schema reference of the user guides of 2024.6 and 2026.4.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from squall.analysis.clocks.track import ClockTrack
from squall.analysis.nsys.batches import attribution
from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.tables import EventLabels, event_tables
from squall.analysis.tables.collected import TiedEvents
from tests.nsys_exports import MadeExport

FIXTURE = Path(__file__).parents[3] / "fixtures" / "h200" / "cuda_graphs.nsys.parquetdir"
Tables = dict[str, list[dict[str, Any]]]


def without(tables: Tables, *columns: str) -> Tables:
    return {
        name: [{key: value for key, value in row.items() if key not in columns} for row in rows]
        for name, rows in tables.items()
    }


def of_2024(tables: Tables) -> Tables:
    """3.16: no table ties a process's devices to GPUs."""
    old = without(tables, "copyCount", "deprecatedSyncType", "eventSyncId")
    del old["TARGET_INFO_CUDA_DEVICE"]
    return _stated(old, "3.16.1")


def of_2023(tables: Tables) -> Tables:
    """3.7: nor diagnostics."""
    old = without(of_2024(tables), "binaryData")
    kept = {
        name: rows for name, rows in old.items() if not name.startswith(("DIAGNOSTIC", "ENUM_DIAGNOSTIC"))
    }
    return _stated(kept, "3.7.2")


def of_2022(tables: Tables) -> Tables:
    """3.0: nor green contexts; the metadata under another name."""
    old = _stated(without(of_2023(tables), "greenContextId"), "3.0.0")
    old["EXPORT_META_DATA"] = old.pop("META_DATA_EXPORT")
    del old["ENUM_CUDA_KERNEL_LAUNCH_TYPE"]
    return old


def of_2026(tables: Tables) -> Tables:
    """3.28: devices have a UUID of their own, kernels a graph, a cluster; instants of the session in other clocks."""
    new = {name: [dict(row) for row in rows] for name, rows in tables.items()}
    (gpu,) = new["TARGET_INFO_GPU"]
    for device in new["TARGET_INFO_CUDA_DEVICE"]:
        device |= {"uuid": gpu["uuid"], "numMultiprocessors": 132}
    for row in new["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row |= {"graphId": row["graphNodeId"] and 1, "clusterX": 1, "tensorSizeMinusOneElements": ""}
    new["TARGET_INFO_SESSION_START_TIME"][0] |= {"systemClockNs": 1, "sessionStartCntVctNs": 1}
    return _stated(new, "3.28.1")


def _stated(tables: Tables, version: str) -> Tables:
    major, minor, micro = version.split(".")
    told = {"": version, "_MAJOR": major, "_MINOR": minor, "_MICRO": micro}
    rows = [{"name": f"EXPORT_SCHEMA_VERSION{part}", "value": value} for part, value in told.items()]
    return {**tables, "META_DATA_EXPORT": rows}


@pytest.fixture(scope="module")
def raw() -> Tables:
    """The real folder's rows by nsys's tables; ids of 64 bits as SQLite has them."""
    return {path.stem: pq.read_table(path).to_pylist() for path in FIXTURE.glob("*.parquet")}


def tables_of(report: NsysReport) -> dict[str, pa.Table]:
    pieces: dict[str, list[pa.Table]] = {}
    for name, data in event_tables(report, EventLabels("r", "n", "s"), ClockTrack.constant(7)):
        pieces.setdefault(name, []).append(data)
    return {name: pa.concat_tables(found).unify_dictionaries() for name, found in pieces.items()}


def plain(table: pa.Table) -> pa.Table:
    """The table with its texts plain, whatever the order of their dictionaries."""
    types = (column.type for column in table.columns)
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in types]
    return pa.table(
        [column.cast(kind) for column, kind in zip(table.columns, kinds, strict=True)],
        names=table.column_names,
    )


@pytest.fixture(scope="module")
def as_written(cuda_graphs: NsysReport) -> dict[str, pa.Table]:
    return tables_of(cuda_graphs)


VERSIONS: dict[str, Callable[[Tables], Tables]] = {
    "3.0.0": of_2022,
    "3.7.2": of_2023,
    "3.16.1": of_2024,
    "3.20.3": dict,
    "3.28.1": of_2026,
}


SLOW = [pytest.param(version, marks=pytest.mark.slow) for version in ("3.7.2", "3.16.1", "3.20.3")]


@pytest.mark.parametrize("version", ["3.0.0", "3.28.1", *SLOW])
def test_an_export_of_any_version_gives_the_same_tables(
    version: str, raw: Tables, as_written: dict[str, pa.Table], tmp_path: Path
) -> None:
    report = MadeExport(VERSIONS[version](raw)).report(tmp_path)
    assert report.schema_version == version
    found = tables_of(report)
    assert {name: table.num_rows for name, table in found.items()} == {
        "osrt": 319, "nvtx": 143, "cuda_api": 4_904, "kernels": 3_003, "memcpys": 286, "syncs": 157,
    }  # fmt: skip
    in_graph = pc.is_valid(as_written["kernels"]["graph_node_id"]).to_pylist()
    tells_graph = version == "3.28.1"
    assert found["kernels"]["graph_id"].to_pylist() == [
        1 if tells_graph and one else None for one in in_graph
    ]
    for name, table in found.items():
        kept = [column for column in table.column_names if column != "graph_id"]
        assert plain(table.select(kept)).equals(plain(as_written[name].select(kept))), name


def test_a_graphs_kernels_belong_to_the_batch_that_launched_it(
    as_written: dict[str, pa.Table], cuda_graphs: NsysReport
) -> None:
    found = attribution(cuda_graphs)
    assert found["kernels"] == TiedEvents(n=3_003, n_tied=3_003)
    assert found["memcpys"] == TiedEvents(n=286, n_tied=286)
    kernels = as_written["kernels"]
    in_graphs = kernels.filter(pc.is_valid(kernels["graph_node_id"]))
    per_batch = in_graphs.group_by("batch_id").aggregate([("graph_node_id", "count")])
    assert per_batch["graph_node_id_count"].to_pylist() == [10] * 143
    calls = as_written["cuda_api"]
    by_class = {
        row["values"]: row["counts"]
        for row in pc.value_counts(calls["call_class"].cast(pa.string())).to_pylist()
    }
    assert (by_class["graph launch"], by_class["launch"]) == (143, 858 + 715)
    assert (by_class["blocking sync"], by_class["poll"], by_class["async copy"]) == (143, 14, 286)


def test_a_device_without_a_gpu_of_the_report_has_its_own_uuid(raw: Tables, tmp_path: Path) -> None:
    tables = of_2026(raw)
    own = "GPU-63ea5d6e-fa85-65d4-eeb7-3e723952ba5d"
    tables["TARGET_INFO_CUDA_DEVICE"] = [{**tables["TARGET_INFO_CUDA_DEVICE"][0], "gpuId": None, "uuid": own}]
    kernels = tables_of(MadeExport(tables).report(tmp_path))["kernels"]
    assert set(kernels["gpu_uuid"].to_pylist()) == {own}
    assert kernels["theoretical_occupancy"].null_count == kernels.num_rows
