"""Checks of Locust's users: an honest run meets all, and each fault fails the one that is about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.storage.store import RunStore
from squall.analysis.summary.identities import locust_identities
from squall.analysis.tables.sealed import Verdict
from squall.analysis.verdict.run_view import HUB_LAG_NS, Samples
from squall.analysis.verdict.validity import judge_run
from tests.locust_runs import N_USERS, PLAIN, bucket, synthesise_locust
from tests.synthetic_runs import MS, START_NS, S, SyntheticRun, check_of

Judge = Callable[[SyntheticRun], Verdict]


@pytest.fixture
def honest() -> SyntheticRun:
    return synthesise_locust()


@pytest.fixture
def store_of(tmp_path: Path) -> Callable[[SyntheticRun], RunStore]:
    def write(run: SyntheticRun) -> RunStore:
        run.derived = run.seal = False
        return run.write(tmp_path)

    return write


@pytest.fixture
def judge(store_of: Callable[[SyntheticRun], RunStore]) -> Judge:
    return lambda run: judge_run(store_of(run))


def set_samples(run: SyntheticRun, table: str = "locust_samples", **values: Any) -> None:
    for name, value in values.items():
        run.tables[table][name] = [value] * len(run.tables[table]["phase"])


def drop_rows(run: SyntheticRun, every: int, of: tuple[str, str] = PLAIN) -> int:
    """Every so many rows of a name are gone; how many that are."""
    requests = run.tables["requests"]
    own = [i for i, key in enumerate(zip(requests["method"], requests["name"], strict=True)) if key == of]
    gone = set(own[::every])
    for name, values in requests.items():
        requests[name] = [value for i, value in enumerate(values) if i not in gone]
    run.manifest["plan"]["n_arrivals"] -= len(gone)
    return len(gone)


def unmet_counts(run: SyntheticRun, store: RunStore) -> set[str]:
    record = Samples.read(store).locust
    assert record is not None
    return {one.name for one in locust_identities(run.stated, record.rows) if not one.is_met}


def test_an_honest_run_is_valid_and_meets_every_check_of_users(honest: SyntheticRun, judge: Judge) -> None:
    verdict = judge(honest)
    assert (verdict.status, verdict.reasons, verdict.client_bottleneck) == ("VALID", (), None)
    assert {check.name for check in verdict.checks} == {
        "completeness", "losses", "ok share", "users accounted for", "clock bound", "lost records",
        "event-loop lag p95", "worker saturation", "users present", "late users", "Locust's counts",
    }  # fmt: skip
    assert all(check.is_met for check in verdict.checks)


def test_time_inside_locust_makes_the_client_the_cause_and_says_what_users_saw(judge: Judge) -> None:
    run = synthesise_locust(inside_ns=300 * MS)
    set_samples(run, "worker_samples", cpu_ns=int(0.97 * S))
    verdict = judge(run)
    assert verdict.status == "INVALID"
    cause = verdict.causes[0]
    assert cause.kind == "client"
    assert cause.sentence == verdict.reasons[0]
    # 300 ms before each send, service 2 ms and 8 ms on average behind it
    assert "requests took their users 30" in cause.sentence
    assert "of which Locust's response times hold 9." in cause.sentence
    assert "a Locust worker has one core" in cause.sentence
    assert verdict.client_bottleneck is not None
    assert verdict.client_bottleneck.cause == "worker cpu"
    accounted = check_of(verdict, "users accounted for")
    assert accounted.is_unmet
    assert "a Locust worker has one core" in accounted.reason


def test_a_full_worker_fails_its_check_and_is_told_of_its_one_core(
    honest: SyntheticRun, judge: Judge
) -> None:
    set_samples(honest, "worker_samples", cpu_ns=int(0.95 * S))
    verdict = judge(honest)
    assert check_of(verdict, "worker saturation").reason.endswith("a Locust worker has one core.")
    assert verdict.causes[0].kind == "client"


def test_a_late_hub_fails_the_check_of_the_event_loop(honest: SyntheticRun, judge: Judge) -> None:
    set_samples(honest, "worker_samples", loop_lag_ns=HUB_LAG_NS)
    assert judge(honest).status == "VALID"  # a tenth of the p95 would be 2.6 ms
    set_samples(honest, "worker_samples", loop_lag_ns=HUB_LAG_NS + 1)
    assert check_of(judge(honest), "event-loop lag p95").is_unmet


def test_users_that_wake_late_are_the_clients_fault(judge: Judge) -> None:
    verdict = judge(synthesise_locust(late_ns=30 * MS))
    late = check_of(verdict, "late users")
    assert (late.is_unmet, late.value) == (True, 1.0)
    assert verdict.causes[0].kind == "client"
    assert "100 % of the users' wakes were more than 10.0 ms late" in verdict.causes[0].sentence


def test_late_wakes_alone_are_a_cause_with_their_share(honest: SyntheticRun, judge: Judge) -> None:
    samples = honest.tables["locust_samples"]
    samples["n_late_wakes"] = [n // 10 for n in samples["n_wakes"]]
    verdict = judge(honest)
    assert [check.name for check in verdict.checks if check.is_unmet] == ["late users"]
    assert verdict.client_bottleneck is not None
    assert "of the users' wakes were more than 10.0 ms late" in verdict.client_bottleneck.evidence


def test_a_handful_of_wakes_says_nothing(honest: SyntheticRun, judge: Judge) -> None:
    set_samples(honest, n_wakes=0, n_late_wakes=0)
    honest.tables["locust_samples"]["n_wakes"][10] = honest.tables["locust_samples"]["n_late_wakes"][10] = 5
    late = check_of(judge(honest), "late users")
    assert late.not_assessed == "5 wakes, it takes 20"


def test_requests_side_by_side_are_not_called_the_clients_limit(judge: Judge) -> None:
    verdict = judge(synthesise_locust(at_once=3))
    accounted = check_of(verdict, "users accounted for")
    assert accounted.not_assessed.startswith("users have requests side by side")
    assert (verdict.status, verdict.client_bottleneck) == ("VALID", None)


def test_users_that_died_make_the_run_invalid_in_the_words_of_their_exception(
    honest: SyntheticRun, judge: Judge
) -> None:
    samples = honest.tables["locust_samples"]
    samples["present_ns"] = [int(0.9 * ns) for ns in samples["present_ns"]]
    samples["n_died"][0] = 2
    honest.manifest["locust"]["exceptions"] = [
        {"message": "KeyError: 'token'", "traceback": "", "n": 2},
        {"message": "ValueError: seldom", "traceback": "", "n": 1},
    ]
    verdict = judge(honest)
    missing = check_of(verdict, "users present")
    assert missing.value == pytest.approx(0.1)
    assert "2 died of an exception (KeyError: 'token'): mend the locustfile" in missing.reason
    assert f"21.6 of {N_USERS}" in missing.reason


def test_users_lost_with_a_worker_and_users_that_come_late_are_told_apart(
    honest: SyntheticRun, judge: Judge
) -> None:
    samples = honest.tables["locust_samples"]
    samples["n_users"] = [12 if t > START_NS + 8 * S else 2 for t in samples["t_ns"]]
    samples["present_ns"] = [n * S for n in samples["n_users"]]
    assert "still being spawned: lengthen the warmup" in check_of(judge(honest), "users present").reason
    honest.manifest["locust"]["workers"][1] |= {"has_reported": False, "n_users_lost": 12}
    assert "12 went with worker 1" in check_of(judge(honest), "users present").reason


def test_users_that_ended_by_themselves_are_missed_too(honest: SyntheticRun, judge: Judge) -> None:
    samples = honest.tables["locust_samples"]
    samples["n_users"] = [2 if t > START_NS + 8 * S else 12 for t in samples["t_ns"]]
    samples["present_ns"] = [n * S for n in samples["n_users"]]
    assert "they ended by themselves (StopUser)" in check_of(judge(honest), "users present").reason


def test_without_samples_of_its_users_a_run_is_invalid(honest: SyntheticRun, judge: Judge) -> None:
    honest.omit = {"locust_samples"}
    verdict = judge(honest)
    unmet = {check.name for check in verdict.checks if check.is_unmet}
    assert unmet == {"users present", "late users"}


def test_a_master_that_was_lost_leaves_counts_and_users_asked_for_unknown(
    honest: SyntheticRun, judge: Judge
) -> None:
    honest.manifest["locust"] |= {"is_whole": False, "asked": []}
    verdict = judge(honest)
    assert "master was lost" in check_of(verdict, "users present").not_assessed
    assert "master was lost" in check_of(verdict, "Locust's counts").not_assessed


def test_rows_that_are_missing_are_found_by_name(
    honest: SyntheticRun, judge: Judge, store_of: Callable[[SyntheticRun], RunStore]
) -> None:
    n_gone = drop_rows(honest, 100)
    counts = check_of(judge(honest), "Locust's counts")
    assert counts.is_unmet
    assert counts.value is not None
    assert counts.value >= n_gone
    assert "of GET /v2/health/ready;" in counts.reason
    assert "Locust's requests" in unmet_counts(honest, store_of(honest))


def test_a_worker_without_a_last_report_leaves_the_counts_unassessed(
    honest: SyntheticRun, judge: Judge
) -> None:
    drop_rows(honest, 100)
    honest.manifest["locust"]["workers"][0]["has_reported"] = False
    counts = check_of(judge(honest), "Locust's counts")
    assert counts.not_assessed == "no last report to Locust's master of worker 0"
    assert counts.value


def test_a_failure_that_is_recorded_as_ok_is_found(
    honest: SyntheticRun, judge: Judge, store_of: Callable[[SyntheticRun], RunStore]
) -> None:
    outcomes = honest.tables["requests"]["outcome"]
    outcomes[outcomes.index("server_error")] = "ok"
    assert check_of(judge(honest), "Locust's counts").value == 1
    assert unmet_counts(honest, store_of(honest)) == {"Locust's failures"}


def test_response_times_that_are_rounded_in_the_rows_are_found(
    honest: SyntheticRun, store_of: Callable[[SyntheticRun], RunStore]
) -> None:
    requests = honest.tables["requests"]
    requests["sent_ns"] = [
        done - int(bucket((done - sent) / MS * 0.9)) * MS
        for sent, done in zip(requests["sent_ns"], requests["done_ns"], strict=True)
    ]
    assert unmet_counts(honest, store_of(honest)) == {"Locust's response times"}


def test_a_hole_of_a_user_that_was_stopped_within_a_request_is_no_loss(
    honest: SyntheticRun, judge: Judge
) -> None:
    """Its id was taken, and it has no row: what Locust counted is what there is."""
    requests = honest.tables["requests"]
    requests["request_id"] = [one + 2 if one > 100 else one for one in requests["request_id"]]
    assert judge(honest).status == "VALID"
    honest.manifest["plan"]["n_arrivals"] += 1
    assert check_of(judge(honest), "completeness").is_unmet
