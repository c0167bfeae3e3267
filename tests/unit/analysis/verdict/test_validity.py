"""A run that kept up meets every check, each fault fails its own, and the causes come in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from squall.analysis.record import to_json
from squall.analysis.requests.failures import ABSENT, REFUSES, SLOW, WRONG
from squall.analysis.requests.requests import Requests
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.sealed import Bottleneck, FailureGroup, Failures, Starvation
from squall.analysis.verdict.causes import causes_of
from squall.analysis.verdict.checks import CHECKS
from squall.analysis.verdict.client_checks import LEAST_SAMPLES
from squall.analysis.verdict.measured import latency_figures, outcome_figures
from squall.analysis.verdict.validity import judge_run
from tests.cpu_runs import cpu_of_the_node
from tests.synthetic_runs import (
    MS,
    START_NS,
    S,
    SyntheticRun,
    as_table,
    check_of,
    synthesise,
    synthesise_closed,
    verdict_of,
)

Break = Callable[[SyntheticRun], None]


def test_a_run_that_kept_up_is_valid_with_every_check_met(synthetic: SyntheticRun) -> None:
    verdict = verdict_of(synthetic)
    assert (verdict.status, verdict.reasons) == ("VALID", ())
    of_others = {"CPU of the server", "GPU of the server", "users present", "late users", "Locust's counts"}
    too_long = {"dispersion 10 s", "dispersion 100 s", "users accounted for"}
    assert {check.name for check in verdict.checks} == {check.name for check in CHECKS} - of_others - too_long
    assert all(check.is_met for check in verdict.checks)
    assert not any(check.reason for check in verdict.checks)


def edit(table: str, column: str, change: Callable[[Any], Any], every: int = 1) -> Break:
    def apply(run: SyntheticRun) -> None:
        values = run.tables[table][column]
        values[::every] = [change(value) for value in values[::every]]

    return apply


def drop_row(run: SyntheticRun) -> None:
    for values in run.tables["requests"].values():
        values.pop(1000)


def double_row(run: SyntheticRun) -> None:
    for values in run.tables["requests"].values():
        values.append(values[1000])


def never_send(run: SyntheticRun) -> None:
    requests = run.tables["requests"]
    requests["outcome"][1000] = "unsent"
    for name in ("sent_ns", "first_byte_ns", "done_ns"):
        requests[name][1000] = None


def lose_records(run: SyntheticRun) -> None:
    """One of a measure phase, one of none."""
    requests = run.tables["requests"]
    for row in (0, 1000):
        requests["outcome"][row] = "lost"
        for name in ("sent_ns", "first_byte_ns", "done_ns"):
            requests[name][row] = None


def send_late(run: SyntheticRun) -> None:
    """A client that stalls for 1.5 s in the burst and then sends all at once."""
    requests = run.tables["requests"]
    stall, resume = START_NS + 7 * S, START_NS + 8 * S + S // 2
    for i, sent in enumerate(requests["sent_ns"]):
        if stall <= sent < resume:
            requests["sent_ns"][i] = resume
            requests["done_ns"][i] = resume + 3 * MS


def end_of_phase_late(run: SyntheticRun) -> None:
    requests = run.tables["requests"]
    for i, sent in enumerate(requests["sent_ns"]):
        if sent >= START_NS + 13 * S:
            requests["sent_ns"][i] = START_NS + 14 * S
            requests["done_ns"][i] = START_NS + 14 * S + 3 * MS


def one_worker_late(run: SyntheticRun) -> None:
    requests = run.tables["requests"]
    for i, worker in enumerate(requests["worker"]):
        if worker == 1:
            requests["sent_ns"][i] += 30 * MS
            requests["done_ns"][i] += 30 * MS


def stretch(run: SyntheticRun) -> None:
    """A client whose schedule runs 1 % slow."""
    requests = run.tables["requests"]
    for i, due in enumerate(requests["scheduled_ns"]):
        service = requests["done_ns"][i] - requests["sent_ns"][i]
        requests["sent_ns"][i] = due + (due - START_NS) // 100
        requests["done_ns"][i] = requests["sent_ns"][i] + service


def lose(run: SyntheticRun) -> None:
    run.manifest["losses"] = ["worker 1 died at 3.2 s."]


def all_fail(run: SyntheticRun) -> None:
    run.tables["requests"]["outcome"] = ["timeout"] * len(run.tables["requests"]["outcome"])


def far_clock(run: SyntheticRun) -> None:
    run.manifest["nodes"]["node-1"] = {"clock_error_ns": 5 * MS}
    run.manifest["servers"]["server-0"]["node"] = "node-1"


def unknown_clock(run: SyntheticRun) -> None:
    run.manifest["servers"]["server-0"]["node"] = "node-7"


def bend_the_median(run: SyntheticRun) -> None:
    """Six requests in ten leave 2 ms late; a slow burst makes the tail so long that these are nothing beside it."""
    requests = run.tables["requests"]
    for i in range(len(requests["phase"])):
        late = 2 * MS if i % 10 < 6 else 0
        slow = 380 * MS if i % 10 == 9 else 0
        requests["sent_ns"][i] += late
        requests["done_ns"][i] += late + slow


def late_loops(run: SyntheticRun) -> None:
    run.tables["worker_samples"]["loop_lag_ns"][::9] = [9 * MS] * len(
        run.tables["worker_samples"]["loop_lag_ns"][::9]
    )
    never_send(run)


def full_workers(run: SyntheticRun) -> None:
    edit("worker_samples", "cpu_ns", lambda _: int(0.9 * S), 9)(run)
    bend_the_median(run)


def refuse(run: SyntheticRun, n: int = 100) -> None:
    requests = run.tables["requests"]
    for i in range(1000, 1000 + n):
        requests["outcome"][i], requests["detail"][i] = "transport_error", "connect: Connection refused"
        requests["sent_ns"][i] = requests["first_byte_ns"][i] = None


def no_plan(run: SyntheticRun) -> None:
    run.manifest["plan"] = {}


@pytest.mark.parametrize(
    ("break_it", "name", "words"),
    [
        (drop_row, "completeness", "is 1, where 0 is the limit: look in logs/"),
        (double_row, "completeness", "is 1, where 0 is the limit"),
        (no_plan, "completeness", "was not recorded, so that nobody knows"),
        (lose, "losses", "is 1, where 0 is the limit: worker 1 died at 3.2 s."),
        (all_fail, "ok share", "there is no latency of this server"),
        (refuse, "server reached", "where 1.00 % is the limit: the load was not delivered"),
        (never_send, "unsent", "is 1, where 0 is the limit: add client workers"),
        (end_of_phase_late, "delivered load", "where 1.00 % is the limit"),
        (send_late, "delivered load per second", "where 5.00 % is the limit"),
        (send_late, "dispersion 1 s", "are not those of the scenario"),
        (send_late, "dispersion 0.1 s", "are not those of the scenario"),
        (bend_the_median, "lag in p50", "of that quantile is the client's, not the server's"),
        (one_worker_late, "lag in p95", "of that quantile is the client's, not the server's"),
        (send_late, "delivered load in bursts", "the bursts were cut or filled up"),
        (one_worker_late, "send lag of the worst worker", "worker 1 was late where others may not have been"),
        (stretch, "send lag end drift", "the schedule was stretched"),
        (far_clock, "clock bound", "is 5.00 ms, where 350 µs is the limit"),
        (unknown_clock, "clock bound", "was not recorded"),
        (lose_records, "lost records", "is 2, where 0 is the limit: what they took is not known"),
        (late_loops, "event-loop lag p95", "is 9.00 ms"),
        (full_workers, "worker saturation", "where 5.00 %"),
        (lambda run: run.omit.add("worker_samples"), "event-loop lag p95", "was not recorded"),
        (lambda run: run.omit.add("worker_samples"), "worker saturation", "was not recorded"),
    ],
)
def test_each_fault_is_found_by_its_check_and_said_in_a_sentence(
    synthetic: SyntheticRun, break_it: Break, name: str, words: str
) -> None:
    break_it(synthetic)
    verdict = verdict_of(synthetic)
    check = check_of(verdict, name)
    assert verdict.status == "INVALID"
    assert not check.is_met
    assert check.reason in verdict.reasons
    assert words in check.reason
    assert check.reason.endswith(".")
    assert check.reason[0].isupper()


def test_a_lost_record_is_not_said_to_be_unsent_and_counts_as_infinitely_slow(
    synthetic: SyntheticRun,
) -> None:
    def n_failed() -> dict[str, int]:
        everything = Requests.from_table(as_table("requests", synthetic.tables["requests"]))
        return {kind: one.n_failed for kind, one in latency_figures(everything).spreads.items()}

    before = n_failed()
    lose_records(synthetic)
    verdict = verdict_of(synthetic)
    assert check_of(verdict, "unsent").is_met
    everything = Requests.from_table(as_table("requests", synthetic.tables["requests"]))
    assert n_failed() == {kind: n + 2 for kind, n in before.items()}
    assert outcome_figures(everything).counts["lost"] == 2


def test_the_delivered_load_per_second_forgives_a_few_sends_over_the_edge(synthetic: SyntheticRun) -> None:
    requests = synthetic.tables["requests"]
    inside = [i for i, t in enumerate(requests["sent_ns"]) if START_NS + 5 * S <= t < START_NS + 6 * S]
    for i in inside[-2:]:
        requests["sent_ns"][i] = START_NS + 6 * S
    assert check_of(verdict_of(synthetic), "delivered load per second").value == 0


def test_the_difference_per_second_is_what_no_stall_explains(synthetic: SyntheticRun) -> None:
    requests = synthetic.tables["requests"]
    second = range(START_NS + 5 * S, START_NS + 6 * S)
    planned = [i for i, t in enumerate(requests["scheduled_ns"]) if t in second]
    for i in planned[:100]:
        requests["sent_ns"][i] = START_NS + 6 * S
    n_more = 100 + sum(requests["sent_ns"][i] >= second.stop for i in planned[100:])
    n_near = sum(requests["scheduled_ns"][i] >= second.stop - 10 * MS for i in planned)
    n_in = (
        sum(t in second for t in requests["sent_ns"]) + n_more - len(planned)
    )  # late from the second before
    found = check_of(verdict_of(synthetic), "delivered load per second").value
    assert found == pytest.approx((n_more - n_in - max(2, n_near)) / len(planned))


def test_a_few_sends_over_the_end_of_a_short_phase_do_not_count(synthetic: SyntheticRun) -> None:
    requests = synthetic.tables["requests"]
    kept = [i for i, phase in enumerate(requests["phase"]) if phase != "burst"]
    burst = [i for i, phase in enumerate(requests["phase"]) if phase == "burst"]
    for name, values in requests.items():
        requests[name] = [values[i] for i in kept + burst[-50:]]
    for i in (-1, -2):
        requests["sent_ns"][i] = START_NS + 14 * S + MS // 2
    assert check_of(verdict_of(synthetic), "delivered load").value == 0
    requests["sent_ns"][-3] = START_NS + 14 * S + MS // 2
    assert check_of(verdict_of(synthetic), "delivered load").value == 1 / 50


def test_a_slow_server_allows_a_longer_lag_and_only_a_tenth_of_each_quantile(synthetic: SyntheticRun) -> None:
    requests = synthetic.tables["requests"]
    requests["done_ns"] = [t + 100 * MS for t in requests["done_ns"]]
    requests["sent_ns"] = [t + 5 * MS for t in requests["sent_ns"]]
    verdict = verdict_of(synthetic)
    for name in ("lag in p50", "lag in p95"):
        check = check_of(verdict, name)
        assert check.is_met
        assert check.value == pytest.approx(5.15 * MS, rel=0.05)
        assert check.limit == pytest.approx(10.5 * MS, rel=0.05)
    requests["sent_ns"] = [t + 7 * MS for t in requests["sent_ns"]]
    assert not check_of(verdict_of(synthetic), "lag in p50").is_met


def test_faults_in_warm_up_do_not_count_against_the_measure_phase(synthetic: SyntheticRun) -> None:
    requests = synthetic.tables["requests"]
    for i, phase in enumerate(requests["phase"]):
        if phase == "warmup":
            requests["sent_ns"][i] += 50 * MS
            requests["done_ns"][i] += 50 * MS
    samples = synthetic.tables["worker_samples"]
    samples["cpu_ns"] = [
        S if p == "warmup" else c for p, c in zip(samples["phase"], samples["cpu_ns"], strict=True)
    ]
    assert verdict_of(synthetic).status == "VALID"


def test_a_run_without_measured_requests_is_invalid(synthetic: SyntheticRun) -> None:
    for phase in synthetic.manifest["phases"]:
        phase["kind"] = "warmup"
    verdict = verdict_of(synthetic)
    assert verdict.status == "INVALID"
    assert any("there is no latency of this server" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(("n_nodes", "bound_ns"), [(1, 0), (2, 50_000)])
def test_bounds_of_two_nodes_add_up_and_one_node_has_one_clock(n_nodes: int, bound_ns: int) -> None:
    run = synthesise(n_nodes=n_nodes)
    run.manifest["nodes"]["node-0"]["clock_error_ns"] = 30_000
    assert check_of(verdict_of(run), "clock bound").value == bound_ns


def test_a_run_whose_server_lost_its_cpu_to_others_is_invalid_and_they_come_before_the_client(
    synthetic: SyntheticRun,
) -> None:
    cpu_of_the_node(synthetic, server=0.18, clients=0.05, squall=0.09, others=1.68, wait=0.5)
    send_late(synthetic)  # the client starved, too
    verdict = verdict_of(synthetic)
    assert verdict.status == "INVALID"
    assert verdict.reasons[0].startswith("Others took the CPU: of the 200 % of node-0 others 168 %")
    assert verdict.reasons[0] == check_of(verdict, "CPU of the server").reason
    assert len(set(verdict.reasons)) == len(verdict.reasons)
    assert verdict.client_bottleneck is not None
    assert [cause.kind for cause in verdict.causes] == ["others took the CPU", "client"]
    assert verdict.starvation is not None
    assert verdict.starvation.starved_by == "others"


def test_a_server_that_has_the_cpu_it_asks_for_is_valid_whatever_runs_beside_it(
    synthetic: SyntheticRun,
) -> None:
    cpu_of_the_node(synthetic, server=0.3, clients=0.05, others=1.5, wait=0.01)
    verdict = verdict_of(synthetic)
    assert (verdict.status, verdict.starvation) == ("VALID", None)
    assert check_of(verdict, "CPU of the server").is_met


@pytest.mark.parametrize("wake_us", [64, 150, 280])
def test_an_idle_host_whose_cores_wake_slowly_leaves_a_run_valid(
    synthetic: SyntheticRun, wake_us: int
) -> None:
    cpu_of_the_node(
        synthetic, server=0.013, clients=0.009, squall=0.25, others=0.004, wait=700 * wake_us / 1e6, runs=700
    )
    verdict = verdict_of(synthetic)
    assert (verdict.status, verdict.starvation, verdict.causes) == ("VALID", None, ())
    assert check_of(verdict, "CPU of the server").is_met


def test_what_others_took_without_a_consequence_is_stated_and_decides_nothing(
    synthetic: SyntheticRun,
) -> None:
    # requests are in flight most of the time, and the server, hardly ever on a CPU, lacks it for 3 ms a second
    cpu_of_the_node(synthetic, server=0.002, clients=0.05, others=1.9, wait=0.003)
    verdict = verdict_of(synthetic)
    assert verdict.status == "VALID"
    check = check_of(verdict, "CPU of the server")
    assert check.value == pytest.approx(0.6)
    assert check.not_assessed.startswith("it made ")


def test_a_throttled_server_is_valid_and_named(synthetic: SyntheticRun) -> None:
    cpu_of_the_node(
        synthetic, server=0.49, others=0.5, wait=1.4, server_quota_cores=0.5, server_periods=10,
        server_throttled_periods=7,
    )  # fmt: skip
    verdict = verdict_of(synthetic)
    assert (verdict.status, verdict.reasons) == ("VALID", ())
    assert verdict.starvation is not None
    assert verdict.starvation.starved_by == "quota"


def test_others_that_took_the_cpu_of_the_client_alone_are_named_before_it(synthetic: SyntheticRun) -> None:
    cpu_of_the_node(synthetic, server=0.1, clients=0.1, others=1.8, wait=0.005, clients_wait=0.9)
    send_late(synthetic)
    verdict = verdict_of(synthetic)
    assert verdict.reasons[0].startswith("Others took the CPU from the load generator")
    assert verdict.client_bottleneck is not None
    assert [cause.kind for cause in verdict.causes] == ["others took the CPU", "client"]


def test_others_that_left_the_client_no_time_to_be_sampled_are_named_too(synthetic: SyntheticRun) -> None:
    cpu_of_the_node(synthetic, server=0.0, clients=0.1, others=1.8, wait=0.0, clients_wait=0.9)
    synthetic.tables["worker_samples"]["phase"] = ["drain"] * len(synthetic.tables["worker_samples"]["phase"])
    send_late(synthetic)
    verdict = verdict_of(synthetic)
    assert verdict.client_bottleneck is None
    assert verdict.reasons[0].startswith("Others took the CPU from the load generator")


def test_the_verdict_of_a_store_is_that_of_its_tables(whole_run: RunStore) -> None:
    judged = judge_run(whole_run)
    assert judged == whole_run.manifest.verdict
    figures = to_json(judged, is_whole=True)
    for name in ("model", "n_never"):
        assert not figures["failures"].pop(name)
    assert figures == to_json(whole_run.manifest)["verdict"], "what is not set is left out of the manifest"


def test_the_order_of_rows_does_not_matter(synthetic: SyntheticRun) -> None:
    before = verdict_of(synthetic)
    order = np.random.default_rng(0).permutation(len(synthetic.tables["requests"]["phase"]))
    for name, values in synthetic.tables["requests"].items():
        synthetic.tables["requests"][name] = [values[i] for i in order]
    assert verdict_of(synthetic) == before


def keep_samples(run: SyntheticRun, n: int, **values: int) -> None:
    """Only the first `n` samples of the workers in the measure phase are left, with these values."""
    samples = run.tables["worker_samples"]
    own = [i for i, phase in enumerate(samples["phase"]) if phase == "burst"][:n]
    for name, column in samples.items():
        samples[name] = [values.get(name, column[i]) for i in own]


@pytest.mark.parametrize("make", [synthesise, synthesise_closed])
@pytest.mark.parametrize("n", [1, 6, LEAST_SAMPLES - 1])
def test_a_handful_of_late_timers_on_a_quiet_host_makes_no_run_invalid(
    n: int, make: Callable[[], SyntheticRun]
) -> None:
    run = make()
    keep_samples(run, n, loop_lag_ns=14 * MS // 10 if make is synthesise else 9 * MS, cpu_ns=int(0.95 * S))
    verdict = verdict_of(run)
    assert (verdict.status, verdict.reasons) == ("VALID", ())
    for name in ("event-loop lag p95", "worker saturation"):
        check = check_of(verdict, name)
        assert (check.is_met, check.reason) == (False, "")
        assert check.not_assessed == f"{n} samples, it takes {LEAST_SAMPLES}"


@pytest.mark.parametrize(("n_full", "status"), [(1, "VALID"), (2, "INVALID")])
def test_of_twenty_samples_one_is_within_what_is_allowed_and_two_are_not(n_full: int, status: str) -> None:
    """In a closed loop, where nothing but the samples shows replies that were read late."""
    run = synthesise_closed()
    keep_samples(run, LEAST_SAMPLES)
    run.tables["worker_samples"]["cpu_ns"][:n_full] = [int(0.95 * S)] * n_full
    verdict = verdict_of(run)
    assert check_of(verdict, "worker saturation").is_met is (status == "VALID")
    assert verdict.status == status


def test_a_full_worker_that_sent_all_in_time_is_no_fault_and_one_that_did_not_is() -> None:
    run = synthesise()
    keep_samples(run, 10_000, cpu_ns=int(0.95 * S), loop_lag_ns=20 * MS)
    verdict = verdict_of(run)
    assert (verdict.status, verdict.client_bottleneck) == ("VALID", None)
    excuse = "the sends kept to their schedule all the same"
    assert check_of(verdict, "worker saturation").not_assessed == excuse
    one_worker_late(run)
    verdict = verdict_of(run)
    assert check_of(verdict, "worker saturation").is_unmet
    assert check_of(verdict, "event-loop lag p95").is_unmet


@pytest.mark.parametrize(
    ("kind", "outcome", "order"),
    [
        (ABSENT, "transport_error", [ABSENT, "others took the CPU", "others took the GPU"]),
        (ABSENT, "timeout", ["others took the CPU", "others took the GPU", ABSENT]),
        (REFUSES, "rejected", [REFUSES, "others took the CPU", "others took the GPU"]),
        (WRONG, "bad_reply", [WRONG, "others took the CPU", "others took the GPU"]),
        (SLOW, "timeout", ["others took the CPU", "others took the GPU", SLOW]),
        ("client", "transport_error", ["others took the CPU", "others took the GPU", "client"]),
    ],
)
def test_the_first_cause_explains_the_next(kind: str, outcome: str, order: list[str]) -> None:
    group = FailureGroup(kind=kind, outcome=outcome, detail="", n=9)
    failures = Failures(is_beyond=True, kind=kind, sentence=kind, groups=(group,))
    client = Bottleneck(sentence="It was late.", advice="more")
    for by_others, clients in (
        (Starvation(starved_by="others", sentence="They did."), ""),
        (None, "They did."),
    ):
        found = causes_of(failures, by_others, clients, client, "It was killed.", "They used it.")
        assert [one.kind for one in found] == ["driver killed", *order, "client"]
    by_clients = Starvation(starved_by="clients", sentence="They did.")
    assert [one.kind for one in causes_of(Failures(), by_clients, "", None)] == ["client"]
    assert causes_of(Failures(), Starvation(starved_by="quota", sentence="It is."), "", None) == ()
