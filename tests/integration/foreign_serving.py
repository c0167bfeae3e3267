"""A Triton started as a user starts one, with the batch library preloaded, over models that know nothing of squall."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from squall.actors.inject.batch_ring import BatchRing, RecordedBatch, rings
from squall.actors.inject.library import batch_environment, built_library
from squall.actors.net.triton_control import Control, ControlError
from squall.actors.process.supervisor import region_prefix, remove_leftovers
from squall.cluster.node.server import free_ports
from squall.cluster.node.server_environment import server_environment
from squall.cluster.node.triton_home import find_triton
from squall.scenarios.config.servers import ServerConfig
from tests.integration.live_runs import wait_until
from tests.reporting import batches_of

_ENOUGH_S = 60.0
_CLIENTS = 16


@dataclass(frozen=True)
class ForeignTriton:
    """It runs, with all models of its repository."""

    url: str
    pid: int
    rings: Path
    control: Control
    process: subprocess.Popen[bytes]

    def executions(self, model: str) -> tuple[int, int, int]:
        """What Triton counted: executions, their rows, and requests that failed."""
        (found,) = self.control.ask_json(f"/v2/models/{model}/stats")["model_stats"]
        return (
            int(found["execution_count"]), int(found["inference_count"]),
            int(found["inference_stats"]["fail"]["count"]),
        )  # fmt: skip

    def ask_all(self, model: str, requests: Sequence[tuple[str, int]]) -> list[int]:
        """HTTP statuses of requests by id and rows of two numbers each, many at once; 0: no answer.

        An answer is the request's input.
        """
        with ThreadPoolExecutor(_CLIENTS) as clients:
            return list(clients.map(lambda request: _ask(self.url, model, *request), requests))

    def end(self) -> None:
        """Gracefully: Triton waits for connections to close, for 30 s."""
        self.control.close()
        self.process.terminate()
        self.process.wait(_ENOUGH_S)

    def recorded(self, n_requests: int = 0) -> list[RecordedBatch]:
        """Batches since the last call, once they have `n_requests` members or more; nothing was lost or damaged.

        A batch is told of after its answers have left.
        """
        (path,) = rings(self.rings)
        drained = bytearray()

        def batches() -> list[RecordedBatch] | None:
            drained.extend(ring.drain())
            found = batches_of(bytes(drained), self.rings.parent)
            whole = [batch for batch in found if isinstance(batch, RecordedBatch)]
            assert whole == found
            return whole if sum(one.n_requests for one in whole) >= n_requests else None

        with contextlib.closing(BatchRing(path)) as ring:
            wait_until(lambda: batches() is not None, _ENOUGH_S, f"{n_requests} requests are recorded")
            assert (ring.lost(), ring.pid) == (0, self.pid)
            return batches() or []

    def wait_for_counts(self, model: str, executions: int, rows: int, failed: int) -> None:
        """Until Triton has counted so much of it, which it does after the library."""
        expected = (executions, rows, failed)
        wait_until(lambda: self.executions(model) == expected, _ENOUGH_S, f"{model} has {expected}")


@contextlib.contextmanager
def foreign_triton(folder: Path, models: Mapping[str, str]) -> Iterator[ForeignTriton]:
    """Over the repository `folder/models`, which has a `config.pbtxt` for each of `models`; killed at the end."""
    if built_library("batches") is None:
        pytest.skip("the batch library is not built (no C compiler at the install)")
    home, ports, where = find_triton(), free_ports(ServerConfig()), folder / "rings"
    where.mkdir()
    for name, config in models.items():
        (folder / "models" / name / "1").mkdir(parents=True, exist_ok=True)
        (folder / "models" / name / "config.pbtxt").write_text(config)
    environment = server_environment(folder, home)
    log = folder / "triton.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                home.binary, *(["--backend-directory", str(home.backends)] if home.backends else []),
                "--model-repository", folder / "models", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
                "--metrics-address=127.0.0.1", f"--http-port={ports.http}", f"--grpc-port={ports.grpc}",
                f"--metrics-port={ports.metrics}", "--model-control-mode=explicit", "--load-model=*",
                f"--backend-config=python,shm-region-prefix-name={region_prefix(str(folder))}",
            ],
            env=environment | batch_environment(where, environment), stdout=output, stderr=output,
        )  # fmt: skip
    url = f"http://127.0.0.1:{ports.http}"
    try:
        with contextlib.closing(Control(url)) as control:
            wait_until(lambda: _is_ready(control, process, log), _ENOUGH_S, "Triton is ready")
            yield ForeignTriton(url, process.pid, where, control, process)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENOUGH_S)
        process.kill()
        process.wait()
        remove_leftovers(str(folder))


def _is_ready(control: Control, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text(errors="replace")
    try:
        control.ask("/v2/health/ready")
    except ControlError:
        return False
    return True


def _ask(url: str, model: str, request_id: str, n_rows: int) -> int:
    data = [float(i) for i in range(2 * n_rows)]
    tensor = {"name": "INPUT", "shape": [n_rows, 2], "datatype": "FP32", "data": data}
    body = json.dumps({"id": request_id, "inputs": [tensor]}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/v2/models/{model}/infer", body, timeout=_ENOUGH_S) as reply:
            assert json.load(reply)["outputs"][0]["data"] == data
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code)
    except (OSError, http.client.HTTPException):
        return 0
