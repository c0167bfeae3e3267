"""Launches a Triton server for a scenario, starts it again and stops it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

import squall.actors.process.ordinary
import squall.actors.process.supervisor
from squall.actors.inject.library import FOLDER_VARIABLE, INJECTION_VARIABLE, PRELOAD_VARIABLE
from squall.actors.net.access import PLAIN
from squall.actors.net.triton_control import Control, ControlError
from squall.actors.nsys.session import AGENT_LOST, PASSING, NsysSession
from squall.actors.process.state import listening_pids, wait_until_gone
from squall.actors.process.supervisor import region_prefix, remove_leftovers
from squall.actors.sampling.triton_trace import trace_holds, trace_options
from squall.analysis.storage.deployed import ControlFacts
from squall.cluster.control.controlled import load_own
from squall.cluster.node.container import container_command, find_runtime, loader_refusal
from squall.cluster.node.endpoint import READY, Endpoint, bracketed, inspect, why_not
from squall.cluster.node.server_environment import server_environment
from squall.cluster.node.stub_watch import StubWatch, stubs_below
from squall.cluster.node.triton_home import TritonHome, find_triton, numpy_for_models
from squall.models.encoders import find_weights
from squall.models.repository import write_repository
from squall.models.spec import head_of
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import TargetError
from squall.scenarios.foreign_text import is_component
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

LOOPBACK = "127.0.0.1"
_POLL_S = 0.1
_TRIES = 3
_PORT_FREED_S = 2.0
_STRAYS_S = 5.0
_LOAD_FAILURE = re.compile(
    r"failed to load '(?P<model>[^']+)' version \d+: (?P<why>.+?)(?:\\n|\"?$)", re.MULTILINE
)
_POLL_FAILURE = re.compile(
    r"Poll failed for model directory '(?P<model>[^']+)': (?P<why>.+?)(?:\\n|\"?$)", re.MULTILINE
)
_PORT_TAKEN = re.compile(
    r"Address already in use|failed to bind|Socket '[^']+' already in use", re.IGNORECASE
)


class Ports(Frozen):
    """TCP ports of a server."""

    http: int
    grpc: int
    metrics: int


class TritonServer:
    """A server of `models` that this process started, under a supervisor that outlives a crash of ours by just its
    clean-up.

    `folder` takes the model repository, batch records and the log `triton.log`. With `nsys` the server runs
    inside that session. `trace_file`: where Triton's trace API is to write; `traces` has the files that a launch
    named, none where the server's version cannot trace. `cores`: those it may run on; empty: those of this process.
    `injected`: what its environment has beside for libraries of ours; `refusal`: why it runs without them, in a
    container whose loader cannot take them; None: it has what it was given. `traces_any`: also a version that its
    trace API may crash. `gpus`: those that it may see, as CUDA_VISIBLE_DEVICES takes them; None: all. `address`: where
    it listens. `control`: what was loaded as `server.control` says. Not thread-safe.
    """

    def __init__(
        self,
        models: Sequence[ModelConfig],
        server: ServerConfig,
        folder: Path,
        nsys: NsysSession | None,
        has_gpu: bool,
        trace_file: Path | None = None,
        cores: tuple[int, ...] = (),
        injected: Mapping[str, str] | None = None,
        traces_any: bool = False,
        gpus: tuple[str, ...] | None = None,
        address: str = LOOPBACK,
    ) -> None:
        self.records = folder / "batches"
        self.log = folder / "triton.log"
        self.traces: list[Path] = []
        self.refusal: str | None = None
        self._note = ""
        self.control: ControlFacts | None = None
        self._models = tuple(models)
        self._server = server
        self._folder = folder
        self._nsys = nsys
        self._has_gpu = has_gpu
        self._trace_file = trace_file
        self._cores = cores
        self._injected = injected or {}
        self._traces_any = traces_any
        self._gpus = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        self._address = address
        self._ports: Ports | None = None
        self._log_start_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Endpoint:
        """Launches it and waits until its models are ready.

        Raises TargetError with Triton's own reason where one does not load, for a port that is taken,
        and when the server is not ready in time; nothing is left running then.
        """
        self._make_repository()

        def serve() -> Endpoint:
            self._ports = free_ports(self._server, self._address)
            return self._serve_with_libraries(self._ports)

        return self._unless_taken(serve)

    def _unless_taken(self, serve: Callable[[], Endpoint], pause_s: float = 0.0) -> Endpoint:
        """What `serve` returns, called again where one of its ports was taken. Raises what the last call raises."""
        for attempt in range(_TRIES):
            try:
                return serve()
            except TargetError:
                if _PORT_TAKEN.search(self.log_text()) is None or attempt == _TRIES - 1:
                    raise
                time.sleep(pause_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def restart(self, nsys: NsysSession | None = None) -> Endpoint:
        """Stops what is left of it and starts it on the ports it had, inside the new session `nsys` if one is given.

        Log and batch records go on in their files. Requests in between fail. Raises TargetError as `start` does;
        nothing is left running then.
        """
        assert self._ports is not None, "restart follows start"
        self.stop()
        self._nsys = nsys
        # where it is taken, somebody's connection has it as its own end, for a while
        return self._unless_taken(partial(self._serve, self._ports), _PORT_FREED_S)

    def start_without_nsys(self) -> Endpoint:
        """After a `start` that failed inside an nsys session: starts it by itself. Raises as `start` does."""
        self._nsys = None
        return self.start()

    def stop(self) -> None:
        """Stops it gracefully, within the scenario's stop timeout, and every process it left."""
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(self._server.stop_timeout_ns / NS_PER_S + 10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        end_strays(self._folder)
        remove_leftovers(str(self._folder))  # of a supervisor that was killed

    @property
    def is_running(self) -> bool:
        """False before `start` and after `stop`, and once it has ended by itself."""
        return self._process is not None and self._process.poll() is None

    def pids(self) -> list[int]:
        """The server's processes: tritonserver and its Python stubs, not the tools around them.

        Those of a container by their numbers here: docker's are no children of ours, and are known by the port.
        """
        if self._process is None:
            return []
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
            found = [child.pid for child in children if child.name().startswith("triton")]
        except psutil.Error:
            return []
        if found or self._server.image is None or self._ports is None:
            return found
        return listening_pids(self._ports.http)

    def _serve_with_libraries(self, ports: Ports) -> Endpoint:
        """As `_serve`; without libraries of ours where the loader of a container cannot take them. Hooks in models are
        still told where to record."""
        try:
            return self._serve(ports)
        except TargetError:
            refusal = loader_refusal(self.log_text())
            if self._server.image is None or PRELOAD_VARIABLE not in self._injected or refusal is None:
                raise
        left = {name: value for name, value in self._injected.items() if name == FOLDER_VARIABLE}
        self._injected, self.refusal = left, refusal
        return self._serve(ports)

    def _serve(self, ports: Ports) -> Endpoint:
        """Launches it on `ports` and waits; raises TargetError with nothing left running. A launch that failed within
        nsys is made again at once."""
        for attempt in range(_TRIES):
            source = self._launch(ports)
            try:
                return self._wait_until_ready(ports, source)
            except TargetError:
                self.stop()
                if self._nsys is None or not PASSING.search(self.log_text()) or attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    @property
    def _heads(self) -> list[ModelConfig]:
        """Those that squall writes."""
        return [model for model in self._models if model.repository is None]

    @property
    def _has_records(self) -> bool:
        """Whether its models record their batches: with others among them a library in the server does, of all."""
        return len(self._heads) == len(self._models)

    def _repositories(self) -> list[Path]:
        """Each once, our own first."""
        own = [self._folder / "models"] if self._heads else []
        theirs = [Path(model.repository) for model in self._models if model.repository is not None]
        return list(dict.fromkeys([*own, *theirs]))

    def _has_python_of_theirs(self) -> bool:
        """Whether a repository of the user's holds a model in Python."""
        theirs = [Path(model.repository) for model in self._models if model.repository is not None]
        return any(next(repository.glob("*/*/*.py"), None) is not None for repository in theirs)

    def _weights(self) -> list[Path]:
        """Files that instances read them from."""
        return [
            find_weights(model.weights, model.name, head_of(model.name).sizes(model.settings))
            for model in self._heads
            if model.weights is not None
        ]

    def _make_repository(self) -> None:
        self.records.mkdir(parents=True, exist_ok=True)
        refuse_no_model(self._models)
        for model in self._heads:
            self._write_head(model)

    def _write_head(self, model: ModelConfig) -> None:
        version = model.version or "1"
        records = self.records
        if len(self._models) > 1:
            records = (
                records / model.name / version
            )  # as `squall.cluster.node.batches.read_batches` reads them
            records.mkdir(parents=True, exist_ok=True)
        write_repository(self._folder / "models", model, records if self._has_records else None)

    def _launch(self, ports: Ports) -> str:
        """Starts the server below a supervisor; returns its source."""
        home: TritonHome | None = None
        first: list[Path] = []
        injected = self._injected
        if self._server.image is not None:
            command, source, injected = self._container_command(ports), "container", {}
            name = Path(command[0]).name
        else:
            home = find_triton()
            if home.source == "wheel" and self._has_python_of_theirs():
                try:
                    first = [numpy_for_models()]
                except TargetError as error:
                    self._note = (
                        f"Python models that return numpy arrays will answer with empty tensors: {error}"
                    )
            options = ["--backend-directory", str(home.backends)] if home.backends else []
            options += self._trace_options(home.version)
            command = [str(home.binary), *options, *self._options(ports)]
            source, name = home.source, home.binary.name
            if self._nsys is not None:
                command = [*self._nsys.launch_prefix(self._has_gpu, self.log), *self._past_nsys(), *command]
        stop_timeout_s = self._server.stop_timeout_ns / NS_PER_S
        cores = ",".join(map(str, self._cores)) or "-"
        supervisor = [
            *(
                sys.executable,
                "-I",
                "-S",
                squall.actors.process.ordinary.__file__,
                str(self._server.nice),
                cores,
            ),
            sys.executable,
            "-I",
            "-S",
            squall.actors.process.supervisor.__file__,
            str(stop_timeout_s),
            name,
            str(self._folder),
        ]
        with self.log.open("ab") as log:
            self._log_start_bytes = log.tell()
            self._process = subprocess.Popen(
                [*supervisor, *command], stdin=subprocess.PIPE, stdout=log, stderr=log,
                env=server_environment(self._folder, home, {**injected, **self._gpus}, first),
                start_new_session=True, cwd=self._folder,
            )  # fmt: skip
        return source

    def _past_nsys(self) -> list[str]:
        """Gives the server what nsys takes out of the environment, also where it does not trace CUDA itself."""
        library = self._injected.get(INJECTION_VARIABLE)
        return [] if library is None else ["env", f"{INJECTION_VARIABLE}={library}"]

    def _options(self, ports: Ports) -> list[str]:
        return triton_options(
            [str(repository) for repository in self._repositories()],
            [model.name for model in self._models],
            ports,
            region_prefix(str(self._folder)),
            _identifier(self._folder),
            self._address,
        )

    def _trace_options(self, version: str | None) -> list[str]:
        """A file for each launch: Triton writes over one that is there."""
        file = self._trace_file
        holds = version is not None and trace_holds(version)
        if file is None or not (holds or self._traces_any):
            return []
        self.traces.append(file.with_name(f"{file.name}-{len(self.traces)}") if self.traces else file)
        return trace_options(self.traces[-1])

    def _container_command(self, ports: Ports) -> list[str]:
        repositories = [f"{path}:{path}:ro" for path in (*self._repositories(), *self._weights())]
        assert self._server.image is not None
        return container_command(
            find_runtime(self._server.runtime), self._server.image,
            (*repositories, f"{self.records}:{self.records}"),
            {**self._injected, **self._gpus}, self._has_gpu, self._options(ports),
        )  # fmt: skip

    def _wait_until_ready(self, ports: Ports, source: str) -> Endpoint:
        assert self._process is not None
        deadline = time.monotonic() + self._server.start_timeout_ns / NS_PER_S
        host = bracketed(self._address)
        url = f"http://{host}:{ports.http}"
        stubs = StubWatch(is_expected=self._has_records and len(self._models) == 1)
        with closing(Control(url)) as control:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise TargetError(f"Triton ended while starting: {self._why_it_failed()}")
                if self._nsys is not None and (lost := AGENT_LOST.search(self.log_text())):
                    raise TargetError(f"nsys did not launch the server: {lost[0]}")
                end = stubs.look(stubs_below(self._process.pid), time.monotonic())
                if end is not None:
                    names = " or ".join(model.name for model in self._models)
                    raise TargetError(f"the Python process of model {names} {end} while Triton loaded it")
                if why_not(control, READY) is None and self._is_own(control):
                    self._load_beside(url)
                    metrics = f"http://{host}:{ports.metrics}"
                    found = inspect(url, PLAIN, ports.grpc, self._models, source, metrics, self._has_records)
                    return replace(found, note=self._note)
                time.sleep(_POLL_S)
        reason = self._why_it_failed()
        seconds = self._server.start_timeout_ns / NS_PER_S
        raise TargetError(f"Triton was not ready within {seconds:g} s (server.start_timeout): {reason}")

    def _load_beside(self, url: str) -> None:
        """Models as `server.control` says. Raises TargetError."""
        config, timeout_s = self._server.control, self._server.start_timeout_ns / NS_PER_S
        if config is not None:
            with closing(Control(url, timeout_s=timeout_s)) as control:
                self.control = load_own(control, config, timeout_s)

    def _is_own(self, control: Control) -> bool:
        """Whether the one who answers is not another's server, which took the port while ours was loading."""
        try:
            return bool(control.ask_json("/v2").get("name") == _identifier(self._folder))
        except (ControlError, AttributeError):
            return False

    def log_text(self) -> str:
        """What it wrote since its last launch."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_start_bytes)
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def _why_it_failed(self) -> str:
        """Triton's own reason, from its log: a model that did not load, else its last error or line."""
        log = self.log_text()
        for pattern in (_LOAD_FAILURE, _POLL_FAILURE):
            found = pattern.search(log)
            if found:
                return f"model {found['model']} failed to load: {found['why'].strip()}"
        lines = [line for line in log.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"(E\d{4} |error:|Error )", line)]
        return (errors or lines or ["its log is empty"])[-1].strip()


