"""A real observer process: what it samples, and what stays of it when it, or who started it, is killed."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from squall.actors.net.access import Access
from squall.actors.net.stream import TlsSettings
from squall.actors.sampling.clock_responder import probe_message, read_answer
from squall.actors.sampling.observer import Observer
from squall.actors.sampling.observer_settings import ObserverSettings, ServerTarget
from squall.actors.sampling.sampled import OF_NODE, OF_SERVER
from squall.actors.spill import read_spill
from squall.cluster.remote.spawn import Handle, spawn
from squall.scenarios.errors import ClusterError, LostActor
from tests.golden.told import HERE
from tests.null_process import NullProcess

MS = 1_000_000
INTERVAL_NS = 50 * MS
KERNEL_TICKS_NS = 20 * MS
"""The kernel counts CPU time in ticks of 10 ms: a last sample within one has no row."""
_DEADLINE_S = 20.0


def settings(folder: Path, **changed: Any) -> ObserverSettings:
    intervals = dict.fromkeys(("host_interval_ns", "thread_interval_ns", "triton_interval_ns"), INTERVAL_NS)
    return ObserverSettings(
        "run", "node-1", str(folder), **{"clock_host": "127.0.0.1", **intervals, **changed}
    )


def started(asked: ObserverSettings) -> Handle[Observer]:
    return spawn("observer", HERE, 2, Observer, asked)


@pytest.fixture
def observer(tmp_path: Path) -> Iterator[Handle[Observer]]:
    observer = started(settings(tmp_path))
    observer.pid()
    yield observer
    observer.end()


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    with pa.OSFile(str(folder / f"{name}.arrows")) as data:
        return [row for table in read_spill(data) for row in table.to_pylist()]


def wait_until(claim: Callable[[], Any]) -> Any:
    end = time.monotonic() + _DEADLINE_S
    while not (found := claim()):
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)
    return found


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def end_of(pid: int) -> int:
    """A descriptor that is readable once the process has ended."""
    return os.pidfd_open(pid)


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], _DEADLINE_S)[0])


def ask_clock(observer: Handle[Observer], number: int) -> int:
    """What the node's clock says."""
    clock = observer.call(Observer.clock)
    assert clock is not None
    address, token = clock
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probing:
        probing.settimeout(_DEADLINE_S)
        probing.sendto(probe_message(token, number), address)
        answer = read_answer(probing.recv(512))
    assert answer is not None
    assert answer[0] == number
    return answer[1]


def test_everything_of_a_node_is_sampled_until_the_stop_and_its_cost_is_told(
    observer: Handle[Observer], tmp_path: Path
) -> None:
    before_ns = time.monotonic_ns()
    assert before_ns < ask_clock(observer, 7) < time.monotonic_ns()
    others = children()
    with NullProcess() as null:
        (pid,) = children() - others
        url = f"http://127.0.0.1:{null.ports['http']}"
        target = ServerTarget("server-0", url, models=("linear_head",), pids=(pid,))
        observer.call(Observer.add_server, target)
        added_ns = time.monotonic_ns()
        wait_until(lambda: rows(tmp_path, "triton_samples-server-0"))
        null.kill()
        null.start()
        (again,) = children() - others
        observer.call(Observer.set_server_pids, "server-0", [again])
        with socket.create_connection(("127.0.0.1", null.ports["http"])) as link:
            for _ in range(20):
                link.sendall(b"GET /v2 HTTP/1.1\r\nHost: h\r\n\r\n")
                link.recv(65_536)
                time.sleep(0.01)
        wait_until(lambda: {row["process"] for row in rows(tmp_path, "thread_samples-server-0")} >= {again})
        stopped_ns = time.monotonic_ns()
        losses, facts = observer.call(Observer.stop)
    # the null server was away for some samples
    assert all(loss.startswith("server-0: triton_samples: ") for loss in losses)
    assert losses == observer.call(Observer.stop)[0]
    host = rows(tmp_path, "host_samples")
    assert [row["t_ns"] - row["interval_ns"] for row in host[1:]] == [row["t_ns"] for row in host[:-1]]
    assert host[0]["t_ns"] - host[0]["interval_ns"] < before_ns
    assert host[-1]["t_ns"] > stopped_ns - KERNEL_TICKS_NS
    assert {(row["run"], row["node"], row["phase"]) for row in host} == {("run", "node-1", "")}
    triton = rows(tmp_path, "triton_samples-server-0")
    assert {(row["server"], row["model"]) for row in triton} == {("server-0", "linear_head")}
    assert [row["t_ns"] - row["interval_ns"] for row in triton[1:]] == [row["t_ns"] for row in triton[:-1]]
    assert triton[0]["t_ns"] - triton[0]["interval_ns"] < added_ns
    assert triton[-1]["t_ns"] > stopped_ns
    assert {row["core"] for row in rows(tmp_path, "core_samples")} == set(range(os.cpu_count() or 1))
    samplers = facts["samplers"]
    of_server = {f"{one.table}-server-0" for one in OF_SERVER}
    assert set(samplers) == {one.table for one in OF_NODE} | of_server
    assert samplers["host_samples"]["n_rows"] == len(host)
    assert all(sampler["cpu_ns"] > 0 for sampler in samplers.values())
    assert 0 < facts["cpu_ns"] < facts["wall_ns"] * (os.cpu_count() or 1)
    assert facts["wall_ns"] > stopped_ns - before_ns


