"""What the driver relies on of every process that makes load: squall's own worker, and Locust's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from squall.actors.client_worker import ClientWorker
from squall.actors.clock import SystemClock
from squall.actors.load.worker import LoadWorker
from squall.actors.messages.value_check import Tally
from squall.actors.spill import read_spill
from tests.fakes import StubTriton
from tests.golden.driving import MS, REPLY_BYTES, S, plan_of, settings_of
from tests.locust_pair import LedWorker

_NICENESS = os.getpriority(os.PRIO_PROCESS, 0)
LENGTH_NS = 300 * MS


@dataclass
class Bench:
    """A worker that is prepared, whose load is of `length_ns`."""

    worker: ClientWorker
    folder: Path
    length_ns: int

    def rows(self, table: str) -> int:
        (path,) = self.folder.glob(f"{table}-*.arrows")
        with pa.OSFile(str(path)) as data:
            return sum(len(part) for part in read_spill(data))


@pytest.fixture(params=[LENGTH_NS, 60 * S], ids=["short", "long"])
def length_ns(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=["squall", pytest.param("locust", marks=[pytest.mark.slow, pytest.mark.single])])
def bench(request: pytest.FixtureRequest, length_ns: int, tmp_path: Path) -> Iterator[Bench]:
    if request.param != "squall":
        length_ns = max(length_ns, 8 * S)  # its first user may come seconds late on a busy host
        led = LedWorker(tmp_path, length_ns)
        led.lead()
        yield Bench(led, tmp_path, length_ns)
        led.abandoned()
        return
    with StubTriton(tensor_bytes=REPLY_BYTES) as stub:
        worker = LoadWorker(settings_of(tmp_path, stub.port), SystemClock())
        # it ends with the last reply, however late that is
        worker.prepare(plan_of(range(0, length_ns, max(50 * MS, length_ns // 20)), length_ns + 60 * S))
        yield Bench(worker, tmp_path, length_ns)
    for tid in map(int, os.listdir("/proc/self/task")):  # its sender raised its own
        with suppress(ProcessLookupError):
            if os.getpriority(os.PRIO_PROCESS, tid) < _NICENESS:
                os.setpriority(os.PRIO_PROCESS, tid, _NICENESS)


short_alone = pytest.mark.parametrize("length_ns", [LENGTH_NS], indirect=True)
long_alone = pytest.mark.parametrize("length_ns", [60 * S], indirect=True)


@short_alone
def test_after_its_run_every_request_that_it_issued_has_a_row_in_its_file(bench: Bench) -> None:
    start_ns = time.monotonic_ns() + 200 * MS
    bench.worker.run(start_ns)
    assert time.monotonic_ns() >= start_ns + bench.length_ns - 50 * MS
    n_issued = bench.worker.n_issued()
    assert n_issued == bench.rows("requests") > 0
    assert bench.worker.leftovers() == []
    progress = bench.worker.status().progress
    assert (progress.n_sent, progress.n_done, progress.n_failed) == (n_issued, n_issued, 0)


@long_alone
@pytest.mark.parametrize("end", ["stop", "abandoned"])
def test_told_to_stop_or_without_its_driver_it_ends_long_before_its_load_with_its_rows_in_its_file(
    bench: Bench, end: str
) -> None:
    running = threading.Thread(target=bench.worker.run, args=(time.monotonic_ns() + 50 * MS,))
    running.start()
    while not bench.worker.status().progress.n_done and running.is_alive():
        time.sleep(0.01)
    getattr(bench.worker, end)()
    running.join(bench.length_ns / 2 / S)
    assert not running.is_alive()
    assert bench.worker.n_issued() == bench.rows("requests") > 0


@short_alone
def test_stopping_one_that_has_ended_changes_nothing(bench: Bench) -> None:
    assert bench.worker.status().spill_error == ""
    bench.worker.run(time.monotonic_ns())
    n_issued = bench.worker.n_issued()
    bench.worker.cease(0)
    bench.worker.stop()
    assert (bench.worker.n_issued(), bench.rows("requests")) == (n_issued, n_issued)


@short_alone
def test_what_it_says_of_itself_needs_no_run_but_its_account(bench: Bench) -> None:
    assert bench.worker.tally() == Tally()
    assert isinstance(bench.worker.no_lane(), str)
    before = bench.worker.scheduling()
    bench.worker.run(time.monotonic_ns() + 50 * MS)
    account = bench.worker.account()
    assert (account.ready_before_ns is None) == isinstance(
        bench.worker, LedWorker
    )  # its users are the master's
    assert account.scheduling.policy == before.policy
