"""The page and the document: what a reader of the article finds on them."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from squall.analysis.studies.published_page import (
    MOST_NAMED,
    experiments_document,
    figure_tables,
    plots_of,
    reproduction_page,
    screen_lines,
)
from squall.analysis.studies.published_result import Reproduction, RunFigures
from tests.planted_experiment import CLAIMS, MS, judged, probed, published
from tests.unit.analysis.studies.test_published_result import heads

DOCS = Path(__file__).parents[4] / "docs"


@pytest.fixture(scope="module")
def found() -> Reproduction:
    return heads()


def test_the_articles_table_comes_first_with_ours_beside_it(found: Reproduction) -> None:
    html, table = reproduction_page(found), figure_tables(found)[0]
    assert table.heads[:3] == ("row", "requests/s, published", "requests/s, here")
    row = next(row for row in table.rows if row[0] == "linear_head")
    assert row[1] == "1,151"
    assert "(" in row[2]
    assert [unescape(title) for title in re.findall("<h2>(.*)</h2>", html) if title != "Once more"] == [
        "The article's table, ours beside it", "The GPU and its batches", "CUDA calls and waits",
        "Kernels", "What limits",
        "Orderings by requests/s", "Orderings by mean", "Orderings by p50", "Orderings", "Claims", "Little's law",
        "What differs", "Runs",
    ]  # fmt: skip
    assert "<pre>squall reproduce heads\n</pre>" in html
    assert "<b>Of 9 orderings that the article states " in html
    assert html.startswith("<!doctype html>")
    assert "late &lt;users&gt;" in html
    assert "src=" not in html.split("<main>")[1]


def test_a_rehearsal_says_first_that_its_figures_mean_nothing(found: Reproduction) -> None:
    small = judged(found.published, found.runs, is_small=True)
    warning, html = "A rehearsal in small sizes: its figures mean nothing.", reproduction_page(small)
    assert screen_lines(small)[0] == warning
    assert f"<h1>{warning} " in html
    assert f"<b>{warning} " in html


def test_an_operator_is_drawn_over_its_size_with_the_crossover() -> None:
    figures = {
        str(size): {"warm_call_ns": 2e4, "call_kernel_ns": 1e3 * size / 64} for size in (64, 512, 4096)
    } | {"all sizes": {"crossover_size_count": 1280.0}}
    runs = [
        RunFigures("probe", row, 1, 1, "VALID", "", "torch.profiler", "r", own)
        for row, own in figures.items()
    ]
    found = judged(probed("operators"), runs)
    (plot,) = (one for one in plots_of(found) if one.kind == "loglog")
    assert [series["name"] for series in plot.traces] == ["host: a warmed-up call", "GPU: kernels of a call"]
    assert plot.traces[0]["x"] == [64.0, 512.0, 4096.0]
    assert plot.traces[0]["y"] == pytest.approx([20.0, 20.0, 20.0])
    assert "from 1,280 on" in plot.note
    html = reproduction_page(found)
    assert " 1 run: 1 VALID.</p>" in html  # of four rows
    assert re.findall("<td>(.*?)</td>", html.split("<h2>Runs</h2>")[1]) == [
        "-",
        "probe",
        "1",
        "1",
        "VALID",
        "torch.profiler",
        "r",
    ]


def test_stages_of_a_pipeline_are_stacked_by_variant() -> None:
    names = ("pageable, separate kernels", "pinned, separate kernels")
    figures = {"stage_prep_ns": 2.0 * MS, "stage_h2d_ns": 1.0 * MS, "gain_ratio": 0.31}
    runs = [RunFigures("probe", name, 1, 1, "VALID", "", "", "r", figures) for name in names]
    rows = [{"name": names[1], "published": {"gain_ratio": 0.31}}]
    found = judged(probed("stages", "pipeline", rows), runs)
    (plot,) = (one for one in plots_of(found) if one.kind == "bar")
    assert [series["name"] for series in plot.traces] == ["CPU preparation", "copy to the device"]
    assert found.rows == names[::-1]  # the article's rows first
    assert len(plot.x_ticks) == len(names)
    assert plot.traces[0]["y"] == pytest.approx([2.0, 2.0])


def test_many_rows_have_numbers_below_their_axes() -> None:
    rows = [
        {"name": f"row of many words {at}", "published": {"throughput_hz": 1000 + at}}
        for at in range(MOST_NAMED + 1)
    ]
    found = judged(published(rows), [])
    (plot,) = plots_of(found)
    assert plot.x_ticks == tuple(str(at + 1) for at in range(MOST_NAMED + 1))
    assert figure_tables(found)[0].rows[0][0] == "1. row of many words 0"


def test_the_document_in_the_repository_is_that_of_its_files() -> None:
    texts = [path.read_text() for path in sorted((DOCS / "experiments").glob("*.json"))]
    found = [Reproduction.from_json(json.loads(text)) for text in texts]
    assert [one.to_text() for one in found] == texts
    assert experiments_document(found) == (DOCS / "experiments.md").read_text()


def test_a_document_of_nothing_says_that_nothing_was_run() -> None:
    assert "Nothing was run yet" in experiments_document([])


def test_an_experiment_without_runs_has_a_page_that_says_so() -> None:
    found = judged(published(claims=CLAIMS), [])
    assert not found.is_measured
    assert "<b>Nothing was measured yet: no runs.</b>" in reproduction_page(found)
