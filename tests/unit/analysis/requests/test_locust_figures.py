"""Locust's statistics beside the exact rows, and what of its users' time is in neither."""

from __future__ import annotations

import re
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from squall.analysis.compare.run_row import load_digest
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.report.page import render_html
from squall.analysis.report.run_plots import run_plots
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.report.templates import sentences
from squall.analysis.requests.capture import trace_of_run
from squall.analysis.requests.locust_figures import LocustFigures
from squall.analysis.requests.named_rows import QUANTILES, rows_by_name
from squall.analysis.requests.requests import Requests
from squall.analysis.requests.user_watch import locust_time, per_second
from squall.analysis.requests.users import locust_user_time
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.errors import AnalysisError
from tests.known import known
from tests.locust_runs import MODEL, N_USERS, PLAIN, bucket, quantile_of, synthesise_locust
from tests.synthetic_runs import MS, START_NS, S, SyntheticRun, as_table


@pytest.fixture
def figures(locust_summary: Summary) -> LocustFigures:
    return known(locust_summary.locust)


@pytest.fixture
def plain() -> SyntheticRun:
    """A run that nothing is derived of."""
    run = synthesise_locust()
    run.derived = run.seal = False
    return run


def samples(n: int, **columns: list[int]) -> pa.Table:
    """The first `n` rows of `locust_samples`, with these columns in the place of their own."""
    made = {name: values[:n] for name, values in synthesise_locust().tables["locust_samples"].items()}
    return as_table("locust_samples", {**made, "run": ["r"] * n, **columns})


def self_check(summary: Summary, name: str) -> SelfCheck:
    return next(check for check in summary.self_checks if check.name == name)


def times_of(key: tuple[str, str]) -> list[int]:
    """Response times of a name in ns, by a loop over the rows."""
    requests = synthesise_locust().tables["requests"]
    rows = zip(*(requests[name] for name in ("method", "name", "sent_ns", "done_ns")), strict=True)
    return [done - sent for method, name, sent, done in rows if (method, name) == key]


@pytest.mark.parametrize("keys", [[MODEL], [PLAIN], [MODEL, PLAIN]])
def test_the_rows_of_a_name_and_of_all_are_counted_and_ranked_as_locust_does(
    figures: LocustFigures, keys: list[tuple[str, str]]
) -> None:
    own = [ns for key in keys for ns in times_of(key)]
    names = {(one.method, one.name): one for one in figures.names}
    one = names[keys[0]] if len(keys) == 1 else known(figures.total)
    rows, said = known(one.rows), known(one.locust)
    assert (rows.n_requests, said.n_requests, rows.max_ns) == (len(own), len(own), max(own))
    assert [rows.mean_ns, said.mean_ns] == pytest.approx([sum(own) / len(own)] * 2)
    assert [rows.p50_ns, rows.p95_ns, rows.p99_ns] == [quantile_of(own, q) for q in QUANTILES]
    rounded = quantile_of([bucket(ns / MS) for ns in own], 0.95) * MS if len(keys) == 1 else None
    assert said.p95_ns == rounded  # sums of entries have no quantiles
    assert one.rounding_ratios.get("p95") == (rounded and pytest.approx(rounded / known(rows.p95_ns) - 1))
    assert one.is_agreeing
    assert figures.is_agreeing
    assert figures.n_plain == len(times_of(PLAIN))
    # up to half a millisecond in 7.4: the figure that stands beside Locust's quantiles
    assert 0 < known(figures.rounding_max_ratio) < 0.08


def test_locusts_own_total_gives_its_quantiles(plain: SyntheticRun, tmp_path: Path) -> None:
    both = [*times_of(MODEL), *times_of(PLAIN)]
    plain.manifest["locust"]["entries"].append(
        {
            "method": "", "name": "Aggregated", "n_requests": len(both), "n_failures": 17,
            "total_ms": sum(both) / MS, "quantiles_ms": {"0.50": 7.0},
        }
    )  # fmt: skip
    total = known(known(summarise(plain.write(tmp_path)).locust).total)
    assert known(total.locust).p50_ns == 7 * MS
    assert total.is_agreeing


