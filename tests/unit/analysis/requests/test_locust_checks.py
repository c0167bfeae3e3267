"""Checks of Locust's users: an honest run meets all, and each fault fails the one that is about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.report.identities import locust_identities
from squall.analysis.storage.sealed import CheckResult
from squall.analysis.verdict.run_view import Samples
from squall.analysis.verdict.validity import judge_run
from tests.known import known
from tests.locust_runs import PLAIN, bucket, synthesise_locust
from tests.synthetic_runs import MS, START_NS, S, SyntheticRun, check_of

FAULTS = yaml.safe_load((Path(__file__).parent / "faults.yaml").read_text())


def made(fault: dict[str, Any]) -> SyntheticRun:
    """A run of Locust's with what a row of the table plants in it, of which nothing is derived."""
    run = synthesise_locust(**fault.get("made", {}))
    run.derived = run.seal = False
    run.omit = {*fault.get("omit", ())}
    for table, values in fault.get("set", {}).items():
        for name, value in values.items():
            run.tables[table][name] = [value] * len(run.tables[table]["phase"])
    for table, factors in fault.get("scaled", {}).items():
        for name, factor in factors.items():
            run.tables[table][name] = [int(factor * value) for value in run.tables[table][name]]
    for table, values in fault.get("one", {}).items():
        for name, value in values.items():
            run.tables[table][name][10] = value
    samples = run.tables["locust_samples"]
    if "n_users" in fault:
        samples["n_users"] = [fault["n_users"][t > START_NS + 8 * S] for t in samples["t_ns"]]
        samples["present_ns"] = [n * S for n in samples["n_users"]]
    run.manifest["locust"] |= fault.get("locust", {})
    run.manifest["locust"]["workers"][1] |= fault.get("worker_1", {})
    return run


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_users_fails_the_check_that_is_about_it(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    verdict = judge_run(made(fault).write(tmp_path))
    unmet = {check.name for check in verdict.checks if check.is_unmet}
    assert unmet == {*fault["unmet"]} if "unmet" in fault else unmet >= {*fault.get("reasons", ())}
    assert verdict.status == ("INVALID" if unmet else "VALID")
    assert {check.name for check in verdict.checks} >= {*fault.get("met", ())}
    for check, words in fault.get("reasons", {}).items():
        assert words in check_of(verdict, check).reason
    for check, words in fault.get("not_assessed", {}).items():
        assert words in check_of(verdict, check).not_assessed
    for check, value in fault.get("values", {}).items():
        assert check_of(verdict, check).value == pytest.approx(value)
    if fault.get("client") is False:
        assert verdict.client_bottleneck is None
    elif "client" in fault:
        cause = verdict.causes[0]
        assert (cause.kind, cause.sentence) == ("client", verdict.reasons[0])
        assert [words for words in fault["client"] if words not in cause.sentence] == []
        assert known(verdict.client_bottleneck).cause == fault.get(
            "bottleneck", known(verdict.client_bottleneck).cause
        )


def drop_rows(run: SyntheticRun, every: int) -> int:
    """Every so many rows of the plain requests are gone; how many that are."""
    requests = run.tables["requests"]
    own = [i for i, key in enumerate(zip(requests["method"], requests["name"], strict=True)) if key == PLAIN]
    gone = {*own[::every]}
    for name, values in requests.items():
        requests[name] = [value for i, value in enumerate(values) if i not in gone]
    run.manifest["plan"]["n_arrivals"] -= len(gone)
    return len(gone)


def counts_of(run: SyntheticRun, parent: Path) -> tuple[CheckResult, set[str]]:
    """The check of Locust's counts, and which identities are not met."""
    store = run.write(parent)
    rows = known(Samples.read(store).locust_rows)
    unmet = {one.name for one in locust_identities(run.stated, rows) if not one.is_met}
    return check_of(judge_run(store), "Locust's counts"), unmet


@pytest.mark.parametrize("has_reported", [True, False])
def test_rows_that_are_missing_are_found_by_name_where_every_worker_has_reported(
    tmp_path: Path, has_reported: bool
) -> None:
    run = made({})
    n_gone = drop_rows(run, 100)
    run.manifest["locust"]["workers"][0]["has_reported"] = has_reported
    counts, unmet = counts_of(run, tmp_path)
    assert known(counts.value) >= n_gone
    assert counts.is_unmet == has_reported
    assert counts.not_assessed == ("" if has_reported else "no last report to Locust's master of worker 0")
    if has_reported:
        assert "of GET /v2/health/ready;" in counts.reason
        assert "Locust's requests" in unmet


def test_a_failure_that_is_recorded_as_ok_is_found(tmp_path: Path) -> None:
    run = made({})
    outcomes = run.tables["requests"]["outcome"]
    outcomes[outcomes.index("server_error")] = "ok"
    counts, unmet = counts_of(run, tmp_path)
    assert (counts.value, unmet) == (1, {"Locust's failures"})


def test_response_times_that_are_rounded_in_the_rows_are_found(tmp_path: Path) -> None:
    run = made({})
    requests = run.tables["requests"]
    requests["sent_ns"] = [
        done - int(bucket((done - sent) / MS * 0.9)) * MS
        for sent, done in zip(requests["sent_ns"], requests["done_ns"], strict=True)
    ]
    assert counts_of(run, tmp_path)[1] == {"Locust's response times"}


@pytest.mark.parametrize(("n_more", "status"), [(0, "VALID"), (1, "INVALID")])
def test_a_hole_of_a_user_that_was_stopped_within_a_request_is_no_loss(
    tmp_path: Path, n_more: int, status: str
) -> None:
    """Its id was taken, and it has no row: what Locust counted is what there is."""
    run = made({})
    requests = run.tables["requests"]
    requests["request_id"] = [one + 2 if one > 100 else one for one in requests["request_id"]]
    run.manifest["plan"]["n_arrivals"] += n_more
    verdict = judge_run(run.write(tmp_path))
    assert (verdict.status, check_of(verdict, "completeness").is_unmet) == (status, n_more > 0)
