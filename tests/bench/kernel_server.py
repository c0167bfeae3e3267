"""The kernel library in a Triton of squall's own: what recording costs its requests, and being loaded costs.

Used by `tests.bench.kernel_library`. Requests of 8 rows, Poisson at 1,500/s, one worker, HTTP; the server has all
cores but four, which the client has.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import squall.cluster.node.server_environment as server_environment
from squall.actors.clock import SystemClock
from squall.actors.inject.kernel_library import find_cupti, kernel_environment
from squall.actors.inject.kernel_ring import Array
from squall.actors.inject.library import batch_environment
from squall.actors.load.engine import Rules
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.actors.spill import read_spill
from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.server import TritonServer
from squall.scenarios.arrivals.gaps import ExponentialGaps
from squall.scenarios.arrivals.process import Stationary
from squall.scenarios.arrivals.unit import UnitRenewal
from squall.scenarios.config.scenario import ModelConfig, ServerConfig
from squall.scenarios.plan.plan import PhaseSpan, Plan
from tests.bench.kernel_library import KINDS, Rings, alternate, effect, window_effects

_S = 1_000_000_000
RATE_HZ = 1_500.0 if os.environ.get("SQUALL_BENCH_DEVICE", "gpu") == "gpu" else 150.0
ROWS, N_CONNECTIONS = 8, 64
_WINDOW_S, _GUARD_S = 2.0, 0.15
_LOADED_S = 10.0
_CLIENT_CORES = 4
DEVICE = os.environ.get("SQUALL_BENCH_DEVICE", "gpu")
"""`cpu`: to try the bench where no GPU is."""


def plan_of(seconds: float, seed: int) -> Plan:
    """Poisson arrivals, and 5 s for the last replies."""
    process = Stationary(RATE_HZ, UnitRenewal(ExponentialGaps()))
    offsets = process.offsets_ns(np.random.default_rng(seed), round(seconds * _S))
    n = len(offsets)
    return Plan(
        seq=np.arange(n, dtype=np.int64), offset_ns=offsets, phase=np.zeros(n, np.uint8),
        rows=np.full(n, ROWS, np.int32), variant=np.zeros(n, np.uint8),
        spans=(PhaseSpan("m", "measure", 0, round((seconds + 5) * _S)),),
    )  # fmt: skip


def _work(settings: WorkerSettings, plan: Plan, pipe: Any) -> None:
    worker = LoadWorker(settings, SystemClock())
    worker.prepare(plan)
    at_ns = time.monotonic_ns() + 200_000_000
    pipe.send(at_ns)
    worker.run(at_ns)


class Load:
    """Poisson load from a process of its own, begun at once; `response` waits for its end."""

    def __init__(self, endpoint: Endpoint, seconds: float, folder: Path, seed: int = 1) -> None:
        self._folder = folder
        settings = WorkerSettings(
            "r", "node-0", 0, "server-0", endpoint.host, endpoint.port, endpoint.spec, 1, {}, Rules(5 * _S),
            N_CONNECTIONS, str(folder), "http", priority="auto",
        )  # fmt: skip
        ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_work, args=(settings, plan_of(seconds, seed), theirs)
        )
        self._process.start()
        self.begins_ns = int(ours.recv())

    def response(self) -> tuple[Array, Array]:
        """When each request was due, and how long it took from then; raises RuntimeError where one failed."""
        self._process.join()
        with pa.OSFile(str(self._folder / "requests-0.arrows")) as data:
            rows = pa.concat_tables([part.unify_dictionaries() for part in read_spill(data)])
        outcomes = set(rows.column("outcome").to_pylist())
        if outcomes != {"ok"}:
            raise RuntimeError(f"the bench is void: outcomes {outcomes}")
        due, done = (rows.column(name).to_numpy() for name in ("scheduled_ns", "done_ns"))
        return due, done - due


def _cores() -> tuple[set[int], set[int]]:
    """The server's, the client's; all for both where there are few."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 * _CLIENT_CORES:
        return set(cores), set(cores)
    return set(cores[:-_CLIENT_CORES]), set(cores[-_CLIENT_CORES:])


