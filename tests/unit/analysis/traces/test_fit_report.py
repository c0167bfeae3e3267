"""Ranking: what is drawn is compared with what was seen, and said plainly."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console

from squall.analysis.report.fit_screen import render_fit
from squall.analysis.traces import fit_report as report_module
from squall.analysis.traces.criteria import JUDGED, Figure, target_figures
from squall.analysis.traces.fit_report import FitReport, Ranked, fit_trace, ordered, rank
from squall.analysis.traces.fitted import Fitted, Parameter, arrivals_of
from squall.analysis.traces.renewal import constant_of
from squall.analysis.traces.synthesis import synthesise_file, synthesise_fit
from squall.scenarios.errors import AnalysisError, ScenarioError
from squall.scenarios.traces.part import TracePart

S = 1_000_000_000
END_NS = 1200 * S
POISSON = Fitted("poisson", (Parameter("rate", 5.0, None),), 1, {"kind": "poisson", "rate": "5/s"})


@pytest.fixture(scope="module")
def report() -> FitReport:
    """Of 1,200 s of a Hawkes process at 2/s."""
    hawkes = {"kind": "hawkes", "rate": "2/s", "n": 0.7, "beta": "0.5/s"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_module, "N_FINAL_SEEDS", 18)
        return fit_trace(arrivals_of(hawkes).draw(np.random.default_rng(6), END_NS), END_NS)


def screen(report: FitReport) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_fit(report))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    return text


def poisson_times(rate: str, seconds: int, seed: int = 1) -> np.ndarray:
    return arrivals_of({"kind": "poisson", "rate": rate}).draw(np.random.default_rng(seed), seconds * S)


def test_the_process_that_made_a_trace_fits_it_and_poisson_does_not(report: FitReport) -> None:
    fitting = {one.fitted.name for one in report.ranked if one.fits}
    assert report.best.fits
    assert "hawkes" in fitting
    assert fitting.isdisjoint({"poisson", "gamma", "weibull", "pareto", "constant"})
    by_name = {one.fitted.name: one for one in report.ranked}
    assert len(by_name) == len(report.ranked)
    assert by_name["poisson"].misses
    for one in report.ranked:
        drawn = one.fitted.arrivals.draw(np.random.default_rng(1), END_NS)
        # Counts of log-fGn and of Hawkes near n = 1 wander; all the same a draw is of the order of the trace.
        assert 0.3 < drawn.size / report.n < 3, one.fitted.name
        assert one.fitted.arrivals.expected_count(END_NS, END_NS) == pytest.approx(report.n, rel=1e-3)


def test_the_snippet_is_a_scenario_of_the_best_fit_that_makes_a_trace(
    report: FitReport, tmp_path: Path
) -> None:
    text = report.snippet()
    assert yaml.safe_load(text)["arrivals"] == dict(report.best.fitted.scenario)
    assert report.verdict() in " ".join(line.removeprefix("# ") for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 80
    path = tmp_path / "fit.yaml"
    path.write_text(text)
    part = synthesise_file(path, "600s", "4/s", seed=1)
    assert 0.5 < len(part) / 2400 < 2
    assert dict(part.sizes) == {}


def test_the_report_is_json_with_every_criterion_and_a_screen_with_every_process(report: FitReport) -> None:
    mapping = json.loads(json.dumps(report.to_mapping()))
    names = {figure["name"] for figure in mapping["figures"]}
    assert mapping["fits"] is True
    assert names >= set(JUDGED)
    for process in mapping["processes"]:
        assert set(process["errors"]) == {"dispersion", "tail", "peak", "wait"}
        assert set(process["medians"]) == names
        assert (process["aic_per_arrival"] is None) == (process["log_likelihood"] is None)
    text = screen(report)
    assert "…" not in text.split("note:")[0]
    assert "no model of this trace" not in text
    for words in (report.verdict(), "kind: ", *(one.fitted.name for one in report.ranked)):
        assert words in text


def test_nothing_fits_batches_on_a_beat_and_the_report_says_what_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_module, "N_FINAL_SEEDS", 9)
    found = fit_trace(np.repeat(np.arange(0, 600 * S, 3 * S), 5), 600 * S, spread=False)
    assert (found.best.fits, found.to_mapping()["fits"]) == (False, False)
    assert all(one.misses for one in found.ranked)
    assert found.verdict().startswith("none fits: the nearest, ")
    assert "none fits" in found.snippet()
    assert "!" in screen(found)


def test_stamps_on_a_coarse_grid_are_spread_first_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = poisson_times("5/s", 200) // S * S
    monkeypatch.setattr(report_module, "fit_all", lambda *_: [constant_of(5.0)])
    spread, raw = (fit_trace(logged, 200 * S, spread=is_spread) for is_spread in (True, False))
    assert (spread.spread_tick_ns, raw.spread_tick_ns) == (S, None)
    assert [any("spread" in note for note in one.notes) for one in (spread, raw)] == [True, False]
    assert all(any(words in note for note in raw.notes) for words in ("2 s.d.", "to judge idc 100s"))
    idc, raw_idc = ({f.name: f.value for f in one.target}["idc 0.1s"] for one in (spread, raw))
    # 5 ± √5 at once every 10 windows: the mean count is 0.5, its mean square (25 + 5)/10 = 3, IDC = 3/0.5 - 0.5 = 5.5
    assert raw_idc > 4
    # independent again: 1 ± √(2/2000)
    assert abs(idc - 1) < 3 * (2 / 2000) ** 0.5


@pytest.mark.parametrize(
    ("stamps", "words"),
    [(np.arange(499), "499 arrivals are too few"), (np.full(600, 7), "all arrivals are at one instant")],
)
def test_what_cannot_be_fitted_is_refused(stamps: np.ndarray, words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        fit_trace(stamps)


def fake(name: str, k: int, score: float, fits: bool, failure: str = "") -> Ranked:
    fitted = replace(POISSON, name=name, n_parameters=k, failure=failure)
    return Ranked(fitted, {}, 9, score, {}, () if fits else ("idc 1s",), 0.0)


@pytest.mark.parametrize(
    "expected",
    [
        # the simplest of those that fit about equally well, then by score, then what misses, then what failed
        [fake("near", 4, 0.065, True), fake("best", 60, 0.06, True), fake("far", 1, 0.2, True),
         fake("misses", 1, 0.01, False), fake("failed", 1, 0.0, True, "it stopped")],
        [fake("b", 9, 0.4, False), fake("a", 2, 0.5, False)],
    ],
)  # fmt: skip
def test_the_simplest_of_those_that_fit_about_equally_well_comes_first(expected: list[Ranked]) -> None:
    found = ordered(expected[::-1])
    assert [one.fitted.name for one in found] == [one.fitted.name for one in expected]
    assert [one.fits for one in found] == [not one.misses and not one.fitted.failure for one in found]


def test_a_fit_that_failed_says_so_and_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    times = poisson_times("5/s", 200)
    broken = replace(POISSON, name="broken", failure="the search stopped after 7 steps")
    monkeypatch.setattr(report_module, "fit_all", lambda *_: [broken, constant_of(5.0)])
    found = fit_trace(times, 200 * S)
    assert [one["failure"] for one in found.to_mapping()["processes"]] == [None, broken.failure]
    shown = " ".join(screen(found).split())
    for words in (
        "broken failed",
        "what follows is no model of this trace, only the nearest that was found:",
        "note: the fit of broken failed: the search stopped after 7 steps; its row is no estimate",
    ):
        assert words in shown
    monkeypatch.setattr(report_module, "fit_all", lambda *_: [broken])
    assert (
        fit_trace(times, 200 * S).verdict() == "every fit failed: of broken, the search stopped after 7 steps"
    )


@pytest.mark.parametrize(
    ("figure", "value", "holds"),
    [
        (Figure("idc 1s", "dispersion", 2.0, 1.8, 2.2), 1.9, True),
        (Figure("idc 1s", "dispersion", 2.0, 1.8, 2.2), 2.3, False),
        (Figure("idc 1s", "dispersion", 2.0), 9.0, None),
        (Figure("wait 50%", "wait", 0.0, 0.0, 0.0), 0.05, True),
        (Figure("wait 50%", "wait", 0.0, 0.0, 0.0), 0.3, False),
    ],
)
def test_a_figure_holds_inside_its_band_only(figure: Figure, value: float, holds: bool | None) -> None:
    assert figure.holds(value) is holds
    assert figure.log_ratio(figure.value) == 0


def test_a_process_is_judged_by_each_nine_draws_in_turn() -> None:
    """An IDC band as wide as the spread of medians of nine holds once and fails in one of many nines."""
    end_ns = 200 * S
    loose = target_figures(poisson_times("5/s", 200), end_ns)
    # One IDC over 200 windows has error √(2/200) = 0.1, a median of nine 1.25·0.1/3 = 0.04: a band of 1 ± 0.04
    tight = [Figure("idc 1s", "dispersion", 1.0, 0.96, 1.04)]
    assert rank(POISSON, loose, end_ns, 1, 9).n_seeds == 9
    found = [rank(POISSON, tight, end_ns, seed, 9).misses for seed in range(9)]
    assert 0 < sum(bool(misses) for misses in found) < 9
    assert rank(POISSON, tight, end_ns, 1, 81).misses == ("idc 1s",)
    assert not rank(POISSON, tight, end_ns, 1, 8).fits


def test_a_longer_and_faster_trace_is_drawn_from_a_fit_with_whole_rows_of_the_old() -> None:
    of = np.arange(100)
    old = TracePart(of, {"in": of, "out": 2 * of}, np.zeros(100, np.int64))
    new, again = (synthesise_fit(POISSON, END_NS, old, "2000s", "10/s", seed=4) for _ in range(2))
    # Poisson: 20,000 ± √20,000
    assert abs(len(new) - 20_000) < 3 * 20_000**0.5
    assert (new.sizes["out"] == 2 * new.sizes["in"]).all()
    assert np.unique(new.sizes["in"]).size == 100
    # blocks of 64: a row follows its neighbour but at 1 of 64 joints
    assert (np.diff(new.sizes["in"]) % 100 == 1).mean() > 0.97
    assert new.session is None
    assert (again.stamp_ns == new.stamp_ns).all()
    assert 0.9 * END_NS < synthesise_fit(POISSON, END_NS, old).stamp_ns.max() < END_NS


@pytest.mark.parametrize(
    ("text", "duration", "rate", "words"),
    [
        ("arrivals: {kind: poisson, rate: 5/s}", None, None, "add --duration"),
        ("arrivals: {kind: poisson, rate: 5/s}", "5 parsecs", None, "--duration 5 parsecs"),
        ("arrivals: {kind: poisson, rate: 5/s}", "0s", None, "must be above 0"),
        ("arrivals: {kind: poisson, rate: 5/s}", "1s", "5", "--rate 5"),
        ("arrivals: {kind: superpose, parts: []}", "1s", "5/s", "have no rate of their own"),
        ("arrivals: {kind: gamma, rate: 5/s}", "1s", None, "fit.yaml: arrivals"),
        ("phases: []", "1s", None, "has no mapping `arrivals`"),
    ],
)
def test_a_wrong_snippet_is_one_clear_error(
    tmp_path: Path, text: str, duration: str | None, rate: str | None, words: str
) -> None:
    path = tmp_path / "fit.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as error:
        synthesise_file(path, duration, rate)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 4))])
def test_a_minute_of_poisson_is_poisson(seed: int) -> None:
    """Its dispersion may lie outside its own bootstrap band, which is too narrow for 60 windows: 1.1 s.d. at seed 1."""
    assert fit_trace(poisson_times("20/s", 60, seed)).best.fitted.name == "poisson"
