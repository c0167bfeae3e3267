"""A closed-loop run: service time only, users accounted for by Little's law, and no word of response time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from squall.analysis.clocks.timeline import measure_spans
from squall.analysis.render.report import write_report
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
from tests.unit.analysis.render.test_screen import screen_lines

MakeRun = Callable[..., RunStore]


@pytest.fixture
def closed() -> SyntheticRun:
    return synthesise_closed()


def time_of(run: SyntheticRun) -> UserTime:
    columns = run.tables["requests"]
    table = as_table("requests", {**columns, "run": ["r"] * len(columns["phase"])})
    found = user_time(Requests.from_table(table, False), measure_spans(run.stated), run.stated)
    assert found is not None
    return found


def test_a_closed_run_is_checked_without_a_schedule_and_with_littles_law(closed: SyntheticRun) -> None:
    verdict = verdict_of(closed)
    assert verdict.status == "VALID"
    assert {check.name for check in verdict.checks} == {
        "completeness", "losses", "ok share", "users accounted for", "clock bound", "lost records",
        "event-loop lag p95", "worker saturation", "server reached",
    }  # fmt: skip


def test_what_is_missing_of_the_users_time_is_what_the_client_took() -> None:
    for overhead_ns in (0, 2 * MS, 8 * MS):
        run = synthesise_closed(overhead_ns=overhead_ns)
        found = time_of(run)
        # Each think is followed by the overhead; of a cycle of service, 40 ms and the overhead that is its share.
        cycle_ns = found.present_ns / found.n_done
        expected = overhead_ns / cycle_ns
        assert abs(found.gap_ratio - expected) < 4 * found.gap_error_ratio
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


def rewrite(run: SyntheticRun, cycle: Callable[[int, int], tuple[int, int]], ramp_ns: int = 0) -> None:
    """The measure phase again, from `cycle(user, index)`: service and gap to the user's next request."""
    rows = []
    for user in range(N_USERS):
        t, index = START_NS + 2 * S + ramp_ns * user // N_USERS, 0
        while t < START_NS + 14 * S:
            service, gap = cycle(user, index)
            rows.append((index * N_USERS + user, t, t + service))
            t, index = t + service + gap, index + 1
    n = len(rows)
    requests = run.tables["requests"]
    first = {name: values[0] for name, values in requests.items()}
    for name in requests:
        requests[name] = [first[name]] * n
    requests["phase"] = ["burst"] * n
    requests["request_id"], requests["sent_ns"], requests["done_ns"] = (
        list(one) for one in zip(*rows, strict=True)
    )
    run.manifest["plan"]["n_arrivals"] = n


def set_arrivals(run: SyntheticRun, **changes: Any) -> None:
    for phase in run.manifest["scenario"]["phases"]:
        phase["arrivals"] = {**phase["arrivals"], **changes}


