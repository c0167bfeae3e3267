"""Runs with and without profilers, compared in pairs: what counts, what is left out, what is said; and its file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from squall.analysis.compare.overhead import evaluate, percent
from squall.analysis.report.overhead_screen import page, render
from squall.analysis.verdict.overhead_file import (
    OVERHEAD_FILE,
    Overhead,
    PairRun,
    find_overhead,
    profiling_ratio,
)
from squall.analysis.verdict.run_figures import METRICS
from squall.analysis.verdict.validity import judge_run
from tests.fields import field
from tests.overhead_runs import ON, evaluated_again, write_run

CASES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "overheads.yaml").read_text())
RATIOS = ((1.03, 1.0), (1.06, 1.02), (1.0, 0.99))
NSYS_ON = {"collectors": {"triton": ON, "host": ON, "nsys": ON}}
LOST = PairRun(0, 0, False, "", "interrupted by SIGINT")


def pairs_in(
    folder: Path,
    ratios: Sequence[Sequence[float]] = RATIOS,
    profiled: Mapping[str, Any] | None = None,
    runs: Mapping[int, Mapping[str, Any]] | None = None,
) -> list[PairRun]:
    """Pairs of runs as `overheads.yaml` states them."""
    plans: list[PairRun] = []
    for pair, (with_, without) in enumerate(ratios):
        for is_profiled in (pair % 2 == 1, pair % 2 == 0):
            ratio = with_ if is_profiled else without
            options: dict[str, Any] = {"latency_ratio": ratio, "cpu_ratio": ratio}
            if is_profiled:
                options["manifest"] = {**NSYS_ON, **(profiled or {})}
            run = write_run(folder, **{**options, **(runs or {}).get(len(plans), {})}).run
            plans.append(PairRun(pair, len(plans), is_profiled, run))
    return plans


def screen(evaluation: Overhead) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    console.print(render(evaluation, "the folder"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("name", CASES)
def test_pairs_tell_of_profiling_as_stated(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    plans = pairs_in(tmp_path, **{key: case[key] for key in ("ratios", "profiled", "runs") if key in case})
    if "damaged" in case:
        (tmp_path / plans[case["damaged"]].run / "manifest.json").write_text("{")
    found, runs = evaluate(tmp_path, plans, len(plans) // 2).to_json(), [plan.run for plan in plans]

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(one) for one in value]
        is_number = isinstance(value, float)
        return (
            pytest.approx(value, abs=2e-4)
            if is_number
            else value.format(*runs)
            if isinstance(value, str)
            else value
        )

    for path, value in case.get("finds", {}).items():
        assert field(found, path) == named(value), path
    for path, words in case.get("holds", {}).items():
        known = field(found, path)
        assert any(named(words) in one for one in ([known] if isinstance(known, str) else known)), known


def test_a_run_whose_server_failed_more_than_is_expected_counts_and_is_said_to_have(tmp_path: Path) -> None:
    plans = pairs_in(tmp_path)
    store = write_run(tmp_path, n_failed=300, status=None, manifest=NSYS_ON)
    store.seal(replace(judge_run(store), status="VALID"))
    found = evaluate(tmp_path, [*plans[:-1], replace(plans[-1], run=store.run)], 3)
    (note,) = [note for note in found.notes if "30.0 % of 1,000 requests failed" in note]
    assert store.run in note
    assert note in " ".join(screen(found).split())


def test_no_pair_at_all_is_said(tmp_path: Path) -> None:
    found = evaluate(tmp_path, [LOST], 3)
    assert found.left_out == (
        "pair 1: the bare run #1 made no run: interrupted by SIGINT; it has one run only",
    )
    assert "not assessed" in found.verdict
    assert "0 of 3 pairs whole" in screen(found)
    assert Overhead.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_the_file_is_read_as_what_was_written_and_made_again_from_the_folder(tmp_path: Path) -> None:
    plans = pairs_in(tmp_path)
    found = evaluate(tmp_path, plans, 3)
    run, content = tmp_path / plans[0].run, found.to_json()
    assert find_overhead(run) is None
    (tmp_path / OVERHEAD_FILE).write_text(json.dumps({**content, "later": 1}))
    assert evaluated_again(tmp_path) == found == find_overhead(run)
    assert find_overhead(tmp_path / "other") is None
    assert profiling_ratio(run) == found.pooled["p50_ns"].ratio
    assert profiling_ratio(tmp_path / "other") is None
    assert list(content["runs"][0]["figures"]) == ["pooled", "burst"]
    assert content["runs"][0]["figures"]["pooled"]["p50_ns"] == {
        "value": 15e6, "reason": "", "is_infinite": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    "spoil",
    [
        *(lambda _, text=text: text for text in ("", "{", "[]", "{}", "null", '{"runs": 1}')),
        lambda text: text.replace('"status"', '"state"'),
        lambda text: text.replace('"ratio": null', '"ratio": "none"'),
    ],
)
def test_a_file_that_is_damaged_or_lacks_a_key_or_has_another_type_is_none(
    tmp_path: Path, spoil: Callable[[str], str]
) -> None:
    plans = pairs_in(tmp_path, RATIOS[:1])
    text = json.dumps(evaluate(tmp_path, plans, 1).to_json())
    assert spoil(text) != text
    (tmp_path / OVERHEAD_FILE).write_text(spoil(text))
    assert find_overhead(tmp_path / plans[0].run) is None
    assert profiling_ratio(tmp_path / plans[0].run) is None


def test_screen_and_page_have_every_metric_and_fit_80_columns(tmp_path: Path) -> None:
    plans = pairs_in(tmp_path, RATIOS[:2])
    found = evaluate(tmp_path, plans, 2)
    text, document = screen(found), page(found, "title")
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("95 % interval") == 1, "one phase alone is the same as pooled"
    labels = ("p50", "p95", "p99", "throughput", "client CPU per request", "server CPU per request")
    assert [label for label in labels if f"| {label} |" not in document] == []
    assert all(plan.run in document for plan in plans)
    assert len(found.sentences) == len(METRICS)


def test_a_ratio_is_shown_as_a_change_in_percent() -> None:
    shown = [percent(ratio) for ratio in (1.031, 0.99, 1.0, 1.0004, 2.5)]
    assert shown == ["+3.1", "-1.0", "+0.00", "+0.04", "+150.0"]
