from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.report.page import render_html, write_report
from squall.analysis.report.plots import Trace
from squall.analysis.report.run_plots import (
    IN_FLIGHT,
    LATENCY,
    MOST_POINTS,
    WINDOWS,
    bin_ns_for,
    ccdf,
    curves,
    run_plots,
)
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.shown import html_text
from squall.analysis.storage.query import over
from squall.analysis.storage.store import RunStore
from tests.cpu_runs import cpu_of_the_node, make_ensemble
from tests.hostile_text import without_plotly
from tests.known import known
from tests.synthetic_runs import MS, START_NS, S, SyntheticRun

MakeRun = Callable[..., RunStore]
WORDS = yaml.safe_load((Path(__file__).parent / "words.yaml").read_text())


def words_of(store: RunStore) -> str:
    """The page without its plots, which take as long to draw as all the rest."""
    return render_html(summarise(store), store.manifest, [])


def test_the_report_loads_nothing_from_a_network_and_has_plotly_once(whole_page: str) -> None:
    ours = without_plotly(whole_page)
    assert len(ours) < len(whole_page) / 3
    assert not re.search(r"(src|href)\s*=|@import|url\(|https?://", ours)
    assert whole_page.count("plotly.js v") == 1


@pytest.mark.parametrize("page", WORDS["pages"])
def test_the_report_says_so(page: str, request: pytest.FixtureRequest) -> None:
    text = without_plotly(request.getfixturevalue(f"{page}_page"))
    assert [words for words in WORDS["pages"][page] if words not in text] == []


def test_the_report_says_who_had_the_cpu_and_what_each_step_did(
    tmp_path: Path, synthetic: SyntheticRun
) -> None:
    cpu_of_the_node(synthetic, server=0.18, clients=0.05, squall=0.09, others=1.68, wait=0.51)
    make_ensemble(synthetic, "tokenize", "classify")
    store = synthetic.write(tmp_path)
    summary = summarise(store)
    written = render_html(summary, store.manifest, [])
    line = "CPU of node-0: server 18.0 %, clients 5.00 %, squall 9.00 %, others 168 % of 200 %; server threads waited"
    assert line in written
    assert written.index("<td>tokenize</td>") < written.index("<td>classify</td>")
    assert "Others took the CPU: of the 200 % of node-0" in written
    tokenize, classify = summary.measure.models
    assert tokenize.queue_mean_ns == pytest.approx(10 * known(classify.queue_mean_ns), abs=10)
    # what the steps did is not counted as the ensemble's
    assert known(summary.measure.triton).request_count == tokenize.request_count
    assert all(one.is_met for one in summary.identities)


def test_every_plot_is_drawn_with_units_on_its_axes(
    whole_page: str, whole_run: RunStore, whole_summary: Summary
) -> None:
    plots = run_plots(whole_run, whole_summary)
    assert len(plots) == 9
    assert not [plot.title for plot in plots if plot.absent]
    for number, plot in enumerate(plots):
        assert f'id="plot-{number}"' in whole_page
        assert plot.title in whole_page
        assert plot.x_label
        assert plot.y_label
        go.Figure(plot.figure(html_text))  # every attribute is one that Plotly has
        for trace in plot.traces:
            assert 0 < len(trace["x"]) == len(trace["y"]) <= MOST_POINTS + 1


def test_the_curve_of_dispersion_has_the_limit_of_the_check(
    whole_run: RunStore, whole_summary: Summary, make_run: MakeRun, plain: SyntheticRun
) -> None:
    (plot,) = (one for one in run_plots(whole_run, whole_summary) if one.title.startswith("Dispersion"))
    # 12 s hold ten windows of 0.1, 0.2, 0.5 and 1 s
    assert plot.x_ticks == ["0.1 s", "0.2 s", "0.5 s", "1 s"]
    assert [one["x"] for one in plot.traces] == [[0.0, 1.0, 2.0, 3.0]] * 3
    scale = known(whole_summary.stimulus)["burst"].dispersion[0]
    limits = [100 * one for one in (scale.change_ratio, scale.limit_ratio, -scale.limit_ratio)]
    assert [one["y"][0] for one in plot.traces] == limits
    burst = plain.manifest["phases"][1]
    burst["end_ns"] = burst["start_ns"] + S // 2
    store = make_run(plain)
    absent = [one.absent for one in run_plots(store, summarise(store))]
    assert "no measure phase holds ten windows with arrivals" in absent


def test_what_was_not_recorded_says_why_and_how_to_mend_it(
    make_run: MakeRun, synthetic: SyntheticRun
) -> None:
    synthetic.omit = {"batches", "triton_samples", "host_samples", "worker_samples"}
    synthetic.derived = False
    synthetic.manifest["collectors"]["host"] = {
        "status": "missing", "reason": "no /proc here", "mend": "run on Linux",
    }  # fmt: skip
    page = write_report(make_run(synthetic)).read_text(encoding="utf-8")
    assert "not recorded: no /proc here; run on Linux" in page
    assert "not derived yet" in page
    assert "do not quote these numbers" in page


def test_a_run_without_phases_still_has_a_report(phaseless_run: RunStore, phaseless_summary: Summary) -> None:
    page = write_report(phaseless_run, phaseless_summary).read_text(encoding="utf-8")
    assert "no measure phase" in page


ROWS = st.lists(st.tuples(st.integers(1, 10**9), st.booleans()), min_size=1, max_size=60)


@given(rows=ROWS)
def test_the_ccdf_is_the_share_of_rows_slower_at_every_distinct_value(rows: list[tuple[int, bool]]) -> None:
    values, failed = (np.array(column) for column in zip(*rows, strict=True))
    x, share = ccdf(values[~failed.astype(bool)], len(values))
    everything = np.where(failed, np.inf, values)
    expected = {
        value: (everything > value).mean()
        for value in everything
        if value < np.inf and (everything > value).any()
    }
    assert dict(zip(x.tolist(), share.tolist(), strict=True)) == pytest.approx(expected)