def test_equal_cycles_are_accounted_for_to_the_last_ns_wherever_the_phase_cuts_them(
    closed: SyntheticRun,
) -> None:
    rewrite(closed, lambda *_: (700 * MS, 900 * MS), ramp_ns=3 * S)
    set_arrivals(closed, think={"kind": "constant", "value": "900ms"}, ramp="3s")
    found = time_of(closed)
    assert found.present_ns == 20 * 12 * S - sum(3 * S * user // 20 for user in range(20))
    assert found.gap_ratio == pytest.approx(0.0, abs=1e-12)
    assert found.gap_error_ratio == 0.0


def test_without_think_time_the_users_are_all_in_service(closed: SyntheticRun) -> None:
    rewrite(closed, lambda *_: (95 * MS, 5 * MS))
    set_arrivals(closed, think={"kind": "constant", "value": "0s"})
    assert time_of(closed).gap_ratio == pytest.approx(0.05, abs=0.001)


@pytest.mark.parametrize("think", [
    {"kind": "exponential", "mean": "4s"}, {"kind": "lognormal", "mean": "4s", "cv": 1.5},
])  # fmt: skip
def test_few_long_think_times_cut_off_by_the_end_are_no_gap(
    closed: SyntheticRun, think: dict[str, Any]
) -> None:
    """Three cycles a user: the think times that ended in the phase are on average a third too short."""
    rng = np.random.default_rng(5)
    sigma2 = math.log1p(1.5**2)
    gaps = []
    for _ in range(40):
        rewrite(
            closed,
            lambda *_: (
                10 * MS,
                int(
                    rng.exponential(4 * S)
                    if think["kind"] == "exponential"
                    else rng.lognormal(math.log(4 * S) - sigma2 / 2, math.sqrt(sigma2))
                ),
            ),
        )
        set_arrivals(closed, think=think)
        found = time_of(closed)
        gaps.append(found.gap_ratio)
    # The mean of 40 runs has the stated error over sqrt(40), 4 of them.
    assert abs(np.mean(gaps)) < 4 * found.gap_error_ratio / math.sqrt(40)
    assert np.std(gaps) < 1.5 * found.gap_error_ratio  # 4.4 standard errors of a deviation of 40


def test_a_gap_beyond_the_limit_is_said_with_what_it_means() -> None:
    check = check_of(verdict_of(synthesise_closed(overhead_ns=8 * MS)), "users accounted for")
    assert not check.is_met
    assert "requests spent that time inside the load generator" in check.reason
    assert check.limit is not None
    assert 0.05 < check.limit < 0.10


def test_users_who_do_not_think_as_they_should_are_found_too(closed: SyntheticRun) -> None:
    set_arrivals(closed, think={"kind": "exponential", "mean": "60ms"})
    check = check_of(verdict_of(closed), "users accounted for")
    assert not check.is_met
    assert "users sent sooner than their think time allows" in check.reason
    assert verdict_of(closed).client_bottleneck is None


def test_a_manifest_without_think_time_leaves_the_law_out(closed: SyntheticRun) -> None:
    del closed.manifest["scenario"]["phases"]
    verdict = verdict_of(closed)
    assert verdict.status == "VALID"
    assert "users accounted for" not in {check.name for check in verdict.checks}


def drop(run: SyntheticRun, row: int) -> None:
    for values in run.tables["requests"].values():
        values.pop(row)


def test_completeness_counts_what_the_workers_issued_and_holes_in_a_users_requests(
    closed: SyntheticRun,
) -> None:
    assert check_of(verdict_of(closed), "completeness").value == 0
    drop(closed, 100)
    check = check_of(verdict_of(closed), "completeness")
    assert check.value == 1
    assert "Number of requests issued without exactly one row is 1" in check.reason
    closed.manifest["plan"]["n_arrivals"] -= 1  # a worker that does not know of it: the hole tells
    assert check_of(verdict_of(closed), "completeness").value == 1
    for values in closed.tables["requests"].values():
        values.append(values[5])
    assert check_of(verdict_of(closed), "completeness").value == 2


def test_the_summary_of_a_closed_run_has_service_time_alone(closed_summary: Summary) -> None:
    measure = closed_summary.measure
    assert (closed_summary.load, closed_summary.latency_name) == ("closed", "service")
    assert set(measure.latency.spreads) == {"service"}
    assert measure.load.intended is None
    assert measure.load.delivered.n == measure.outcomes.n
    assert known(measure.users).users_mean_count == N_USERS
    account = known(known(measure.join).accounting)
    assert account.level == "server"
    assert list(account.parts) == [
        "service", "network", "queue", "input", "handover", "compute", "output", "residual",
    ]  # fmt: skip
    assert all(one.is_met for one in closed_summary.identities)
    assert "there is no response time" in closed_summary.failures_rule


def test_the_quantiles_are_those_of_the_service_times(closed_run: RunStore, closed_summary: Summary) -> None:
    rows = [row for row in closed_run.read("requests").to_pylist() if row["phase"] == "burst"]
    services = sorted(row["done_ns"] - row["sent_ns"] for row in rows)
    found = {one.q: one for one in closed_summary.measure.latency.service.quantiles}
    assert found[0.95].value_ns == services[-(-95 * len(services) // 100) - 1]


def test_the_rows_of_a_closed_run_come_in_the_order_of_their_sends(closed_run: RunStore) -> None:
    requests = Requests.from_table(closed_run.read("requests"), False)
    assert (np.diff(requests.sent_ns) >= 0).all()
    assert not (np.diff(requests.request_id) > 0).all()
    assert (requests.latency_name, bool(requests.has_begun.all())) == ("service", True)
    assert (requests.latency_ns == requests.service_ns).all()


def test_joined_and_windows_have_no_response_time_and_no_lag(closed_run: RunStore) -> None:
    joined = closed_run.read("joined")
    for name in ("scheduled_ns", "response_ns", "lag_ns"):
        assert joined[name].null_count == joined.num_rows
    assert joined["service_ns"].null_count == 0
    windows = closed_run.read("windows")
    for name in ("n_arrivals", "response_p50_ns", "response_p95_ns"):
        assert windows[name].null_count == windows.num_rows
    rows = closed_run.read("requests").to_pylist()
    t_ns = START_NS + 5 * S
    window = next(row for row in windows.to_pylist() if row["t_ns"] == t_ns)
    own = sorted(r["done_ns"] - r["sent_ns"] for r in rows if t_ns <= r["sent_ns"] < t_ns + S // 10)
    assert window["n_sent"] == len(own)
    assert window["service_p50_ns"] == own[-(-len(own) // 2) - 1]
    assert window["service_p95_ns"] == own[-(-95 * len(own) // 100) - 1]


def test_failures_of_a_closed_loop_fall_into_the_window_of_their_send(
    make_run: MakeRun, closed: SyntheticRun
) -> None:
    requests = closed.tables["requests"]
    requests["outcome"][500] = "timeout"
    never = 600  # issued when the run ended, and never sent: it has no instant and no window
    requests["outcome"][never] = "unsent"
    for name in ("sent_ns", "first_byte_ns", "done_ns"):
        requests[name][never] = None
    store = make_run(closed)
    failed = [row["t_ns"] for row in store.read("windows").to_pylist() if row["n_failed"]]
    assert len(failed) == 1
    assert 0 <= requests["sent_ns"][500] - failed[0] < S // 10
    assert write_report(store).exists()


def test_the_screen_says_service_time_users_and_throughput_within_80_columns(
    closed_summary: Summary,
) -> None:
    lines = screen_lines(closed_summary)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45
    for words in ("service time p95", "sent by users", "Users         20 = ", "inside the load generator"):
        assert words in text, words
    assert not re.search(r"response|send lag|intended|lag ", re.sub("loop lag", "", text))
    assert "…" not in text.partition("service time p95")[0]  # no figure is cut short


def test_the_report_says_closed_loop_and_has_no_response_time(
    closed_run: RunStore, closed_summary: Summary, closed_page: str
) -> None:
    ours = re.sub(r"<script>/\*\*.*?</script>", "", closed_page, count=1, flags=re.DOTALL)
    assert "service time p95" in ours
    assert "closed loop, 20 users" in ours
    assert "Little" in ours
    prose = re.sub(r"<code>.*?</code>|\w+_(?:ratio|ns)\b", "", ours)  # queries and measures name columns
    for words in re.findall(r"[^.>]*(?:response|send lag)[^.<]*", prose):
        assert "there is no response time" in words
    plots = run_plots(closed_run, closed_summary)
    assert not [plot.title for plot in plots if plot.absent]
    assert {"Service time", "Requests sent by the users", "Where the service time goes"} <= {
        p.title for p in plots
    }
    assert [series["name"] for series in plots[0].traces] == ["sent"]
    assert [series["name"] for series in plots[3].traces] == ["service time"]
