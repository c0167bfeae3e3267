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
N = 1_750  # 3.5 s of arrivals
OUTAGE_NS = S


@both_protocols
def test_a_server_that_is_killed_and_started_again_is_loaded_on_without_a_pause(
    protocol: str, tmp_path: Path
) -> None:
    plan = plan_of([i * GAP_NS for i in range(N)], 20 * S)
    down_ns: list[int] = []
    with NullProcess("--service=constant:1ms") as null:

        def kill_and_restart(worker: LoadWorker) -> None:
            while worker.progress().n_done < 200:
                time.sleep(0.005)
            down_ns.append(time.monotonic_ns())
            null.kill()
            time.sleep(OUTAGE_NS / S)
            null.start()
            down_ns.append(time.monotonic_ns())

        rules = Rules(timeout_ns=5 * S)
        settings = settings_of(tmp_path, null.ports[protocol], rules, spec=null_spec(), protocol=protocol)
        rows = run_worker(settings, plan, meanwhile=kill_and_restart)
    assert_one_row_each(rows, plan)
    killed_ns, up_ns = down_ns
    outage_ns = up_ns - killed_ns
    scheduled, done = numbers(rows, "scheduled_ns"), numbers(rows, "done_ns")
    is_ok = np.array(column(rows, "outcome")) == "ok"
    before, after = scheduled < killed_ns - 100 * MS, scheduled > up_ns + 100 * MS
    # it died within 50 ms of `killed_ns` and cannot be up again before the sleep's end
    during = (scheduled > killed_ns + 50 * MS) & (scheduled < killed_ns + OUTAGE_NS)
    assert is_ok[before].all()
    assert before.sum() > 100
    assert is_ok[after].all(), set(np.array(column(rows, "detail"))[after])
    assert after.sum() > 100
    assert during.sum() > 400
    assert set(np.array(column(rows, "outcome"))[during]) == {"transport_error"}
    assert set(np.array(column(rows, "detail"))[during]) == {"connect: Connection refused"}
    # sends go on: what fails, fails at its own turn, and no backlog waits for the server's return
    told = done - scheduled
    assert np.quantile(told[during], 0.99) < outage_ns / 5
    is_sent = np.array([sent is not None for sent in column(rows, "sent_ns")])
    lag = (np.array([sent or 0 for sent in column(rows, "sent_ns")]) - scheduled)[is_sent]
    assert is_sent[before | after].all()
    assert np.quantile(lag, 0.99) < outage_ns / 5


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
