"""What an SM holds, as a report says that somebody else may have written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.analysis.metrics.device_limits import read_device_limits
from squall.analysis.occupancy import DeviceLimits
from tests.overhead_runs import write_run

H200 = {
    "id": 0, "uuid": "7c1d2a52-0000-4000-8000-000000000001", "smCount": 132, "maxWarpsPerSm": 64,
    "maxRegistersPerSm": 65_536, "maxShmemPerSm": 233_472, "maxBlocksPerSm": 32, "computeMajor": 9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("uuid", "n_rows", "gpus"),
    [
        (H200["uuid"], 1_024, {"GPU-7c1d2a52-0000-4000-8000-000000000001"}),
        (H200["uuid"], 1_025, set()),
        ("some text", 1, set()),
        (None, 1, set()),
    ],
)
def test_a_report_of_more_than_gpus_is_left_out(
    tmp_path: Path, uuid: str | None, n_rows: int, gpus: set[str]
) -> None:
    store = write_run(tmp_path)
    report = store.run_dir / "nsys" / "server-0" / "burst" / "TARGET_INFO_GPU.parquet"
    report.parent.mkdir(parents=True)
    table = pa.Table.from_pylist([H200]).set_column(1, "uuid", pa.array([uuid], pa.string()))
    pq.write_table(table.take(pa.array([0] * n_rows)), report)
    limits = read_device_limits(store)
    assert set(limits) == gpus
    assert set(limits.values()) <= {DeviceLimits(132, 64, 65_536, 233_472, 32, 9)}


def test_a_report_that_is_none_says_nothing(tmp_path: Path) -> None:
    store = write_run(tmp_path)
    report = store.run_dir / "nsys" / "server-0" / "TARGET_INFO_GPU.parquet"
    report.parent.mkdir(parents=True)
    report.write_bytes(b"PAR1")
    assert read_device_limits(store) == {}
