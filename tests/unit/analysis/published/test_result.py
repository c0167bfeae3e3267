"""What counts, claims, and the file that is kept."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from squall.analysis.published.page import value_text
from squall.analysis.published.result import (
    HELD,
    NOT_HELD,
    UNDECIDED,
    UNMEASURED,
    Reproduction,
    RunFigures,
)
from squall.analysis.published.words import number_text, stated_text
from squall.scenarios.errors import AnalysisError
from tests.planted_experiment import CLAIMS, DEPTH, MS, judged, noisy_runs, probed, published, run

TRUTH = {
    "linear_head": {"throughput_hz": 4000.0, "p50_ns": 230.0 * MS, "mean_ns": 245.0 * MS, "sm_util_ratio": 0.03},
    "linear_head_stacked": {
        "throughput_hz": 4100.0, "p50_ns": 225.0 * MS, "mean_ns": 240.0 * MS, "sm_util_ratio": 0.06},
    "seqlen_head": {"throughput_hz": 2000.0, "p50_ns": 480.0 * MS, "mean_ns": 490.0 * MS, "sm_util_ratio": 0.6},
}  # fmt: skip
SEEN: dict[str, float | str] = {
    "gemms_per_batch_count": 21.0, "sync_share_ratio": 0.4, "launch_share_ratio": 0.5, "copy_share_ratio": 0.0,
    "regime": "queue-bound, launch-bound",
}  # fmt: skip


def _runs() -> list[RunFigures]:
    found = noisy_runs(TRUTH, 3, np.random.default_rng(7))
    return [*found, *(run(row, 1, SEEN, part=DEPTH) for row in TRUTH)]


def test_a_mean_is_geometric_of_times_and_arithmetic_of_shares() -> None:
    runs = [
        run("linear_head", 1, {"p50_ns": 100.0, "sm_util_ratio": 0.0}),
        run("linear_head", 2, {"p50_ns": 400.0, "sm_util_ratio": 0.5}),
    ]
    found = judged(published(), runs)
    middle, share = (found.value("linear_head", name) for name in ("p50_ns", "sm_util_ratio"))
    assert middle is not None
    assert share is not None
    assert middle.mean == pytest.approx(200.0)
    assert share.mean == 0.25
    assert (middle.n, middle.part, middle.under) == (2, "latency", "no profiler")
    assert middle.low is not None
    assert middle.low < 200.0


def test_a_part_gives_what_the_file_says_and_nothing_else() -> None:
    found = judged(published(), [run("linear_head", 1, {"p50_ns": 1.0, "sync_share_ratio": 0.5}, part=DEPTH)])
    assert found.value("linear_head", "p50_ns") is None  # of a run under nsys
    assert found.value("linear_head", "sync_share_ratio") is not None


def test_of_several_parts_the_one_with_most_runs_leads_and_the_others_stay() -> None:
    parts = {
        "length": {"about": "two minutes", "gives": ["p50_ns"]},
        "latency": {"about": "three seeds", "gives": ["p50_ns"], "repeats": 3},
    }
    runs = [run("linear_head", 1, {"p50_ns": 9.0}, part="length")]
    runs += [run("linear_head", seed, {"p50_ns": 4.0}, part="latency") for seed in (1, 2)]
    found = judged(published(parts=parts), runs)
    assert [one.part for one in found.values] == ["latency", "length"]


def test_runs_that_do_not_count_are_marked_with_their_reason() -> None:
    runs = [
        run(
            "linear_head",
            1,
            {"throughput_hz": 2406.0, "outside_ratio": 0.75},
            status="INVALID",
            reason="late users",
        )
    ]
    found = judged(published(), runs)
    value, outside = (found.value("linear_head", name) for name in ("throughput_hz", "outside_ratio"))
    assert value is not None
    assert (value.mean, value.marked, value.n, value.note) == (None, 2406.0, 0, "INVALID: late users")
    assert value_text(value) == "2,406 [INVALID]"
    assert outside is not None
    assert outside.mean == 0.75  # says why it is INVALID
    assert not found.is_small
    assert found.verdicts == {"INVALID": 1}


def test_rows_without_a_valid_run_in_a_part_that_was_run_are_told() -> None:
    late = run("linear_head", 1, {"p50_ns": 9.0}, status="INVALID", reason="late users")
    assert judged(published(), [late]).without_valid_run == (late,)
    again = run("linear_head", 1, {"p50_ns": 5.0}, attempt=2)
    found = judged(published(), [late, again])
    assert found.without_valid_run == ()
    assert found.verdicts == {"VALID": 1, "INVALID": 1}  # both are told
    value = found.value("linear_head", "p50_ns")
    assert value is not None
    assert (value.mean, value.n) == (5.0, 1)  # one counts
    seen = run("linear_head", 1, {"sync_share_ratio": 0.5}, part=DEPTH, status="INVALID", reason="no nsys")
    assert judged(published(), [again, seen]).without_valid_run == (seen,)


def test_a_probe_that_was_broken_off_and_run_again_has_its_valid_run() -> None:
    broken = RunFigures("probe", "", 1, 1, "ABORTED", "no GPU", "", "first", {})
    rows = [
        RunFigures("probe", str(n), 1, 2, "VALID", "", "", "second", {"bound": "compute"}) for n in (64, 128)
    ]
    assert judged(probed("operators"), [broken]).without_valid_run == (broken,)
    found = judged(probed("operators"), [broken, *rows])
    assert found.without_valid_run == ()
    assert found.verdicts == {"ABORTED": 1, "VALID": 1}


def test_a_quantile_on_failures_has_no_mean() -> None:
    runs = [run("linear_head", 1, {"p99_ns": "infinite"}), run("linear_head", 2, {"p99_ns": 5.0 * MS})]
    value = judged(published(), runs).value("linear_head", "p99_ns")
    assert value is not None
    assert (value.mean, value.is_measured) == (None, False)
    assert value_text(value) == "infinite in 1 of 2 runs"


def test_claims_hold_by_ratios_of_runs_by_numbers_and_by_names() -> None:
    found = judged(published(claims=CLAIMS), _runs()).claims
    assert [one.word for one in found] == [HELD, HELD, HELD]
    assert found[0].value == pytest.approx(20.0, rel=0.1)
    assert found[0].n == 3
    assert found[0].low is not None
    wrong = [
        {**CLAIMS[0], "at_least": 30},
        {**CLAIMS[1], "equals": "20"},
        {**CLAIMS[2], "equals": "GPU-bound"},
    ]
    assert [one.word for one in judged(published(claims=wrong), _runs()).claims] == [NOT_HELD] * 3
    assert [one.word for one in judged(published(claims=CLAIMS), []).claims] == [UNMEASURED] * 3


def test_a_claim_on_runs_that_do_not_count_is_not_measured_and_shows_them() -> None:
    runs = [
        replace(one, status="INVALID", reason="late users") if one.row == "linear_head" else one
        for one in _runs()
    ]
    found = judged(published(claims=CLAIMS), runs).claims
    assert [one.word for one in found] == [UNMEASURED, UNMEASURED, HELD]  # the regime says why
    assert "late users" in found[0].note
    assert "20" in found[0].note


def test_a_claim_whose_interval_reaches_over_its_bound_is_undecided() -> None:
    claim = {"says": "faster", "figure": "p50_ns", "of": "linear_head", "at_most": 225 * MS}
    (found,) = judged(published(claims=[claim]), _runs()).claims
    assert found.word == UNDECIDED
    assert found.note == "the mean says held, and its interval reaches over the bound"


def test_the_file_is_read_as_it_was_written_and_is_small() -> None:
    found = judged(published(claims=CLAIMS), _runs())
    text = found.to_text()
    assert len(text) < 20_000
    assert json.loads(text) == found.to_json()
    again = Reproduction.from_json(json.loads(text))
    assert again == found
    assert again.to_text() == text
    assert judged(published(claims=CLAIMS), _runs()).to_text() == text


def test_the_file_holds_no_folder_of_the_machine() -> None:
    bad = replace(
        run("linear_head", 1, {"p50_ns": 1.0}, status="INVALID"),
        run="/data/of/me/runs/run-1",
        reason="no /opt/x/model.plan; see https://a.b/c/d",
    )
    found = judged(published(), [bad])
    assert found.runs[0].run == "run-1"
    assert found.runs[0].reason == "no model.plan; see https://a.b/c/d"
    assert "/data" not in found.to_text()


def test_what_is_no_such_file_is_refused_in_one_line() -> None:
    whole = judged(published(), []).to_json()
    for bad in (
        {},
        {**whole, "schema_version": 99},
        {**whole, "runs": [{"part": 1}]},
        {**whole, "published": {}},
    ):
        with pytest.raises(AnalysisError) as caught:
            Reproduction.from_json(bad)
        assert "\n" not in str(caught.value)


def test_infinite_and_absent_numbers_of_a_run_are_never_kept_as_such() -> None:
    found = judged(published(), [run("linear_head", 1, {"p99_ns": float("inf"), "p50_ns": float("nan")})])
    assert found.runs[0].figures == {"p99_ns": "infinite"}


@pytest.mark.parametrize(
    ("figure", "value", "text"),
    [
        ("throughput_hz", 1151.0, "1,151"), ("p50_ns", 410.0 * MS, "410 ms"), ("sm_util_ratio", 0.06, "6.00 %"),
        ("h2d_mean_bytes", 398_408.0, "389 KiB"), ("h2d_mean_bytes", 512.0, "512 B"),
        ("execution_count", 3004.6, "3,005"),
        ("gemms_per_batch_count", 21.0, "21"), ("p50_ns", None, "-"),
    ],
)  # fmt: skip
def test_numbers_have_their_units(figure: str, value: float | None, text: str) -> None:
    assert number_text(figure, value) == text


def test_a_stated_range_has_both_ends() -> None:
    assert stated_text("sm_util_ratio", (0.08, 0.12)) == "8.00 % to 12.0 %"
    assert stated_text("regime", "launch-bound") == "launch-bound"


def test_a_claim_on_what_a_probe_could_not_measure_says_why() -> None:
    claim = {"says": "33 %", "figure": "gain_ratio", "of": "pinned, one compiled stage", "at_least": 0.2}
    why = {"not_measured": "torch.compile needs a C compiler"}
    found = judged(
        probed("stages", "pipeline", claims=[claim]), [run(str(claim["of"]), 1, why, part="probe")]
    )
    assert [(one.word, one.note) for one in found.claims] == [(UNMEASURED, why["not_measured"])]
    assert found.lines()[1] == "pinned, one compiled stage: not measured: torch.compile needs a C compiler"
