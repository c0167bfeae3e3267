"""What counts, orderings, claims, Little's law, and the file that is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from squall.analysis.studies.published_page import screen_lines, value_text
from squall.analysis.studies.published_result import (
    AGREES,
    CONTRADICTS,
    UNTOLD,
    Reproduction,
    RunFigures,
    evaluate,
    middle,
)
from squall.analysis.studies.published_words import number_text, stated_text
from squall.scenarios.errors import AnalysisError
from squall.scenarios.published.file import PublishedFile
from tests.planted_experiment import (
    CLAIMS,
    DEPTH,
    E2_ROWS,
    MS,
    PARTS,
    judged,
    noisy_runs,
    probed,
    published,
    run,
)

CASES = yaml.safe_load((Path(__file__).parent / "reproductions.yaml").read_text())
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


def heads() -> Reproduction:
    runs = [
        *noisy_runs(TRUTH, 3, np.random.default_rng(7)),
        *(run(row, 1, SEEN, part=DEPTH) for row in TRUTH),
    ]
    runs.append(run("seqlen_head", 4, {"p50_ns": 1.0}, status="INVALID", reason="late <users>"))
    return judged(published(claims=CLAIMS), runs)


def assert_like(found: Any, expected: Any) -> None:
    """Numbers to five digits; of a text its beginning or its end where … stands for the rest; of a record the fields
    that are named."""
    if isinstance(expected, Mapping):
        for name, value in expected.items():
            assert_like(found[name] if isinstance(found, Mapping) else getattr(found, name), value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, value in zip(found, expected, strict=True):
            assert_like(one, value)
    elif isinstance(expected, str) and "…" in expected:
        begin, end = expected.split("…")
        assert found.startswith(begin)
        assert found.endswith(end)
    else:
        assert found == (pytest.approx(expected, rel=1e-5) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["why"])
def test_runs_say_what_they_say(case: dict[str, Any]) -> None:
    rows = (
        [{"name": name, "published": stated} for name, stated in case["rows"].items()]
        if "rows" in case
        else E2_ROWS
    )
    claims = case.get("claims", ())
    is_probe = "probe" in case
    file = (
        probed("p", case["probe"], claims=claims)
        if is_probe
        else published(rows, case.get("parts", PARTS), claims)
    )
    runs = [run(row, seed, figures, **dict(*more)) for row, seed, figures, *more in case["runs"]]
    spoilt = {"status": "INVALID", "reason": "late users"} if "invalid" in case else {}
    runs = [RunFigures(**{**vars(one), **spoilt}) if one.row == case.get("invalid") else one for one in runs]
    found = judged(file, runs)
    for place, expected in case.get("values", {}).items():
        assert_like(found.value(*place.rsplit(" ", 1)), expected)
    for place, text in case.get("texts", {}).items():
        assert value_text(found.value(*place.rsplit(" ", 1))) == text
    if "without" in case:
        assert [one.run for one in found.without_valid_run] == case["without"]
    lines = screen_lines(found)
    assert case.get("line", lines[0]) in lines
    assert_like(found, case.get("expect", {}))


def test_a_probe_that_was_broken_off_and_run_again_has_its_valid_run() -> None:
    broken = RunFigures("probe", "", 1, 1, "ABORTED", "no GPU", "", "first", {})
    rows = [
        RunFigures("probe", str(n), 1, 2, "VALID", "", "", "second", {"bound": "compute"}) for n in (64, 128)
    ]
    assert judged(probed("operators"), [broken]).without_valid_run == (broken,)
    found = judged(probed("operators"), [broken, *rows])
    assert found.without_valid_run == ()
    assert found.verdicts == {"ABORTED": 1, "VALID": 1}


def throughputs(**values: float) -> PublishedFile:
    return published(
        [{"name": name, "published": {"throughput_hz": value}} for name, value in values.items()]
    )


def test_planted_orders_agree_contradict_and_cannot_be_told_apart() -> None:
    file = throughputs(slow=1000, fast=1200, close=1210)
    truth = {
        "slow": {"throughput_hz": 4000.0},
        "fast": {"throughput_hz": 6000.0},
        "close": {"throughput_hz": 2000.0},
    }
    found = judged(file, noisy_runs(truth, 4, np.random.default_rng(20_261_126))).orderings
    assert [one.word for one in found] == [AGREES, CONTRADICTS, CONTRADICTS]
    agreeing = found[0]
    assert agreeing.ratio == pytest.approx(
        1.5, rel=0.05
    )  # four runs of 1 % noise each: 1 % x sqrt(2 / 4), seven times
    assert (agreeing.low or 0) < 1.5 < (agreeing.high or 0)
    alike = {row: {"throughput_hz": 4000.0} for row in truth}
    told = judged(file, noisy_runs(alike, 4, np.random.default_rng(20_261_126))).orderings
    assert {one.word for one in told} == {UNTOLD}


def test_equal_rows_are_told_apart_in_at_most_one_experiment_in_twenty() -> None:
    """Five rows of two figures each that differ by noise alone, 20 pairs: of 200 experiments at most 5 % may have any
    pair told apart, with 2 standard errors of 200 draws: 5 % + 2 x sqrt(0.05 x 0.95 / 200) = 8.1 %. Rows without Holm
    would be told apart in about half of them: the test can fail."""
    n = 200
    file = published([
        {"name": f"r{at}", "published": {"throughput_hz": 1000 + at, "p50_ns": 500 * MS + at}} for at in range(5)
    ])  # fmt: skip
    truth = {f"r{at}": {"throughput_hz": 4000.0, "p50_ns": 250.0 * MS} for at in range(5)}
    wrong = sum(
        any(one.word in (AGREES, CONTRADICTS) for one in judged(file, noisy_runs(truth, 3, rng)).orderings)
        for rng in map(np.random.default_rng, range(n))
    )
    assert wrong / n <= 0.05 + 2.0 * math.sqrt(0.05 * 0.95 / n)


def test_a_range_stands_for_its_geometric_middle() -> None:
    assert [middle(value) for value in ((1.0, 4.0), "text", (0.0, 1.0))] == [2.0, None, None]


def test_the_file_is_read_as_it_was_written_and_is_small() -> None:
    found = heads()
    text = found.to_text()
    assert len(text) < 20_000
    assert json.loads(text) == found.to_json()
    again = Reproduction.from_json(json.loads(text))
    assert again == found
    assert again.to_text() == text == heads().to_text()
    place = "/data/of/me/runs/run-1"
    bad = evaluate(
        found.published,
        [RunFigures("latency", "linear_head", 1, 1, "VALID", run=place)],
        place,
        "",
        place,
        False,
    )
    assert bad.runs[0].run == "run-1"
    assert "/data" not in bad.to_text()


@pytest.mark.parametrize(
    "change", [None, {"schema_version": 99}, {"runs": [{"part": 1}]}, {"published": {}}], ids=str
)
def test_what_is_no_such_file_is_refused_in_one_line(change: dict[str, Any] | None) -> None:
    whole = judged(published(), []).to_json()
    with pytest.raises(AnalysisError) as caught:
        Reproduction.from_json({} if change is None else {**whole, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("figure", "value", "text"),
    [
        ("throughput_hz", 1151.0, "1,151"), ("p50_ns", 410.0 * MS, "410 ms"), ("sm_util_ratio", 0.06, "6.00 %"),
        ("h2d_mean_bytes", 398_408.0, "389 KiB"), ("h2d_mean_bytes", 512.0, "512 B"),
        ("execution_count", 3004.6, "3,005"), ("gemms_per_batch_count", 21.0, "21"), ("p50_ns", None, "-"),
    ],
)  # fmt: skip
def test_numbers_have_their_units(figure: str, value: float | None, text: str) -> None:
    assert number_text(figure, value) == text
    assert stated_text("sm_util_ratio", (0.08, 0.12)) == "8.00 % to 12.0 %"