def test_killed_its_files_are_readable_and_the_next_one_writes_others(
    observer: Handle[Observer], tmp_path: Path
) -> None:
    wait_until(lambda: rows(tmp_path, "host_samples"))
    os.kill(observer.pid(), signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    with pytest.raises(LostActor, match=r"^observer on node-0 is lost: its process has ended$"):
        observer.call(Observer.add_server, ServerTarget("server-0"))
    assert observer.ended_ns is not None
    host = rows(tmp_path, "host_samples")
    assert killed_ns - 2_500 * MS < host[-1]["t_ns"] < killed_ns  # a second at most waited to be written
    following = started(settings(tmp_path))
    wait_until(lambda: following.call(Observer.clock) and rows(tmp_path, "host_samples-again1"))
    assert following.call(Observer.stop)[0] == []
    following.end()
    assert rows(tmp_path, "host_samples") == host
    assert rows(tmp_path, "host_samples-again1")[0]["t_ns"] > killed_ns


OWNER = """
import sys, time
from squall.actors.sampling.observer import Observer
from squall.actors.sampling.observer_settings import ObserverSettings
from squall.cluster.remote.spawn import spawn
from tests.golden.told import HERE
settings = ObserverSettings("run", "node-1", sys.argv[1], host_interval_ns=50_000_000)
print(spawn("observer", HERE, 2, Observer, settings).pid(), flush=True)
time.sleep(60)
"""


def test_it_takes_its_last_samples_and_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-c", OWNER, str(tmp_path)]
    owner = subprocess.Popen(words, stdout=subprocess.PIPE, env=environment)
    assert owner.stdout is not None
    with owner.stdout:
        end = end_of(int(owner.stdout.readline()))
    try:
        killed_ns = time.monotonic_ns()
        owner.kill()
        owner.wait()
        assert is_readable(end), "the observer outlives its owner"
    finally:
        os.close(end)
    assert rows(tmp_path, "host_samples")[-1]["t_ns"] > killed_ns - KERNEL_TICKS_NS


def test_the_interrupt_of_a_terminal_does_not_reach_it_and_a_termination_writes_what_it_has(
    observer: Handle[Observer], tmp_path: Path
) -> None:
    pid = observer.pid()
    assert os.getpgid(pid) != os.getpgid(0)
    observer.call(Observer.add_server, ServerTarget("server-0", pids=(os.getpid(),)))
    wait_until(lambda: rows(tmp_path, "host_samples"))
    terminated_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: observer.ended_ns)
    assert rows(tmp_path, "host_samples")[-1]["t_ns"] > terminated_ns - KERNEL_TICKS_NS


def test_what_it_cannot_do_is_an_error_in_one_line_and_it_goes_on(
    observer: Handle[Observer], tmp_path: Path
) -> None:
    with pytest.raises(ClusterError, match=r"^the observer of node-1 has no server server-9: add it first$"):
        observer.call(Observer.set_server_pids, "server-9", [1])
    target = ServerTarget("server-0", "https://127.0.0.1:9", access=Access(TlsSettings("absent.pem")))
    with pytest.raises(ClusterError, match=r"^the TLS authorities in absent\.pem cannot be used: "):
        observer.call(Observer.add_server, target)
    observer.call(Observer.add_server, ServerTarget("server-0"))
    with pytest.raises(ClusterError, match=r"^the observer of node-1 has the server server-0 already$"):
        observer.call(Observer.add_server, target)
    assert observer.call(Observer.stop)[0] == []
    nowhere = started(settings(tmp_path / "absent"))
    with pytest.raises(LostActor, match=r"^observer on node-0 is lost: .*No such file or directory"):
        nowhere.call(Observer.clock)
    elsewhere = started(settings(tmp_path, clock_host="192.0.2.1"))  # TEST-NET-1: no address of this machine
    with pytest.raises(LostActor, match="assign requested address"):
        elsewhere.call(Observer.clock)


def test_without_nvml_the_gpus_are_refused_in_nvmls_words(observer: Handle[Observer]) -> None:
    from squall.actors.sampling.gpu.source import missing_reason

    reason = missing_reason()
    if reason is None:
        pytest.skip("NVML works here")
    with pytest.raises(ClusterError, match=rf"^the GPUs of node-1 cannot be sampled: {reason}$"):
        observer.call(Observer.add_gpus, True)
    assert observer.call(Observer.stop)[0] == []
