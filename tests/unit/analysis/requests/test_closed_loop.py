"""A closed-loop run: service time only, users accounted for by Little's law, and no word of response time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from squall.analysis.report.run_plots import run_plots
from squall.analysis.report.summary_file import Summary
from squall.analysis.requests.closed_loop import UserTime, user_time
from squall.analysis.requests.requests import Requests
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from tests.known import known
from tests.synthetic_runs import (
    MS,
    N_USERS,
    START_NS,
    THINK_NS,
    S,
    SyntheticRun,
    as_table,
    check_of,
    synthesise_closed,
    verdict_of,
)


@pytest.fixture
def closed() -> SyntheticRun:
    return synthesise_closed()


def time_of(run: SyntheticRun) -> UserTime:
    columns = run.tables["requests"]
    table = as_table("requests", {**columns, "run": ["r"] * len(columns["phase"])})
    return known(user_time(Requests.from_table(table, False), measure_spans(run.stated), run.stated))


def rewrite(
    run: SyntheticRun, cycle: Callable[[], tuple[int, int]], think: dict[str, Any], ramp_s: int = 0
) -> UserTime:
    """The measure phase again, from service and gap to the user's next request; the scenario asks for `think`."""
    rows = []
    for user in range(N_USERS):
        t, index = START_NS + 2 * S + ramp_s * S * user // N_USERS, 0
        while t < START_NS + 14 * S:
            service, gap = cycle()
            rows.append((index * N_USERS + user, t, t + service))
            t, index = t + service + gap, index + 1
    columns = {name: [values[0]] * len(rows) for name, values in run.tables["requests"].items()}
    columns["phase"] = ["burst"] * len(rows)
    for name, values in zip(("request_id", "sent_ns", "done_ns"), zip(*rows, strict=True), strict=True):
        columns[name] = list(values)
    run.tables["requests"] = columns
    set_think(run, think, ramp=f"{ramp_s}s")
    return time_of(run)


def set_think(run: SyntheticRun, think: dict[str, Any], **changes: Any) -> None:
    for phase in run.manifest["scenario"]["phases"]:
        phase["arrivals"] |= {"think": think, **changes}


@pytest.mark.parametrize("overhead_ns", [0, 2 * MS, 8 * MS])
def test_what_is_missing_of_the_users_time_is_what_the_client_took(overhead_ns: int) -> None:
    found = time_of(synthesise_closed(overhead_ns=overhead_ns))
    # Each think is followed by the overhead; of a cycle of service, 40 ms and the overhead that is its share.
    cycle_ns = found.present_ns / found.n_done
    assert abs(found.gap_ratio - overhead_ns / cycle_ns) < 4 * found.gap_error_ratio
    assert found.service_ns + found.think_ns == pytest.approx(found.present_ns * (1 - found.gap_ratio))
    assert found.gap_error_ratio == pytest.approx(THINK_NS * math.sqrt(found.n_done) / found.present_ns)


def test_the_figures_are_those_of_loops_over_the_rows(closed: SyntheticRun) -> None:
    requests = closed.tables["requests"]
    start, end = START_NS + 2 * S, START_NS + 14 * S
    rows = list(zip(*(requests[name] for name in ("phase", "sent_ns", "done_ns")), strict=True))
    figures = time_of(closed).figures()
    n_done = sum(phase == "burst" and done < end for phase, _, done in rows)
    service = sum(max(0, min(done, end) - max(sent, start)) for _, sent, done in rows)
    assert figures.users_mean_count == N_USERS
    assert figures.throughput_hz == pytest.approx(n_done / 12)
    assert figures.service_mean_ns == round(service / n_done)
    accounted = figures.throughput_hz * (figures.service_mean_ns + figures.think_mean_ns) / S
    assert accounted + figures.inside_client_mean_count == pytest.approx(N_USERS)