def end_strays(folder: Path) -> None:
    """Kills what runs in `folder` though its supervisor is gone: a server under nsys is no child of its launcher."""
    strays = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.cwd() == str(folder):
                process.kill()
                strays.append(process)
    wait_until_gone(strays, _STRAYS_S)


def refuse_no_model(models: Sequence[ModelConfig]) -> None:
    """Raises TargetError where `repository` of a model, on this node, has no such model, ScenarioError where its
    weights are not there or do not fit."""
    for model in models:
        key = "model" if len(models) == 1 else f"models.{model.name}"
        if model.repository is None and model.weights is not None:
            find_weights(model.weights, model.name, head_of(model.name, key).sizes(model.settings, key), key)
        if model.repository is not None and not _holds_model(Path(model.repository), model.name):
            raise TargetError(
                f"{key}.repository: {model.repository} has no model {model.name!r}, which is a folder with config.pbtxt"
                " or versions"
            )


def _holds_model(repository: Path, name: str) -> bool:
    """Whether a folder of it has the model's configuration or versions: a container sees all of a repository, which is
    no folder of other things."""
    folder = repository / name
    return is_component(name) and (
        (folder / "config.pbtxt").is_file() or any(one.name.isdecimal() for one in folder.glob("*"))
    )


def _identifier(folder: Path) -> str:
    """What a server with that folder calls itself: nobody else's does."""
    return region_prefix(str(folder)).rstrip("-")


