"""Launches a Triton server for a scenario and stops it, or checks one that runs already."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.parse
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import actors.supervisor
from actors.control import Control, ControlError, authority
from actors.link import TlsSettings
from actors.profiler import NsysSession
from cluster.triton_home import find_triton
from models.repository import ServingConfig, write_repository
from models.spec import ModelSpec
from scenarios.errors import TargetError
from scenarios.scenario import ModelConfig, ServerConfig
from scenarios.units import NS_PER_S

_LOOPBACK = "127.0.0.1"
_READY = "/v2/health/ready"
_TRITON_GRPC_PORT = 8_001  # Triton's default; server.grpc_port says another
_POLL_S = 0.1
_PORT_TRIES = 3
_KEPT_ENVIRONMENT = (
    "PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "TZ", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "DOCKER_HOST", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""What the server inherits. nsys writes the environment of what it profiles into its report: no secrets."""
_LOAD_FAILURE = re.compile(
    r"failed to load '(?P<model>[^']+)' version \d+: (?P<why>.+?)(?:\\n|\"?$)", re.MULTILINE
)
_POLL_FAILURE = re.compile(
    r"Poll failed for model directory '(?P<model>[^']+)': (?P<why>.+?)(?:\\n|\"?$)", re.MULTILINE
)
_PORT_TAKEN = re.compile(
    r"Address already in use|failed to bind|Socket '[^']+' already in use", re.IGNORECASE
)