def test_a_long_ccdf_is_thinned_and_keeps_its_tail() -> None:
    values = np.arange(1, 1_000_001)
    x, share = ccdf(values, len(values))
    assert not any(map(len, ccdf(values[:0], 2)))  # of failures alone
    assert len(x) <= MOST_POINTS
    assert x[-1] == 999_999
    assert share[-1] == pytest.approx(1e-6)
    assert share == pytest.approx(1 - x / 1e6)


def drawn(sql: str, table: str, rows: dict[str, Any] | pa.Table, **given: int) -> list[Trace]:
    with over({table: pa.table(rows)}) as connection:
        return curves(connection, sql.format(begin="scheduled_ns"), **given)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 5 * S), st.integers(0, 10**9), st.booleans()), min_size=1, max_size=60
    )
)
def test_a_quantile_per_bin_is_that_of_the_bins_own_rows(rows: list[tuple[int, int, bool]]) -> None:
    requests = {
        "scheduled_ns": [at for at, _, _ in rows],
        "done_ns": [at + took for at, took, _ in rows],
        "outcome": ["timeout" if failed else "ok" for *_, failed in rows],
    }
    for percent, found in zip((50, 95), drawn(LATENCY, "requests", requests, origin=0, bin=S), strict=True):
        assert list(found["x"]) == sorted({at // S for at, _, _ in rows})
        for second, value_ms in zip(found["x"], found["y"], strict=True):
            own = sorted(np.inf if f else v for t, v, f in rows if t // S == second)
            expected = own[-(-percent * len(own) // 100) - 1]
            assert value_ms == (None if expected == np.inf else expected / 1e6)


def test_bins_grow_with_the_run_to_keep_the_points_few() -> None:
    for seconds in (1, 200, 201, 3_600, 86_400, 30 * 86_400):
        assert seconds * S // bin_ns_for(seconds * S) <= MOST_POINTS
    assert bin_ns_for(15 * S) == S // 10


def test_windows_binned_keep_their_sums_and_largest_depths(whole_run: RunStore) -> None:
    windows = whole_run.read("windows").sort_by("t_ns")
    arrivals, _, in_flight, _ = drawn(WINDOWS, "windows", windows, origin=START_NS, bin=S)
    counts, depths = (windows[name].to_pylist() for name in ("n_arrivals", "in_flight"))
    whole = [sum(counts[i : i + 10]) for i in range(0, len(counts) - 9, 10)]
    assert list(arrivals["y"][: len(whole)]) == whole
    assert list(in_flight["y"]) == [max(depths[i : i + 10]) for i in range(0, len(depths), 10)]
    assert list(arrivals["x"]) == list(range(15))
    full, cut = (
        drawn(WINDOWS, "windows", windows.slice(*ends), origin=START_NS, bin=S)[1]["y"]
        for ends in ((0, 50), (3, 46))
    )
    assert None not in full
    assert cut == (None, *full[1:-1], None), "seven tenths of a second would read as a fall"


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=20), st.integers(1, 20)
)
def test_the_most_in_flight_in_a_bin_is_that_of_a_brute_force(
    intervals: list[tuple[int, int]], bin_ns: int
) -> None:
    begin = np.array([at for at, _ in intervals], np.int64)
    end = begin + np.array([length for _, length in intervals], np.int64)
    requests = {"sent_ns": begin, "done_ns": end}
    (found,) = drawn(IN_FLIGHT, "requests", requests, origin=0, bin=bin_ns)
    counts = [int(((begin <= t) & (end > t)).sum()) for t in range(150 + bin_ns)]
    expected = [max(counts[first : first + bin_ns]) for first in range(0, 150, bin_ns)]
    first = int(begin.min()) // bin_ns
    assert list(found["y"]) == expected[first : first + len(found["y"])]
    assert not any(expected[first + len(found["y"]) :])
    assert found["x"][0] == first * bin_ns / S


def test_streams_have_their_figures_and_plots_and_other_runs_have_none(
    plain: SyntheticRun, make_run: MakeRun, whole_run: RunStore, whole_summary: Summary
) -> None:
    """Each request that ended has three responses, 0.5 and 0.6 ms apart, the last at its end."""
    assert not [one for one in run_plots(whole_run, whole_summary) if one.section == "streams"]
    requests = plain.tables["requests"]
    rows = [i for i, done in enumerate(requests["done_ns"]) if done is not None for _ in range(3)]
    index = [place % 3 for place in range(len(rows))]
    before_ns = (11 * MS // 10, 6 * MS // 10, 0)
    plain.tables["responses"] = {
        **{name: [requests[name][i] for i in rows] for name in ("phase", "node", "worker", "request_id", "target")},
        "index": index, "t_ns": [requests["done_ns"][i] - before_ns[at] for i, at in zip(rows, index, strict=True)],
        "response_bytes": [8] * len(rows), "tokens": [None] * len(rows), "is_final": [at == 2 for at in index],
    }  # fmt: skip
    store = make_run(plain)
    summary = summarise(store)
    slower, flying = (one for one in run_plots(store, summary) if one.section == "streams")
    first, gap = slower.traces
    assert set(zip(gap["x"], gap["y"], strict=True)) == {(0.5, 0.5)}
    assert len(first["x"]) > 100
    assert summary.measure.streams is not None
    assert (
        max(y for y in flying.traces[0]["y"] if y is not None) >= summary.measure.streams.streams_most_count
    )
    assert "<h2>Streams</h2>" in words_of(store)
