from __future__ import annotations

import csv
import re
import sqlite3
import statistics
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.nsys.report import NsysReport
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from tests.nsys_exports import MadeExport
from tests.nsys_stats import SUMMARIES, summary

FIXTURES = Path(__file__).parents[3] / "fixtures" / "h200"
ALONE = ("linear_head", "seqlen_head")
CAPTURES = ("two_heads", *(pytest.param(name, marks=pytest.mark.slow) for name in ALONE))
"""Of two models at once, and of each alone."""
SPANS = {
    "cudaapisum": "cuda_api_sum",
    "gpumemtimesum": "cuda_gpu_mem_time_sum",
    "osrtsum": "osrt_sum",
    "gpukernsum": "cuda_gpu_kern_gb_sum:base",
}
"""NVIDIA's own summaries of the same files, by `nsys stats` of 2022.4, and ours."""


def nvidias(capture: str, name: str) -> list[dict[str, str]]:
    lines = (FIXTURES / f"{capture}.nsys_stats" / f"{name}.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if line))


def sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def of_nvidia(row: dict[str, str], name: str) -> tuple[Any, ...]:
    label = row["Name" if "Name" in row else "Operation"]
    key: tuple[Any, ...] = (re.sub("_v[0-9]+$", "", label),)  # 2022.4 leaves versions of five digits
    if name == "gpukernsum":
        key += (*sizes(row["GridXYZ"]), *sizes(row["BlockXYZ"]))
    n = row.get("Num Calls") or row.get("Instances") or row["Count"]
    figures = [float(row[f"{what} (ns)"]) for what in ("Avg", "Med", "Min", "Max", "StdDev")]
    return (*key, int(n), int(row["Total Time (ns)"]), *figures)


def of_ours(row: dict[str, Any], name: str) -> tuple[Any, ...]:
    key: tuple[Any, ...] = (row["name"],)
    if name == "gpukernsum":
        key += tuple(row[f"{what}{axis}"] for what in ("grid", "block") for axis in "XYZ")
    figures = [row["mean"], row["median"], row["least"], row["most"], row["deviation"] or 0.0]
    return (*key, row["n"], row["total"], *(round(float(figure), 1) for figure in figures))


def assert_equal(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> None:
    """Names, sizes, counts, totals, medians, least and most exact; mean and deviation to what is printed of them."""
    assert len(ours) == len(theirs)
    for mine, nvidia in zip(sorted(ours), sorted(theirs), strict=True):
        n_exact = len(mine) - 5  # name, sizes, count and total
        assert mine[:n_exact] == nvidia[:n_exact]
        # means and deviations are printed to 0.1 ns, and a tie may be rounded either way
        assert mine[n_exact:] == pytest.approx(nvidia[n_exact:], abs=0.11)
        assert mine[n_exact + 1 : n_exact + 4] == nvidia[n_exact + 1 : n_exact + 4]


@pytest.mark.parametrize("capture", CAPTURES)
def test_counts_totals_and_medians_are_those_of_nvidias_own_summaries(
    capture: str, h200_report: Callable[[str], NsysReport]
) -> None:
    report = h200_report(capture)
    for theirs, ours in SPANS.items():
        found = [of_ours(row, theirs) for row in summary(report, ours).to_pylist()]
        assert_equal(found, [of_nvidia(row, theirs) for row in nvidias(capture, theirs)])


_SPAN = "end_ns - start_ns AS value"
_COPIES = "SELECT '[CUDA memcpy ' || copy_kind || ']' AS name, {value} FROM memcpys"
_SETS = " UNION ALL SELECT '[CUDA memset]', {value} FROM memsets"
_GRID = ", ".join(f'{what}_{axis} AS "{what}{axis.upper()}"' for what in ("grid", "block") for axis in "xyz")
FROM_TABLES = {
    "cudaapisum": f"SELECT name, {_SPAN} FROM cuda_api",
    "gpumemtimesum": (_COPIES + _SETS).format(value=_SPAN),
    "osrtsum": f"SELECT name, {_SPAN} FROM osrt",
    "gpukernsum": f"SELECT name, {_GRID}, {_SPAN} FROM kernels",
}
"""NVIDIA's summaries by our tables alone."""


def summed(store: RunStore, source: str) -> list[dict[str, Any]]:
    """As `summary`, of rows with a `value` by all else."""
    tables = [table for table in store.tables() if f"FROM {table}" in source]
    with connect(store, tables) as connection:
        if "memsets" in source and "memsets" not in tables:  # nsys saw none
            source = source.partition(" UNION ALL ")[0]
        found = connection.sql(f"""
SELECT * EXCLUDE (value), count(*) AS n, sum(value)::BIGINT AS total, avg(value) AS mean, median(value) AS median,
    min(value) AS least, max(value) AS most, stddev_samp(value) AS deviation FROM ({source}) GROUP BY ALL""")
        rows: list[dict[str, Any]] = found.to_arrow_table().to_pylist()
    return rows


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_tables_of_a_run_give_nvidias_summaries(
    capture: str, h200_run: Callable[[str], RunStore]
) -> None:
    for theirs, source in FROM_TABLES.items():
        found = [of_ours(row, theirs) for row in summed(h200_run(capture), source)]
        assert_equal(found, [of_nvidia(row, theirs) for row in nvidias(capture, theirs)])


@pytest.mark.parametrize("capture", CAPTURES)
def test_bytes_in_a_runs_tables_are_those_of_the_export(
    capture: str, h200: Callable[[str], Path], h200_run: Callable[[str], RunStore]
) -> None:
    ours = summed(h200_run(capture), (_COPIES + _SETS).format(value="bytes AS value"))
    found = {row["name"]: (row["n"], row["total"], row["median"]) for row in ours}
    theirs = {row["Operation"]: int(row["Count"]) for row in nvidias(capture, "gpumemsizesum")}
    assert {name: n for name, (n, _, _) in found.items()} == theirs
    tables = {
        "[CUDA memcpy HtoD]": "MEMCPY WHERE copyKind = 1",
        "[CUDA memcpy DtoH]": "MEMCPY WHERE copyKind = 2",
    }
    with closing(sqlite3.connect(h200(capture))) as file:
        for name in theirs:
            source = tables.get(name, "MEMSET")
            values = [b for (b,) in file.execute(f"SELECT bytes FROM CUPTI_ACTIVITY_KIND_{source}")]
            assert found[name] == (len(values), sum(values), statistics.median(values))


WORDS = {"HtoD": "Host-to-Device", "DtoH": "Device-to-Host"}  # since 2023, as labels of ENUM_CUDA_MEMCPY_OPER


@pytest.mark.parametrize(
    "name", ["cuda_api_sum", "cuda_gpu_kern_sum:base", "cuda_gpu_mem_time_sum", "osrt_sum"]
)
def test_summaries_of_a_parquet_folder_are_those_of_its_own_nsys_stats(
    name: str, cuda_graphs: NsysReport
) -> None:
    """By `nsys stats` of 2025.3.2, which wrote the folder, on its SQLite export of the same report."""
    theirs = [of_nvidia(row, name) for row in nvidias("cuda_graphs", name.replace(":", "_"))]
    found = [of_ours(row, name) for row in summary(cuda_graphs, name).to_pylist()]
    for short, label in WORDS.items():
        found = [(row[0].replace(short, label), *row[1:]) for row in found]
    assert_equal(found, theirs)


@pytest.mark.parametrize("capture", CAPTURES)
def test_sizes_of_memory_operations_are_nvidias_to_the_kilobyte(
    capture: str, h200_report: Callable[[str], NsysReport]
) -> None:
    rows = summary(h200_report(capture), "cuda_gpu_mem_size_sum").to_pylist()
    ours = {
        row["name"]: (row["n"], row["total"] / 1e6, row["median"] / 1e6, row["most"] / 1e6) for row in rows
    }
    theirs = {
        row["Operation"]: (
            int(row["Count"]),
            *(float(row[f"{what} (MB)"]) for what in ("Total", "Med", "Max")),
        )
        for row in nvidias(capture, "gpumemsizesum")
    }
    assert set(ours) == set(theirs)
    for name, figures in theirs.items():
        assert ours[name] == pytest.approx(figures, abs=0.00051), name


@pytest.mark.parametrize("capture", CAPTURES)
def test_ranges_are_summed_by_text_and_style(capture: str, h200_report: Callable[[str], NsysReport]) -> None:
    (theirs,) = nvidias(capture, "nvtxsum")  # all were called `execute` before ours named them
    rows = summary(h200_report(capture), "nvtx_sum").to_pylist()
    assert {row["style"] for row in rows} == {theirs["Style"]}
    assert sum(row["n"] for row in rows) == int(theirs["Instances"])
    assert sum(row["total"] for row in rows) == int(theirs["Total Time (ns)"])
    assert all(row["name"].startswith("squall|m_") for row in rows)


def test_kernels_by_name_are_the_sums_of_kernels_by_name_and_size(
    h200_report: Callable[[str], NsysReport],
) -> None:
    totals: dict[str, dict[str, int]] = {}
    for name in ("cuda_gpu_kern_sum:base", "cuda_gpu_kern_gb_sum:base"):
        found = totals.setdefault(name, {})
        for row in summary(h200_report("two_heads"), name).to_pylist():
            found[row["name"]] = found.get(row["name"], 0) + row["total"]
    first, second = totals.values()
    assert first == second
    assert sum(
        row["total"] for row in summary(h200_report("two_heads"), "cuda_gpu_kern_sum").to_pylist()
    ) == sum(first.values())


def test_a_report_without_events_has_summaries_without_rows(tmp_path: Path) -> None:
    report = MadeExport().report(tmp_path)
    assert [summary(report, name).num_rows for name in SUMMARIES] == [0] * len(SUMMARIES)
