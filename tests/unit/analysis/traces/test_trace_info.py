"""The description of a trace: known processes, and the public traces where they are at hand."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from rich.console import Console

from squall.analysis.report.trace_screen import WIDTH, render_trace
from squall.analysis.traces.info import describe_sizes, trace_summary
from squall.analysis.traces.notes import size_notes
from squall.scenarios.errors import AnalysisError

TRACES = Path(__file__).resolve().parents[4].parent / "shared" / "traces"
PUBLISHED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("public_traces.yaml").read_text())
SERIES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("series.yaml").read_text())
S = 1_000_000_000
Int64s = NDArray[np.int64]
Columns = tuple[Int64s, dict[str, Int64s], Int64s | None]


def poisson(n: int, span_s: int, seed: int = 1) -> Int64s:
    return np.sort(np.random.default_rng(seed).integers(0, span_s * S, n))


def screen(summary: Mapping[str, Any], name: str = "") -> str:
    file = io.StringIO()
    Console(width=WIDTH, file=file, color_system=None).print(render_trace(summary, name))
    return file.getvalue()


def test_poisson_arrivals_have_no_burst_no_memory_and_no_tail() -> None:
    n, span = 100_000, 10_000
    info = trace_summary(poisson(n, span))
    figures = info["as_is"]
    assert (info["n"], info["spread"], info["sessions"], info["stamps"]["tick_ns"]) == (n, None, None, None)
    # c² of n exponential gaps: variance 4/n; a dispersion of m windows: 2/m, the ten grids only narrow it;
    # correlations: 1/n, of 10,000 counts 1/m; Hill: its own standard error, about the law's 1/ln-mean of 3.86
    assert figures["gap_c2_ratio"] == pytest.approx(1, abs=4 * math.sqrt(4 / n))
    for one in figures["dispersion"][:5]:
        assert one["idc_ratio"] == pytest.approx(1, abs=4 * math.sqrt(2 / one["n_windows"]))
    for name in ("gap_autocorrelation", "gap_rank_correlation"):
        assert figures[name] == pytest.approx(0, abs=4 / math.sqrt(n))
    for value in figures["count_autocorrelation"].values():
        assert value == pytest.approx(0, abs=4 / math.sqrt(span))
    tail = figures["gap_tails"][0]
    assert tail["index"] == pytest.approx(exponential_hill(0.05), abs=4 * tail["stderr"])


def exponential_hill(share: float) -> float:
    """1/E[ln(X/u) | X > u] of the exponential law, u = -ln share, by quadrature."""
    u = -math.log(share)
    excess = np.linspace(0, 60, 600_001)
    values = np.log1p(excess / u) * np.exp(-excess)
    return 1 / float(((values[1:] + values[:-1]) / 2).sum() * (excess[1] - excess[0]))


def test_stamps_on_whole_seconds_are_described_as_they_are_and_spread() -> None:
    stamps = poisson(30_000, 3_600) // S * S
    info = trace_summary(stamps)
    assert info["stamps"]["tick_ns"] == trace_summary(stamps + 3, tick_ns=float(S))["stamps"]["tick_ns"] == S
    assert info["as_is"]["gap_c2_ratio"] > 5  # batches of 8.3
    assert info["spread"]["gap_c2_ratio"] == pytest.approx(1, abs=4 * math.sqrt(4 / 30_000))
    assert info["as_is"]["gap_tails"] == []
    assert any("quantum: spread" in note for note in info["notes"])


def test_the_busiest_window_is_where_the_burst_is() -> None:
    times = np.sort(np.concatenate([poisson(6_000, 6_000), 3_000 * S + poisson(500, 10)]))
    peaks = {peak["window_ns"]: peak for peak in trace_summary(times)["as_is"]["peaks"]}
    ten = peaks[10 * S]
    assert abs(ten["start_ns"] - 3_000 * S) <= 10 * S
    assert ten["peak_to_mean_ratio"] == pytest.approx(ten["count"] / (6_500 / 600), rel=0.01)


def holds(found: Any, expected: Any) -> bool:
    """Whether the keys and items that are expected are there; numbers to 1e-9."""
    if isinstance(expected, dict):
        return all(holds(found[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(holds, found, expected))
    return found is not None if expected == "known" else bool(found == pytest.approx(expected, abs=1e-9))


@pytest.mark.parametrize("case", SERIES, ids=lambda case: case["case"])
def test_a_series_is_described_or_refused_with_the_row(case: dict[str, Any]) -> None:
    sizes = {name: np.array(values) for name, values in case.get("sizes", {}).items()}
    session = np.array(case["session"]) if "session" in case else None
    if "error" in case:
        with pytest.raises(AnalysisError, match=re.escape(case["error"])):
            trace_summary(np.array(case["stamps"]), sizes, session)
        return
    summary = trace_summary(np.array(case["stamps"]), sizes, session)
    assert holds(summary, case["holds"]), summary
    assert screen(summary).startswith(f"{len(case['stamps'])} arrivals in ")


def test_a_column_that_was_cut_off_has_no_tail_index_and_says_so() -> None:
    values = np.rint(100 * np.random.default_rng(3).random(20_000) ** (-1 / 1.5)).astype(np.int64)
    whole, cut = describe_sizes(values), describe_sizes(np.minimum(values, 3_000))
    assert whole["cap"] is None
    assert all(tail["index"] is not None for tail in whole["tails"])
    n_most = int((values >= 3_000).sum())
    assert cut["cap"] == (3_000.0, n_most)
    assert [tail["index"] for tail in cut["tails"]] == [None, None]
    (note,) = size_notes("tokens", cut)
    assert f"tokens is cut off at 3,000, which {n_most} arrivals have" in note


def test_notes_say_what_makes_the_bursts() -> None:
    rng = np.random.default_rng(2)
    pieces = [rng.integers(k * 600 * S, (k + 1) * 600 * S, n) for k, n in enumerate((100, 2_000, 100, 2_000))]
    pareto = (100 * rng.random(4_200) ** (-1 / 1.2)).astype(np.int64)
    notes = " ".join(trace_summary(np.sort(np.concatenate(pieces)), {"bytes": pareto})["notes"])
    assert "the rate's drift makes it" in notes
    found = re.search(r"bytes has a tail of index (\S+): its variance grows", notes)
    assert found is not None
    # Hill's standard error, k = 210
    assert float(found[1]) == pytest.approx(1.2, abs=3 * 1.2 / math.sqrt(210))
    assert "the rate's drift" not in " ".join(trace_summary(poisson(5_000, 2_400))["notes"])


def test_the_summary_is_plain_json_and_the_screen_fits_80_columns() -> None:
    rng = np.random.default_rng(3)
    stamps = 1_700_000_000 * S + poisson(20_000, 7_200) // S * S
    names = {"a_name_of_a_column_beyond_reason": 10**9, "b": 9}
    sizes = {name: rng.integers(0, most, 20_000) for name, most in names.items()}
    summary = trace_summary(stamps, sizes, rng.integers(0, 500, 20_000))
    assert json.loads(json.dumps(summary, allow_nan=False))["n"] == 20_000
    lines = screen(summary, "trace.csv").splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert not [line for line in lines if "…" in line and "a_name" not in line and " … " not in line]


def trace_file(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"needs the public trace {name} in ../shared/traces")
    return path


def read_rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(trace_file(name), "rt") as file:
        return list(map(json.loads, file)) if ".jsonl" in name else list(csv.DictReader(file))


def columns(rows: list[dict[str, Any]], *names: str) -> dict[str, Int64s]:
    return {name: np.array([int(row[name]) for row in rows], dtype=np.int64) for name in names}


def azure() -> Columns:
    rows = read_rows("azure_llm_conv_2023.csv.gz")
    moments = [row["TIMESTAMP"].replace(" ", "T") + "00" for row in rows]
    stamps = np.array(moments, dtype="datetime64[ns]").astype(np.int64)
    return stamps, columns(rows, "ContextTokens", "GeneratedTokens"), None


def mooncake() -> Columns:
    rows = read_rows("mooncake_conversation_fast25.jsonl.gz")
    stamps = columns(rows, "timestamp")["timestamp"] * 1_000_000
    return stamps, columns(rows, "input_length", "output_length"), None


def nasa_august() -> Columns:
    stamps, sizes, clients = columns(
        read_rows("nasa_http_1995-08-01.csv.gz"), "unix_time", "bytes", "client_id"
    ).values()
    return stamps * S, {"bytes": sizes}, clients


def nasa_july() -> Columns:
    seconds, counts = columns(read_rows("nasa_http_1995-07-13_counts.csv.gz"), "second", "count").values()
    return np.repeat(seconds * S, counts), {}, None


def assert_agrees(found: float | None, written: str | None, within: float = 0) -> None:
    """`found` rounds to what is written, give or take one in its last digit, or lies `within` of it."""
    if written is None or found is None:
        assert (found, written) == (None, None)
        return
    last_digit = 10.0 ** -len(written.partition(".")[2])
    assert found == pytest.approx(float(written), abs=within or 1.001 * last_digit)


def check_series(figures: Mapping[str, Any], published: Mapping[str, Any]) -> None:
    found = {
        "rate": [figures["rate_hz"]], "c2": [figures["gap_c2_ratio"]], "local": [figures["local_c2_ratio"]],
        "r1": [figures["gap_autocorrelation"]], "rs": [figures["gap_rank_correlation"]],
        "safe": [figures["safe_load_ratio"]], "wait": figures["gd1_wait_p99"].values(),
        "idc": [one["idc_ratio"] for one in figures["dispersion"][2:]],
        "peaks": [one["peak_to_mean_ratio"] for one in figures["peaks"]],
        "hill": [one["index"] for one in figures["gap_tails"]],
        "hurst": [figures[f"hurst_{how}"] for how in ("variance_time", "variance_time_from_10", "haar")],
    }  # fmt: skip
    # the lengths of the published slopes' blocks are not stated: 0.02; wavelets have no such choice
    within = {"hurst": (0.02, 0.021, 0.01)}
    for name, written in published.items():
        for one, text, near in zip(found[name], written, within.get(name, [0] * len(written)), strict=True):
            assert_agrees(one, text, near)


@pytest.mark.parametrize("read", [azure, mooncake, nasa_august, nasa_july])
def test_the_public_traces_have_their_published_figures(read: Any) -> None:
    published = PUBLISHED[read.__name__]
    summary = trace_summary(*read())
    check_series(summary["spread"] or summary["as_is"], published["figures"])
    check_series(summary["as_is"], published.get("as_logged", {}))
    for name, one in summary["sizes"].items():
        mean, c2, p99, largest, *tails = published["sizes"][name]
        assert_agrees(one["mean"], mean)
        assert_agrees(one["c2_ratio"], c2)
        assert one["p99"] == pytest.approx(p99, rel=0.005)  # nearest rank here, interpolated there
        assert one["max"] == largest
        for tail, written in zip(one["tails"], tails, strict=True):
            assert_agrees(tail["index"], written)
    if "n_sessions" in published:
        assert summary["sessions"]["n"] == published["n_sessions"]


def test_the_tick_of_the_mooncake_trace_is_found() -> None:
    stamps = trace_summary(mooncake()[0])["stamps"]
    assert stamps["is_jittered"]
    assert stamps["tick_ns"] == pytest.approx(3 * S, rel=1e-6)
    assert_agrees(stamps["per_tick_count"], "10.2")


@pytest.mark.slow
def test_a_description_holds_at_most_two_more_arrays_of_the_length_of_the_series() -> None:
    import tracemalloc

    times = poisson(10_000_000, 3_600)
    tracemalloc.start()
    try:
        assert trace_summary(times)["n"] == 10_000_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * times.nbytes
