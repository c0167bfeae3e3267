"""Captures of an H200: figures of a run's tables are those of other queries, and those of NVIDIA's `nsys stats`."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore

FIXTURES = Path(__file__).parents[3] / "fixtures" / "h200"
FIGURES: dict[str, list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("h200.yaml").read_text())


def answer(store: RunStore, sql: str) -> list[tuple[Any, ...]]:
    with connect(store, store.tables()) as connection:
        rows: list[tuple[Any, ...]] = connection.sql(sql).fetchall()
    return rows


@pytest.mark.parametrize("capture", FIGURES)
def test_figures_of_a_capture_are_those_of_other_queries(
    capture: str, h200_run: Callable[[str], RunStore]
) -> None:
    for case in FIGURES[capture]:
        found = answer(h200_run(capture), case["sql"])
        assert [list(row) for row in found] == case["rows"], case["figure"]


SPAN = "end_ns - start_ns AS value"
GRID = ", ".join(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
MEGABYTES = "bytes / 1e6 AS value"
MEMORY = """SELECT '[CUDA memcpy ' || copy_kind || ']' AS name, {value} FROM memcpys
    UNION ALL SELECT '[CUDA memset]', {value} FROM memsets"""
OF_2022 = {
    "cudaapisum": f"SELECT name, {SPAN} FROM cuda_api",
    "gpukernsum": f"SELECT name, {GRID}, {SPAN} FROM kernels",
    "gpumemtimesum": MEMORY.format(value=SPAN),
    "gpumemsizesum": MEMORY.format(value=MEGABYTES),
    "nvtxsum": f"SELECT 'execute' AS name, {SPAN} FROM nvtx",  # as the ranges were called before ours named them
    "osrtsum": f"SELECT name, {SPAN} FROM osrt",
}
OF_2025 = {
    "cuda_api_sum": OF_2022["cudaapisum"],
    "cuda_gpu_kern_sum_base": f"SELECT name, {SPAN} FROM kernels",
    "cuda_gpu_mem_time_sum": OF_2022["gpumemtimesum"],
    "cuda_gpu_mem_size_sum": OF_2022["gpumemsizesum"],
    "osrt_sum": OF_2022["osrtsum"],
}
"""Of each summary of `nsys stats`, by its name in 2022.4 and 2025.3: what is summed, a row an event."""
SOURCES = OF_2022 | OF_2025
CASES = [
    *(("two_heads", name) for name in OF_2022),
    *(("cuda_graphs", name) for name in OF_2025),
    *(pytest.param(capture, name, marks=pytest.mark.slow)
      for capture in ("linear_head", "seqlen_head") for name in OF_2022),
]  # fmt: skip


@pytest.mark.parametrize(("capture", "name"), CASES)
def test_tables_give_nvidias_summaries(capture: str, name: str, h200_run: Callable[[str], RunStore]) -> None:
    """Counts, totals, medians, least and most are exact, or to the kilobyte; mean and deviation to what is printed."""
    store, source = h200_run(capture), SOURCES[name]
    if "memsets" not in store.tables():  # nsys saw none
        source = source.partition("UNION ALL")[0]
    figures = "sum(value), median(value), min(value), max(value), avg(value), coalesce(stddev_samp(value), 0)"
    ours = answer(store, f"SELECT * EXCLUDE (value), count(*), {figures} FROM ({source}) GROUP BY ALL")
    theirs = dict(map(nvidias, rows_of(FIXTURES / f"{capture}.nsys_stats" / f"{name}.csv")))
    found = {row[:-6]: [float(figure) for figure in row[-6:]] for row in ours}
    assert found.keys() == theirs.keys()
    is_of_bytes = MEGABYTES in source
    for key, printed in theirs.items():
        rounding = 0.00051 if is_of_bytes else 0.11
        assert found[key] == pytest.approx(printed, abs=rounding), key
        if not is_of_bytes:
            assert found[key][:4] == printed[:4], key


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in path.read_text().splitlines() if line))


def nvidias(row: dict[str, str]) -> tuple[tuple[Any, ...], list[float]]:
    """Name, sizes and count of a row of a summary; its total, median, least, most, mean and deviation."""
    name = next(row[column] for column in ("Name", "Operation", "Range") if column in row)
    for short, label in (("HtoD", "Host-to-Device"), ("DtoH", "Device-to-Host")):  # since 2023
        name = name.replace(label, short)
    sizes = [int(size) for column in ("GridXYZ", "BlockXYZ") for size in row.get(column, "").split()]
    n = next(int(row[column]) for column in ("Num Calls", "Instances", "Count") if column in row)
    unit = "MB" if "Total (MB)" in row else "ns"
    total = row["Total (MB)" if unit == "MB" else "Total Time (ns)"]
    others = [row[f"{what} ({unit})"] for what in ("Med", "Min", "Max", "Avg", "StdDev")]
    # 2022.4 leaves versions of five digits in the names of calls
    return (re.sub("_v[0-9]+$", "", name), *sizes, n), [float(total), *map(float, others)]
