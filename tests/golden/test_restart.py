"""A server that is gone for a while, and one that stands still: every arrival is sent at its turn and has its end."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from squall.actors.load.engine import Rules
from squall.actors.load.worker import LoadWorker
from tests.golden.driving import MS, S, assert_one_row_each, column, numbers, plan_of, run_worker, settings_of
from tests.null_process import NullProcess, null_spec

pytestmark = pytest.mark.serial
both_protocols = pytest.mark.parametrize("protocol", ["http", "grpc"])
GAP_NS = 2 * MS
N = 20_000  # 40 s of arrivals
OUTAGE_NS = S


@both_protocols
def test_a_server_that_is_killed_and_started_again_is_loaded_on_without_a_pause(
    protocol: str, tmp_path: Path
) -> None:
    """The load ends by a stop, once 200 requests went well after the restart: how long that takes is the host's."""
    plan = plan_of([i * GAP_NS for i in range(N)], 60 * S)
    at_ns: list[int] = []

    def wait_for(worker: LoadWorker, n_ok: int) -> int:
        """Returns how many went well, once these are `n_ok`."""
        while (found := worker.progress().n_done - worker.progress().n_failed) < n_ok:
            time.sleep(0.005)
        return found

    with NullProcess("--service=constant:1ms") as null:

        def kill_and_restart(worker: LoadWorker) -> None:
            wait_for(worker, 200)
            at_ns.append(time.monotonic_ns())
            null.kill()
            at_ns.append(time.monotonic_ns())
            time.sleep(OUTAGE_NS / S)
            at_ns.append(time.monotonic_ns())
            null.start()
            at_ns.append(time.monotonic_ns())
            wait_for(worker, wait_for(worker, 0) + 200)
            worker.stop()

        settings = settings_of(tmp_path, null.ports[protocol], spec=null_spec(), protocol=protocol)
        rows = run_worker(settings, plan, meanwhile=kill_and_restart)
    assert_one_row_each(rows, plan)
    killing_ns, dead_ns, starting_ns, up_ns = at_ns
    scheduled = numbers(rows, "scheduled_ns")
    sent, done = (rows.column(name).fill_null(-1).to_numpy() for name in ("sent_ns", "done_ns"))
    outcome, detail = (np.array(column(rows, name)) for name in ("outcome", "detail"))
    assert set(outcome) <= {"ok", "transport_error", "cancelled", "unsent"}  # the last two by the stop
    before = (done >= 0) & (done < killing_ns)
    assert set(outcome[before]) == {"ok"}
    assert before.sum() >= 200
    after = sent > up_ns
    assert set(outcome[after]) <= {"ok", "cancelled"}, set(detail[after])
    assert after.sum() >= 100
    # sends go on: what fails, fails at its own turn, and no backlog waits for the server's return
    is_due = (scheduled > dead_ns) & (scheduled < starting_ns)
    during = is_due & (done >= 0) & (done < starting_ns)
    assert is_due.sum() > 400
    assert during.sum() > is_due.sum() / 2
    assert set(outcome[during]) == {"transport_error"}
    # the first of them may be written to connections whose end was not read yet
    assert (detail[during] == "connect: Connection refused").sum() > 0.8 * during.sum()


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.slow)])
def test_a_stall_of_two_seconds_behind_a_cap_is_in_response_time_and_send_lag_but_hardly_in_service_time(
    protocol: str, tmp_path: Path
) -> None:
    stall_ns, cap, gap_ns, n = 2 * S, 4, 5 * MS, 600
    plan = plan_of([i * gap_ns for i in range(n)], 30 * S)
    with NullProcess("--stall=500ms:2s") as null:
        rules = Rules(timeout_ns=20 * S, max_in_flight=cap)
        settings = settings_of(tmp_path, null.ports[protocol], rules, cap, null_spec(), protocol)
        rows = run_worker(settings, plan)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["ok"] * n
    sent, done, scheduled = (numbers(rows, name) for name in ("sent_ns", "done_ns", "scheduled_ns"))
    lag, service, response = sent - scheduled, done - sent, done - scheduled
    # the first `cap` requests of the stall wait in the server, all others of it before they are sent
    assert np.count_nonzero(service > stall_ns / 2) <= cap
    in_stall = stall_ns // gap_ns
    assert np.count_nonzero(response > stall_ns / 2) >= 0.4 * in_stall
    assert np.count_nonzero(lag > stall_ns / 2) >= 0.4 * in_stall
    assert np.quantile(service, 0.95) < stall_ns / 10 < stall_ns / 2 < np.quantile(response, 0.85)
    held = np.array(column(rows, "detail")) == "held back by max_in_flight"
    assert held.sum() >= 0.8 * in_stall
