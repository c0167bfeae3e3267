"""A closed-loop run: service time only, users accounted for by Little's law, and no word of response time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from squall.analysis.clocks.timeline import measure_spans
from squall.analysis.render.run_plots import run_plots
from squall.analysis.requests.closed_loop import UserTime, user_time
from squall.analysis.requests.requests import Requests
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary_file import Summary
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
    """Three cycles a user: the think times that ended in the phase are on average a third too short."""
    rng = np.random.default_rng(5)
    if cv == 1.0:
        think: dict[str, Any] = {"kind": "exponential", "mean": "4s"}
        found = [rewrite(closed, lambda: (10 * MS, int(rng.exponential(4 * S))), think) for _ in range(40)]
    else:
        think, sigma2 = {"kind": "lognormal", "mean": "4s", "cv": cv}, math.log1p(cv**2)
        mu = math.log(4 * S) - sigma2 / 2
        found = [
            rewrite(closed, lambda: (10 * MS, int(rng.lognormal(mu, math.sqrt(sigma2)))), think)
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


def test_the_summary_of_a_closed_run_has_the_service_time_of_its_rows_alone(
    closed_run: RunStore, closed_summary: Summary
) -> None:
    measure = closed_summary.measure
    assert (closed_summary.load, closed_summary.latency_name) == ("closed", "service")
    assert set(measure.latency.spreads) == {"service"}
    assert measure.load.intended is None
    assert measure.load.delivered.n == measure.outcomes.n
    assert known(measure.users).users_mean_count == N_USERS
    account = known(known(measure.join).accounting)
    assert (account.level, next(iter(account.parts))) == ("server", "service")
    assert all(one.is_met for one in closed_summary.identities)
    rows = [row for row in closed_run.read("requests").to_pylist() if row["phase"] == "burst"]
    services = sorted(row["done_ns"] - row["sent_ns"] for row in rows)
    found = {one.q: one for one in measure.latency.service.quantiles}
    assert found[0.95].value_ns == services[-(-95 * len(services) // 100) - 1]


def test_joined_and_windows_have_no_response_time_and_no_lag(closed_run: RunStore) -> None:
    joined, windows = closed_run.read("joined"), closed_run.read("windows")
    for table, names in (
        (joined, ("scheduled_ns", "response_ns", "lag_ns")),
        (windows, ("n_arrivals", "response_p50_ns", "response_p95_ns")),
    ):
        assert [table[name].null_count for name in names] == [table.num_rows] * 3
    assert joined["service_ns"].null_count == 0
    t_ns = START_NS + 5 * S
    rows = closed_run.read("requests").to_pylist()
    own = sorted(r["done_ns"] - r["sent_ns"] for r in rows if t_ns <= r["sent_ns"] < t_ns + S // 10)
    window = next(row for row in windows.to_pylist() if row["t_ns"] == t_ns)
    p50_ns, p95_ns = (own[-(-percent * len(own) // 100) - 1] for percent in (50, 95))
    assert (window["n_sent"], window["service_p50_ns"], window["service_p95_ns"]) == (
        len(own),
        p50_ns,
        p95_ns,
    )


def test_failures_of_a_closed_loop_fall_into_the_window_of_their_send(
    make_run: Callable[..., RunStore], closed: SyntheticRun
) -> None:
    requests = closed.tables["requests"]
    requests["outcome"][500] = "timeout"
    never = 600  # issued when the run ended, and never sent: it has no instant and no window
    requests["outcome"][never] = "unsent"
    for name in ("sent_ns", "first_byte_ns", "done_ns"):
        requests[name][never] = None
    failed = [row["t_ns"] for row in make_run(closed).read("windows").to_pylist() if row["n_failed"]]
    assert len(failed) == 1
    assert 0 <= requests["sent_ns"][500] - failed[0] < S // 10


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