@dataclass(frozen=True)
class Ports:
    """TCP ports of a server on loopback."""

    http: int
    grpc: int
    metrics: int


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers and what it serves. `has_records`: its model writes batch records that we
    collect.

    `url`: of its HTTP port; `tls`: how to speak to it there if that is https. `source`: url, container, PATH or wheel.
    """

    url: str
    tls: TlsSettings | None
    grpc_port: int
    metrics_url: str | None
    source: str
    server_version: str
    spec: ModelSpec
    has_records: bool

    @property
    def host(self) -> str:
        return authority(self.url)[0]

    @property
    def port(self) -> int:
        return authority(self.url)[1]


class TritonServer:
    """A server that this process started, under a supervisor that outlives a crash of ours by just its
    clean-up.

    `folder` takes the model repository, batch records and the log `triton.log`. With `nsys` the server runs
    inside that session. Not thread-safe.
    """

    def __init__(
        self, model: ModelConfig, server: ServerConfig, folder: Path, nsys: NsysSession | None, has_gpu: bool
    ) -> None:
        self.records = folder / "batches"
        self.log = folder / "triton.log"
        self._model = model
        self._server = server
        self._folder = folder
        self._nsys = nsys
        self._has_gpu = has_gpu
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Endpoint:
        """Launches it and waits until the model is ready.

        Raises TargetError with Triton's own reason where the model does not load, for a port that is taken,
        and when the server is not ready in time; nothing is left running then.
        """
        repository = self._make_repository()
        for attempt in range(_PORT_TRIES):
            ports = free_ports(self._server)
            source = self._launch(repository, ports)
            try:
                return self._wait_until_ready(ports, source)
            except TargetError as error:
                self.stop()
                is_taken = _PORT_TAKEN.search(self._read_log()) is not None
                if not is_taken or attempt == _PORT_TRIES - 1:
                    raise
                del error
        raise AssertionError("unreachable: the last attempt returns or raises")

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

    def pids(self) -> list[int]:
        """The server's processes: tritonserver and its Python stubs, not the tools around them."""
        if self._process is None:
            return []
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
            return [child.pid for child in children if child.name().startswith("triton")]
        except psutil.Error:
            return []

    def _make_repository(self) -> Path:
        model = self._model
        self.records.mkdir(parents=True, exist_ok=True)
        if model.repository is not None:
            path = Path(model.repository)
            if not (path / model.name).is_dir():
                raise TargetError(f"model.repository: {path} has no model {model.name!r}")
            return path
        serving = ServingConfig(
            instances=model.instances, max_batch_size=model.max_batch_size,
            preferred_batch_sizes=model.preferred_batch_sizes, queue_delay_ns=model.queue_delay_ns,
            queue_size=model.queue.max_size, queue_timeout_ns=model.queue.timeout_ns,
            on_timeout=model.queue.on_timeout,
        )  # fmt: skip
        repository = self._folder / "models"
        write_repository(repository, model.name, model.version, model.settings, serving, self.records)
        return repository

    def _launch(self, repository: Path, ports: Ports) -> str:
        """Starts the server below a supervisor; returns its source."""
        env = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        env["TMPDIR"] = str(self._folder)
        env["PYTHONPATH"] = sysconfig.get_path("purelib")
        if self._server.image is not None:
            command, source, name = self._container_command(repository, ports), "container", "docker"
            name = Path(command[0]).name
        else:
            home = find_triton()
            libraries = [str(path) for path in home.library_dirs]
            env["LD_LIBRARY_PATH"] = ":".join(filter(None, [*libraries, env.get("LD_LIBRARY_PATH", "")]))
            options = ["--backend-directory", str(home.backends)] if home.backends else []
            command = [str(home.binary), *options, *triton_options(str(repository), self._model.name, ports)]
            source, name = home.source, home.binary.name
            if self._nsys is not None:
                command = [*self._nsys.launch_prefix(self._has_gpu), *command]
        stop_timeout_s = self._server.stop_timeout_ns / NS_PER_S
        nice = ["nice", "-n", str(self._server.nice)] if self._server.nice else []
        supervisor = [
            *nice,
            sys.executable,
            "-I",
            "-S",
            actors.supervisor.__file__,
            str(stop_timeout_s),
            name,
        ]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*supervisor, *command], stdin=subprocess.PIPE, stdout=log, stderr=log, env=env,
                start_new_session=True, cwd=self._folder,
            )  # fmt: skip
        return source

    def _container_command(self, repository: Path, ports: Ports) -> list[str]:
        from shutil import which

        runtime = self._server.runtime or next((name for name in ("docker", "podman") if which(name)), None)
        if runtime is None or which(runtime) is None:
            raise TargetError(f"server.image: {runtime or 'neither docker nor podman'} is not on the PATH")
        assert self._server.image is not None
        return [
            runtime, "run", "--rm", "--network=host", "--ipc=host",
            *(["--gpus=all"] if self._has_gpu and runtime == "docker" else []),
            f"--volume={repository}:{repository}:ro", f"--volume={self.records}:{self.records}",
            self._server.image, "tritonserver", *triton_options(str(repository), self._model.name, ports),
        ]  # fmt: skip

    def _wait_until_ready(self, ports: Ports, source: str) -> Endpoint:
        assert self._process is not None
        deadline = time.monotonic() + self._server.start_timeout_ns / NS_PER_S
        url = f"http://{_LOOPBACK}:{ports.http}"
        with closing(Control(url)) as control:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise TargetError(f"Triton ended while starting: {self._why_it_failed()}")
                if _why_not(control, _READY) is None:
                    metrics = f"http://{_LOOPBACK}:{ports.metrics}"
                    has_records = self._model.repository is None
                    return inspect(url, None, ports.grpc, self._model, source, metrics, has_records)
                time.sleep(_POLL_S)
        reason = self._why_it_failed()
        seconds = self._server.start_timeout_ns / NS_PER_S
        raise TargetError(f"Triton was not ready within {seconds:g} s (server.start_timeout): {reason}")

    def _read_log(self) -> str:
        try:
            return self.log.read_text(errors="replace")
        except OSError:
            return ""

    def _why_it_failed(self) -> str:
        """Triton's own reason, from its log: a model that did not load, else its last error or line."""
        log = self._read_log()
        for pattern in (_LOAD_FAILURE, _POLL_FAILURE):
            found = pattern.search(log)
            if found:
                return f"model {found['model']} failed to load: {found['why'].strip()}"
        lines = [line for line in log.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"(E\d{4} |error:|Error )", line)]
        return (errors or lines or ["its log is empty"])[-1].strip()


