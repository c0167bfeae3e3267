"""One report by the schemas of several versions of nsys: a SQLite file of each gives what the real folder gives.

What the versions differ in was read from `nsys export --lazy=false` of 2022.4.2 and 2023.4.4, from exports of 2025.3.2
and from the schema reference of the user guides of 2024.6 and 2026.4.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from squall.analysis.nsys.report import NsysReport
from tests.nsys_exports import MadeExport, Row, tables_of

FIXTURE = Path(__file__).parents[3] / "fixtures" / "h200" / "cuda_graphs.nsys.parquetdir"
Tables = dict[str, list[Row]]
LACKS = {
    "3.20.3": "",
    "3.16.1": "copyCount deprecatedSyncType eventSyncId TARGET_INFO_CUDA_DEVICE",
    "3.7.2": "binaryData DIAGNOSTIC_EVENT ENUM_DIAGNOSTIC_SEVERITY_LEVEL ENUM_DIAGNOSTIC_SOURCE_TYPE",
    "3.0.0": "greenContextId ENUM_CUDA_KERNEL_LAUNCH_TYPE",
}
"""Columns and tables that a version lacks of what the next newer one has."""
NEWEST = "3.28.1"


def of_version(version: str) -> Tables:
    """The real folder's rows as that version exports them; ids of 64 bits as SQLite has them."""
    tables = {path.stem: pq.read_table(path).to_pylist() for path in FIXTURE.glob("*.parquet")}
    if version == NEWEST:
        (gpu,) = tables["TARGET_INFO_GPU"]
        for device in tables["TARGET_INFO_CUDA_DEVICE"]:
            device |= {"uuid": gpu["uuid"], "numMultiprocessors": 132}
        for row in tables["CUPTI_ACTIVITY_KIND_KERNEL"]:
            row |= {"graphId": row["graphNodeId"] and 1, "clusterX": 1, "tensorSizeMinusOneElements": ""}
        tables["TARGET_INFO_SESSION_START_TIME"][0] |= {"systemClockNs": 1, "sessionStartCntVctNs": 1}
    else:
        versions = list(LACKS)
        lacks = {name for one in versions[: versions.index(version) + 1] for name in LACKS[one].split()}
        tables = {
            table: [{name: value for name, value in row.items() if name not in lacks} for row in rows]
            for table, rows in tables.items() if table not in lacks
        }  # fmt: skip
    parts = ("", "_MAJOR", "_MINOR", "_MICRO")
    del tables["META_DATA_EXPORT"]
    tables["EXPORT_META_DATA" if version == "3.0.0" else "META_DATA_EXPORT"] = [
        {"name": f"EXPORT_SCHEMA_VERSION{part}", "value": value}
        for part, value in zip(parts, [version, *version.split(".")], strict=True)
    ]
    return tables


def plain(table: pa.Table) -> pa.Table:
    """Without `graph_id`; texts plain, whatever the order of their dictionaries."""
    table = table.drop_columns([name for name in table.column_names if name == "graph_id"])
    types = [
        field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in table.schema
    ]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))


SLOW = [pytest.param(version, marks=pytest.mark.slow) for version in ("3.7.2", "3.16.1", "3.20.3")]


@pytest.mark.parametrize("version", ["3.0.0", NEWEST, *SLOW])
def test_an_export_of_any_version_gives_the_same_tables(
    version: str, cuda_graphs: NsysReport, tmp_path: Path
) -> None:
    report = MadeExport(of_version(version)).report(tmp_path)
    assert report.schema_version == version
    found, expected = tables_of(report), tables_of(cuda_graphs)
    assert {name: table.num_rows for name, table in found.items()} == {
        "osrt": 319, "nvtx": 143, "cuda_api": 4_904, "kernels": 3_003, "memcpys": 286, "syncs": 157,
    }  # fmt: skip
    in_graph = pc.is_valid(expected["kernels"]["graph_node_id"]).to_pylist()
    graphs = [1 if is_node and version == NEWEST else None for is_node in in_graph]
    assert found["kernels"]["graph_id"].to_pylist() == graphs
    for name, table in found.items():
        assert plain(table).equals(plain(expected[name])), name
