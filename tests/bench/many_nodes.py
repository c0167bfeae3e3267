"""What client nodes cost the driver, by their number: real driver, real channels, stand-ins for agents and workers.

    python -m tests.bench.many_nodes OUT [--nodes N ...] [--workers N] [--seconds S] [--rate HZ] [--processes N]

Each node has an agent and `--workers` workers, which send nothing and write the rows of `--rate` arrivals a second each
(`tests.bench.stub_nodes`). Ray and placement are stood in for; all else of the driver is `squall run`: channels to
processes, clock probes, plans, polls, fetching, ingest, verdict. Prints one JSON object: seconds of each stage, the
driver's CPU in it, its memory and threads, bytes sent and received.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self
from unittest import mock

import psutil
from typing_extensions import Buffer

from squall.actors.process.own_source import OwnCode, own_code
from squall.analysis.storage.store import RunStore
from squall.cluster.commands.local_workers import Child, NullTriton
from squall.cluster.driver import run
from squall.cluster.interrupts import Interrupts
from squall.cluster.placement import Node, Placement, Seat
from squall.cluster.remote import spawn
from squall.cluster.remote.channel import network
from squall.cluster.remote.forker import FORKER, Contact
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.servers import ServerEntry
from squall.scenarios.units import NS_PER_S

_ANSWER_S = 60.0
_LOOK_S = 0.1


class _StubLaunchers:
    """In the place of Ray's: asks the stub processes in turn; the driver's own node is real."""

    def __init__(self, hosts: Sequence[Child]) -> None:
        self._hosts = [(host, threading.Lock()) for host in hosts]

    def start(self, title: str, node: Node, token: bytes) -> Contact:
        if node.is_driver:
            return FORKER.start(title, network(), node.address, token)
        host, lock = self._hosts[int(node.label.partition("-")[2]) % len(self._hosts)]
        with lock:
            host.tell((json.dumps({"title": title, "token": token.hex()}) + "\n").encode())
            said = host.hear(_ANSWER_S)
        return Contact(said["address"], said["pid"])

    def codes(self, nodes: Sequence[Node]) -> dict[str, OwnCode | str]:
        return dict.fromkeys((node.label for node in nodes), own_code())

    def forget(self) -> None:
        return


class _StubSession:
    """In the place of Ray's session."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = list(nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def nodes(self) -> list[Node]:
        return self._nodes