def test_littles_law_over_locusts_users_is_that_of_a_loop_over_them(locust_summary: Summary) -> None:
    users = known(locust_summary.measure.users)
    requests = synthesise_locust().tables["requests"]
    start, end = START_NS + 2 * S, START_NS + 14 * S
    rows = list(zip(requests["sent_ns"], requests["done_ns"], strict=True))
    n_done = sum(start <= done < end for _, done in rows)
    service = sum(max(0, min(done, end) - max(sent, start)) for sent, done in rows)
    assert users.users_mean_count == N_USERS
    assert users.throughput_hz == pytest.approx(n_done / 12)
    assert users.service_mean_ns == round(service / n_done)
    # 20 us before each send and 100 us behind each think, of a cycle of 50 ms; and the last requests have no row
    assert 0.0024 <= users.gap_ratio < 0.006
    of_locust = known(known(locust_summary.locust).users)
    assert of_locust.reported_mean_ns == users.service_mean_ns
    waited = known(of_locust.seen_mean_ns) - known(of_locust.reported_mean_ns)
    assert 0.12 * MS <= waited < 0.3 * MS
    assert of_locust.asked_mean_count == pytest.approx(N_USERS)
    # workers of Locust count users that are awake
    assert self_check(locust_summary, "in flight").status == "not assessed"
    law = self_check(locust_summary, "Little's law")
    assert law.status == "met"
    assert law.value == pytest.approx(users.gap_ratio)


@pytest.mark.parametrize(
    ("start_s", "end_s", "told"),
    [(0.5, 2, (25 * S, 6 * S, S, 15.0, 5.0, 2, 2)), (10, 11, (0, 0, 0, 0.0, 0.0, 0, 0))],
)
def test_what_a_sample_tells_is_spread_over_its_interval(
    start_s: float, end_s: int, told: tuple[float, ...]
) -> None:
    table = samples(
        2, worker=[0, 0], t_ns=[START_NS + S, START_NS + 3 * S], interval_ns=[S, 2 * S],
        present_ns=[10 * S, 40 * S], think_ns=[4 * S, 8 * S], overslept_ns=[0, 2 * S], n_wakes=[10, 20],
        n_late_wakes=[0, 10], late_max_ns=[1, 2],
    )  # fmt: skip
    span = RunPhase("a", "measure", START_NS + round(start_s * S), START_NS + end_s * S)
    _, *found = astuple(locust_time(table, [span]))
    assert tuple(found) == told
    requests = synthesise_locust().tables["requests"]
    rows = as_table("requests", {**requests, "run": ["r"] * len(requests["phase"])})
    assert (locust_user_time(Requests.from_table(rows, False), [span], table) is None) == (told[0] == 0)


def test_samples_of_workers_that_are_late_by_their_hubs_are_of_one_second() -> None:
    at_ms = (1_000, 1_300, 2_000, 2_020)
    table = samples(4, t_ns=[START_NS + at * MS for at in at_ms], n_users=[3, 4, 5, 6])
    t_ns, users = per_second(table, "n_users")
    assert ((t_ns - START_NS) / S).tolist() == pytest.approx([1.0, 2.0])
    assert users.tolist() == [7, 11]


def test_requests_without_a_model_are_joined_to_nothing_and_every_count_agrees(
    locust_run: RunStore, locust_summary: Summary
) -> None:
    assert {one.name for one in locust_summary.identities if not one.is_met} == set()
    assert {"joined", "triton success", "batch rows", "Locust's requests"} <= {
        one.name for one in locust_summary.identities
    }
    checks = {one.name: one.status for one in locust_summary.self_checks}
    assert checks["unjoined"] == checks["parts add up"] == "met"
    joined = locust_run.read(
        "joined", ["request_kind", "join_level", "service_ns", "outcome", "first_byte_ns"]
    )
    rows = [row for row in joined.to_pylist() if row["outcome"] == "ok"]
    assert {row["join_level"] for row in rows if row["request_kind"]} == {"exact"}
    plain = [row for row in rows if not row["request_kind"]]
    assert {(row["join_level"], row["first_byte_ns"]) for row in plain} == {("none", None)}
    assert min(row["service_ns"] for row in plain) > 0
    windows = locust_run.read("windows", ["n_arrivals", "n_sent", "n_done"])
    assert windows.column("n_arrivals").null_count == windows.num_rows
    assert sum(windows.column("n_done").to_pylist()) == len(rows)
    assert known(known(locust_summary.measure.join).joined_ratio) == pytest.approx(2 / 3, abs=0.02)


def test_a_run_of_plain_requests_alone_is_valid(tmp_path: Path) -> None:
    run = synthesise_locust()
    run.omit = {"batches"}
    requests = run.tables["requests"]
    n = len(requests["phase"])
    requests |= {"request_kind": [""] * n, "rows": [0] * n, "first_byte_ns": [None] * n, "target": [""] * n}
    summary = summarise(run.write(tmp_path))
    assert (summary.verdict.status, summary.verdict.reasons) == ("VALID", ())
    assert {one.name for one in summary.identities if not one.is_met} == set()
    assert summary.measure.servers is None
    assert self_check(summary, "unjoined").status == "not assessed"


