from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from squall.actors.clock import SystemClock
from squall.actors.sampling.sampler import Sampler, stop_all, wait_for_baselines
from squall.actors.spill import read_spill
from tests.fakes import FakeClock

LABELS = {"run": "r", "node": "node-0", "server": "server-0"}


class _BadRows:
    table = "host_samples"

    def sample(self, now_ns: int) -> list[dict[str, Any]]:
        return [{"t_ns": f"{now_ns} is not a number"}]


def test_a_row_that_does_not_fit_its_table_is_a_loss_and_not_the_end_of_the_thread(tmp_path: Path) -> None:
    sampler = Sampler(_BadRows(), LABELS, 3600 * 10**9, tmp_path / "s", SystemClock())
    beside = threading.Thread(target=sampler.start, daemon=True)
    beside.start()
    beside.join(20)
    assert not beside.is_alive(), "start waits for a thread that has died"
    sampler.stop()
    (loss,) = sampler.losses()
    assert loss.startswith("host_samples: 2 samples failed, last: Arrow")


class _SlowSource:
    table = "host_samples"

    def __init__(self, clock: SystemClock, until_ns: int) -> None:
        self.calls: list[int] = []
        self._clock, self._until_ns = clock, until_ns
        self.is_over = threading.Event()

    def sample(self, now_ns: int) -> list[dict[str, Any]]:
        self.calls.append(now_ns)
        if len(self.calls) == 2:
            while self._clock.monotonic_ns() < now_ns + self._until_ns:
                pass
        if len(self.calls) == 4:
            self.is_over.set()
        return []


def test_ticks_that_a_slow_sample_ran_over_are_not_made_up_for(tmp_path: Path) -> None:
    interval_ns = 10_000_000
    slow = _SlowSource(SystemClock(), 6 * interval_ns)
    sampler = Sampler(slow, LABELS, interval_ns, tmp_path / "s", SystemClock())
    sampler.start()
    assert slow.is_over.wait(20)
    sampler.stop()
    # in a burst of made-up ticks the third and fourth call follow the slow one at once
    assert slow.calls[3] - slow.calls[1] >= 7 * interval_ns


class _Rows:
    """Gives a row at each tick, of which it has taken `cost_ns` of CPU; the tick of number `fails_at` fails."""

    table = "host_samples"

    def __init__(self, cost_ns: int = 0, fails_at: int = 0) -> None:
        self.n_ticks = 0
        self._cost_ns, self._fails_at = cost_ns, fails_at
        self.is_over = threading.Event()

    def sample(self, now_ns: int) -> list[dict[str, Any]]:
        self.n_ticks += 1
        until_ns = time.thread_time_ns() + self._cost_ns
        while time.thread_time_ns() < until_ns:
            pass
        if self.n_ticks == self._fails_at:
            raise OSError("gone")
        if self.n_ticks == 5:
            self.is_over.set()
        return [
            {
                "t_ns": now_ns, "interval_ns": 1, "n_cores": 1, "run_queue": 1, "context_switches": 0,
                **{f"cpu_{name}": 0.2 for name in ("user", "system", "iowait", "steal", "idle")},
            }
        ]  # fmt: skip

    def losses(self) -> list[str]:
        return ["host_samples: one of its own"]

    def facts(self) -> dict[str, Any]:
        return {"of_its_own": self.n_ticks}


def rows_of(path: Path) -> list[dict[str, Any]]:
    with pa.OSFile(str(path)) as data:
        return [row for table in read_spill(data) for row in table.to_pylist()]


def test_the_cost_of_the_samples_is_counted_and_the_source_is_heard(tmp_path: Path) -> None:
    cost_ns = 2_000_000
    source = _Rows(cost_ns)
    sampler = Sampler(source, LABELS, 1_000_000, tmp_path / "s", SystemClock())
    sampler.start()
    assert source.is_over.wait(20)
    sampler.stop()
    facts = sampler.facts()
    assert (facts["n_ticks"], facts["of_its_own"]) == (source.n_ticks, source.n_ticks)
    assert facts["n_rows"] == source.n_ticks == len(rows_of(tmp_path / "s"))
    assert facts["cpu_ns"] >= source.n_ticks * cost_ns
    assert facts["wall_ns"] >= facts["longest_read_ns"] >= cost_ns
    assert (
        facts["n_skipped"] >= source.n_ticks - 3
    )  # each runs over the next one or more, but for first and last
    assert sampler.losses() == ["host_samples: one of its own"]