class _Counted:
    """Bytes that the driver sends and receives over its channels."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._lock = threading.Lock()

    @contextmanager
    def counting(self) -> Iterator[Self]:
        send, receive, receive_into = Connection.send_bytes, Connection.recv_bytes, Connection.recv_bytes_into

        def counted_send(one: Connection, data: Buffer) -> None:
            with self._lock:
                self.sent += memoryview(data).nbytes
            send(one, data)

        def counted_receive(one: Connection, most: int | None = None) -> bytes:
            found = receive(one, most)
            with self._lock:
                self.received += len(found)
            return found

        def counted_into(one: Connection, data: Buffer, at: int = 0) -> int:
            n_bytes = receive_into(one, data, at)
            with self._lock:
                self.received += n_bytes
            return n_bytes

        with (
            mock.patch.object(Connection, "send_bytes", counted_send),
            mock.patch.object(Connection, "recv_bytes", counted_receive),
            mock.patch.object(Connection, "recv_bytes_into", counted_into),
        ):
            yield self


class _Watch:
    """CPU, memory, threads and bytes of this process, every 0.1 s: (UTC ns, CPU s, RSS, threads, sent, received)."""

    def __init__(self, counted: _Counted) -> None:
        self.seen: list[tuple[int, float, int, int, int, int]] = []
        self.threads: list[tuple[int, dict[str, float]]] = []
        self._counted = counted
        self._process = psutil.Process()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _by_thread(self) -> dict[str, float]:
        """CPU seconds of the threads that live, by name."""
        names = {one.native_id: one.name for one in threading.enumerate()}
        found: dict[str, float] = {}
        for one in self._process.threads():
            name = names.get(one.id, "of libraries")
            found[name] = found.get(name, 0.0) + one.user_time + one.system_time
        return found

    def _work(self) -> None:
        n = 0
        while not self._is_over.wait(_LOOK_S):
            n += 1
            if n % 20 == 0:
                self.threads.append((time.time_ns(), self._by_thread()))
            times = self._process.cpu_times()
            self.seen.append((
                time.time_ns(), times.user + times.system, self._process.memory_info().rss,
                self._process.num_threads(), self._counted.sent, self._counted.received,
            ))  # fmt: skip

    def threads_within(self, first_ns: int, last_ns: int) -> dict[str, float]:
        """CPU of each kind of thread over that stretch, in shares of a core."""
        found = [one for one in self.threads if first_ns <= one[0] <= last_ns]
        (begun_ns, before), (ended_ns, after) = found[0], found[-1]
        seconds = (ended_ns - begun_ns) / NS_PER_S
        return {
            name: round((spent - before.get(name, 0.0)) / seconds, 4)
            for name, spent in after.items()
            if seconds
        }

    def within(self, first_ns: int, last_ns: int) -> dict[str, float]:
        """Differences over that stretch."""
        found = [one for one in self.seen if first_ns <= one[0] <= last_ns]
        first, last = found[0], found[-1]
        seconds = (last[0] - first[0]) / NS_PER_S
        return {
            "seconds": round(seconds, 2), "cpu_s": round(last[1] - first[1], 3),
            "cores": round((last[1] - first[1]) / seconds, 4) if seconds else 0.0,
            "sent_bytes": last[4] - first[4], "received_bytes": last[5] - first[5],
        }  # fmt: skip


def _scenario(server: NullTriton, options: argparse.Namespace, n_nodes: int) -> Mapping[str, Any]:
    return {
        "name": "many-nodes", "seed": 1,
        "model": {"name": "linear_head", "settings": {"width": 64, "classes": 2}},
        "server": {"url": f"http://127.0.0.1:{server.port('http')}"},
        "clients": {"workers_per_node": options.workers, "cores": "off", "connections": 1},
        "phases": [
            {"name": "load", "kind": "measure", "duration": f"{options.seconds:g}s",
             "arrivals": {"kind": "poisson", "rate": f"{options.rate * options.workers * n_nodes:g}/s"}},
            {"name": "drain", "kind": "drain", "duration": "2s"},
        ],
        "profile": {"nsys": "off", "nvml": "off", "kernels": "off", "batches": "off"},
    }  # fmt: skip


def _run(options: argparse.Namespace, n_nodes: int) -> dict[str, Any]:
    """One run of `n_nodes`, in this process."""
    driver = Node("node-0", "", "127.0.0.1", 0, is_driver=True)
    clients = tuple(
        Node(f"node-{n + 1}", f"stub-{n + 1}", "127.0.0.1", 0, is_driver=False) for n in range(n_nodes)
    )
    counted = _Counted()
    with ExitStack() as stack:
        server = stack.enter_context(NullTriton())
        hosts = [stack.enter_context(Child("tests.bench.stub_nodes")) for _ in range(options.processes)]
        scenario = scenario_from_mapping(_scenario(server, options, n_nodes), "many nodes")
        entries = scenario.servers
        entry = entries[0] if entries else ServerEntry()
        placement = Placement((Seat("server-0", entry, driver),), clients)
        session = _StubSession((driver, *clients))
        stack.enter_context(mock.patch.object(spawn, "_LAUNCHERS", _StubLaunchers(hosts)))
        stack.enter_context(mock.patch.object(run, "Session", return_value=session))
        stack.enter_context(mock.patch.object(run, "place", return_value=placement))
        stack.enter_context(counted.counting())
        watch = stack.enter_context(_Watch(counted))
        begun_ns = time.time_ns()
        interrupts = Interrupts()
        result = run.run_scenario(scenario, options.out / f"nodes-{n_nodes}", None, interrupts)
        ended_ns = time.time_ns()
        rss = [psutil.Process(host.pid).memory_info().rss for host in hosts]
    return _facts(RunStore.open(result.run_dir), watch, begun_ns, ended_ns) | {
        "verdict": result.status, "stub_rss_mib": round(sum(rss) / 2**20),
    }  # fmt: skip


def _facts(store: RunStore, watch: _Watch, begun_ns: int, ended_ns: int) -> dict[str, Any]:
    manifest = store.manifest
    assert manifest.start_ns is not None
    ready_ms = [one.ready_before_ns / 1e6 for one in manifest.workers if one.ready_before_ns is not None]
    last_ns = manifest.phases[-1].end_ns
    measured = [one for one in watch.seen if manifest.start_ns <= one[0] <= last_ns]
    return {
        "deploy": watch.within(begun_ns, manifest.start_ns),
        "load": watch.within(manifest.start_ns, manifest.phases[0].end_ns),
        "after": watch.within(last_ns, ended_ns),
        "load_threads": watch.threads_within(manifest.start_ns, last_ns),
        "rss_mib": round(max(one[2] for one in measured) / 2**20, 1),
        "threads": max(one[3] for one in measured),
        "clock_cores": round(manifest.clock_probing.cpu_ns / (ended_ns - begun_ns), 4)
        if manifest.clock_probing is not None
        else None,
        "n_probes": manifest.clock_probing.n_probes if manifest.clock_probing is not None else None,
        "clock_error_us": round(max(one.clock_error_ns or 0 for one in manifest.nodes.values()) / 1e3, 1),
        "ready_before_ms": [round(min(ready_ms), 1), round(max(ready_ms), 1)],
        "manifest_bytes": (store.run_dir / "manifest.json").stat().st_size,
        "requests": store.read("requests", ["request_id"]).num_rows,
        "planned": manifest.plan.n_arrivals,
        "losses": list(manifest.losses)[:3],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 10, 100, 1_000])
    parser.add_argument("--workers", type=int, default=1, help="of each node")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=20, help="arrivals per second of each worker")
    parser.add_argument("--processes", type=int, default=4, help="that the nodes are spread over")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if len(options.nodes) == 1:
        print(json.dumps(_run(options, options.nodes[0])))
        return
    found = {}
    for n_nodes in options.nodes:
        words = [
            sys.executable, "-m", "tests.bench.many_nodes", str(options.out), "--nodes", str(n_nodes),
            "--workers", str(options.workers), "--seconds", str(options.seconds), "--rate", str(options.rate),
            "--processes", str(min(options.processes, n_nodes)),
        ]  # fmt: skip
        found[n_nodes] = _own_process(words)
        print(n_nodes, found[n_nodes], file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))


def _own_process(words: Sequence[str]) -> Any:
    """What a run of one number of nodes says: each has a driver of its own."""
    import subprocess

    said = subprocess.run(words, capture_output=True, text=True, check=False)
    with suppress(IndexError, ValueError):
        return json.loads(said.stdout.strip().splitlines()[-1])
    return {"failed": said.stderr[-1500:]}


if __name__ == "__main__":
    main()
