from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.nsys_report import NsysReport
from analysis.nsys_stats import SUMMARIES, summary
from tests.nsys_exports import MadeExport

FIXTURES = Path(__file__).parents[3] / "fixtures" / "h200"
CAPTURES = ("linear_head", "seqlen_head", "two_heads")
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


@pytest.mark.parametrize("capture", CAPTURES)
def test_counts_totals_and_medians_are_those_of_nvidias_own_summaries(
    capture: str, h200_report: Callable[[str], NsysReport]
) -> None:
    report = h200_report(capture)
    for theirs, ours in SPANS.items():
        found = sorted(of_ours(row, theirs) for row in summary(report, ours).to_pylist())
        expected = sorted(of_nvidia(row, theirs) for row in nvidias(capture, theirs))
        assert len(found) == len(expected)
        for mine, nvidia in zip(found, expected, strict=True):
            n_exact = len(mine) - 5  # name, sizes, count and total
            assert mine[:n_exact] == nvidia[:n_exact]
            # means and deviations are printed to 0.1 ns, and a tie may be rounded either way
            assert mine[n_exact:] == pytest.approx(nvidia[n_exact:], abs=0.11)
            assert mine[n_exact + 1 : n_exact + 4] == nvidia[n_exact + 1 : n_exact + 4]


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
        for row in summary(h200_report("linear_head"), name).to_pylist():
            found[row["name"]] = found.get(row["name"], 0) + row["total"]
    first, second = totals.values()
    assert first == second
    assert sum(
        row["total"] for row in summary(h200_report("linear_head"), "cuda_gpu_kern_sum").to_pylist()
    ) == sum(first.values())


def test_a_report_without_events_has_summaries_without_rows(tmp_path: Path) -> None:
    report = MadeExport().report(tmp_path)
    assert [summary(report, name).num_rows for name in SUMMARIES] == [0] * len(SUMMARIES)
