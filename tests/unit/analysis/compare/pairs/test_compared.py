"""Which runs make pairs, what is refused, marked and left out, and what all of it is called."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.analysis.compare.pairs.compared import Comparison, evaluate
from squall.analysis.compare.pairs.page import compare_page
from squall.analysis.compare.pairs.pairing import pair_runs, refuse_incomparable
from squall.analysis.compare.pairs.shift import shift
from squall.analysis.compare.pairs.words import answer, lines, markdown
from squall.analysis.compare.run_figures import Reading
from squall.analysis.compare.run_row import FAILURES, Answers, RunRow, load_digest, read_row
from squall.analysis.render.decision_page import page_html
from squall.analysis.tables.manifest import DataFacts, Manifest
from squall.analysis.tables.sealed import Verdict
from squall.scenarios.errors import ScenarioError
from tests.compared_runs import Shape, pairs_of, side_run
from tests.overhead_runs import LENGTH_NS, START_NS, table, write_run

EASY = Shape(0.5)
Runs = tuple[list[RunRow], list[RunRow]]


@pytest.fixture(scope="module")
def slower() -> Runs:
    return pairs_of(EASY, 1, slower=1.10, n=1_000)


@pytest.fixture(scope="module")
def alike() -> Runs:
    """The same, so that nothing differs but what a test changes."""
    a, _ = pairs_of(EASY, 2, n=1_000)
    return a, [replace(run, name=run.name.replace("a", "b"), started_ns=17 - run.started_ns) for run in a]


def compared(runs: Runs, **options: Any) -> Comparison:
    return evaluate("A", "B", pair_runs(*runs), **options)


def changed(runs: list[RunRow], **values: Any) -> list[RunRow]:
    return [replace(run, **values) for run in runs]


def failing(run: RunRow, ratio: float) -> RunRow:
    return replace(run, figures={**run.figures, FAILURES: Reading(ratio)})


def test_slower_is_worse_and_the_other_way_round_better(slower: Runs) -> None:
    a, b = slower
    assert compared((a, b)).verdict == "worse"
    assert answer(compared((a, b))).startswith("B is worse than A: p50 of the response time +")
    assert compared((b, a)).verdict == "better"


def test_a_difference_within_a_wide_margin_is_no_regression(slower: Runs) -> None:
    found = compared(slower, margin_ratio=0.9)
    assert found.change_of("p50_ns").verdict == "different"
    assert found.verdict == "same"


def test_alike_is_the_same_and_failures_of_none_are_exact(alike: Runs) -> None:
    found = compared(alike)
    assert found.verdict == "same"
    assert found.change_of(FAILURES).reason == "no request failed on either side"
    assert found.change_of(FAILURES).p_holm is None
    assert [one.verdict for one in found.changes if not one.is_primary] == ["", "", ""]


def test_more_failures_are_worse_whatever_the_latency_of_the_others(alike: Runs) -> None:
    a, b = alike
    found = compared((a, [failing(run, 0.02 + 0.001 * place) for place, run in enumerate(b)]))
    assert found.verdict == "worse"
    assert "failures +2.35 %" in answer(found)


def test_an_infinite_p95_is_not_dropped_and_makes_b_worse(alike: Runs) -> None:
    a, b = alike
    lost = Reading(None, "it falls on failures", True)
    found = compared((a, [replace(run, figures={**run.figures, "p95_ns": lost}) for run in b]))
    p95 = found.change_of("p95_ns")
    assert (p95.n_pairs, p95.n_infinite_b, p95.high, p95.direction) == (8, 8, None, "worse")
    assert "from finite to infinite" in answer(found)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["verdict"] == "worse"


def test_a_figure_that_a_run_lacks_is_undecided_with_the_reason(alike: Runs) -> None:
    a, b = alike
    few = Reading(None, "p95 takes 72 requests")
    found = compared(([replace(run, figures={**run.figures, "p95_ns": few}) for run in a], b))
    assert (found.verdict, found.change_of("p95_ns").reason) == ("undecided", "p95 takes 72 requests")


def test_undecided_says_how_many_more_pairs() -> None:
    found = compared(pairs_of(Shape(0.8), 3, n_pairs=3, n=500))
    assert found.verdict == "undecided"
    assert re.search(r"p95 .*, \d+ more pairs needed", answer(found))


def test_better_is_not_said_of_what_answers_otherwise(slower: Runs) -> None:
    b, a = slower
    one, other = (Answers(sha256=text, n_checked=10, n_wrong=0) for text in ("x", "y"))
    assert compared((changed(a, answers=one), changed(b, answers=one))).verdict == "better"
    found = compared((changed(a, answers=one), changed(b, answers=other)))
    assert (found.verdict, found.answers.is_same_sizes) == ("undecided", False)
    assert answer(found).endswith("but B answers otherwise")


@pytest.mark.parametrize(("n_bad", "verdict"), [(1, "worse"), (2, "invalid"), (7, "invalid")])
def test_an_invalid_run_is_visible_and_more_than_a_fifth_outrank(
    slower: Runs, n_bad: int, verdict: str
) -> None:
    a, b = slower
    bad = [replace(run, status="INVALID", reasons=("the client was full",)) for run in b[:n_bad]]
    found = compared((a, [*bad, *b[n_bad:]]))
    assert (found.verdict, found.n_pairs, found.n_pairs_planned) == (verdict, 8 - n_bad, 8)
    told = "\n".join(lines(found)) + markdown(found)
    assert told.count("the client was full") == 2 * n_bad
    assert (
        f"{n_bad} of 8 pairs left out, with a run that is not VALID or ended early: 0 of A, {n_bad} of B"
        in told
    )


def test_of_three_pairs_none_may_be_left_out(slower: Runs) -> None:
    a, b = slower
    found = compared((a[:3], [*b[:2], replace(b[2], status="INVALID")]))
    assert found.verdict == "invalid"


def test_a_run_that_ended_early_is_left_out_and_told(slower: Runs) -> None:
    a, b = slower
    early = [replace(run, ended_early=True) for run in b]
    found = compared((a, [early[0], *b[1:]]))
    assert (found.verdict, found.n_pairs) == ("worse", 7)
    assert found.pairs[0].left_out == "b0: ended early, once its promises were decided"
    assert compared((a, early)).verdict == "invalid"


def test_an_invalid_run_that_was_run_again_is_told_and_does_not_count(slower: Runs) -> None:
    a, b = slower
    bad = replace(b[3], name="bad", status="INVALID", started_ns=0)
    found = compared((a, [*b, bad]))
    assert (found.verdict, found.n_pairs, found.replaced) == ("worse", 8, ("bad: INVALID",))


def test_runs_that_were_cut_short_or_have_no_partner_are_named(slower: Runs) -> None:
    a, b = slower
    found = compared((a, [*b[:-1], replace(b[-1], status="ABORTED")]))
    assert (found.verdict, found.n_pairs) == ("worse", 7)
    assert set(found.unpaired) == {"a7", "b7: ABORTED"}


def test_one_server_and_two_make_pairs_by_their_load() -> None:
    a, b = pairs_of(EASY, 4, n=500)
    a = [replace(run, load=f"load {run.seed}") for run in a]
    b = [replace(run, load=f"load {run.seed}", schedule=f"routed {run.seed}") for run in b]
    assert [(one.a.seed, one.b.seed) for one in pair_runs(a, b).pairs] == [(run.seed, run.seed) for run in a]


def refused(a: list[RunRow], b: list[RunRow]) -> str:
    with pytest.raises(ScenarioError) as caught:
        refuse_incomparable(pair_runs(a, b), a, b)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_what_cannot_be_compared_is_refused_in_one_line(slower: Runs) -> None:
    a, b = slower
    assert "one pair of runs" in refused(a[:1], b[:1])
    assert "seeds 1000 against 5" in refused(a[:1], changed(b[:1], schedule="x", seed=5))
    rates = [{"seed": 1, "phases": [{"name": "burst", "rate": rate}]} for rate in ("1/s", "2/s")]
    one, other = changed(a, scenario=rates[0]), changed(b, scenario=rates[1], schedule="x")
    assert "they differ in phases.burst.rate" in refused(one, other)
    assert "closed loop" in refused(a, changed(b, schedule="x", is_open=False))
    assert "profiled by nsys" in refused(a, changed(b, collectors_on=("nsys",)))
    assert "different shapes" in refused(
        changed(a, request_bytes_per_row=4_400.0), changed(b, request_bytes_per_row=800.0)
    )
    assert "B has no run" in refused(a, [])
    unread = replace(b[0], schedule="", status="", problem="cannot be read: no manifest")
    assert "no manifest" in refused(a, [unread])


def test_heads_of_requests_and_another_protocol_are_no_other_shape(slower: Runs) -> None:
    a, b = slower
    small = [changed(side, request_bytes_per_row=size) for side, size in ((a, 300.0), (b, 340.0))]
    refuse_incomparable(pair_runs(*small), *small)
    grpc = changed(b, request_bytes_per_row=900.0, scenario={"clients": {"protocol": "grpc"}})
    refuse_incomparable(pair_runs(small[0], grpc), small[0], grpc)


def test_what_speaks_against_a_comparison_is_marked(alike: Runs) -> None:
    a, b = alike
    ground = changed(b, setting={"CPU of node-0": "other"}, gpus=("GPU-1",), collectors_on=("kernels",))
    hot = [replace(run, states={"sm_clock_hz": 1.2e9 + place}) for place, run in enumerate(ground)]
    cool = [
        replace(run, setting={"CPU of node-0": "one"}, gpus=("GPU-0",), states={"sm_clock_hz": 1.9e9})
        for run in a
    ]
    marks = "\n".join(compared((cool, hot)).marks)
    for text in (
        "CPU of node-0: one → other",
        "GPU-0",
        "collector kernels was on in B alone",
        "1,900 MHz → 1,200 MHz",
    ):
        assert text in marks
    assert compared((a, b)).marks == ()


def test_of_several_models_it_is_marked_that_figures_are_of_all_together(alike: Runs) -> None:
    a, b = alike
    mixed = {"models": [{"name": "small", "share": 0.9}, {"name": "large", "share": 0.1}]}
    (mark,) = compared((changed(a, scenario=mixed), changed(b, scenario=mixed))).marks
    assert mark.startswith(
        "requests ask several models, small, large: the figures are of all of them together"
    )


def test_other_shares_of_models_are_another_load(slower: Runs) -> None:
    def load(*shares: float) -> tuple[str, dict[str, Any]]:
        scenario = {"models": [{"name": f"m{n}", "share": share} for n, share in enumerate(shares)]}
        return load_digest(Manifest(scenario=scenario)), scenario

    (one, scenario), (other, changed_scenario) = load(0.9, 0.1), load(0.5, 0.5)
    assert one == load(0.9, 0.1)[0] != other
    a = changed(slower[0], load=one, scenario=scenario)
    b = changed(slower[1], load=other, schedule="x", scenario=changed_scenario)
    assert "they differ in models.m0.share" in refused(a, b)


def test_other_data_of_a_model_is_another_load_wherever_its_file_lies() -> None:
    def load(path: str, sha256: str, **data: Any) -> str:
        own = {"path": path, "order": {"kind": "random"}, **data}
        scenario = {"models": [{"name": "encoder", "share": 1, "data": own}, {"name": "text", "share": 1}]}
        facts = DataFacts(path=path, format="npy", sha256=sha256, n_entries=9)
        return load_digest(Manifest(scenario=scenario, data_by_model={"encoder": facts}))

    assert load("a", "1") == load("b", "1")
    assert len({load("a", "1"), load("a", "2"), load("a", "1", limit=3)}) == 3


@pytest.mark.parametrize(
    ("a_s", "b_s", "is_marked"),
    [(10.0, 13.0, False), (10.0, 65.0, False), (20.0, 600.0, True), (36_000.0, 35_000.0, False)],
)
def test_a_server_that_had_run_for_long_against_a_fresh_one_is_marked(
    alike: Runs, a_s: float, b_s: float, is_marked: bool
) -> None:
    def up(runs: list[RunRow], seconds: float) -> list[RunRow]:
        return [replace(run, states={"uptime_ns": 1e9 * (seconds + place)}) for place, run in enumerate(runs)]

    marks = compared((up(alike[0], a_s), up(alike[1], b_s))).marks
    assert any("time for which the server had run differs" in one for one in marks) == is_marked


def test_gpus_that_change_sides_half_way_are_no_mark(alike: Runs) -> None:
    def on(runs: list[RunRow], first: str, last: str) -> list[RunRow]:
        return [replace(run, gpus=(first if place < 4 else last,)) for place, run in enumerate(runs)]

    a, b = alike
    assert not any("GPU" in one for one in compared((on(a, "G0", "G1"), on(b, "G1", "G0"))).marks)
    assert any("GPU" in one for one in compared((on(a, "G0", "G0"), on(b, "G1", "G1"))).marks)


def test_runs_of_several_configurations_on_one_side_are_marked(alike: Runs) -> None:
    a, b = alike
    mixed = [replace(run, scenario={"model": {"instances": 1 + place % 2}}) for place, run in enumerate(b)]
    assert any(
        "not of one configuration: they differ in model.instances" in one
        for one in compared((a, mixed)).marks
    )


def test_what_differs_is_told_by_key(alike: Runs) -> None:
    a, b = alike
    one = {
        "name": "x",
        "seed": 1,
        "model": {"queue_delay": "0s"},
        "phases": [{"name": "burst", "kind": "measure"}],
    }
    other = {**one, "name": "y", "model": {"queue_delay": "2ms", "instances": 2}}
    found = compared((changed(a, scenario=one), changed(b, scenario=other)))
    assert [one.text for one in found.differs] == ["model.queue_delay: 0s → 2ms", "model.instances: - → 2"]


def test_page_markdown_and_json_hold_what_was_found(slower: Runs) -> None:
    found = compared(slower)
    html = page_html(compare_page(found, ["squall compare <a> b"]))
    for text in (
        "B is worse than A",
        "The whole distribution",
        "Where the change comes from: all",
        "squall compare &lt;a&gt; b",
    ):
        assert text in html
    assert markdown(found).startswith("## B is worse than A")
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["n_pairs"] == 8


def test_a_comparison_without_a_pair_has_a_page_too() -> None:
    found = compared(([], []))
    assert found.verdict == "undecided"
    assert "no pair is whole" in page_html(compare_page(found, []))


def n_bands_that_hold(n_comparisons: int, n_pairs: int) -> int:
    """Of comparisons of B that takes 10 % longer throughout: how many bands hold all of that curve."""
    n_held = 0
    for number in range(n_comparisons):
        rng = np.random.default_rng(number)
        sides = tuple[list[RunRow], list[RunRow]](([], []))
        for seed in range(n_pairs):
            arrivals = np.arange(400.0)
            for side, factor in zip(sides, (1.0, 1.1), strict=True):
                own = {"compute": rng.exponential(0.1, 400) * factor * (1 + 0.01 * rng.standard_normal())}
                side.append(side_run(f"{factor}{seed}", arrivals, own, seed, np.ones(400, np.int64)))
        found = shift(pair_runs(*sides).whole, 0.05)
        ends = [(low, high) for low, high in zip(found.low, found.high, strict=True) if low is not None]
        n_held += all(low <= 0.1 <= (high or 0.0) for low, high in ends)
    return n_held


def test_the_band_holds_the_true_shift_of_the_whole_curve() -> None:
    # At 95 % each, fewer than 16 of 20 have a chance of 0.3 %.
    assert n_bands_that_hold(20, 8) >= 16


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("n_pairs", "least"), [(4, 88), (8, 90), (16, 90)])
def test_bands_of_few_pairs_hold_the_curve_nearly_as_often_as_they_say(n_pairs: int, least: int) -> None:
    assert n_bands_that_hold(100, n_pairs) >= least


def test_a_run_is_read_with_its_figures_and_one_that_is_not_there_says_so(tmp_path: Path) -> None:
    store = write_run(tmp_path, n_failed=20, manifest={"seed": 3, "plan": {"load": "open", "sha256": "abc"}})
    run = read_row(store.run_dir)
    assert (run.status, run.seed, run.schedule) == ("VALID", 3, "abc")
    assert run.figures["p50_ns"].value == pytest.approx(15e6, rel=0.01)
    assert run.figures[FAILURES].value == pytest.approx(0.02)
    assert (run.quantiles_ns[49], run.quantiles_ns[98]) == (run.figures["p50_ns"].value, None)
    assert run.answers.sha256 is None
    assert read_row(tmp_path / "none").problem.startswith("cannot be read")
    invalid = read_row(write_run(tmp_path, status="INVALID").run_dir)
    assert (invalid.is_valid, invalid.why_left_out) == (False, "INVALID; it was made so")


def test_a_run_whose_promises_ended_it_is_read_as_ended_early(tmp_path: Path) -> None:
    decided = {
        "verdict": "broken", "promise": "p(95)<50ms", "n": 1_000, "n_late": 51, "n_in_time": 100, "at_ns": 1,
        "phases": [],
    }  # fmt: skip
    run = read_row(write_run(tmp_path, manifest={"decided": decided}).run_dir)
    assert (run.status, run.is_valid, run.has_verdict) == ("VALID", False, True)
    assert run.why_left_out == "ended early, once its promises were decided"


def warmed(parent: Path, is_answered: bool, response_bytes: int) -> Answers:
    """Of a run whose first request was to warm up; each measured reply has `response_bytes`."""
    rows = write_run(parent / "rows", phases=("warm", "burst")).read("requests").to_pylist()
    for row in rows:
        row["response_bytes"] = response_bytes
    if not is_answered:
        rows[0] |= {"outcome": "timeout", "response_bytes": 0}
    spans = [
        {"name": name, "kind": kind, "start_ns": START_NS + at * LENGTH_NS, "end_ns": START_NS + (at + 1) * LENGTH_NS}
        for at, (name, kind) in enumerate((("warm", "warmup"), ("burst", "measure")))
    ]  # fmt: skip
    store = write_run(
        parent, status=None, phases=("warm", "burst"), omit=("requests",), manifest={"phases": spans}
    )
    store.append("requests", table("requests", rows))
    store.flush()
    store.seal(Verdict(status="VALID", reasons=()))
    return read_row(store.run_dir).answers


def test_a_failed_warm_up_request_is_no_other_answer(tmp_path: Path) -> None:
    whole = warmed(tmp_path / "whole", True, 8)
    assert whole.sha256 is not None
    assert warmed(tmp_path / "failed", False, 8) == whole
    assert warmed(tmp_path / "other", True, 9) != whole
