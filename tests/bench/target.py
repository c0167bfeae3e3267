"""A real Triton on loopback for benchmarks, and client programs run against it with CPU and requests counted.

The model is so small that the clients' own cost shows.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.cluster.node.server import TritonServer
from squall.models.made import make_inputs
from squall.models.payload import PREFIX, encode_body, encode_id
from squall.models.spec import ModelSpec
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.servers import ServerConfig

REQUEST_ID = encode_id(42).decode()
"""The id of every request that a client program sends."""
_TIMEOUT_S = 5.0
_SLACK_S = 30.0
_SETTLE_S = 0.05
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Target:
    """A running server: ports on `host`, and what its one model takes."""

    host: str
    http_port: int
    grpc_port: int
    model: str
    version: str
    spec: ModelSpec
    server_version: str

    @property
    def infer_path(self) -> str:
        """Path of HTTP inference requests."""
        return f"/v2/models/{self.model}/versions/{self.version}/infer"

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """The tensors, one row, that every request carries, by name."""
        return make_inputs(self.spec, 1, 0, 1)

    def write_body(self, folder: Path) -> tuple[Path, int]:
        """Writes the body of an HTTP request to a file; gives its path and how many bytes of it are JSON."""
        body = encode_body(self.spec, self.inputs())
        path = folder / "body"
        path.write_bytes(PREFIX + REQUEST_ID.encode() + body.suffix)
        return path, body.n_json_bytes

    def stats(self) -> int:
        """Requests that the server has answered with success since it started, by its own statistics."""
        return self._counts()[0]

    def settled(self) -> tuple[int, int]:
        """Successes and failures once they stand still: replies may be ahead of the count."""
        last = self._counts()
        while True:
            time.sleep(_SETTLE_S)
            now = self._counts()
            if now == last:
                return now
            last = now

    def _counts(self) -> tuple[int, int]:
        url = f"http://{self.host}:{self.http_port}/v2/models/{self.model}/versions/{self.version}/stats"
        with _DIRECT.open(url, timeout=_TIMEOUT_S) as reply:
            (model,) = json.load(reply)["model_stats"]
        stats = model["inference_stats"]
        return int(stats["success"]["count"]), int(stats["fail"]["count"])


@dataclass(frozen=True)
class ClientRun:
    """One run of a client program.

    `n_requests`: by the server's own success count; `cpu_s`: user + system time of the program and all its children
    (wait4), start-up included; `said`: the program's own result.
    """

    n_requests: int
    cpu_s: float
    said: dict[str, Any]


@contextmanager
def real_triton(
    width: int = 64, layers: int = 1, instances: int = 1, max_batch_size: int = 32, queue_delay_ns: int = 0
) -> Iterator[Target]:
    """Serves `linear_head` from a temporary folder until the block ends.

    Raises TargetError where no Triton is found or it does not start.
    """
    model = ModelConfig.model_validate(
        {
            "name": "linear_head",
            "settings": {"width": width, "layers": layers},
            "instances": instances,
            "max_batch_size": max_batch_size,
            "queue_delay": f"{queue_delay_ns}ns",
        }
    )
    with serving(model) as target:
        yield target


@contextmanager
def serving(model: ModelConfig) -> Iterator[Target]:
    """Serves any model, of a repository too. Raises TargetError as `real_triton` does."""
    http_port, grpc_port = _free_ports(2)
    ports = ServerConfig.model_validate({"http_port": http_port, "grpc_port": grpc_port})
    with tempfile.TemporaryDirectory(prefix="squall-bench-") as folder:
        server = TritonServer([model], ports, Path(folder), None, has_gpu=False)
        try:
            endpoint = server.start()
            yield Target(
                endpoint.host,
                endpoint.port,
                grpc_port,
                model.name,
                endpoint.models[0].spec.version,
                endpoint.models[0].spec,
                endpoint.server_version,
            )
        finally:
            server.stop()


def run_client(
    target: Target, tool: str, command: list[str], seconds: float, read: Callable[[str], dict[str, Any]]
) -> ClientRun:
    """Runs a client program of about `seconds` to its end; `read` makes its result of its stdout.

    The result's `n_ok` and `n_failed` are requests by the program's own count. Raises RuntimeError where the run is
    void: it failed or hung, a request failed, or the server saw fewer requests than the program says were answered.
    """
    ok_before, failed_before = target.settled()
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        code, cpu_s = _run_counted(command, stdout.fileno(), stderr.fileno(), seconds + _SLACK_S)
        stdout.seek(0)
        stderr.seek(0)
        if code:
            said = (stderr.read() + stdout.read())[-2_000:]
            raise RuntimeError(f"{tool} is void: exit code {code}: {said}")
        result = read(stdout.read())
    ok, failed = target.settled()
    n, n_failed = ok - ok_before, failed - failed_before
    if n_failed or result["n_failed"] or n < result["n_ok"] or not n:
        raise RuntimeError(
            f"{tool} is void: the server counts {n} ok and {n_failed} failed, it says {result}"
        )
    return ClientRun(n, cpu_s, result)


def _run_counted(command: list[str], stdout: int, stderr: int, timeout_s: float) -> tuple[int, float]:
    """Exit code and CPU seconds of a program with all its children; killed after `timeout_s`."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
    )
    watchdog = threading.Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        watchdog.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def _free_ports(n: int) -> list[int]:
    """Ports free on loopback now, all different."""
    held = [socket.socket() for _ in range(n)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