def test_the_report_has_a_section_with_users_over_time(locust_run: RunStore, locust_summary: Summary) -> None:
    plots = [one for one in run_plots(locust_run, locust_summary) if one.section == "locust"]
    (plot,) = plots
    series = {one["name"]: one["y"] for one in plot.traces}
    assert series["asked for"][:13] == series["present"][:13] == [N_USERS] * 13
    assert all(0 < known(n) < N_USERS for n in series["thinking"][:13])
    page = render_html(locust_summary, locust_run.manifest, plots)
    assert "<h2>Locust</h2>" in page
    assert "Users of Locust" in page
    assert "None: users of Locust send when they have been answered" in page
    assert "users of a closed loop" not in page


def locust_said(macro: str, figures: LocustFigures) -> list[str]:
    return sentences(macro, figures, template="locust.html.j2")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"is_agreeing": False}, "do not agree on GET /v2/health/ready"),
        ({}, "GET /v2/health/ready: 2,280, 10 failed; Locust -"),
        (
            {"is_agreeing": None, "unreported": "no last report"},
            "its statistics are not whole: no last report",
        ),
        ({"n_errors": 3, "n_died": 2}, "3 exceptions of user code; 2 users died of one"),
    ],
)
def test_what_is_amiss_is_said(figures: LocustFigures, values: dict[str, Any], said: str) -> None:
    off = replace(figures.names[0], is_agreeing=False, locust=None)
    assert said in "\n".join(locust_said("lines", replace(figures, names=(off,), **values)))


def test_users_beyond_their_number_are_said_to_have_requests_side_by_side(tmp_path: Path) -> None:
    run = synthesise_locust(at_once=3)
    run.derived = run.seal = False
    summary = summarise(run.write(tmp_path))
    users = known(summary.measure.users)
    assert users.gap_ratio < -0.1
    assert re.match(r"- 5\..* side by side", sentences("users", users)[1])
    assert "users have requests side by side" in " ".join(locust_said("notes", known(summary.locust)))
    assert self_check(summary, "Little's law").status == "not assessed"


def test_a_run_of_locust_is_a_trace_of_its_sends(locust_run: RunStore) -> None:
    with pytest.raises(AnalysisError, match="users of Locust have no schedule; use --instant sent"):
        trace_of_run(locust_run)
    part = trace_of_run(locust_run, instant="sent")
    requests = synthesise_locust().tables["requests"]
    rows = zip(requests["sent_ns"], requests["phase"], strict=True)
    assert part.stamp_ns.tolist() == sorted(sent for sent, phase in rows if phase == "burst")
    assert {*part.sizes["rows"].tolist()} == {1}


def test_names_may_be_missing_and_response_times_unknown(plain: SyntheticRun, tmp_path: Path) -> None:
    requests = plain.tables["requests"]
    n = len(requests["phase"])
    requests |= {"method": [None] * n, "name": [None] * n, "sent_ns": [None, *requests["sent_ns"][1:]]}
    rows = rows_by_name(plain.write(tmp_path))
    (one,) = rows.names
    assert (one.method, one.name, one.figures.n_requests, one.n_timed) == ("", "", n, n - 1)
    assert rows.total == one


def test_other_files_and_other_settings_of_locust_are_another_load() -> None:
    run, other, more = synthesise_locust(), synthesise_locust(), synthesise_locust()
    other.manifest["locust"]["file_sha256"] = "1" * 64
    more.manifest["scenario"]["load"]["locust"]["users"] = 2 * N_USERS
    assert load_digest(run.stated) == load_digest(synthesise_locust().stated)
    assert len({load_digest(one.stated) for one in (run, other, more)}) == 3


@pytest.mark.parametrize("n", [1, 2, 19, 20, 40, 99, 100, 200, 201])
def test_a_quantile_whose_rank_is_whole_is_locusts_too(plain: SyntheticRun, tmp_path: Path, n: int) -> None:
    plain.tables = {"requests": {name: values[:n] for name, values in plain.tables["requests"].items()}}
    requests = plain.tables["requests"]
    requests["sent_ns"] = [done - (i + 1) * MS for i, done in enumerate(requests["done_ns"])]
    total = known(rows_by_name(plain.write(tmp_path)).total).figures
    found = (total.p50_ns, total.p95_ns, total.p99_ns)
    assert found == tuple(quantile_of([(i + 1) * MS for i in range(n)], q) for q in QUANTILES)