def test_the_cost_of_nothing_is_less_than_that_of_something(tmp_path: Path) -> None:
    idle, busy = _Rows(), _Rows(20_000_000)
    for name, source in (("idle", idle), ("busy", busy)):
        sampler = Sampler(source, LABELS, 3600 * 10**9, tmp_path / name, SystemClock())
        sampler.start()
        sampler.stop()
        source.n_ticks = sampler.facts()["cpu_ns"]
    assert busy.n_ticks - idle.n_ticks > 20_000_000


def test_rows_that_wait_to_be_written_are_written_though_the_last_read_fails(tmp_path: Path) -> None:
    source = _Rows(fails_at=2)
    sampler = Sampler(source, LABELS, 3600 * 10**9, tmp_path / "s", SystemClock())
    sampler.start()
    assert rows_of(tmp_path / "s") == []
    sampler.stop()
    assert [row["node"] for row in rows_of(tmp_path / "s")] == ["node-0"]
    assert sampler.losses()[0] == "host_samples: 1 samples failed, last: OSError: gone"


class SteppingClock:
    """Half a second passes at each reading."""

    def __init__(self) -> None:
        self._now_ns = 0

    def monotonic_ns(self) -> int:
        self._now_ns += 500_000_000
        return self._now_ns


def test_rows_are_in_the_file_within_a_second_or_two_of_their_tick(tmp_path: Path) -> None:
    source = _Rows()
    sampler = Sampler(source, LABELS, 1, tmp_path / "s", SteppingClock())
    sampler.start()
    assert source.is_over.wait(20)
    n_written = len(rows_of(tmp_path / "s"))  # while it runs
    sampler.stop()
    assert n_written >= 3


class _Hanging(_Rows):
    """Its second read waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def sample(self, now_ns: int) -> list[dict[str, Any]]:
        if self.n_ticks == 1:
            assert self.may_end.wait(20)
        return super().sample(now_ns)


def test_a_read_that_hangs_is_a_loss_and_does_not_hold_the_stop_for_ever(tmp_path: Path) -> None:
    source = _Hanging()
    sampler = Sampler(source, LABELS, 3600 * 10**9, tmp_path / "s", SystemClock())
    sampler.start()
    sampler.stop(0.05)
    assert sampler.losses()[0].endswith("last: its last read did not end in time")
    source.may_end.set()
    sampler._thread.join(20)
    sampler._spill_file.close()


class _Slow:
    """Takes `takes_s` to its baseline and to its end, or all the time it is given."""

    def __init__(self, clock: FakeClock, takes_s: float) -> None:
        self._clock = clock
        self._takes_s = takes_s
        self.given_s: list[float] = []
        self.calls: list[str] = []

    def wait_for_baseline(self, timeout_s: float) -> None:
        self._take(timeout_s)

    def halt(self) -> None:
        self.calls.append("halt")

    def stop(self, timeout_s: float) -> None:
        self._take(timeout_s)

    def _take(self, timeout_s: float) -> None:
        self.given_s.append(timeout_s)
        self._clock.advance(round(min(self._takes_s, timeout_s) * 10**9))


@pytest.mark.parametrize(("together", "most_s"), [(wait_for_baselines, 15.0), (stop_all, 10.0)])
def test_samplers_that_hang_take_no_longer_together_than_one(together: Any, most_s: float) -> None:
    clock = FakeClock()
    samplers = [_Slow(clock, takes_s) for takes_s in (1.0, 60.0, 60.0)]
    together(samplers, clock)
    assert [sampler.given_s for sampler in samplers] == [[most_s], [most_s - 1], [0.0]]
    assert all(sampler.calls == ["halt"] * (together is stop_all) for sampler in samplers)


class _CountsLate:
    table = "host_samples"
    late_s = 0.05

    def __init__(self) -> None:
        self.calls: list[int] = []

    def sample(self, now_ns: int) -> list[dict[str, Any]]:
        self.calls.append(now_ns)
        return []


def test_the_last_sample_of_what_counts_late_waits_for_it(tmp_path: Path) -> None:
    source, clock = _CountsLate(), SystemClock()
    sampler = Sampler(source, LABELS, 3600 * 10**9, tmp_path / "s", clock)
    sampler.start()
    ended_ns = clock.monotonic_ns()
    sampler.stop()
    assert len(source.calls) == 2
    assert source.calls[1] >= ended_ns + 50_000_000
