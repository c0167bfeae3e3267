"""A worker whose lease has run out sends nothing any more, in C and in Python; what it takes over it sends beside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.actors.spill import read_spill
from squall.scenarios.errors import ClusterError
from squall.scenarios.plan.plan import Plan, deal
from tests.fakes import StubTriton
from tests.fakes_grpc import StubGrpc
from tests.golden.driving import (
    MS,
    REPLY_BYTES,
    S,
    assert_one_row_each,
    column,
    numbers,
    plan_of,
    requests_of,
    settings_of,
)

pytestmark = pytest.mark.usefixtures("way")
both_protocols = pytest.mark.parametrize("protocol", ["http", "grpc"])


def stub_of(protocol: str) -> StubTriton | StubGrpc:
    return StubTriton(tensor_bytes=REPLY_BYTES) if protocol == "http" else StubGrpc(tensor_bytes=REPLY_BYTES)


def settings_for(folder: Path, port: int, protocol: str) -> WorkerSettings:
    """So many connections that none is opened later."""
    return settings_of(folder, port, None, 32 if protocol == "http" else 4, protocol=protocol)


def led(
    settings: WorkerSettings,
    plan: Plan,
    lease_ns: int,
    meanwhile: Callable[[LoadWorker, int], None],
    taken: Plan | None = None,
) -> tuple[LoadWorker, int]:
    """A worker that ran under a lease to `lease_ns` after its start, and that start.

    `taken`: what it took over before.
    """
    worker = LoadWorker(settings, SystemClock())
    worker.prepare(plan)
    if taken is not None:
        worker.take_over(taken, 1)
    start_ns = time.monotonic_ns() + 500 * MS  # a collection of garbage of all tests may take that long
    beside = threading.Thread(target=meanwhile, args=(worker, start_ns))
    beside.start()
    worker.run(start_ns, start_ns + lease_ns)
    beside.join()
    return worker, start_ns


def wait_for_its_first(worker: LoadWorker) -> None:
    """Its load has begun, and has replies."""
    while not worker.progress().n_done and not worker.status().has_lapsed:
        time.sleep(0.01)


def of_part(settings: WorkerSettings, part: int) -> pa.Table:
    path = Path(settings.spill_dir) / f"requests-{settings.worker}.{part}.arrows"
    with pa.OSFile(str(path)) as data:
        return pa.concat_tables([one.unify_dictionaries() for one in read_spill(data)]).sort_by("request_id")


@both_protocols
def test_what_is_due_after_the_lease_is_unsent_and_never_sent(protocol: str, tmp_path: Path) -> None:
    plan = plan_of([i * 5 * MS for i in range(400)], 20 * S)
    with stub_of(protocol) as stub:
        settings = settings_for(tmp_path, stub.port, protocol)
        worker, _ = led(settings, plan, 3 * S // 2, lambda *_: None)
        time.sleep(0.3)  # whoever sends late sends now
        arrived = dict(stub.seen.arrived_ns)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    outcomes = column(rows, "outcome")
    n_sent = len(outcomes) - outcomes.count("unsent")
    assert 0 < n_sent <= 300, "one every 5 ms for 1.5 s"
    assert outcomes[n_sent:] == ["unsent"] * (400 - n_sent)
    waits = "its worker's lease ran out while it waited for a connection"  # behind replies of a busy host
    assert set(column(rows, "detail")[n_sent:]) - {waits} == {"its worker's lease ran out before its turn"}
    assert max(arrived) < 300, "by what the server saw"
    assert worker.status().has_lapsed
    assert not any(column(rows, "redealt"))


@both_protocols
def test_a_lease_that_is_renewed_ends_nothing_and_a_late_renewal_shortens_none(
    protocol: str, tmp_path: Path
) -> None:
    plan = plan_of([i * 5 * MS for i in range(500)], 60 * S)

    def renew(worker: LoadWorker, start_ns: int) -> None:
        while (now_ns := time.monotonic_ns()) < start_ns or worker.progress().n_done < len(plan):
            if worker.status().has_lapsed:
                return
            worker.renew(now_ns + 10 * S)
            worker.renew(start_ns)  # one that was long on its way
            time.sleep(0.1)

    with stub_of(protocol) as stub:
        settings = settings_for(tmp_path, stub.port, protocol)
        worker, _ = led(settings, plan, 2 * S, renew)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    assert set(column(rows, "outcome")) == {"ok"}, set(column(rows, "detail"))
    assert not worker.status().has_lapsed


@both_protocols
@pytest.mark.parametrize("is_early", [True, False], ids=["before its load", "during its load"])
def test_what_it_takes_over_is_sent_beside_its_own_and_marked(
    is_early: bool, protocol: str, tmp_path: Path
) -> None:
    whole = plan_of([i * 8 * MS for i in range(400)], 90 * S)
    own, other = deal(whole, 2)
    kept = other.offset_ns >= 800 * MS
    taken = replace(other, **{name: getattr(other, name)[kept] for name in other.columns})

    def take(worker: LoadWorker, _: int) -> None:
        wait_for_its_first(worker)
        worker.take_over(taken, 1)

    with stub_of(protocol) as stub:
        settings = settings_for(tmp_path, stub.port, protocol)
        early = taken if is_early else None
        worker, start_ns = led(settings, own, 90 * S, (lambda *_: None) if is_early else take, early)
        seen = len(stub.seen.arrived_ns)
    rows, more = requests_of(settings), of_part(settings, 1)
    assert_one_row_each(rows, own)
    assert_one_row_each(more, taken)
    assert set(column(rows, "outcome")) == set(column(more, "outcome")) == {"ok"}
    assert (set(column(rows, "redealt")), set(column(more, "redealt"))) == ({False}, {True})
    assert set(column(more, "worker")) == {settings.worker}
    assert (numbers(more, "scheduled_ns") == taken.offset_ns + start_ns).all()
    assert (numbers(more, "sent_ns") >= numbers(more, "scheduled_ns")).all()
    assert seen == len(own) + len(taken) == worker.n_issued()
    with pa.OSFile(str(Path(settings.spill_dir) / f"worker_samples-{settings.worker}.arrows")) as data:
        samples = pa.concat_tables(list(read_spill(data)))
    for name in ("n_due", "n_sent", "n_done"):
        assert sum(column(samples, name)) == len(own) + len(taken), name  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="it has sent all of its own, and ends"):
        worker.take_over(taken, 2)


def test_the_lease_of_a_worker_is_that_of_what_it_took_over(tmp_path: Path) -> None:
    own, other = deal(plan_of([i * 5 * MS for i in range(600)], 20 * S), 2)

    def take(worker: LoadWorker, _: int) -> None:
        wait_for_its_first(worker)
        worker.take_over(other, 1)

    with stub_of("http") as stub:
        settings = settings_for(tmp_path, stub.port, "http")
        led(settings, own, 2 * S, take)
        seen = sorted(stub.seen.arrived_ns)
    rows, more = requests_of(settings), of_part(settings, 1)
    assert_one_row_each(rows, own)
    assert_one_row_each(more, other)
    sent = [
        row["request_id"] for table in (rows, more) for row in table.to_pylist() if row["outcome"] != "unsent"
    ]
    assert set(seen) <= set(sent)
    assert 0 < max(seen) < 400, "one every 5 ms for two seconds"
    assert set(column(more, "outcome")) <= {"ok", "unsent", "cancelled"}


@both_protocols
def test_a_stop_ends_what_was_taken_over_too(protocol: str, tmp_path: Path) -> None:
    own, other = deal(plan_of([i * 5 * MS for i in range(100)] + [20 * S + i for i in range(100)], 60 * S), 2)

    def take(worker: LoadWorker, _: int) -> None:
        worker.take_over(other, 1)
        wait_for_its_first(worker)
        worker.stop()

    before_ns = time.monotonic_ns()
    with stub_of(protocol) as stub:
        settings = settings_for(tmp_path, stub.port, protocol)
        led(settings, own, 60 * S, take)
    assert_one_row_each(requests_of(settings), own)
    assert_one_row_each(of_part(settings, 1), other)
    assert column(of_part(settings, 1), "outcome").count("unsent") >= 50
    assert time.monotonic_ns() - before_ns < 19 * S, "long before its next arrival"
