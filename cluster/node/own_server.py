"""The server that an agent starts on its node, with nsys and the libraries inside it; none before `start`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from squall.actors.clock import SystemClock
from squall.actors.net.triton_control import ControlError
from squall.actors.process.state import listening_pids, states_of, uptime_ns, what_is_unusual
from squall.actors.process.supervisor import remove_leftovers
from squall.actors.sampling.gpu.source import gpu_identities, missing_reason
from squall.actors.sampling.triton_trace import TRACE, TraceSwitch, trace_holds, trace_reason
from squall.analysis.record import from_json
from squall.analysis.storage.deployed import ControlFacts, ServerScheduling
from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.injected.batch_recording import BatchRecording
from squall.cluster.node.injected.kernel_recording import KernelRecording
from squall.cluster.node.plan_gpus import refuse_other_gpus
from squall.cluster.node.server import TritonServer
from squall.cluster.node.server_environment import visible_gpus
from squall.cluster.node.server_log import without_own_folders
from squall.cluster.node.server_nsys import ServerNsys
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.config.servers import ServerEntry
from squall.scenarios.errors import ClusterError, TargetError


class OwnServer:
    """`start` once at most, then `restart` and `stop`. `nsys`, `batches` and `kernels` also serve a server of somebody
    else."""

    def __init__(self, node: str, name: str, folder: Path, profile: ProfileConfig | None) -> None:
        """`folder`: the server's own, made by `start`."""
        self.folder = folder
        self.nsys = ServerNsys(node, folder, SystemClock(), profile)
        self.batches, self.kernels = BatchRecording(folder), KernelRecording(folder)
        self._name = name
        self._server: TritonServer | None = None
        self._endpoint: Endpoint | None = None
        self._is_traced = False
        self._is_restarting = False

    def start(
        self,
        scenario: Scenario,
        with_nsys: bool,
        cores: tuple[int, ...],
        with_batches: bool,
        kernel_kinds: tuple[str, ...],
        entry: ServerEntry | None,
        address: str,
    ) -> Endpoint:
        """See `squall.cluster.node.agent.NodeAgent.start_server`."""
        self.folder.mkdir()
        session = self.nsys.begin(scenario.profile).session if with_nsys else None
        traced = scenario.profile.triton_trace
        trace_file = self.folder / TRACE if traced != "off" else None
        injected = self.batches.begin() if with_batches else {}
        injected |= self.kernels.begin(kernel_kinds) if kernel_kinds else {}
        gpus = server_gpus(entry.gpus) if entry is not None and entry.gpus is not None else None
        visible = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        refuse_other_gpus(scenario.models_at(self._name), {**os.environ, **visible})
        self._server = TritonServer(
            scenario.models_at(self._name),
            entry or scenario.server,
            self.folder,
            session,
            missing_reason() is None,
            trace_file,
            cores,
            injected,
            traces_any=traced == "required",
            gpus=gpus,
            address=address,
        )
        try:
            self._endpoint = self._server.start()
        except TargetError as error:
            if session is None or "failed to load" in str(error):
                raise
            self._endpoint = self._start_without_nsys(self._server, str(error), scenario.profile)
        return self._endpoint

    def _start_without_nsys(self, server: TritonServer, reason: str, profile: ProfileConfig) -> Endpoint:
        """After a start inside an nsys session that failed: the server may well start without it.

        Raises TargetError of the second start where that fails too: then nsys was not to blame. Raises ClusterError
        where it starts and nsys is required.
        """
        endpoint = server.start_without_nsys()
        why = f"the server did not start under nsys launch: {reason}"
        self.nsys.give_up(why)
        if profile.nsys == "required":
            server.stop()
            raise ClusterError(f"profile.nsys is required, but {why}")
        return endpoint

    def restart(self) -> None:
        """On its ports, in a new nsys session. Raises TargetError where it does not start."""
        assert self._server is not None
        self._is_restarting = True
        try:
            self._endpoint = self._server.restart(self.nsys.renew())
        finally:
            self._is_restarting = False

    @property
    def has_ended(self) -> bool:
        """Whether it was started, should run, and does not."""
        return (
            self._endpoint is not None
            and self._server is not None
            and not self._is_restarting
            and (not self._server.is_running)
        )

    def pids(self) -> list[int]:
        """Its processes; empty if none was started."""
        return self._server.pids() if self._server is not None else []

    def scheduling(self, port: int | None, niceness: int) -> ServerScheduling:
        """See `squall.cluster.node.agent.NodeAgent.server_scheduling`."""
        states = states_of(self._processes(port))
        found = {"processes": states, "unusual": what_is_unusual(states, niceness)} if states else {}
        return from_json(ServerScheduling, found, "scheduling")

    def uptime_ns(self, port: int | None) -> int | None:
        """See `squall.cluster.node.agent.NodeAgent.server_uptime_ns`."""
        return uptime_ns(self._processes(port))

    def _processes(self, port: int | None) -> list[int]:
        return self.pids() if port is None else list(listening_pids(port))

    def missing_batches(self) -> str | None:
        """Why one that was started with the batch library records nothing; None if it does."""
        assert self._server is not None
        silence = self.batches.silence(self._server.log_text())
        return silence and (self._server.refusal or silence)

    @property
    def refusal(self) -> str | None:
        """Why it runs without a library with which it was to be started; None if it has them."""
        return self._server.refusal if self._server is not None else None

    def control(self) -> ControlFacts | None:
        """What it loaded as `server.control` says; None where that is not stated."""
        return self._server.control if self._server is not None else None

    def log(self) -> bytes:
        """Its log so far, without names of this node's folders; empty if no server was started here."""
        log = self.folder / "triton.log"
        return without_own_folders(log.read_bytes(), self.folder.parent) if log.exists() else b""

    def missing_trace(self) -> str | None:
        """Why it is not traced; None if it can be."""
        if self._endpoint is None or self._server is None:
            return "Triton's trace file cannot be set over the network: only a server that squall starts is traced"
        is_known = self._endpoint.source == "wheel" or not trace_holds(self._endpoint.server_version)
        version = self._endpoint.server_version if is_known else None  # what was not known before the launch
        return None if self._server.traces else trace_reason(version)

    def turn_tracing(self, is_on: bool) -> None:
        """Records every request from now on, or none. Raises ClusterError where the server does not."""
        assert self._endpoint is not None
        try:
            with closing(TraceSwitch(self._endpoint.url, self._endpoint.access)) as switch:
                if is_on:
                    switch.turn_on()
                else:
                    switch.turn_off()
        except (ControlError, OSError) as error:
            raise ClusterError(f"trace of {self._name}: {error}") from error
        self._is_traced = is_on

    def trace_again(self) -> None:
        """After `restart`: as before it. Raises ClusterError where the server does not."""
        if self._is_traced:
            self.turn_tracing(True)

    def stop(self) -> list[str]:
        """Ends the profiler's session and the server; returns what did not end as it should."""
        losses = self.nsys.close()
        if self._server is not None:
            self._endpoint = None
            self._server.stop()
        return losses

    def close(self, keeps_files: bool) -> None:
        """What it and the libraries in it leave; of one of an agent that died too, whose server was killed.

        `keeps_files`: the rings stay for `squall resume`.
        """
        remove_leftovers(str(self.folder))
        self.batches.close(keeps_files)
        self.kernels.close(keeps_files)


def server_gpus(gpus: tuple[int, ...]) -> tuple[str, ...]:
    """See `visible_gpus`, of this node."""
    uuids = [uuid for uuid, _ in gpu_identities()]
    return tuple(visible_gpus(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"), uuids))
