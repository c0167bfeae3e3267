"""Runs with and without profilers, compared in pairs: what counts, what is left out, what is said."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from squall.analysis.compare.overhead import evaluate, percent
from squall.analysis.compare.overhead_file import (
    OVERHEAD_FILE,
    Overhead,
    PairRun,
    find_overhead,
    profiling_ratio,
)
from squall.analysis.compare.run_figures import METRICS
from squall.analysis.render.overhead_screen import page, render
from squall.analysis.verdict.validity import judge_run
from squall.scenarios.errors import AnalysisError
from tests.known import known
from tests.overhead_runs import ON, evaluated_again, write_run

RATIOS = [(1.03, 1.0), (1.06, 1.02), (1.0, 0.99)]
NSYS_ON = {"collectors": {"triton": ON, "host": ON, "nsys": ON}}


def pairs_in(folder: Path, ratios: list[tuple[float, float]] = RATIOS, **profiled: Any) -> list[PairRun]:
    """Pairs of runs with (profiled, bare) ratios of latency and CPU, in ABBA order."""
    plans: list[PairRun] = []
    for pair, (with_, without) in enumerate(ratios):
        for is_profiled in (False, True) if pair % 2 == 0 else (True, False):
            ratio = with_ if is_profiled else without
            changes = {"manifest": NSYS_ON, **profiled} if is_profiled else {}
            run = write_run(folder, latency_ratio=ratio, cpu_ratio=ratio, **changes).run
            plans.append(PairRun(pair, len(plans), is_profiled, run))
    return plans


def screen(evaluation: Overhead) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    console.print(render(evaluation, "the folder"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_change_of_every_metric_has_its_interval(tmp_path: Path) -> None:
    found = evaluate(tmp_path, pairs_in(tmp_path), 3)
    assert (found.n_pairs, found.is_complete, found.left_out) == (3, True, ())
    # D = ln 1.03, ln 1.06/1.02, ln 1/0.99: mean 0.026029, s 0.014559 -> half width 4.3027 * s / sqrt(3) = 0.036166
    expected = {"ratio": 1.026371, "low_ratio": 0.989915, "high_ratio": 1.064170}
    for metric in ("p50_ns", "p95_ns", "p99_ns", "client_cpu_per_request_ns", "server_cpu_per_request_ns"):
        change = found.pooled[metric]
        assert {name: getattr(change, name) for name in expected} == pytest.approx(expected, abs=2e-4)
        assert change.is_distinguishable is False
    assert found.pooled["throughput_hz"].ratio == 1.0
    assert found.by_phase == {"burst": found.pooled}
    assert found.verdict == (
        "profiling changed p99 of the response time by +2.6 % (95 %: -1.0 to +6.4 %) over 3 pairs; "
        "not distinguishable from none"
    )


def test_a_clear_change_is_said_to_be_one(tmp_path: Path) -> None:
    found = evaluate(tmp_path, pairs_in(tmp_path, [(1.30, 1.0), (1.31, 1.0), (1.29, 1.0)]), 3)
    assert found.verdict.endswith("over 3 pairs; distinguishable from none")


@pytest.mark.parametrize("status", ["INVALID", "ABORTED"])
def test_a_run_that_is_not_valid_costs_its_pair_and_is_named(tmp_path: Path, status: str) -> None:
    plans = pairs_in(tmp_path)
    bad = write_run(tmp_path, status=status).run
    found = evaluate(tmp_path, [*plans[:-1], PairRun(2, 5, True, bad)], 3)
    assert (found.n_pairs, found.is_complete) == (2, False)
    assert found.left_out == (f"pair 3: the profiled run {bad} is {status}: it was made so",)
    assert found.pooled["p99_ns"].ratio is not None
    assert any("costs more than this" in note for note in found.notes)


def test_a_run_whose_server_failed_more_than_is_expected_counts_and_is_said_to_have(tmp_path: Path) -> None:
    plans = pairs_in(tmp_path)
    store = write_run(tmp_path, n_failed=300, status=None, manifest=NSYS_ON)
    store.seal(replace(judge_run(store), status="VALID"))
    found = evaluate(tmp_path, [*plans[:-1], PairRun(2, 5, plans[-1].is_profiled, store.run)], 3)
    notes = [note for note in found.notes if "30.0 % of 1,000 requests failed" in note]
    assert len(notes) == 1
    assert store.run in notes[0]
    assert notes[0] in " ".join(screen(found).split())


def test_one_whole_pair_has_no_interval(tmp_path: Path) -> None:
    found = evaluate(tmp_path, pairs_in(tmp_path, RATIOS[:1]), 1)
    assert (
        found.verdict
        == "p99 of the response time: not assessed, an interval takes 2 whole pairs at least, not 1"
    )
    assert found.is_complete


def test_no_pair_at_all_is_said(tmp_path: Path) -> None:
    found = evaluate(tmp_path, [PairRun(0, 0, False, "", "interrupted by SIGINT")], 3)
    assert found.left_out == (
        "pair 1: the bare run #1 made no run: interrupted by SIGINT; it has one run only",
    )
    assert "not assessed" in found.verdict
    assert "0 of 3 pairs whole" in screen(found)


def test_an_infinite_quantile_is_not_assessed_and_costs_no_pair(tmp_path: Path) -> None:
    plans = pairs_in(tmp_path, RATIOS[:2])
    plans += [
        PairRun(2, 4, False, write_run(tmp_path).run),
        PairRun(2, 5, True, write_run(tmp_path, n_failed=20, manifest=NSYS_ON).run),
    ]
    found = evaluate(tmp_path, plans, 3)
    change = found.pooled["p99_ns"]
    assert change.ratio is None
    assert change.reason.startswith(f"infinite in {plans[5].run}: 20 of 1000 rows failed")
    assert found.pooled["p95_ns"].ratio is not None
    assert found.n_pairs == 3


def test_a_phase_that_nsys_missed_costs_the_pair(tmp_path: Path) -> None:
    missed = {"burst": {"is_profiled": False, "reason": "nsys start did not end within 30 s"}}
    found = evaluate(tmp_path, pairs_in(tmp_path, manifest={**NSYS_ON, "profiled_phases": missed}), 3)
    assert found.n_pairs == 0
    assert "phase burst was not profiled: nsys start did not end within 30 s" in found.left_out[0]


def test_a_recording_that_began_late_is_said(tmp_path: Path) -> None:
    late = {"burst": {"is_profiled": True, "profiled_after_ns": 200_000_000, "reason": ""}}
    found = evaluate(tmp_path, pairs_in(tmp_path, manifest={**NSYS_ON, "profiled_phases": late}), 3)
    assert found.n_pairs == 3
    assert sum("nsys missed the first 10.0 % of phase burst" in note for note in found.notes) == 3


def test_runs_of_another_scenario_do_not_compare(tmp_path: Path) -> None:
    plans = pairs_in(tmp_path, RATIOS[:2])
    other = write_run(tmp_path, manifest={"scenario": {"name": "made", "seed": 2}}).run
    found = evaluate(tmp_path, [*plans[:3], PairRun(1, 3, False, other)], 2)
    assert found.left_out == (f"pair 2: the bare run {other} is of another scenario",)


def test_an_open_run_and_a_damaged_one_are_left_out(tmp_path: Path) -> None:
    plans = pairs_in(tmp_path)
    unsealed = write_run(tmp_path, status=None).run
    (tmp_path / plans[2].run / "manifest.json").write_text("{")
    found = evaluate(tmp_path, [PairRun(0, 0, False, unsealed), *plans[1:]], 3)
    assert found.left_out[0] == f"pair 1: the bare run {unsealed} is not sealed"
    assert "cannot be read" in found.left_out[1]


def test_what_was_on_in_both_and_what_was_missing_is_said(tmp_path: Path) -> None:
    assert evaluate(tmp_path, pairs_in(tmp_path), 3).notes[0] == (
        "on in both: host, triton; only in the profiled runs: nsys"
    )
    missing = {"status": "missing", "reason": "nsys is not on the PATH", "mend": ""}
    without = {"collectors": {"triton": ON, "host": ON, "nsys": missing}}
    notes = evaluate(tmp_path, pairs_in(tmp_path, manifest=without), 3).notes
    assert "only in the profiled runs: thread samples alone" in notes[0]
    assert notes[1] == (
        "nsys was not on in the profiled runs: nsys is not on the PATH; its cost is not in these figures"
    )
    assert "does not cancel" in notes[2]


def test_the_evaluation_can_be_made_again_from_the_folder_and_found_from_a_run(tmp_path: Path) -> None:
    plans = pairs_in(tmp_path)
    found = evaluate(tmp_path, plans, 3)
    assert find_overhead(tmp_path / plans[0].run) is None
    (tmp_path / OVERHEAD_FILE).write_text(json.dumps(found.to_json()))
    assert evaluated_again(tmp_path) == found
    assert find_overhead(tmp_path / plans[0].run) == found
    assert find_overhead(tmp_path / "other") is None
    assert profiling_ratio(tmp_path / plans[0].run) == known(found.pooled["p50_ns"].ratio) > 1
    assert profiling_ratio(tmp_path / "other") is None


def test_the_file_is_read_as_what_was_written(tmp_path: Path) -> None:
    assessed = evaluate(tmp_path, pairs_in(tmp_path, RATIOS[:2]), 3)
    unassessed = evaluate(tmp_path, [PairRun(0, 0, False, "", "interrupted by SIGINT")], 3)
    for made in (assessed, unassessed):
        stored = json.loads(json.dumps(made.to_json()))
        assert Overhead.from_json(stored) == made
        assert json.dumps(Overhead.from_json(stored).to_json()) == json.dumps(stored)
    entry = assessed.to_json()["runs"][0]
    assert list(entry["figures"]) == ["pooled", "burst"]
    assert entry["figures"]["pooled"]["p50_ns"] == {"value": 15e6, "reason": "", "is_infinite": False}


def without_key(content: dict[str, Any]) -> None:
    del content["runs"][0]["status"]


def of_another_type(content: dict[str, Any]) -> None:
    content["pooled"]["p50_ns"]["ratio"] = "none"


@pytest.mark.parametrize("spoil", [without_key, of_another_type])
def test_a_file_that_lacks_a_key_or_has_another_type_is_none(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None]
) -> None:
    plans = pairs_in(tmp_path, RATIOS[:1])
    content = evaluate(tmp_path, plans, 1).to_json()
    spoil(content)
    with pytest.raises(AnalysisError, match=r"^(runs\.0\.status|pooled\.p50_ns\.ratio): "):
        Overhead.from_json(content)
    (tmp_path / OVERHEAD_FILE).write_text(json.dumps(content))
    assert find_overhead(tmp_path / plans[0].run) is None
    assert profiling_ratio(tmp_path / plans[0].run) is None


def test_a_key_that_is_not_known_is_passed_over(tmp_path: Path) -> None:
    plans = pairs_in(tmp_path, RATIOS[:1])
    made = evaluate(tmp_path, plans, 1)
    (tmp_path / OVERHEAD_FILE).write_text(json.dumps({**made.to_json(), "later": 1}))
    assert find_overhead(tmp_path / plans[0].run) == made


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", '{"runs": 1}'])
def test_a_damaged_file_is_none(tmp_path: Path, content: str) -> None:
    run = write_run(tmp_path).run
    (tmp_path / OVERHEAD_FILE).write_text(content)
    assert find_overhead(tmp_path / run) is None


def test_screen_and_page_have_every_metric_and_fit_80_columns(tmp_path: Path) -> None:
    plans = pairs_in(tmp_path, RATIOS[:2], phases=("burst",))
    found = evaluate(tmp_path, plans, 2)
    text = screen(found)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("95 % interval") == 1, "one phase alone is the same as pooled"
    document = page(found, "title")
    for label in ("p50", "p95", "p99", "throughput", "client CPU per request", "server CPU per request"):
        assert f"| {label} |" in document
    assert all(plan.run in document for plan in plans)
    assert len(found.sentences) == len(METRICS)


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.031, "+3.1"), (0.99, "-1.0"), (1.0, "+0.00"), (1.0004, "+0.04"), (2.5, "+150.0")]
)
def test_a_ratio_is_shown_as_a_change_in_percent(ratio: float, text: str) -> None:
    assert percent(ratio) == text
