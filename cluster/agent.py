"""What runs on every node beside the load workers: the server, its profiler, the samplers, and the files."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from actors.clock import SystemClock
from actors.gpu import GpuSource, missing_reason
from actors.profiler import NsysSession, find_nsys
from actors.sampler import HostSource, Sampler, Source, TritonSource
from actors.shared_memory import remove_regions
from actors.spool import Spool
from analysis.nsys_export import read_nvtx, read_osrt
from analysis.timeline import ClockMap, to_run_clock
from cluster.batches import read_batches
from cluster.clocksync import clock_domain, utc_minus_monotonic_ns
from cluster.scratch import Scratch
from cluster.server import Endpoint, TritonServer
from scenarios.errors import ClusterError, StoreError
from scenarios.scenario import ProfileConfig, Scenario

SERVER = "server-0"


class NodeAgent:
    """Everything of one node but the load. Its calls may come from several threads.

    `folder()` is the node's own scratch folder; `close` stops what runs and removes it.
    """

    def __init__(self, run: str, node: str) -> None:
        self._run = run
        self._node = node
        self._clock = SystemClock()
        self._scratch = Scratch()
        self._folder = self._scratch.path
        self._server: TritonServer | None = None
        self._endpoint: Endpoint | None = None
        self._nsys: NsysSession | None = None
        self._utc_offsets_ns: dict[str, int] = {}
        self._profiling = threading.Lock()
        self._samplers: list[Sampler] = []
        self._triton: TritonSource | None = None

    # the node

    def folder(self) -> str:
        """Path of the scratch folder on this node."""
        return str(self._folder)

    def clock_domain(self) -> str:
        """See `cluster.clocksync.clock_domain`."""
        return clock_domain()

    def monotonic_ns(self) -> int:
        """This node's clock now."""
        return self._clock.monotonic_ns()

    def describe(self) -> dict[str, Any]:
        """Hardware and kernel, without names of host or user."""
        gpus = [] if missing_reason() else GpuSource().names()
        return {
            "n_cores": os.cpu_count(),
            "cpu_model": _cpu_model(),
            "memory_bytes": psutil.virtual_memory().total,
            "kernel": platform.release(),
            "gpus": gpus,
        }

    def missing_nvml(self) -> str | None:
        """Why NVML gives nothing here; None if it works."""
        return missing_reason()

    def has_nsys(self) -> bool:
        """True if nsys is on this node's PATH."""
        return find_nsys() is not None

    # the server

    def start_server(self, scenario: Scenario, with_nsys: bool) -> Endpoint:
        """Launches the scenario's server; see `TritonServer.start` for what it raises."""
        folder = self._folder / SERVER
        folder.mkdir()
        has_gpu = missing_reason() is None
        tools = find_nsys() if with_nsys else None
        if tools is not None:
            env = {"PATH": os.environ.get("PATH", ""), "TMPDIR": str(folder), "HOME": str(folder)}
            threshold_ns = scenario.profile.osrt_threshold_ns
            self._nsys = NsysSession(tools, f"squall-{os.getpid()}", folder, env, threshold_ns)
        self._server = TritonServer(scenario.model, scenario.server, folder, self._nsys, has_gpu)
        self._endpoint = self._server.start()
        return self._endpoint

    def server_log(self) -> bytes:
        """The server's log so far; empty if none was started here."""
        if self._server is None or not self._server.log.exists():
            return b""
        return self._server.log.read_bytes()

    def stop_server(self) -> list[str]:
        """Ends the profiler's session and the server; returns what did not end as it should."""
        losses = []
        if self._nsys is not None:
            try:
                self._nsys.shutdown()
            except ClusterError as error:
                losses.append(f"nsys: {error}")
        if self._server is not None:
            self._server.stop()
        return losses

    # profiler

    def start_profiler(self, phase: str) -> int:
        """Begins to record the server for `phase`; returns the instant at which it was on (node's clock)."""
        assert self._nsys is not None, "start_server was asked for nsys"
        with self._profiling:
            self._nsys.start(phase)
            self._utc_offsets_ns[phase] = utc_minus_monotonic_ns()
            return self._clock.monotonic_ns()

    def stop_profiler(self, phase: str) -> None:
        """Ends the recording; `spill_profile` follows, at any time."""
        assert self._nsys is not None, "start_server was asked for nsys"
        with self._profiling:
            self._nsys.stop()
            self._utc_offsets_ns[phase] = (self._utc_offsets_ns[phase] + utc_minus_monotonic_ns()) // 2

    def spill_profile(self, phase: str) -> list[str]:
        """Spills the tables of a recording; the report itself, which holds secrets, is deleted. Returns losses.

        nsys stamps are CLOCK_REALTIME; they go back to the node's monotonic clock by the offset read around
        the recording.
        """
        assert self._nsys is not None, "start_server was asked for nsys"
        export = self._nsys.export(phase)
        to_node = ClockMap(-self._utc_offsets_ns[phase], 0)
        losses = []
        for table, read in (("osrt", read_osrt), ("nvtx", read_nvtx)):
            data = to_run_clock(table, read(export, self._run, self._node, SERVER), to_node)
            if len(data):
                losses += self._spill(table, phase, iter([data]))
        export.unlink()
        return losses

    # samplers

    def start_samplers(self, profile: ProfileConfig, endpoint: Endpoint | None, with_gpu: bool) -> None:
        """Starts host samples, Triton's where `endpoint` is given, NVML's on request.

        Raises ClusterError where one cannot start.
        """
        pids = self._server.pids() if self._server is not None else []
        sources: list[tuple[Source, dict[str, str], int]] = [
            (HostSource(lambda: pids), {}, profile.host_interval_ns)
        ]
        if endpoint is not None:
            try:
                self._triton = TritonSource(
                    endpoint.url, endpoint.metrics_url, endpoint.spec.name, endpoint.tls
                )
            except OSError as error:
                raise ClusterError(f"{self._node}: {error}") from error
            sources.append((self._triton, {"server": SERVER}, profile.triton_interval_ns))
        if with_gpu:
            sources.append((GpuSource(), {}, profile.gpu_interval_ns))
        try:
            for source, labels, interval_ns in sources:
                labels = {"run": self._run, "node": self._node, **labels}
                path = self._spill_dir() / f"{source.table}.arrows"
                self._samplers.append(Sampler(source, labels, interval_ns, path, self._clock))
        except OSError as error:
            raise ClusterError(f"{self._node}: cannot write {self._folder}: {error.strerror}") from error
        for sampler in self._samplers:
            sampler.start()

    def stop_samplers(self) -> list[str]:
        """Takes the last samples; returns losses."""
        samplers, self._samplers = self._samplers, []
        for sampler in samplers:
            sampler.stop()
        if self._triton is not None:
            self._triton.close()
        return [loss for sampler in samplers for loss in sampler.losses()]

    # files

    def spill_batches(self) -> list[str]:
        """Turns the batch records so far into a spill file; returns losses."""
        if self._server is None or self._endpoint is None or not self._endpoint.has_records:
            return []
        spec = self._endpoint.spec
        labels = {
            "run": self._run, "node": self._node, "server": SERVER, "model": spec.name,
            "version": spec.version,
        }  # fmt: skip
        losses: list[str] = []
        tables = read_batches(self._server.records, labels, losses)
        losses += self._spill("batches", "all", tables)
        return losses

    def _spill(self, table: str, part: str, data: Iterator[pa.Table]) -> list[str]:
        spool = Spool(self._spill_dir() / f"{table}-{part}.arrows", table)
        n_lost = sum(len(item) for item in data if not spool.write(item))
        spool.close()
        return [f"{table}: {n_lost} rows lost on {self._node}: {spool.error}"] if n_lost else []

    def spill_dir(self) -> str:
        """Folder on this node for the spill files of workers and collectors."""
        return str(self._spill_dir())

    def _spill_dir(self) -> Path:
        folder = self._folder / "spill"
        folder.mkdir(exist_ok=True)
        return folder

    def spill_files(self) -> list[tuple[str, str, int]]:
        """(table, file name, bytes) of every spill file."""
        return [
            (path.name.partition("-")[0].removesuffix(".arrows"), path.name, path.stat().st_size)
            for path in sorted(self._spill_dir().glob("*.arrows"))
        ]

    def read_spill(self, name: str, offset: int, n_bytes: int) -> bytes:
        """A piece of a spill file. Raises StoreError where it cannot be read."""
        try:
            with (self._spill_dir() / Path(name).name).open("rb") as file:
                file.seek(offset)
                return file.read(n_bytes)
        except OSError as error:
            raise StoreError(f"{self._node}: cannot read the spill file {name}: {error.strerror}") from error

    def close(self) -> None:
        """Stops what still runs here; removes the scratch folder and what workers left in shared memory."""
        self.stop_samplers()
        if self._server is not None:
            self.stop_server()
        remove_regions(self._run)
        self._scratch.remove()


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