def triton_options(
    repositories: Sequence[str],
    models: Sequence[str],
    ports: Ports,
    region_prefix: str,
    identifier: str,
    address: str = LOOPBACK,
) -> list[str]:
    """Options of tritonserver: these models alone, endpoints at `address`, no GPU metrics (we sample NVML)."""
    return [
        f"--id={identifier}",
        f"--backend-config=python,shm-region-prefix-name={region_prefix}",
        *(option for path in repositories for option in ("--model-repository", path)),
        "--model-control-mode=explicit", *(f"--load-model={model}" for model in models),
        f"--http-address={address}", f"--grpc-address={address}", f"--metrics-address={address}",
        f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}",
        "--allow-gpu-metrics=false", "--allow-cpu-metrics=false",
    ]  # fmt: skip


def free_ports(server: ServerConfig, address: str = LOOPBACK) -> Ports:
    """The scenario's ports, the rest chosen free. Raises TargetError for a taken one, or with none free."""
    chosen = []
    held: list[socket.socket] = []
    try:
        for name in ("http_port", "grpc_port", "metrics_port"):
            wanted = getattr(server, name)
            probe = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            held.append(probe)
            if wanted:  # as Triton does: connections of an earlier server in TIME_WAIT are no hindrance
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, wanted or 0))
            except OSError as error:
                what = f"server.{name}: port {wanted}" if wanted else "no free port"
                raise TargetError(f"{what} on {address}: {error.strerror}") from error
            chosen.append(probe.getsockname()[1])
    finally:
        for probe in held:
            probe.close()
    return Ports(*chosen)