def triton_options(repository: str, model: str, ports: Ports) -> list[str]:
    """Options of tritonserver: one model, endpoints on loopback, no GPU metrics (we sample NVML)."""
    return [
        "--model-repository", repository, "--model-control-mode=explicit", f"--load-model={model}",
        f"--http-address={_LOOPBACK}", f"--grpc-address={_LOOPBACK}", f"--metrics-address={_LOOPBACK}",
        f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}",
        "--allow-gpu-metrics=false", "--allow-cpu-metrics=false",
    ]  # fmt: skip


def free_ports(server: ServerConfig) -> Ports:
    """The scenario's ports, the rest chosen free. Raises TargetError for a taken one, or with none free."""
    chosen = []
    held: list[socket.socket] = []
    try:
        for name in ("http_port", "grpc_port", "metrics_port"):
            wanted = getattr(server, name)
            probe = socket.socket()
            held.append(probe)
            if wanted:  # as Triton does: connections of an earlier server in TIME_WAIT are no hindrance
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_LOOPBACK, wanted or 0))
            except OSError as error:
                what = f"server.{name}: port {wanted}" if wanted else "no free port"
                raise TargetError(f"{what} on {_LOOPBACK}: {error.strerror}") from error
            chosen.append(probe.getsockname()[1])
    finally:
        for probe in held:
            probe.close()
    return Ports(*chosen)


def attach(model: ModelConfig, server: ServerConfig, tls: TlsSettings | None = None) -> Endpoint:
    """The running server at `server.url`, where `tls` holds if that is https (None: the system's authorities).

    Raises TargetError where it or the model is not ready, and for files of TLS that cannot be used.
    """
    assert server.url is not None
    url = server.url.rstrip("/")
    grpc_port = server.grpc_port or _TRITON_GRPC_PORT
    return inspect(url, tls, grpc_port, model, "url", None, has_records=False)


def inspect(
    url: str,
    tls: TlsSettings | None,
    grpc_port: int,
    model: ModelConfig,
    source: str,
    metrics_url: str | None,
    has_records: bool,
) -> Endpoint:
    """What the server at `url` says of itself and the model. Raises TargetError where that is not ready."""
    try:
        control = Control(url, tls)
    except OSError as error:
        raise TargetError(f"no Triton is ready at {url}: {error}") from error
    try:
        not_live = _why_not(control, _READY)
        if not_live is not None:
            raise TargetError(f"no Triton is ready at {url}: {not_live}")
        path = f"/v2/models/{urllib.parse.quote(model.name)}/versions/{model.version}"
        not_ready = _why_not(control, f"{path}/ready")
        if not_ready is not None:
            raise TargetError(
                f"model {model.name!r} version {model.version} is not ready at {url}: "
                f"{not_ready}{_known_models(control)}"
            )
        spec = ModelSpec.from_config(_object(control, f"{path}/config"), model.version)
        version = str(_object(control, "/v2").get("version", "unknown"))
    except (ControlError, ValueError, KeyError) as error:
        raise TargetError(f"{url} does not answer like a Triton server: {error}") from error
    finally:
        control.close()
    return Endpoint(url, tls, grpc_port, metrics_url, source, version, spec, has_records)


def _why_not(control: Control, path: str) -> str | None:
    """None if the server answers `path` with 200; else why not, in a few words."""
    try:
        control.ask(path)
    except ControlError as error:
        return str(error)
    return None


def _object(control: Control, path: str) -> dict[str, Any]:
    content = control.ask_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} gave {type(content).__name__}, not an object")
    return content


def _known_models(control: Control) -> str:
    """The models the server has, for the message about one it has not; empty where it does not say."""
    try:
        names = sorted({item["name"] for item in control.ask_json("/v2/repository/index", "POST")})
    except (ControlError, KeyError, TypeError):
        return ""
    return f"; it has {', '.join(names)}" if names else "; it has no models"
