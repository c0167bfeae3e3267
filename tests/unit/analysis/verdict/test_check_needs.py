"""A check needs samples enough and a consequence; who took the CPU comes where it belongs among the causes."""

from __future__ import annotations

import pytest

from squall.analysis.limits import LIMITS
from squall.analysis.requests.failures import ABSENT, REFUSES, SLOW, Failures, Group
from squall.analysis.verdict.causes import causes_of
from squall.analysis.verdict.check import Check, held_to
from squall.analysis.verdict.cpu_shares import CpuShares
from squall.analysis.verdict.starvation import judge_starvation
from squall.analysis.verdict.validity import Verdict
from tests.synthetic_runs import MS, S, SyntheticRun, synthesise, synthesise_closed
from tests.unit.analysis.verdict.test_bottleneck import send_late, set_samples, verdict_of


def check_of(verdict: Verdict, name: str) -> Check:
    return next(check for check in verdict.checks if check.name == name)


def keep_samples(run: SyntheticRun, n: int) -> None:
    """Only the first `n` samples of the workers in the measure phase are left."""
    samples = run.tables["worker_samples"]
    kept = [i for i, phase in enumerate(samples["phase"]) if phase == "burst"][:n]
    for name, values in samples.items():
        samples[name] = [values[i] for i in kept]


@pytest.mark.parametrize("make", [synthesise, synthesise_closed])
@pytest.mark.parametrize("n", [1, 6, LIMITS.least_samples - 1])
def test_a_handful_of_late_timers_on_a_quiet_host_makes_no_run_invalid(n: int, make: type) -> None:
    run = make()
    set_samples(run, loop_lag_ns=14 * MS // 10 if make is synthesise else 9 * MS, cpu_ns=int(0.95 * S))
    keep_samples(run, n)
    verdict = verdict_of(run)
    assert (verdict.status, verdict.reasons) == ("VALID", ())
    for name in ("event-loop lag p95", "worker saturation"):
        check = check_of(verdict, name)
        assert not check.is_met
        assert not check.reason
        assert check.not_assessed == f"{n} samples, it takes {LIMITS.least_samples}"


def test_of_twenty_samples_one_is_within_what_is_allowed_and_two_are_not() -> None:
    """In a closed loop, where nothing but the samples shows replies that were read late."""
    for n_full, is_met in ((1, True), (2, False)):
        run = synthesise_closed()
        keep_samples(run, LIMITS.least_samples)
        cpu = run.tables["worker_samples"]["cpu_ns"]
        cpu[:n_full] = [int(0.95 * S)] * n_full
        verdict = verdict_of(run)
        assert check_of(verdict, "worker saturation").is_met is is_met
        assert verdict.status == ("VALID" if is_met else "INVALID")


def test_a_full_worker_that_sent_all_in_time_is_no_fault_and_one_that_did_not_is() -> None:
    run = synthesise()
    set_samples(run, cpu_ns=int(0.95 * S), loop_lag_ns=20 * MS)
    verdict = verdict_of(run)
    assert verdict.status == "VALID"
    assert (
        check_of(verdict, "worker saturation").not_assessed == "the sends kept to their schedule all the same"
    )
    assert verdict.client_bottleneck is None
    send_late(run)
    verdict = verdict_of(run)
    assert check_of(verdict, "worker saturation").is_unmet
    assert check_of(verdict, "event-loop lag p95").is_unmet


def test_samples_that_are_absent_still_make_the_run_invalid() -> None:
    run = synthesise()
    run.omit.add("worker_samples")
    verdict = verdict_of(run)
    assert verdict.status == "INVALID"
    assert check_of(verdict, "worker saturation").reason.endswith("nobody knows whether the tool kept up.")


def test_an_excuse_changes_only_what_is_unmet() -> None:
    met, unmet = (held_to("x", value, 1, "count", "what it is", "do") for value in (1, 2))
    assert met.unless("why not") is met
    assert unmet.unless("") is unmet
    excused = unmet.unless("why not")
    assert (excused.is_met, excused.is_unmet, excused.reason, excused.value) == (False, False, "", 2)


def shares(taken: dict[str, float] | None, throttled: float | None = None) -> CpuShares:
    cores = {"server": 0.2, "clients": 0.1, "squall": 0.1, "others": 1.6, "steal": 0.0, "idle": 0.0}
    return CpuShares("node-0", "m", 20, 2, cores, 0.8, 0.5, taken, throttled_ratio=throttled, quota_cores=1.0,
        full_ratio=1.0, lacked_cores=0.5, consequence_ratio=0.6)  # fmt: skip


def failing(kind: str) -> Failures:
    return Failures(100, 50, 0, (Group(kind, "outcome", "why", 50),))


def test_others_that_took_the_cpu_come_after_a_server_that_refuses_and_before_its_timeouts() -> None:
    by_others = judge_starvation(shares({"others": 0.7}))
    for kind, order in (
        (ABSENT, [ABSENT, "others took the CPU"]),
        (REFUSES, [REFUSES, "others took the CPU"]),
        (SLOW, ["others took the CPU", SLOW]),
    ):
        assert [one.kind for one in causes_of(failing(kind), by_others, "", None)] == order


def test_others_that_took_the_cpu_come_before_the_client_that_lacked_it() -> None:
    run = synthesise()
    send_late(run)
    stall = verdict_of(run).client_bottleneck
    assert stall is not None
    assert stall.cause == "stall"
    both = ["others took the CPU", "client"]
    fine, by_others = Failures(100, 100, 0, ()), judge_starvation(shares({"others": 0.7}))
    assert [one.kind for one in causes_of(fine, by_others, "", stall)] == both
    assert [one.kind for one in causes_of(fine, None, "Others took it.", stall)] == both
    assert [one.kind for one in causes_of(fine, None, "", stall)] == ["client"]


def test_a_load_generator_that_took_the_servers_cpu_is_the_client_and_a_quota_is_no_cause() -> None:
    fine = Failures(100, 100, 0, ())
    by_clients = judge_starvation(shares({"clients": 0.7}))
    assert [one.kind for one in causes_of(fine, by_clients, "", None)] == ["client"]
    quota = judge_starvation(shares({"others": 0.0}, throttled=0.5))
    assert quota.starved_by == "quota"
    assert causes_of(fine, quota, "", None) == ()
