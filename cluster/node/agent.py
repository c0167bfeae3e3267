"""What runs on every node beside the load workers: the server, its profiler, the observer, and the files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

from squall.actors.clock import SystemClock, clock_domain
from squall.actors.inject.batch_ring import Writer
from squall.actors.load.shared_memory import remove_regions
from squall.actors.net.triton_control import ControlError
from squall.actors.process.cores import Cores, Split, node_split
from squall.actors.process.state import listening_pids, states_of, what_is_unusual
from squall.actors.process.supervisor import remove_leftovers
from squall.actors.sampling.gpu.source import gpu_identities, missing_reason
from squall.actors.sampling.observer import Observer, ObserverSettings, ServerTarget
from squall.actors.sampling.triton_trace import TRACE, TraceSwitch, trace_holds, trace_reason, traces_in
from squall.analysis.nsys.tables import EventLabels
from squall.analysis.tables.collected import KernelRecordingFacts, NsysFacts, ObserverCost
from squall.analysis.tables.deployed import NodeFacts, ServerScheduling
from squall.analysis.tables.document import read_section
from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.injected.batch_recording import missing_library
from squall.cluster.node.injected.inside import LibrariesInside
from squall.cluster.node.injected.kernel_recording import missing_kernels
from squall.cluster.node.node_facts import node_facts
from squall.cluster.node.scratch import Owner, Scratch, claim, is_wanted, owner_of
from squall.cluster.node.server import LOOPBACK, TritonServer
from squall.cluster.node.server_environment import visible_gpus
from squall.cluster.node.server_log import without_own_folders
from squall.cluster.node.server_nsys import ServerNsys
from squall.cluster.node.spills import NodeFile, Spills, save_deleted
from squall.scenarios.config.duty import Duty
from squall.scenarios.config.scenario import ProfileConfig, Scenario
from squall.scenarios.config.servers import ServerEntry
from squall.scenarios.errors import ClusterError, TargetError

FIRST_SERVER = "server-0"
_WORKERS_END_WITHIN_S = 25.0


class NodeAgent:
    """Everything of one node but the load, with one server at most. Its calls may come from several threads.

    Each further server of a node has an agent of its own, which observes nothing. `folder()` is the agent's scratch
    folder; `close` stops what runs and removes it. `adopted`: that of an agent that died; what lies there is kept,
    nothing of it runs any more, and reports are taken by `profile`.
    """

    def __init__(
        self,
        run: str,
        node: str,
        adopted: str | None = None,
        profile: ProfileConfig | None = None,
        run_dir: tuple[str, str] | None = None,
        server: str = FIRST_SERVER,
        site: str | None = None,
    ) -> None:
        """`run_dir`: the run directory, and the place of who sees it: see `Owner`. None: nothing here outlives us.

        `server`: name of the server that it may come to have; `site`: whose its folder is, the node's unless told.

        Raises ClusterError where the folder cannot be had.
        """
        self._run = run
        self._node = node
        self._name = server
        try:
            self._scratch = Scratch(Path(adopted) if adopted is not None else None)
            self._spills = Spills(self._scratch.path, node)
            if adopted is None and run_dir is not None:
                claim(self._scratch.path, run, site or node, *run_dir)
        except OSError as error:
            raise ClusterError(f"{node}: no scratch folder: {error.strerror or error}") from error
        self._server_folder = self._scratch.path / server
        self._server: TritonServer | None = None
        self._endpoint: Endpoint | None = None
        self._nsys = ServerNsys(node, self._server_folder, SystemClock(), profile)
        self._inside = LibrariesInside(self._server_folder)
        self._is_traced = False
        self._is_restarting = False
        self._is_deleted = False
        self._observer: Observer | None = None

    # the node

    def folder(self) -> str:
        """Path of the scratch folder on this node."""
        return str(self._scratch.path)

    def owner(self) -> Owner | None:
        """Whose the scratch folder is."""
        return owner_of(self._scratch.path)

    def clock_domain(self) -> str:
        """See `squall.actors.clock.clock_domain`."""
        return clock_domain()

    def describe(self) -> NodeFacts:
        """See `squall.cluster.node.node_facts.node_facts`."""
        return node_facts()

    def split_cores(self, wanted: Cores, n_workers: int) -> Split:
        """See `squall.actors.process.cores.split_cores`. Raises as that does."""
        return node_split(wanted, n_workers)

    def missing_nvml(self) -> str | None:
        """Why NVML gives nothing here; None if it works."""
        return missing_reason()

    def missing_nsys(self, trace: tuple[str, ...]) -> str | None:
        """See `ServerNsys.missing`."""
        return self._nsys.missing(trace)

    def heartbeat(self) -> list[str]:
        """What has ended here that should run, as sentences; empty if all is well."""
        found = self._put_back_scratch()
        if (
            self._endpoint is not None
            and self._server is not None
            and not self._is_restarting
            and (not self._server.is_running)
        ):
            found.append(f"the server on {self._node} has ended")
        if self._observer is not None and self._observer.pid is not None and not self._observer.is_alive:
            found.append(f"the observer of {self._node} has ended")
        return found

    def _put_back_scratch(self) -> list[str]:
        """What somebody removed, who took the scratch folder for garbage; told once."""
        if self._is_deleted:
            return []
        try:
            self._is_deleted = self._scratch.put_back()
        except OSError as error:
            self._is_deleted = True
            return [
                f"the scratch folder of {self._node} was deleted and cannot be made again: {error.strerror}"
            ]
        kept = "open spill files and batch records are saved, the server's log so far is not"
        return [f"the scratch folder of {self._node} was deleted: {kept}"] if self._is_deleted else []

    # the observer

    def start_observer(
        self, profile: ProfileConfig, clock_host: str | None, driver: int | None = None
    ) -> tuple[tuple[str, int], bytes] | None:
        """Samples host and cores from now on; answers for the clock at `clock_host`: where, and the host' token.

        `driver`: the driver's process, if it is on this node.
        """
        settings = ObserverSettings(
            self._run, self._node, self.spill_dir(), clock_host, profile.host_interval_ns,
            profile.thread_interval_ns, profile.triton_interval_ns, profile.gpu_interval_ns, driver=driver,
        )  # fmt: skip
        observer = Observer(settings)
        observer.start()
        self._observer = observer
        return (observer.clock, observer.token) if observer.clock is not None else None

    def observe_server(self, name: str, endpoint: Endpoint, pids: tuple[int, ...], is_here: bool) -> None:
        """Samples the server at `endpoint` from now on, and its processes if it runs on this node (`is_here`).

        `pids`: those of one that squall has started, as its agent knows them.
        """
        assert self._observer is not None, "start_observer comes first"
        roots = pids or (listening_pids(endpoint.port) if is_here else ())
        target = ServerTarget(
            name, endpoint.url, endpoint.metrics_url, (endpoint.spec.name,), endpoint.tls,
            tuple(roots),
        )  # fmt: skip
        self._observer.add_server(target)

    def observe_clients(self, pids: tuple[int, ...]) -> None:
        """Tells the load workers of this node from what else runs on it, from now on."""
        assert self._observer is not None, "start_observer comes first"
        self._observer.set_client_pids(pids)

    def observe_gpus(self, with_gpm: bool) -> None:
        """Samples the node's GPUs from now on. Raises ClusterError where NVML cannot be used."""
        assert self._observer is not None, "start_observer comes first"
        self._observer.add_gpus(with_gpm)

    def stop_observer(self) -> tuple[list[str], ObserverCost | None]:
        """Takes the last samples; returns what is missing, and what observing cost."""
        if self._observer is None:
            return [], None
        report = self._observer.stop()
        return list(report.losses), read_section(
            ObserverCost, report.facts, "observer"
        ) if report.facts else None

    # the server

    def start_server(
        self,
        scenario: Scenario,
        with_nsys: bool,
        cores: tuple[int, ...] = (),
        with_batches: bool = False,
        kernel_kinds: tuple[str, ...] = (),
        entry: ServerEntry | None = None,
        address: str = LOOPBACK,
    ) -> Endpoint:
        """Launches the scenario's server, without nsys where it does not start with it; see `why_without_nsys`.

        `entry`: its settings where the scenario has several; `address`: where it listens, which others may reach.
        `cores`: those it may run on; empty: all of this process. `with_batches`: the batch library records in it;
        `kernel_kinds`: the kernel library can record these, empty: it is not loaded. Raises what `TritonServer.start`
        and `LibrariesInside.begin` do, and ClusterError where a required nsys does not launch it.
        """
        folder = self._server_folder
        folder.mkdir()
        session = self._nsys.begin(scenario.profile).session if with_nsys else None
        traced = scenario.profile.triton_trace
        trace_file = folder / TRACE if traced != "off" else None
        injected = self._inside.begin(with_batches, kernel_kinds)
        self._server = TritonServer(
            scenario.model,
            entry or scenario.server,
            folder,
            session,
            missing_reason() is None,
            trace_file,
            cores,
            injected,
            traces_any=traced == "required",
            gpus=self.server_gpus(entry.gpus) if entry is not None and entry.gpus is not None else None,
            address=address,
        )
        try:
            self._endpoint = self._server.start()
        except TargetError as error:
            if session is None or "failed to load" in str(error):
                raise
            self._endpoint = self._start_without_nsys(self._server, str(error), scenario.profile)
        return self._endpoint

    def server_gpus(self, gpus: tuple[int, ...]) -> tuple[str, ...]:
        """See `visible_gpus`, of this node."""
        uuids = [uuid for uuid, _ in gpu_identities()]
        return tuple(visible_gpus(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"), uuids))

    def _start_without_nsys(self, server: TritonServer, reason: str, profile: ProfileConfig) -> Endpoint:
        """After a start inside an nsys session that failed: the server may well start without it.

        Raises TargetError of the second start where that fails too: then nsys was not to blame. Raises ClusterError
        where it starts and nsys is required.
        """
        endpoint = server.start_without_nsys()
        why = f"the server did not start under nsys launch: {reason}"
        self._nsys.give_up(why)
        if profile.nsys == "required":
            server.stop()
            raise ClusterError(f"profile.nsys is required, but {why}")
        return endpoint

    def why_without_nsys(self) -> str | None:
        """See `ServerNsys.why_without`."""
        return self._nsys.why_without

    def attach_profiler(self, profile: ProfileConfig) -> None:
        """Joins the nsys session of a server that somebody else started. Raises ClusterError if it is not there."""
        self._nsys.begin(profile)

    def restart_server(self) -> list[str]:
        """Starts the server again on its ports, in a new nsys session; returns what does not go on with it.

        Raises TargetError where it does not start.
        """
        assert self._server is not None
        self._is_restarting = True
        try:
            self._endpoint = self._server.restart(self._nsys.renew())
        finally:
            self._is_restarting = False
        losses = []
        try:
            if self._observer is not None and self._observer.is_alive:
                self._observer.set_server_pids(self._name, self._server_roots())
            if self._is_traced:
                self.turn_tracing(True)
        except ClusterError as error:
            losses.append(f"after the server was started again: {error}")
        return losses

    # the libraries inside the server

    def missing_library(self) -> str | None:
        """See `squall.cluster.node.injected.batch_recording.missing_library`."""
        return missing_library(self._scratch.path)

    def missing_batches(self) -> str | None:
        """Why the server that was started with the batch library records nothing; None if it does."""
        assert self._server is not None
        silence = self._inside.batches.silence(self._server.log_text())
        return silence and (self._server.refusal or silence)

    def batches_by(self) -> Writer | None:
        """See `BatchRecording.writer`."""
        return self._inside.batches.writer

    def missing_kernel_library(self) -> str | None:
        """Why the server runs without the kernel library with which it was to be started; None if it has it."""
        return self._server.refusal if self._server is not None else None

    def follow_batches(self, port: int) -> str | None:
        """See `BatchRecording.follow`."""
        return self._inside.batches.follow(port)

    def missing_kernels(self) -> str | None:
        """See `squall.cluster.node.injected.kernel_recording.missing_kernels`."""
        return missing_kernels()

    def follow_kernels(self, port: int) -> str | None:
        """See `KernelRecording.follow`."""
        return self._inside.kernels.follow(port)

    def record_kernels(self, spans: Sequence[tuple[int, int]], duty: Duty | Literal["whole"]) -> None:
        """See `KernelRecording.record`."""
        self._inside.kernels.record(spans, duty)

    def stop_kernels(self) -> None:
        """See `KernelRecording.stop`."""
        self._inside.kernels.stop()

    def spill_kernels(self) -> tuple[list[str], KernelRecordingFacts]:
        """See `KernelRecording.spill`; after `spill_server_tables`. What is missing, and what there is."""
        labels = {"run": self._run, "node": self._node, "server": self._name}
        return self._inside.kernels.spill(self._spills, labels), self._inside.kernels.facts()

    def server_log(self) -> bytes:
        """The server's log so far, without names of this node's folders; empty if no server was started here."""
        log = self._server_folder / "triton.log"
        return without_own_folders(log.read_bytes(), self._scratch.path) if log.exists() else b""

    def stop_server(self) -> list[str]:
        """Ends the profiler's session and the server; returns what did not end as it should."""
        losses = self._nsys.close()
        if self._server is not None:
            self._endpoint = None
            self._server.stop()
        return losses

    def server_scheduling(self, port: int | None, niceness: int) -> ServerScheduling:
        """How the server's processes are scheduled and limited, and what of that nobody deploys.

        `port`: where a server listens that somebody else started on this node; None for our own. Empty without any
        process that can be looked at: one in a container, or another user's.
        """
        states = states_of(self._server_roots() if port is None else listening_pids(port))
        found = {"processes": states, "unusual": what_is_unusual(states, niceness)} if states else {}
        return read_section(ServerScheduling, found, "scheduling")

    def server_pids(self) -> tuple[int, ...]:
        """Processes of the server that was started here; empty if none was."""
        return tuple(self._server_roots())

    def _server_roots(self) -> list[int]:
        return self._server.pids() if self._server is not None else []

    # Triton's trace API

    def missing_trace(self) -> str | None:
        """Why the server that was started here is not traced; None if it can be."""
        if self._endpoint is None or self._server is None:
            return "Triton's trace file cannot be set over the network: only a server that squall starts is traced"
        is_known = self._endpoint.source == "wheel" or not trace_holds(self._endpoint.server_version)
        version = self._endpoint.server_version if is_known else None  # what was not known before the launch
        return None if self._server.traces else trace_reason(version)

    def turn_tracing(self, is_on: bool) -> None:
        """Records every request from now on, or none. Raises ClusterError where the server does not."""
        assert self._endpoint is not None
        try:
            with closing(TraceSwitch(self._endpoint.url, self._endpoint.tls)) as switch:
                if is_on:
                    switch.turn_on()
                else:
                    switch.turn_off()
        except (ControlError, OSError) as error:
            raise ClusterError(f"trace of {self._name}: {error}") from error
        self._is_traced = is_on

    # the profiler

    def start_profiler(self, phase: str) -> int:
        """See `ServerNsys.start`."""
        return self._nsys.start(phase)

    def stop_profiler(self, phase: str) -> None:
        """See `ServerNsys.stop`."""
        self._nsys.stop(phase)

    def spill_profile(self, phase: str) -> list[str]:
        """The scrubbed report of a recording and its tables, for the driver to fetch. Returns losses and notes."""
        labels = EventLabels(self._run, self._node, self._name)
        return self._nsys.spill(phase, labels, self._spills.reports_dir / self._name, self._spills.write)

    def profiler_facts(self) -> NsysFacts:
        """See `ServerNsys.facts`."""
        return self._nsys.facts()

    # files

    def spill_server_tables(self, model: str, version: str, from_ns: int) -> tuple[list[str], list[str]]:
        """Turns the batch records and traces of the server into spill files; returns losses, and notes beside them.

        `from_ns`: begin of the load on this node's clock; what the batch library recorded before is left out.
        """
        folder = self._server_folder
        labels = {
            "run": self._run,
            "node": self._node,
            "server": self._name,
            "model": model,
            "version": version,
        }
        losses: list[str] = []
        save_deleted(folder, self._server_roots())
        if (folder / "batches").is_dir():
            losses = self._spills.write_batches(folder / "batches", labels)
        lost, notes = self._inside.batches.spill(self._spills, labels, from_ns)
        traces = traces_in(folder)
        return losses + lost, notes + (self._spills.write_traces(traces, labels) if traces else [])

    def spill_dir(self) -> str:
        """Folder on this node for the spill files of workers and observer."""
        return str(self._spills.spill_dir)

    def files(self) -> list[NodeFile]:
        """See `Spills.files`."""
        return self._spills.files()

    def read_file(self, path: str, offset: int, n_bytes: int) -> bytes:
        """See `Spills.read`."""
        return self._spills.read(path, offset, n_bytes)

    def abandoned(self) -> None:
        """Who gave the orders is gone: as `close`; rows that a run wants stay, also those of workers that end now."""
        self.stop_observer()
        is_alone = self._scratch.wait_alone(_WORKERS_END_WITHIN_S)
        self.close(keeps_files=is_wanted(self._scratch.path) or not is_alone)

    def close(self, keeps_files: bool = False) -> None:
        """Stops what still runs here; removes what workers left in shared memory, and the scratch folder.

        `keeps_files`: the folder stays for `squall resume`.
        """
        self.stop_observer()
        self.stop_server()
        remove_regions(self._run)
        remove_leftovers(str(self._server_folder))  # of an agent that died, whose server was killed
        self._inside.close(keeps_files)
        if keeps_files:
            self._scratch.leave()
        else:
            self._scratch.remove()
