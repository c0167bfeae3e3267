"""Promises in the summary, on the screen and in the report of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from squall.analysis.compare.figures import PromiseFigures
from squall.analysis.report.page import write_report
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.store import RunStore
from tests.known import known
from tests.synthetic_runs import MODEL, OTHER, SyntheticRun, synthesise_two_models
from tests.unit.analysis.report.test_screen import screen_lines

MakeRun = Callable[..., RunStore]


@pytest.fixture
def mixed() -> SyntheticRun:
    """Requests of two models; nothing is derived."""
    run = synthesise_two_models(places=(("server-0", MODEL), ("server-0", OTHER)))
    run.derived = False
    return run


def promised(run: SyntheticRun, promises: dict[str, Any]) -> SyntheticRun:
    run.manifest["scenario"]["promises"] = promises
    return run


def held(make_run: MakeRun, run: SyntheticRun, promises: dict[str, Any]) -> tuple[PromiseFigures, ...]:
    return known(summarise(make_run(promised(run, promises))).promises)


def test_a_run_without_promises_has_none(whole_summary: Summary) -> None:
    assert whole_summary.promises is None
    assert not any("romise" in line for line in screen_lines(whole_summary))


def test_a_broken_promise_says_where_when_and_why(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    promises = {
        "response{phase:burst}": ["p(95)<6ms", "p(99)<10s"], "failures": "rate<5%", "response{gpu:GPU-1}": "p(95)<10s",
    }  # fmt: skip
    store = make_run(promised(synthetic, promises))
    summary = summarise(store)
    broken, wide, failures, unknown = known(summary.promises)
    assert [one.verdict for one in (broken, wide, failures, unknown)] == [
        "broken",
        "kept",
        "kept",
        "undecided",
    ]
    assert unknown.n_unknown == unknown.n, "it is not known which GPU had them"
    late = known(broken.late)
    assert late.grew_most == "queue"  # the burst piles up before the server
    assert sum(late.late_ns.values()) > sum(late.in_time_ns.values())
    assert late.n == broken.n_late - broken.n_failed
    # The burst is in the 6th second of the phase, and the promise falls with it.
    assert known(broken.worst).offset_ns in (5 * 10**9, 6 * 10**9)
    lines = screen_lines(summary, 140)
    text = " ".join(" ".join(lines).split())
    for words in (
        "PROMISE BROKEN: response{phase:burst} p(95)<6ms", "broken: response{phase:burst} p(95)<6ms: ",
        f"the late: {late.grew_most} grows most", "kept: failures rate<0.05: ",
    ):  # fmt: skip
        assert words in text, words
    assert Summary.from_json(json.loads(json.dumps(summary.to_json(), allow_nan=False))) == summary
    page = write_report(store, summary).read_text(encoding="utf-8")
    assert "<h2>Promises</h2>" in page
    assert "response{phase:burst} p(95)&lt;6ms" in page


@pytest.mark.parametrize(
    ("losses", "verdict", "last"),
    [
        ([], ("kept", ""), "promises kept: response p(95)<10s"),
        (
            ["worker 1 is gone"],
            ("invalid", "the run is INVALID"),
            "promises not judged: response p(95)<10s: the run is",
        ),
    ],
)
def test_the_last_line_says_whether_they_are_kept(
    make_run: MakeRun, plain: SyntheticRun, losses: list[str], verdict: tuple[str, str], last: str
) -> None:
    plain.manifest["losses"] = losses
    summary = summarise(make_run(promised(plain, {"response": "p(95)<10s"})))
    assert [(one.verdict, one.reason) for one in known(summary.promises)] == [verdict]
    assert screen_lines(summary, 140)[-1].startswith(last)


def test_requests_of_one_model_are_held_within_windows_and_bursts(
    make_run: MakeRun, mixed: SyntheticRun
) -> None:
    """No request of `OTHER` is in time, and of `MODEL` all that ended ok."""
    mixed.set(
        "requests", "outcome", lambda row: "timeout" if row["request_kind"] == OTHER else row["outcome"]
    )
    every = ("window:4s", "burst:each", "burst:in", "burst:out", "phase:burst")
    promises = {
        f"goodput{{model:{name},{tags},within:1s}}": "rate>0.5" for tags in every for name in (MODEL, OTHER)
    }
    found = held(make_run, mixed, promises)
    assert [one.verdict for one in found] == ["kept", "broken"] * len(every)
    for kept, broken in zip(found[::2], found[1::2], strict=True):
        assert broken.n == broken.n_late > 0
        assert kept.n_parts == broken.n_parts == broken.n_parts_broken
