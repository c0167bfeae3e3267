"""The schedule is kept whatever the server and the owner do: late is told, nothing is missing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.worker import LoadWorker
from squall.scenarios.errors import ClusterError, TargetError
from squall.scenarios.plan.plan import PhaseSpan
from tests.fakes import Behaviour, StubTriton
from tests.golden.driving import (
    MS,
    REPLY_BYTES,
    S,
    assert_one_row_each,
    column,
    numbers,
    plan_of,
    requests_of,
    run_worker,
    settings_of,
    spilled,
)  # fmt: skip


def test_a_stall_behind_a_cap_shows_in_response_times_where_service_times_hide_it(tmp_path: Path) -> None:
    stall_ns = 400 * MS
    plan = plan_of([i * 4 * MS for i in range(100)], 20 * S)
    stalled = {10: Behaviour(service_s=stall_ns / S), 11: Behaviour(service_s=stall_ns / S)}
    with StubTriton(lambda i: stalled.get(i, Behaviour()), REPLY_BYTES) as stub:
        rules = Rules(timeout_ns=30 * S, max_in_flight=2)
        rows = run_worker(settings_of(tmp_path, stub.port, rules), plan)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["ok"] * 100
    response = numbers(rows, "done_ns") - numbers(rows, "scheduled_ns")
    service = numbers(rows, "done_ns") - numbers(rows, "sent_ns")
    lag = numbers(rows, "sent_ns") - numbers(rows, "scheduled_ns")
    # arrivals 12..99 come every 4 ms; the stall ends 400 ms after arrival 10 was sent, at the earliest
    due_in_stall = [i for i in range(12, 100) if i * 4 * MS < 10 * 4 * MS + stall_ns]
    least = np.array([10 * 4 * MS + stall_ns - i * 4 * MS for i in due_in_stall])
    assert len(due_in_stall) == 88
    assert (response[due_in_stall] >= least).all()
    assert (lag[due_in_stall] >= least).all()
    assert np.median(service[due_in_stall]) < stall_ns / 2 < np.quantile(response, 0.5) + stall_ns / 2
    assert np.count_nonzero(service > stall_ns / 2) < 10 < np.count_nonzero(response > stall_ns / 2)


def test_connections_are_kept_from_one_request_to_the_next(tmp_path: Path) -> None:
    plan = plan_of([i * 5 * MS for i in range(100)], 20 * S)
    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        run_worker(settings_of(tmp_path, stub.port, Rules(30 * S, max_in_flight=2)), plan)
    assert len(stub.seen.arrived_ns) == 100
    assert stub.seen.n_connections <= 4  # two, and spare ones where a request was due while both were busy


def test_without_a_cap_a_stalled_request_holds_up_no_other(tmp_path: Path) -> None:
    plan = plan_of([0, *(i * 2 * MS for i in range(1, 40))], 20 * S)
    with StubTriton(lambda i: Behaviour(service_s=0.0 if i else 1.0), REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, n_connections=1), plan)
        replied = stub.seen.replied_ns
    assert_one_row_each(rows, plan)
    assert all(replied[i] < replied[0] for i in range(1, 40))
    assert stub.seen.n_connections >= 2


def test_a_stop_from_another_thread_cancels_what_is_in_flight_and_leaves_the_rest_unsent(
    tmp_path: Path,
) -> None:
    plan = plan_of([0, 0, 0, *(5 * S + i for i in range(50))], 60 * S)

    def stop_when_sent(worker: LoadWorker) -> None:
        deadline = time.monotonic() + 20
        while worker.progress().n_in_flight < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        worker.stop()

    before_ns = time.monotonic_ns()
    with StubTriton(lambda _: Behaviour("hang"), REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port), plan, meanwhile=stop_when_sent)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["cancelled"] * 3 + ["unsent"] * 50
    assert time.monotonic_ns() - before_ns < 5 * S  # the plan's next arrival never came


def test_a_stop_before_the_run_leaves_all_unsent(tmp_path: Path) -> None:
    plan = plan_of([0, MS, 60 * S], 120 * S)
    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        settings = settings_of(tmp_path, stub.port)
        worker = LoadWorker(settings, SystemClock())
        worker.prepare(plan)
        worker.stop()
        worker.run(time.monotonic_ns() + 60 * S)
        worker.stop()  # of a run that is over: nothing happens
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["unsent"] * 3
    assert stub.seen.arrived_ns == {}


def test_the_end_of_the_last_phase_cancels_what_is_in_flight_and_what_was_held_back_is_unsent(
    tmp_path: Path,
) -> None:
    plan = plan_of([0, MS, 2 * MS, 3 * MS], 3 * S)
    with StubTriton(lambda _: Behaviour("hang"), REPLY_BYTES) as stub:
        rules = Rules(timeout_ns=30 * S, max_in_flight=2)
        rows = run_worker(settings_of(tmp_path, stub.port, rules), plan)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["cancelled"] * 2 + ["unsent"] * 2
    assert column(rows, "detail")[2] == "the run ended while it was held back by max_in_flight"


@pytest.mark.usefixtures("way")
def test_each_phase_has_its_own_timeout(tmp_path: Path) -> None:
    plan = plan_of([0, 10 * MS, 400 * MS, 410 * MS], 5 * S)
    spans = (PhaseSpan("m", "measure", 0, 300 * MS), PhaseSpan("n", "measure", 300 * MS, 5 * S))
    plan = replace(plan, spans=spans, phase=np.array([0, 0, 1, 1], np.uint8))
    with StubTriton(lambda _: Behaviour("hang"), REPLY_BYTES) as stub:
        rules = Rules(timeout_ns=1_200 * MS, phase_timeouts_ns={1: 200 * MS})
        settings = settings_of(tmp_path, stub.port, rules)
        run_worker(settings, plan)
    rows = requests_of(settings)
    assert column(rows, "outcome") == ["timeout"] * 4
    # it runs from the hand-over, which is never before the schedule: the wait for a connection counts
    waited = numbers(rows, "done_ns") - numbers(rows, "scheduled_ns")
    assert (waited[:2] >= 1_200 * MS).all()
    assert (waited[2:] >= 200 * MS).all()
    assert (numbers(rows, "done_ns") - numbers(rows, "sent_ns") < 1_200 * MS)[2:].all()


def test_a_worker_that_starts_late_sends_at_once_and_tells_its_lag(tmp_path: Path) -> None:
    late_ns = 300 * MS
    plan = plan_of([i * MS for i in range(200)], 20 * S)
    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port), plan, lead_ns=-late_ns)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["ok"] * 200
    lag = numbers(rows, "sent_ns") - numbers(rows, "scheduled_ns")
    assert (lag >= late_ns - np.arange(200) * MS).all()
    assert np.ptp(numbers(rows, "scheduled_ns")) == 199 * MS


def test_thousands_of_arrivals_at_one_instant_are_all_sent_and_answered(tmp_path: Path) -> None:
    n = 3_000  # two chunks and a part of one
    plan = plan_of([5 * MS] * n, 60 * S, seq=range(7, 7 + n))
    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, Rules(30 * S, max_in_flight=64), 64), plan)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["ok"] * n
    assert len(set(column(rows, "scheduled_ns"))) == 1
    assert sorted(stub.seen.arrived_ns) == plan.seq.tolist()


@pytest.mark.parametrize("n", [1_023, 1_024, 1_025, 2_048])
def test_no_arrival_is_lost_where_a_chunk_of_the_plan_ends(n: int, tmp_path: Path) -> None:
    plan = plan_of([0] * n, 10 * MS)
    with StubTriton(lambda _: Behaviour("hang"), REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, Rules(S, max_in_flight=1)), plan)
    assert_one_row_each(rows, plan)


def test_a_plan_without_arrivals_ends_at_once(tmp_path: Path) -> None:
    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        worker = LoadWorker(settings_of(tmp_path, stub.port), SystemClock())
        worker.prepare(plan_of([], 60 * S))
        before_ns = time.monotonic_ns()
        worker.run(before_ns)
    assert time.monotonic_ns() - before_ns < 30 * S
    assert worker.leftovers() == []


def test_a_worker_whose_server_is_not_there_says_so_and_leaves_nothing_open(tmp_path: Path) -> None:
    with StubTriton() as stub:
        port = stub.port
    worker = LoadWorker(settings_of(tmp_path, port), SystemClock())
    with pytest.raises(TargetError) as caught:
        worker.prepare(plan_of([0], S))
    assert str(caught.value) == f"worker 0: no connection to 127.0.0.1:{port}: Connection refused"


def test_a_spill_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    worker = LoadWorker(settings_of(tmp_path / "none", 1), SystemClock())
    with pytest.raises(ClusterError) as caught:
        worker.prepare(plan_of([0], S))
    assert str(caught.value) == f"worker 0: cannot write {tmp_path / 'none'}: No such file or directory"


def test_a_defect_in_a_callback_fails_the_run_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of([i * MS for i in range(20)], 60 * S)

    def defect(*_: object) -> tuple[str, str]:
        raise ZeroDivisionError("made by the test")

    monkeypatch.setattr("squall.actors.messages.http_wire.judge_reply", defect)
    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        settings = settings_of(tmp_path, stub.port)
        with pytest.raises(ClusterError, match="worker 0: ZeroDivisionError: made by the test"):
            run_worker(settings, plan)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    assert "ok" not in column(rows, "outcome")


@pytest.mark.serial
def test_samples_of_a_run_add_up_to_its_requests(tmp_path: Path) -> None:
    plan = plan_of([i * 12 * MS for i in range(100)], 20 * S)
    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        settings = settings_of(tmp_path, stub.port)
        run_worker(settings, plan)
    samples = [row for part in spilled(settings, "worker_samples") for row in part.to_pylist()]
    assert len(samples) >= 3
    assert sum(row["n_due"] for row in samples) == 100
    assert sum(row["n_sent"] for row in samples) == 100
    assert sum(row["n_done"] for row in samples) == 100
    assert samples[-1]["n_in_flight"] == samples[-1]["n_backlog"] == 0
    assert sum(row["gc_count"] for row in samples) == 0