@contextmanager
def served(head: str, graphs: bool, folder: Path, environment: Mapping[str, str]) -> Iterator[Endpoint]:
    """A server of squall's own with `environment` beside what it would have."""
    model = ModelConfig.model_validate(
        {"name": head, "framework": "torch" if DEVICE == "gpu" else "numpy", "device": DEVICE,
         "precision": "fp16" if DEVICE == "gpu" else "fp32",
         "cuda_graphs": graphs, "max_batch_size": 256, "queue_delay": "0ms"}
    )  # fmt: skip
    kept = server_environment._KEPT_ENVIRONMENT
    server_environment._KEPT_ENVIRONMENT = (*kept, *environment)  # type: ignore[assignment]
    before = dict(os.environ)
    os.environ.update(environment)
    ours, theirs = _cores()
    (folder / "server").mkdir()
    server = TritonServer(model, ServerConfig(), folder / "server", None, has_gpu=DEVICE == "gpu")
    try:
        os.sched_setaffinity(0, ours)
        endpoint = server.start()
        os.sched_setaffinity(0, theirs)
        yield endpoint
    finally:
        os.sched_setaffinity(0, ours | theirs)
        server.stop()
        server_environment._KEPT_ENVIRONMENT = kept
        os.environ.clear()
        os.environ.update(before)


def _settings() -> dict[str, str]:
    """Settings of the library that this process was given, which a server does not inherit."""
    return {name: text for name, text in os.environ.items() if name.startswith("SQUALL_KERNEL_")}


def server_cost(library: Path, head: str, n_on: int, graphs: bool) -> dict[str, Any]:
    """Recording on and off every 2 s in one server."""
    with (
        tempfile.TemporaryDirectory(prefix="squall-bench-") as text,
        tempfile.TemporaryDirectory(dir="/dev/shm") as shm,
    ):
        folder, rings_folder = Path(text), Path(shm)
        environment = kernel_environment(library, rings_folder, KINDS, find_cupti()) | _settings()
        with served(head, graphs, folder, environment) as endpoint:
            (folder / "warm").mkdir()
            Load(endpoint, 3.0, folder / "warm").response()
            rings = Rings(rings_folder)
            load = Load(endpoint, (2 * n_on + 1) * (_WINDOW_S + 0.02) + 1, folder)
            time.sleep(1)
            windows = alternate(rings, n_on, _WINDOW_S, _GUARD_S)
            states, losses, n_kernels = rings.states(), rings.losses(), dict(rings.n_kernels)
            effects = window_effects(windows, *load.response())
        rings.end()
    return effects | {"head": head, "graphs": graphs, "switch_us": rings.switch_figures(), "states": states,
                      "losses": losses, "kernels": n_kernels}  # fmt: skip


def loaded_cost(library: Path, head: str, n_blocks: int) -> dict[str, Any]:
    """Servers of a head in turn, in another order in each block: as it is, with the kernel library loaded and off, and
    with the batch library, which records. Each against the first of its block."""
    quantiles: dict[str, list[Array]] = {
        name: [] for name in ("without", "kernel library, off", "batch library")
    }
    names = list(quantiles)
    for block in range(n_blocks):
        turn = block % len(names)
        for name in names[turn:] + names[:turn]:
            quantiles[name].append(_loaded(library, head, name, block))
    without = np.array(quantiles.pop("without"))
    found: dict[str, Any] = {"head": head, "without_us": (without.mean(axis=0) / 1e3).round(1).tolist()}
    for name, own in quantiles.items():
        ratios = np.array(own) / without
        found[name] = {q: effect(list(ratios[:, index])) for index, q in enumerate(("p50", "p95", "p99"))}
    return found


def _loaded(library: Path, head: str, name: str, seed: int) -> Array:
    with (
        tempfile.TemporaryDirectory(prefix="squall-bench-") as text,
        tempfile.TemporaryDirectory(dir="/dev/shm") as shm,
    ):
        folder = Path(text)
        environment: Mapping[str, str] = {}
        if name == "kernel library, off":
            environment = kernel_environment(library, Path(shm), KINDS, find_cupti())
        elif name == "batch library":
            environment = batch_environment(Path(shm), {})
        with served(head, False, folder, environment) as endpoint:
            (folder / "warm").mkdir()
            Load(endpoint, 2.0, folder / "warm").response()
            _, took_ns = Load(endpoint, _LOADED_S, folder, seed).response()
        if environment and not any(Path(shm).iterdir()):
            raise RuntimeError(f"the bench is void: no ring by the {name}")
    found: Array = np.percentile(took_ns, (50, 95, 99))
    return found
