"""A worker that is told that the promises are decided: what is due later is not sent, what is in flight ends, and its
counts of late requests are those of its records; in C and in Python."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.scenarios.plan.plan import Plan
from squall.scenarios.promises import DECIDED, LateLimit
from tests.fakes import Behaviour, StubTriton
from tests.golden.driving import (
    MS,
    S,
    assert_one_row_each,
    column,
    numbers,
    plan_of,
    requests_of,
    settings_of,
)

pytestmark = pytest.mark.usefixtures("way")
LIMIT = LateLimit("response", 150 * MS)
LIMITS = (LIMIT, LateLimit("service", 150 * MS), LateLimit("response", None), LateLimit("send_lag", 1 * S))


def driven(
    settings: WorkerSettings, plan: Plan, meanwhile: Callable[[LoadWorker, int], None]
) -> tuple[LoadWorker, int]:
    """A worker that ran beside `meanwhile`, and the start that both were told."""
    worker = LoadWorker(settings, SystemClock())
    worker.prepare(plan)
    start_ns = time.monotonic_ns() + 500 * MS
    beside = threading.Thread(target=meanwhile, args=(worker, start_ns))
    beside.start()
    worker.run(start_ns)
    beside.join()
    return worker, start_ns


def wait_until(at_ns: int) -> None:
    time.sleep(max(0, at_ns - time.monotonic_ns()) / S)


def test_what_is_due_later_is_not_sent_and_what_is_in_flight_ends(tmp_path: Path) -> None:
    plan = plan_of([i * 5 * MS for i in range(2_000)], 20 * S)

    def cease(worker: LoadWorker, start_ns: int) -> None:
        wait_until(start_ns)
        worker.cease(2_002 * MS)

    with StubTriton(lambda _: Behaviour(service_s=0.2)) as stub:
        settings = settings_of(tmp_path, stub.port, None, 64)
        driven(settings, plan, cease)
        arrived = dict(stub.seen.arrived_ns)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    outcomes, details = column(rows, "outcome"), column(rows, "detail")
    n_sent = details.index(DECIDED)
    assert outcomes[:n_sent] == ["ok"] * n_sent, "what was due by then was sent, and its answer awaited"
    # 401 arrivals are due by then; a sender that a busy host holds up may send some of what is due when it goes on
    assert 401 <= n_sent < 1_000
    assert outcomes[n_sent:] == ["unsent"] * (2_000 - n_sent)
    assert set(details[n_sent:]) == {DECIDED}
    assert set(arrived) == set(range(n_sent)), "by what the server saw"


def test_an_end_that_is_told_late_cuts_off_what_was_not_sent_yet(tmp_path: Path) -> None:
    plan = plan_of([i * 5 * MS for i in range(2_000)], 20 * S)

    def cease(worker: LoadWorker, start_ns: int) -> None:
        while len(stub.seen.arrived_ns) < 40 and time.monotonic_ns() < start_ns + 8 * S:
            time.sleep(0.01)
        worker.cease(100 * MS)

    with StubTriton() as stub:
        settings = settings_of(tmp_path, stub.port, None, 16)
        driven(settings, plan, cease)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    n_sent = column(rows, "detail").index(DECIDED)
    assert 21 < n_sent < 2_000, "more than were due by 100 ms: it had gone on until it was told"
    assert column(rows, "outcome") == ["ok"] * n_sent + ["unsent"] * (2_000 - n_sent)


def test_the_counts_of_late_requests_are_those_of_the_records(tmp_path: Path) -> None:
    plan = plan_of([i * 4 * MS for i in range(400)], 6 * S)
    seen = []

    def watch(worker: LoadWorker, start_ns: int) -> None:
        for second in range(1, 4):
            wait_until(start_ns + second * S + 300 * MS)
            late = worker.progress().late
            assert late is not None
            seen.append((second, late))

    def behaviour(number: int) -> Behaviour:
        """One of 20 is slow, one of 25 is never answered."""
        if number % 25 == 3:
            return Behaviour("hang")
        return Behaviour(service_s=0.25 if number % 20 == 0 else 0.0)

    with StubTriton(behaviour) as stub:
        settings = replace(settings_of(tmp_path, stub.port, Rules(timeout_ns=2 * S), 64), late_limits=LIMITS)
        worker, start_ns = driven(settings, plan, watch)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    is_ok = np.array([one == "ok" for one in column(rows, "outcome")])
    due_ns, sent_ns, done_ns = (numbers(rows, name) for name in ("scheduled_ns", "sent_ns", "done_ns"))
    late_by_ns = np.where(is_ok, np.minimum(done_ns, due_ns + 150 * MS), due_ns + 150 * MS)
    is_late = ~is_ok | (done_ns - due_ns >= 150 * MS)
    assert is_late.sum() >= 30
    last = worker.progress().late
    assert last is not None
    for place, own in enumerate(
        (is_late, ~is_ok | (done_ns - sent_ns >= 150 * MS), ~is_ok, sent_ns - due_ns >= S)
    ):
        assert (last.n_late[place].sum(), last.n_in_time[place].sum()) == (own.sum(), (~own).sum()), LIMITS[
            place
        ]
    # While it ran: all that was overdue at the look, answered or not, and never what was not known yet.
    for second, counts in seen:
        n_late, n_in_time = int(counts.n_late[0].sum()), int(counts.n_in_time[0].sum())
        known_ns = np.where(is_late, np.minimum(late_by_ns, done_ns), done_ns)
        at_least = int((is_late & (known_ns <= start_ns + (second - 1) * S)).sum())
        at_most = int((is_late & (known_ns <= start_ns + second * S + 300 * MS)).sum())
        assert at_least <= n_late <= at_most
        assert int((~is_late & (done_ns <= start_ns + (second - 1) * S)).sum()) <= n_in_time
    hung = np.array([number % 25 == 3 for number in range(400)])
    early = hung & (due_ns + 150 * MS <= start_ns + S)
    assert early.sum() >= 5
    assert int(seen[1][1].n_late[0].sum()) >= early.sum(), (
        "those of the first second before their timeout at 2 s"
    )