@pytest.mark.parametrize(
    ("service_ms", "gap_ms", "think", "ramp_s", "expected"),
    [(700, 900, "900ms", 3, pytest.approx(0.0, abs=1e-12)), (95, 5, "0s", 0, pytest.approx(0.05, abs=0.001))],
)
def test_equal_cycles_are_accounted_for_wherever_the_phase_cuts_them(
    service_ms: int, gap_ms: int, think: str, ramp_s: int, expected: float, closed: SyntheticRun
) -> None:
    stated = {"kind": "constant", "value": think}
    found = rewrite(closed, lambda: (service_ms * MS, gap_ms * MS), stated, ramp_s)
    assert found.present_ns == 20 * 12 * S - sum(ramp_s * S * user // 20 for user in range(20))
    assert (found.gap_ratio, found.gap_error_ratio) == (expected, 0.0)


@pytest.mark.parametrize("cv", [1.0, 1.5])
def test_few_long_think_times_cut_off_by_the_end_are_no_gap(cv: float, closed: SyntheticRun) -> None:
    """Less than two cycles a user: the think times that ended in the phase are on average far too short."""
    rng = np.random.default_rng(5)
    if cv == 1.0:
        think: dict[str, Any] = {"kind": "exponential", "mean": "4s"}
        found = [rewrite(closed, lambda: (3 * S, int(rng.exponential(4 * S))), think) for _ in range(40)]
    else:
        think, sigma2 = {"kind": "lognormal", "mean": "4s", "cv": cv}, math.log1p(cv**2)
        mu = math.log(4 * S) - sigma2 / 2
        found = [
            rewrite(closed, lambda: (3 * S, int(rng.lognormal(mu, math.sqrt(sigma2)))), think)
            for _ in range(40)
        ]
    error = found[-1].gap_error_ratio
    # The mean of 40 runs has the stated error over sqrt(40), 4 of them.
    assert abs(np.mean([one.gap_ratio for one in found])) < 4 * error / math.sqrt(40)
    assert np.std([one.gap_ratio for one in found]) < 1.5 * error  # 4.4 standard errors of a deviation of 40


def test_the_users_are_checked_by_littles_law_where_the_manifest_says_how_they_think(
    closed: SyntheticRun,
) -> None:
    checks = {
        "completeness", "losses", "ok share", "users accounted for", "clock bound", "lost records",
        "event-loop lag p95", "worker saturation", "server reached",
    }  # fmt: skip
    verdict = verdict_of(closed)
    assert (verdict.status, {check.name for check in verdict.checks}) == ("VALID", checks)
    slow = check_of(verdict_of(synthesise_closed(overhead_ns=8 * MS)), "users accounted for")
    assert slow.is_unmet
    assert 0.05 < known(slow.limit) < 0.10
    assert "requests spent that time inside the load generator" in slow.reason
    set_think(closed, {"kind": "exponential", "mean": "60ms"})
    verdict = verdict_of(closed)
    soon = check_of(verdict, "users accounted for")
    assert soon.is_unmet
    assert "users sent sooner than their think time allows" in soon.reason
    assert verdict.client_bottleneck is None
    del closed.manifest["scenario"]["phases"]
    verdict = verdict_of(closed)
    assert (verdict.status, checks - {check.name for check in verdict.checks}) == (
        "VALID",
        {"users accounted for"},
    )


def test_completeness_counts_what_the_workers_issued_and_holes_in_a_users_requests(
    closed: SyntheticRun,
) -> None:
    def n_incomplete() -> float | None:
        return check_of(verdict_of(closed), "completeness").value

    assert n_incomplete() == 0
    for values in closed.tables["requests"].values():
        values.pop(100)
    assert n_incomplete() == 1
    closed.manifest["plan"]["n_arrivals"] -= 1  # a worker that does not know of it: the hole tells
    assert n_incomplete() == 1
    for values in closed.tables["requests"].values():
        values.append(values[5])
    assert n_incomplete() == 2


def test_the_report_says_closed_loop_and_has_no_response_time(
    closed_run: RunStore, closed_summary: Summary, closed_page: str
) -> None:
    ours = re.sub(r"<script>/\*\*.*?</script>", "", closed_page, count=1, flags=re.DOTALL)
    for words in ("service time p95", "closed loop, 20 users", "Little"):
        assert words in ours
    prose = re.sub(r"<code>.*?</code>|\w+_(?:ratio|ns)\b", "", ours)  # queries and measures name columns
    for words in re.findall(r"[^.>]*(?:response|send lag)[^.<]*", prose):
        assert "there is no response time" in words
    plots = run_plots(closed_run, closed_summary)
    assert not [plot.title for plot in plots if plot.absent]
    assert [plots[i].traces[0]["name"] for i in (0, 3)] == ["sent", "service time"]
