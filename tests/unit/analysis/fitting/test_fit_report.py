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

from squall.analysis.fitting import report as report_module
from squall.analysis.fitting.criteria import JUDGED, Figure, target_figures
from squall.analysis.fitting.fitted import Fitted, Parameter, arrivals_of
from squall.analysis.fitting.renewal import constant_of
from squall.analysis.fitting.report import FitReport, Ranked, fit_trace, ordered, rank
from squall.analysis.render.fit_screen import render_fit
from squall.analysis.traces.synthesis import synthesise_file, synthesise_fit
from squall.scenarios.errors import AnalysisError, ScenarioError
from squall.scenarios.traces.part import TracePart

S = 1_000_000_000
END_NS = 1200 * S
HAWKES = {"kind": "hawkes", "rate": "2/s", "n": 0.7, "beta": "0.5/s"}


@pytest.fixture(scope="module")
def report() -> FitReport:
    """Of 1,200 s of a Hawkes process at 2/s."""
    patch = pytest.MonkeyPatch()
    patch.setattr(report_module, "N_FINAL_SEEDS", 18)
    times = arrivals_of(HAWKES).draw(np.random.default_rng(6), END_NS)
    found = fit_trace(times, END_NS)
    patch.undo()
    return found


def screen(report: FitReport) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_fit(report))
    return console.export_text()


def test_the_process_that_made_a_trace_fits_it_and_poisson_does_not(report: FitReport) -> None:
    fitting = {one.fitted.name for one in report.ranked if one.fits}
    assert "hawkes" in fitting
    assert report.best.fits
    assert fitting.isdisjoint({"poisson", "gamma", "weibull", "pareto", "constant"})
    names = [one.fitted.name for one in report.ranked]
    assert len(set(names)) == len(names)
    assert report.ranked[names.index("poisson")].misses


def test_every_fit_can_be_drawn_from_its_own_scenario_section(report: FitReport) -> None:
    for one in report.ranked:
        drawn = one.fitted.arrivals.draw(np.random.default_rng(1), END_NS)
        # Counts of log-fGn and of Hawkes near n = 1 wander; all the same a draw is of the order of the trace.
        assert 0.3 < drawn.size / report.n < 3, one.fitted.name
        assert one.fitted.arrivals.expected_count(END_NS, END_NS) == pytest.approx(report.n, rel=1e-3)


def test_the_snippet_is_a_scenario_of_the_best_fit(report: FitReport) -> None:
    text = report.snippet()
    assert yaml.safe_load(text)["arrivals"] == dict(report.best.fitted.scenario)
    assert report.verdict() in " ".join(line.removeprefix("# ") for line in text.splitlines())
    assert max(map(len, text.splitlines())) <= 80


def test_the_report_is_json_with_every_criterion(report: FitReport) -> None:
    mapping = json.loads(json.dumps(report.to_mapping()))
    assert mapping["fits"] is True
    assert {figure["name"] for figure in mapping["figures"]} >= set(JUDGED)
    for process in mapping["processes"]:
        assert set(process["errors"]) == {"dispersion", "tail", "peak", "wait"}
        assert set(process["medians"]) == {figure["name"] for figure in mapping["figures"]}
        assert (process["aic_per_arrival"] is None) == (process["log_likelihood"] is None)


def test_the_screen_has_the_ranking_the_parameters_and_the_snippet(report: FitReport) -> None:
    text = screen(report)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text.split("note:")[0]
    assert report.verdict() in text
    assert "kind: " in text
    for one in report.ranked:
        assert one.fitted.name in text


def test_nothing_fits_batches_on_a_beat_and_the_report_says_what_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_module, "N_FINAL_SEEDS", 9)
    beat = np.repeat(np.arange(0, 600 * S, 3 * S), 5)
    found = fit_trace(beat, 600 * S, spread=False)
    assert not found.best.fits
    assert found.verdict().startswith("none fits: the nearest, ")
    assert all(one.misses for one in found.ranked)
    assert "!" in screen(found)
    assert "none fits" in found.snippet()
    assert found.to_mapping()["fits"] is False


def test_stamps_on_a_coarse_grid_are_spread_first_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    end_ns = 200 * S
    times = arrivals_of({"kind": "poisson", "rate": "5/s"}).draw(np.random.default_rng(1), end_ns)
    logged = times // S * S
    monkeypatch.setattr(report_module, "fit_all", lambda *_: [constant_of(5.0)])
    found = fit_trace(logged, end_ns)
    raw = fit_trace(logged, end_ns, spread=False)
    assert (found.spread_tick_ns, raw.spread_tick_ns) == (S, None)
    assert any("spread" in note for note in found.notes)
    assert not any("spread" in note for note in raw.notes)
    assert any("2 s.d." in note for note in raw.notes)
    assert any("to judge idc 100s" in note for note in raw.notes)
    idc = {
        name: {f.name: f.value for f in one.target}["idc 0.1s"] for name, one in (("s", found), ("r", raw))
    }
    # 5 ± √5 at once every 10 windows: the mean count is 0.5, its mean square (25 + 5)/10 = 3, IDC = 3/0.5 - 0.5 = 5.5
    assert idc["r"] > 4
    # independent again: 1 ± √(2/2000)
    assert abs(idc["s"] - 1) < 3 * (2 / 2000) ** 0.5


