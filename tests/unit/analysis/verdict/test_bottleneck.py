"""Where the client was the limit, one sentence says by what and what to add; a run that is fine says nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pytest

from squall.analysis.requests.workers import busy_ratios, peak_total
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.analysis.tables.sealed import Bottleneck
from squall.scenarios.sequences import CUT, IN_TURN
from tests.synthetic_runs import (
    MS,
    S,
    SyntheticRun,
    as_table,
    synthesise,
    synthesise_closed,
    verdict_of,
)
from tests.unit.analysis.render.test_screen import screen_lines

MakeRun = Callable[..., RunStore]


def found(run: SyntheticRun) -> Bottleneck:
    """The bottleneck of a run that has one; its sentence leads the reasons."""
    verdict = verdict_of(run)
    assert verdict.status == "INVALID"
    assert verdict.client_bottleneck is not None
    assert verdict.reasons[0] == verdict.client_bottleneck.sentence
    sentence = verdict.client_bottleneck.sentence
    assert sentence.startswith("The client was the bottleneck")
    assert verdict.client_bottleneck.evidence in sentence
    assert sentence.endswith(f"; {verdict.client_bottleneck.advice}.")
    return verdict.client_bottleneck


def set_samples(run: SyntheticRun, table: str = "worker_samples", **values: float) -> None:
    for name, value in values.items():
        run.tables[table][name] = [value] * len(run.tables[table]["phase"])


def send_late(run: SyntheticRun, by_ns: int = 30 * MS) -> None:
    """Every other measured request left late, and was answered late."""
    requests = run.tables["requests"]
    for i in range(0, len(requests["phase"]), 2):
        for name in ("sent_ns", "first_byte_ns", "done_ns"):
            requests[name][i] += by_ns


def node_full(run: SyntheticRun, n_cores: int = 2) -> None:
    busy = {"cpu_user": 0.87, "cpu_system": 0.1, "cpu_steal": 0.0, "cpu_iowait": 0.01, "cpu_idle": 0.02}
    set_samples(run, "host_samples", n_cores=n_cores, server_cpu_ns=int(1.2 * S), **busy)


@pytest.mark.parametrize("make", [synthesise, synthesise_closed])
def test_a_run_that_kept_up_has_no_bottleneck(make: Callable[[], SyntheticRun]) -> None:
    verdict = verdict_of(make())
    assert (verdict.status, verdict.client_bottleneck, verdict.reasons) == ("VALID", None, ())


def test_full_workers_with_idle_cores_beside_them_want_more_workers(synthetic: SyntheticRun) -> None:
    set_samples(synthetic, cpu_ns=int(0.97 * S), n_backlog=620)
    send_late(synthetic)
    one = found(synthetic)
    assert one.cause == "worker cpu"
    assert one.evidence == "2 of 2 workers were at 97.0 % CPU while 1,240 arrivals were due and unsent"
    # 1.94 cores over 12 s sent what arrives at 250/s on average; the burst of 800/s costs about 3.3 times that.
    assert re.fullmatch(
        r"use about 1\d workers \(clients.workers_per_node: 5\) on 3 client nodes:"
        r" node-0 had only 3\.\d cores idle",
        one.advice,
    )


def test_how_many_workers_is_the_cpu_of_the_busiest_second_over_what_leaves_room(
    synthetic: SyntheticRun,
) -> None:
    samples = synthetic.tables["worker_samples"]
    set_samples(synthetic, cpu_ns=int(0.97 * S), n_due=100, n_sent=100)
    send_late(synthetic)
    assert "use about 4 workers (clients.workers_per_node: 4)" in found(synthetic).advice  # 1.94 / 0.6 = 3.2
    samples["n_due"] = [200 if p == "burst" else 1 for p in samples["phase"]]
    set_samples(synthetic, "host_samples", n_cores=16)
    assert "use about 7 workers (clients.workers_per_node: 7)" in found(synthetic).advice  # 3.88 / 0.6 = 6.5
    samples["interval_ns"] = [S // 10 if n == 200 else S for n in samples["n_due"]]  # too short to be a rate
    samples["cpu_ns"] = [int(0.097 * S) if n == 200 else int(0.97 * S) for n in samples["n_due"]]
    assert "use about 3 workers" in found(synthetic).advice  # one more than there are


def test_full_workers_on_a_full_node_want_more_nodes(synthetic: SyntheticRun) -> None:
    set_samples(synthetic, cpu_ns=int(0.97 * S), n_due=100, n_sent=100)
    send_late(synthetic)
    node_full(synthetic)
    one = found(synthetic)
    assert one.cause == "worker cpu"
    assert one.advice == (
        "use about 4 workers (clients.workers_per_node: 2) on 2 client nodes: node-0 had only 0.1 cores idle"
    )


def test_without_host_samples_both_ways_are_named(synthetic: SyntheticRun) -> None:
    set_samples(synthetic, cpu_ns=int(0.97 * S), n_due=100, n_sent=100)
    send_late(synthetic)
    synthetic.omit = {"host_samples"}
    assert found(synthetic).advice == "use about 4 workers (clients.workers_per_node: 4) or more nodes"


def test_cpu_spent_waiting_busily_is_no_load(synthetic: SyntheticRun) -> None:
    set_samples(synthetic, cpu_ns=int(0.99 * S), spin_ns=int(0.5 * S))
    verdict = verdict_of(synthetic)
    assert (verdict.status, verdict.client_bottleneck) == ("VALID", None)


def test_a_part_of_the_samples_is_said_as_such(synthetic: SyntheticRun) -> None:
    samples = synthetic.tables["worker_samples"]
    measured = [
        i for i, phase in enumerate(samples["phase"]) if phase == "burst" and samples["worker"][i] == 0
    ]
    for i in measured[:3]:
        samples["cpu_ns"][i] = int(0.95 * S)
    assert verdict_of(synthetic).status == "VALID"  # what it did to the sends is nothing
    send_late(synthetic)
    assert found(synthetic).evidence.startswith("1 of 2 workers was at 95.0 % CPU in 3 of 12 samples")


def test_what_a_failure_cut_from_its_sequence_fails_no_check_of_the_load(synthetic: SyntheticRun) -> None:
    requests = synthetic.tables["requests"]
    rows = range(900, 1_000, 25)
    for i in rows:
        requests["outcome"][i] = "unsent"
        for name in ("sent_ns", "first_byte_ns", "done_ns"):
            requests[name][i] = None
    assert "unsent" in {one.name for one in verdict_of(synthetic).checks if one.is_unmet}
    for i in rows:
        requests["detail"][i] = f"{CUT}: an earlier request of it failed"
    assert (verdict_of(synthetic).status, verdict_of(synthetic).client_bottleneck) == ("VALID", None)


def test_a_full_node_without_workers_is_the_servers_own_affair() -> None:
    run = synthesise(n_nodes=2)
    run.manifest["scenario"]["clients"] = {}
    for worker in (0, 1):
        assert run.tables["worker_samples"]["node"][worker] == "node-0"
    send_late(run)
    hosts = run.tables["host_samples"]
    for i, node in enumerate(hosts["node"]):
        if node == "node-1":
            hosts["cpu_idle"][i] = hosts["cpu_iowait"][i] = 0.0
    assert found(run).cause == "stall"


def held_back(run: SyntheticRun, why: str) -> None:
    details = run.tables["requests"]["detail"]
    details[::2] = [why] * len(details[::2])
    run.manifest["scenario"]["clients"] = {"max_in_flight": 8}


def held_once(run: SyntheticRun) -> None:
    run.tables["requests"]["detail"][0] = "held back by max_in_flight"
    set_samples(run, n_backlog=100, n_held=5)


def filled_by_others(run: SyntheticRun) -> None:
    node_full(run)
    set_samples(run, cpu_ns=int(0.3 * S))


@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        (lambda run: held_back(run, "held back by max_in_flight"), "max_in_flight", [
            "The client was the bottleneck by its cap, not by its CPU: max_in_flight 8", "so that the lag is the cap's",
            "raise or remove clients.max_in_flight",
        ]),
        (lambda run: set_samples(run, n_backlog=100, n_held=90), "max_in_flight", ["up to 180 arrivals at once"]),
        (held_once, "stall", []),  # a cap that holds back a few is not blamed for the rest
        (lambda run: held_back(run, IN_TURN), "sequence order", [
            "requests waited for the one before in the same sequence", "raise clients.sequences.concurrent",
        ]),
        (filled_by_others, "node cpu", [
            "the 2 cores of node-0 were 97.0 % busy in 100 % of samples, of which the workers took 30.0 % and the"
            " server 60.0 % on average, while ",
            "; add client nodes",
        ]),
        (set_samples, "stall", ["though its workers were at", "loops were up to", "see what else stops"]),
        (lambda run: set_samples(run, n_write_pauses=3), "stall", ["72 sends found", "raise clients.connections"]),
        (lambda run: set_samples(run, n_socket_errors=1), "stall", ["24 connections failed", "see what else stops"]),
        (lambda run: set_samples(run, gc_pause_ns=40 * MS), "stall", ["garbage collections took up to 40.0 ms"]),
    ],
)  # fmt: skip
def test_what_held_late_requests_back_is_named(
    synthetic: SyntheticRun, change: Callable[[SyntheticRun], None], cause: str, words: list[str]
) -> None:
    send_late(synthetic)
    change(synthetic)
    one = found(synthetic)
    assert one.cause == cause
    assert [word for word in words if word not in one.sentence] == []


def test_late_event_loops_alone_are_a_stall_where_no_send_can_show_it() -> None:
    closed, opened = synthesise_closed(), synthesise()
    for run in (closed, opened):
        set_samples(run, loop_lag_ns=20 * MS)
    assert found(closed).evidence.startswith("its workers were at ")
    verdict = verdict_of(opened)
    assert verdict.status == "VALID"
    check = next(one for one in verdict.checks if one.name == "event-loop lag p95")
    assert check.not_assessed == "the sends kept to their schedule all the same"


def test_what_a_lost_worker_or_a_refused_connection_left_unsent_is_no_bottleneck(
    synthetic: SyntheticRun,
) -> None:
    requests = synthetic.tables["requests"]
    for i in range(900, 1000):
        requests["outcome"][i] = "transport_error"
        requests["sent_ns"][i] = requests["first_byte_ns"][i] = requests["done_ns"][i] = None
    verdict = verdict_of(synthetic)
    assert verdict.status == "INVALID"
    assert verdict.client_bottleneck is None
    requests["outcome"][900:1000] = ["unsent"] * 100
    assert found(synthetic).cause == "stall"
    synthetic.manifest["losses"] = ["worker 1 died at 3.2 s."]
    assert verdict_of(synthetic).client_bottleneck is None


def test_faults_that_are_not_the_clients_speed_name_no_bottleneck(synthetic: SyntheticRun) -> None:
    for values in synthetic.tables["requests"].values():
        values.pop(1000)
    assert verdict_of(synthetic).client_bottleneck is None


def test_a_run_without_worker_samples_cannot_say_why(synthetic: SyntheticRun) -> None:
    send_late(synthetic)
    synthetic.omit = {"worker_samples"}
    assert verdict_of(synthetic).client_bottleneck is None


def test_time_inside_the_client_is_a_closed_loops_bottleneck() -> None:
    run = synthesise_closed(overhead_ns=8 * MS)
    one = found(run)
    assert one.cause == "stall"
    assert "of the users' time passed inside it, though its workers were at" in one.evidence
    set_samples(run, cpu_ns=int(0.97 * S))
    assert found(run).cause == "worker cpu"


def test_time_inside_workers_without_the_lane_is_their_path_and_no_stall() -> None:
    run = synthesise_closed(overhead_ns=8 * MS)
    for worker in run.manifest["workers"]:
        worker |= {"has_lane": False, "no_lane": "it speaks no TLS"}
    one = found(run)
    assert one.cause == "slow path"
    assert "it speaks no TLS" in one.evidence
    assert "what else stops" not in one.advice
    set_samples(run, "host_samples", cpu_steal=0.3)
    assert found(run).cause == "stall"


def test_the_summary_has_the_bottleneck_and_the_screen_says_it_first(
    make_run: MakeRun, plain: SyntheticRun
) -> None:
    set_samples(plain, cpu_ns=int(0.97 * S), n_backlog=620)
    send_late(plain)
    summary = summarise(make_run(plain))
    one = summary.client_bottleneck
    assert one is not None
    assert one.sentence
    assert one.advice
    lines = screen_lines(summary)
    assert max(map(len, lines)) <= 80
    after = next(i for i, line in enumerate(lines) if line.startswith("INVALID"))
    assert lines[after].startswith("INVALID   The client was the bottleneck: 2 of 2 workers were at 97.0 %")


# the figures of worker_samples


def test_busy_is_cpu_less_spin_over_the_interval_and_never_negative(synthetic: SyntheticRun) -> None:
    for spin_ns, busy in ((S // 4, 0.25), (S, 0.0)):
        set_samples(synthetic, cpu_ns=S // 2, spin_ns=spin_ns)
        assert set(busy_ratios(samples_of(synthetic)).tolist()) == {busy}


def test_peaks_are_sums_over_the_workers_of_one_second(synthetic: SyntheticRun) -> None:
    samples = synthetic.tables["worker_samples"]
    samples["n_backlog"] = list(range(len(samples["phase"])))  # two workers a second: 28 + 29 in the last
    samples["t_ns"] = [t + i % 2 * 3 * MS for i, t in enumerate(samples["t_ns"])]  # one loop is late
    assert peak_total(samples_of(synthetic), "n_backlog") == 57
    assert peak_total(samples_of(synthetic).slice(0, 0), "n_backlog") == 0


def samples_of(run: SyntheticRun) -> pa.Table:
    columns = run.tables["worker_samples"]
    return as_table("worker_samples", {**columns, "run": ["r"] * len(columns["phase"])})
