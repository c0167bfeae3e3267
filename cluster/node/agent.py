"""What runs on every node beside load workers and observer: the server, its profiler, and the files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from squall.actors.clock import clock_domain
from squall.actors.inject.batch_ring import Writer
from squall.actors.load.shared_memory import remove_regions
from squall.actors.load.trial import Trial, TrialRequest, try_request
from squall.actors.process.cores import Cores, Split, node_split
from squall.actors.sampling.gpu.source import missing_reason
from squall.actors.sampling.triton_trace import traces_in
from squall.analysis.nsys.tables import EventLabels
from squall.analysis.storage.collected import KernelRecordingFacts, NsysFacts
from squall.analysis.storage.deployed import ControlFacts, NodeFacts, ServerScheduling
from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.injected.batch_recording import missing_library
from squall.cluster.node.injected.kernel_recording import missing_kernels
from squall.cluster.node.node_facts import node_facts
from squall.cluster.node.own_server import OwnServer, server_gpus
from squall.cluster.node.scratch import Owner
from squall.cluster.node.scratch_files import ScratchFiles
from squall.cluster.node.server import LOOPBACK
from squall.cluster.node.server_log import locust_logs
from squall.cluster.node.spills import NodeFile, Piece, save_deleted
from squall.scenarios.config.duty import Duty
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.config.servers import ServerEntry
from squall.scenarios.errors import ClusterError

FIRST_SERVER = "server-0"


class NodeAgent:
    """Everything of one node but the load, with one server at most. Its calls may come from several threads.

    Each further server of a node has an agent of its own. `folder()` is the agent's scratch
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
        self._files = ScratchFiles(run, node, site or node, adopted, run_dir)
        self._server = OwnServer(node, server, self._files.path / server, profile)

    # the node

    def folder(self) -> str:
        """Path of the scratch folder on this node."""
        return str(self._files.path)

    def owner(self) -> Owner | None:
        """Whose the scratch folder is."""
        return self._files.owner()

    def clock_domain(self) -> str:
        """See `squall.actors.clock.clock_domain`."""
        return clock_domain()

    def describe(self) -> NodeFacts:
        """See `squall.cluster.node.node_facts.node_facts`."""
        return node_facts()

    def try_request(self, request: TrialRequest, number: int) -> Trial:
        """See `squall.actors.load.trial.try_request`."""
        return try_request(request, number)

    def split_cores(self, wanted: Cores, n_workers: int) -> Split:
        """See `squall.actors.process.cores.split_cores`. Raises as that does."""
        return node_split(wanted, n_workers)

    def missing_nvml(self) -> str | None:
        """Why NVML gives nothing here; None if it works."""
        return missing_reason()

    def missing_nsys(self, trace: tuple[str, ...]) -> str | None:
        """See `ServerNsys.missing`."""
        return self._server.nsys.missing(trace)

    def heartbeat(self) -> list[str]:
        """What has ended here that should run, as sentences; empty if all is well."""
        found = self._files.put_back()
        if self._server.has_ended:
            found.append(f"the server on {self._node} has ended")
        return found

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
        and `KernelRecording.begin` do, and ClusterError where a required nsys does not launch it.
        """
        return self._server.start(scenario, with_nsys, cores, with_batches, kernel_kinds, entry, address)

    def server_gpus(self, gpus: tuple[int, ...]) -> tuple[str, ...]:
        """See `visible_gpus`, of this node."""
        return server_gpus(gpus)

    def why_without_nsys(self) -> str | None:
        """See `ServerNsys.why_without`."""
        return self._server.nsys.why_without

    def attach_profiler(self, profile: ProfileConfig) -> None:
        """Joins the nsys session of a server that somebody else started. Raises ClusterError if it is not there."""
        self._server.nsys.begin(profile)

    def restart_server(self) -> list[str]:
        """Starts the server again on its ports, in a new nsys session; returns what does not go on with it.

        Raises TargetError where it does not start.
        """
        self._server.restart()
        try:
            self._server.trace_again()
        except ClusterError as error:
            return [f"after the server was started again: {error}"]
        return []

    def server_control(self) -> ControlFacts | None:
        """See `OwnServer.control`."""
        return self._server.control()

    # the libraries inside the server

    def missing_library(self) -> str | None:
        """See `squall.cluster.node.injected.batch_recording.missing_library`."""
        return missing_library(self._files.path)

    def missing_batches(self) -> str | None:
        """Why the server that was started with the batch library records nothing; None if it does."""
        return self._server.missing_batches()

    def batches_by(self) -> Writer | None:
        """See `BatchRecording.writer`."""
        return self._server.batches.writer

    def missing_kernel_library(self) -> str | None:
        """Why the server runs without the kernel library with which it was to be started; None if it has it."""
        return self._server.refusal

    def follow_batches(self, port: int) -> str | None:
        """See `BatchRecording.follow`."""
        return self._server.batches.follow(port)

    def missing_kernels(self) -> str | None:
        """See `squall.cluster.node.injected.kernel_recording.missing_kernels`."""
        return missing_kernels()

    def follow_kernels(self, port: int) -> str | None:
        """See `KernelRecording.follow`."""
        return self._server.kernels.follow(port)

    def record_kernels(self, spans: Sequence[tuple[int, int]], duty: Duty | Literal["whole"]) -> None:
        """See `KernelRecording.record`."""
        self._server.kernels.record(spans, duty)

    def stop_kernels(self) -> None:
        """See `KernelRecording.stop`."""
        self._server.kernels.stop()

    def spill_kernels(self) -> tuple[list[str], KernelRecordingFacts]:
        """See `KernelRecording.spill`; after `spill_server_tables`. What is missing, and what there is."""
        labels = {"run": self._run, "node": self._node, "server": self._name}
        return self._server.kernels.spill(self._files.spills, labels), self._server.kernels.facts()

    def server_log(self) -> bytes:
        """The server's log so far, without names of this node's folders; empty if no server was started here."""
        return self._server.log()

    def locust_logs(self) -> dict[str, bytes]:
        """See `squall.cluster.node.server_log.locust_logs`."""
        return locust_logs(self._files.spills.spill_dir, self._files.path)

    def stop_server(self) -> list[str]:
        """Ends the profiler's session and the server; returns what did not end as it should."""
        return self._server.stop()

    def server_scheduling(self, port: int | None, niceness: int) -> ServerScheduling:
        """How the server's processes are scheduled and limited, and what of that nobody deploys.

        `port`: where a server listens that somebody else started on this node; None for our own. Empty without any
        process that can be looked at: one in a container, or another user's.
        """
        return self._server.scheduling(port, niceness)

    def server_uptime_ns(self, port: int | None) -> int | None:
        """How long the server has run; `port` as in `server_scheduling`. None without a process to look at."""
        return self._server.uptime_ns(port)

    def server_pids(self) -> tuple[int, ...]:
        """Processes of the server that was started here; empty if none was."""
        return tuple(self._server.pids())

    # Triton's trace API

    def missing_trace(self) -> str | None:
        """Why the server that was started here is not traced; None if it can be."""
        return self._server.missing_trace()

    def turn_tracing(self, is_on: bool) -> None:
        """Records every request from now on, or none. Raises ClusterError where the server does not."""
        self._server.turn_tracing(is_on)

    # the profiler

    def start_profiler(self, phase: str) -> int:
        """See `ServerNsys.start`."""
        return self._server.nsys.start(phase)

    def stop_profiler(self, phase: str) -> None:
        """See `ServerNsys.stop`."""
        self._server.nsys.stop(phase)

    def spill_profile(self, phase: str) -> list[str]:
        """The scrubbed report of a recording and its tables, for the driver to fetch. Returns losses and notes."""
        labels = EventLabels(self._run, self._node, self._name)
        return self._server.nsys.spill(
            phase, labels, self._files.spills.reports_dir / self._name, self._files.spills.write
        )

    def profiler_facts(self) -> NsysFacts:
        """See `ServerNsys.facts`."""
        return self._server.nsys.facts()

    # files

    def spill_server_tables(self, model: str, version: str, from_ns: int) -> tuple[list[str], list[str]]:
        """Turns the batch records and traces of the server into spill files; returns losses, and notes beside them.

        `from_ns`: begin of the load on this node's clock; what the batch library recorded before is left out.
        """
        folder = self._server.folder
        labels = {
            "run": self._run,
            "node": self._node,
            "server": self._name,
            "model": model,
            "version": version,
        }
        losses: list[str] = []
        save_deleted(folder, self._server.pids())
        if (folder / "batches").is_dir():
            losses = self._files.spills.write_batches(folder / "batches", labels)
        lost, notes = self._server.batches.spill(self._files.spills, labels, from_ns)
        traces = traces_in(folder)
        return losses + lost, notes + (self._files.spills.write_traces(traces, labels) if traces else [])

    def spill_dir(self) -> str:
        """Folder on this node for the spill files of workers and observer."""
        return str(self._files.spills.spill_dir)

    def take_in(self, name: str, offset: int, piece: Piece) -> None:
        """See `Spills.take_in`."""
        self._files.spills.take_in(name, offset, piece)

    def files(self) -> list[NodeFile]:
        """See `Spills.files`."""
        return self._files.spills.files()

    def piece(self, path: str, offset: int, n_bytes: int) -> Piece:
        """See `Spills.piece`."""
        return self._files.spills.piece(path, offset, n_bytes)

    def sha256(self, path: str, n_bytes: int) -> str:
        """See `Spills.sha256`."""
        return self._files.spills.sha256(path, n_bytes)

    def abandoned(self) -> None:
        """Who gave the orders is gone: as `close`; rows that a run wants stay, also those of workers that end now."""
        self.close(keeps_files=self._files.must_stay())

    def close(self, keeps_files: bool = False) -> None:
        """Stops what still runs here; removes what workers left in shared memory, and the scratch folder.

        `keeps_files`: the folder stays for `squall resume`.
        """
        self.stop_server()
        remove_regions(self._run)
        self._server.close(keeps_files)
        self._files.close(keeps_files)