@pytest.mark.parametrize(
    ("stamps", "words"),
    [(np.arange(499), "499 arrivals are too few"), (np.full(600, 7), "all arrivals are at one instant")],
)
def test_what_cannot_be_fitted_is_refused(stamps: np.ndarray, words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        fit_trace(stamps)


POISSON = Fitted("poisson", (Parameter("rate", 5.0, None),), 1, {"kind": "poisson", "rate": "5/s"})


def fake(name: str, k: int, score: float, fits: bool) -> Ranked:
    fitted = Fitted(name, (Parameter("rate", 1.0, None),), k, {"kind": "poisson", "rate": "1/s"})
    return Ranked(fitted, {}, 9, score, {}, () if fits else ("idc 1s",), 0.0)


def test_the_simplest_of_those_that_fit_about_equally_well_comes_first() -> None:
    order = ordered(
        [
            fake("misses", 1, 0.01, False),
            fake("far", 1, 0.2, True),
            fake("near", 4, 0.065, True),
            fake("best", 60, 0.06, True),
        ]
    )
    assert [one.fitted.name for one in order] == ["near", "best", "far", "misses"]
    assert ordered([fake("a", 2, 0.5, False), fake("b", 9, 0.4, False)])[0].fitted.name == "b"


def test_a_fit_that_failed_never_fits_comes_last_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = replace(fake("failed", 1, 0.0, True), fitted=replace(POISSON, failure="it stopped"))
    assert not failed.fits
    assert [one.fitted.name for one in ordered([failed, fake("misses", 1, 0.5, False)])] == [
        "misses",
        "poisson",
    ]
    end_ns = 200 * S
    times = POISSON.arrivals.draw(np.random.default_rng(1), end_ns)
    broken = replace(POISSON, name="broken", failure="the search stopped after 7 steps")
    monkeypatch.setattr(report_module, "fit_all", lambda *_: [broken, constant_of(5.0)])
    found = fit_trace(times, end_ns)
    assert [one.fitted.name for one in found.ranked] == ["constant", "broken"]
    shown = " ".join(screen(found).split())
    assert "broken failed" in shown
    assert "what follows is no model of this trace, only the nearest that was found:" in shown
    assert "note: the fit of broken failed: the search stopped after 7 steps; its row is no estimate" in shown
    assert [one["failure"] for one in found.to_mapping()["processes"]] == [None, broken.failure]
    monkeypatch.setattr(report_module, "fit_all", lambda *_: [broken])
    only = fit_trace(times, end_ns)
    assert only.verdict() == "every fit failed: of broken, the search stopped after 7 steps"


def test_a_model_that_fits_is_shown_without_a_warning(report: FitReport) -> None:
    assert "no model of this trace" not in screen(report)


def test_a_figure_holds_inside_its_band_only() -> None:
    figure = Figure("idc 1s", "dispersion", 2.0, 1.8, 2.2)
    assert figure.holds(1.9)
    assert not figure.holds(2.3)
    assert Figure("idc 1s", "dispersion", 2.0).holds(9.0) is None
    assert figure.log_ratio(2.0) == 0
    constant = Figure("wait 50%", "wait", 0.0, 0.0, 0.0)
    assert constant.holds(0.05)
    assert not constant.holds(0.3)


def test_a_process_is_judged_by_each_nine_draws_in_turn() -> None:
    """An IDC band as wide as the spread of medians of nine holds once and fails in one of many nines."""
    fitted = Fitted("poisson", (), 1, {"kind": "poisson", "rate": "5/s"})
    end_ns = 200 * S
    times = fitted.arrivals.draw(np.random.default_rng(1), end_ns)
    loose = target_figures(times, end_ns)
    # One IDC over 200 windows has error √(2/200) = 0.1, a median of nine 1.25·0.1/3 = 0.04: a band of 1 ± 0.04
    tight = [Figure("idc 1s", "dispersion", 1.0, 0.96, 1.04)]
    assert rank(fitted, loose, end_ns, 1, 9).n_seeds == 9
    found = [rank(fitted, tight, end_ns, seed, 9).misses for seed in range(9)]
    assert 0 < sum(bool(misses) for misses in found) < 9
    assert rank(fitted, tight, end_ns, 1, 81).misses == ("idc 1s",)
    assert not rank(fitted, tight, end_ns, 1, 8).fits


def test_a_longer_and_faster_trace_is_drawn_from_a_fit_with_whole_rows_of_the_old(report: FitReport) -> None:
    old = TracePart(
        np.arange(100), {"in": np.arange(100), "out": 2 * np.arange(100)}, np.zeros(100, np.int64)
    )
    (poisson,) = (one.fitted for one in report.ranked if one.fitted.name == "poisson")
    new = synthesise_fit(poisson, report.end_ns, old, "2000s", "10/s", seed=4)
    # Poisson: 20,000 ± √20,000
    assert abs(len(new) - 20_000) < 3 * 20_000**0.5
    assert (new.sizes["out"] == 2 * new.sizes["in"]).all()
    assert np.unique(new.sizes["in"]).size == 100
    # blocks of 64: a row follows its neighbour but at 1 of 64 joints
    follows = np.diff(new.sizes["in"]) % 100 == 1
    assert follows.mean() > 0.97
    assert new.session is None
    again = synthesise_fit(poisson, report.end_ns, old, "2000s", "10/s", seed=4)
    assert (again.stamp_ns == new.stamp_ns).all()
    same_length = synthesise_fit(report.best.fitted, report.end_ns, old)
    assert same_length.stamp_ns.max() < END_NS


def test_a_snippet_makes_a_trace(report: FitReport, tmp_path: Path) -> None:
    path = tmp_path / "fit.yaml"
    path.write_text(report.snippet())
    part = synthesise_file(path, "600s", "4/s", seed=1)
    assert 0.5 < len(part) / 2400 < 2
    assert dict(part.sizes) == {}


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
    end_ns = 60 * S
    times = arrivals_of({"kind": "poisson", "rate": "20/s"}).draw(np.random.default_rng(seed), end_ns)
    assert fit_trace(times).best.fitted.name == "poisson"
