from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import actors.sampler
from actors.clock import SystemClock
from actors.sampler import HostSource, Sampler, TritonSource
from actors.spool import read_spool

TOTALS = ("request_count", "inference_count", "execution_count", "queue_ns", "compute_infer_ns", "success_ns")


def stats(n: int, batches: dict[int, int] | None = None) -> dict[str, Any]:
    """Statistics of a model after n requests, in the words of Triton's statistics extension."""
    return {
        "model_stats": [
            {
                "name": "m", "version": "1", "inference_count": 2 * n, "execution_count": n,
                "inference_stats": {
                    "success": {"count": n, "ns": 100 * n}, "fail": {"count": 0, "ns": 0},
                    "queue": {"count": n, "ns": 10 * n}, "compute_infer": {"count": n, "ns": 50 * n},
                },
                "batch_stats": [
                    {"batch_size": size, "compute_infer": {"count": count, "ns": 1}}
                    for size, count in (batches or {2: n}).items()
                ],
            }
        ]
    }  # fmt: skip


class ScriptedTriton:
    """Gives the scripted statistics one after the other, then the last for ever; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def ask_json(self, path: str) -> Any:
        assert path == "/v2/models/m/stats"
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(*answers: Any) -> TritonSource:
        client = ScriptedTriton(*answers)
        monkeypatch.setattr(actors.sampler, "Control", lambda *_: client)
        return TritonSource("http://h:1", None, "m")

    return make


def test_triton_rows_are_the_differences_of_its_counters(source: Any) -> None:
    triton = source(stats(10, {2: 10}), stats(13, {2: 11, 4: 2}))
    assert triton.sample(100) == []
    (row,) = triton.sample(150)
    assert (row["t_ns"], row["interval_ns"], row["version"], row["pending_count"]) == (150, 50, "1", None)
    assert [row[name] for name in TOTALS] == [3, 6, 3, 30, 150, 300]
    assert (row["batch_sizes"], row["batch_counts"]) == ([2, 4], [1, 2])


def test_after_a_restart_of_the_server_the_counters_start_from_zero(source: Any) -> None:
    triton = source(stats(10), stats(4))
    triton.sample(0)
    (row,) = triton.sample(1)
    assert [row[name] for name in TOTALS] == [4, 8, 4, 40, 200, 400]
    assert (row["batch_sizes"], row["batch_counts"]) == ([2], [4])


def test_no_counter_is_negative_when_only_some_went_back(source: Any) -> None:
    slow, quick = stats(10), stats(10)
    quick["model_stats"][0]["inference_stats"]["queue"]["ns"] = 1  # restarted, and as many requests since
    triton = source(slow, quick)
    triton.sample(0)
    (row,) = triton.sample(1)
    assert min(row[name] for name in TOTALS) >= 0


def rows_of(path: Path) -> list[dict[str, Any]]:
    with pa.OSFile(str(path)) as data:
        return [row for table in read_spool(data) for row in table.to_pylist()]


LABELS = {"run": "r", "node": "node-0", "server": "server-0"}


def test_the_samples_of_a_run_add_up_to_the_whole_though_one_failed(source: Any, tmp_path: Path) -> None:
    triton = source(stats(10), OSError("gone"), stats(17))
    sampler = Sampler(triton, LABELS, 3600 * 10**9, tmp_path / "s", SystemClock())
    sampler.start()
    sampler._tick()  # fails
    sampler.stop()
    assert sum(row["request_count"] for row in rows_of(tmp_path / "s")) == 7
    assert sampler.losses() == ["triton_samples: 1 samples failed, last: OSError: gone"]


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


def test_host_rows_hold_shares_that_add_up_to_one_and_the_servers_cpu_time() -> None:
    host = HostSource(lambda: [os.getpid()])
    assert host.sample(0) == []
    end = os.times().elapsed + 0.05
    while os.times().elapsed < end:
        pass
    (row,) = host.sample(50_000_000)
    shares = [row[f"cpu_{name}"] for name in ("user", "system", "iowait", "steal", "idle")]
    assert sum(shares) == pytest.approx(1)
    assert row["server_cpu_ns"] >= 0
    assert row["interval_ns"] == 50_000_000


def test_the_servers_cpu_time_is_unknown_where_one_of_its_processes_has_ended() -> None:
    pids = [os.getpid()]
    host = HostSource(lambda: pids)
    host.sample(0)
    pids.append(2**22 + 1)  # above the largest pid
    assert host.sample(1)[0]["server_cpu_ns"] is None
