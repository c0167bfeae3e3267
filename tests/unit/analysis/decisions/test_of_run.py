"""Promises in the summary, on the screen and in the report of a run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from rich.console import Console

from squall.analysis.render.report import write_report
from squall.analysis.render.screen import render
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.analysis.summary.summary_file import Summary
from tests.known import known
from tests.synthetic_runs import SyntheticRun

MakeRun = Callable[..., RunStore]


def promised(run: SyntheticRun, promises: dict[str, Any]) -> SyntheticRun:
    run.manifest["scenario"]["promises"] = promises
    return run


def screen_of(summary: Summary) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=140).print(render(summary, "runs/x", 140, is_verbose=True))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_run_without_promises_has_none(whole_summary: Summary) -> None:
    assert whole_summary.promises is None
    assert not any("romise" in line for line in screen_of(whole_summary))


def test_a_broken_promise_says_where_when_and_why(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    promises = {"response{phase:burst}": ["p(95)<6ms", "p(99)<10s"], "failures": "rate<5%"}
    store = make_run(promised(synthetic, promises))
    summary = summarise(store)
    broken, wide, failures = known(summary.promises)
    assert (broken.verdict, wide.verdict, failures.verdict) == ("broken", "kept", "kept")
    late = known(broken.late)
    assert late.grew_most == "queue"  # the burst piles up before the server
    assert sum(late.late_ns.values()) > sum(late.in_time_ns.values())
    assert late.n == broken.n_late - broken.n_failed
    # The burst is in the 6th second of the phase, and the promise falls with it.
    assert known(broken.worst).offset_ns in (5 * 10**9, 6 * 10**9)
    lines = screen_of(summary)
    assert lines[-1].startswith("PROMISE BROKEN: response{phase:burst} p(95)<6ms")
    text = " ".join(" ".join(lines).split())
    assert "broken: response{phase:burst} p(95)<6ms: " in text
    assert f"the late: {late.grew_most} grows most" in text
    assert "kept: failures rate<0.05: " in text
    stored = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert Summary.from_json(stored) == summary
    page = write_report(store, summary).read_text(encoding="utf-8")
    assert "<h2>Promises</h2>" in page
    assert "response{phase:burst} p(95)&lt;6ms" in page


def test_all_kept_is_the_last_line(make_run: MakeRun, plain: SyntheticRun) -> None:
    summary = summarise(make_run(promised(plain, {"response": "p(95)<10s"})))
    assert screen_of(summary)[-1] == "promises kept: response p(95)<10s"


def test_an_invalid_run_keeps_nothing(make_run: MakeRun, plain: SyntheticRun) -> None:
    plain.manifest["losses"] = ["worker 1 of node-0 is gone"]
    summary = summarise(make_run(promised(plain, {"response": "p(95)<10s"})))
    assert summary.verdict.status == "INVALID"
    assert [(one.verdict, one.reason) for one in known(summary.promises)] == [
        ("invalid", "the run is INVALID")
    ]
    assert screen_of(summary)[-1].startswith("promises not judged: response p(95)<10s: the run is INVALID")


def test_a_gpu_that_nobody_knows_leaves_it_undecided(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    summary = summarise(make_run(promised(synthetic, {"response{gpu:GPU-1}": "p(95)<10s"})))
    (found,) = known(summary.promises)
    assert (found.verdict, found.n_unknown) == ("undecided", found.n)
