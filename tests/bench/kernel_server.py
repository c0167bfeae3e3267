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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from squall.actors.clock import SystemClock
from squall.actors.inject.kernel_library import find_cupti, kernel_environment
from squall.actors.inject.kernel_ring import Array, KernelKinds
from squall.actors.inject.library import batch_environment
from squall.actors.load.engine import Rules
from squall.actors.load.targets import TargetSettings
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.actors.nsys.session import NsysSession, find_nsys
from squall.actors.nsys.step import run_step
from squall.actors.spill import read_spill
from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.server import TritonServer
from squall.cluster.node.triton_home import cache_dir
from squall.scenarios.arrivals.stationary import PoissonArrivals
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import ClusterError
from squall.scenarios.plan.plan import PhaseSpan, Plan
from tests.bench.kernel_library import KINDS, Rings, alternate, window_effects

_S = 1_000_000_000
RATE_HZ = 1_500.0 if os.environ.get("SQUALL_BENCH_DEVICE", "gpu") == "gpu" else 150.0
ROWS, N_CONNECTIONS = 8, 64
_WINDOW_S, _GUARD_S = 2.0, 0.15
_WARM_S = 2.0
_LOADED_S, _ROUNDS = 3.0, 2
_STARTING = 6
_CANCEL_S, _LONGER = 60.0, 1.5
"""A step of nsys takes so much longer than the first, beside which was no load."""
_WITHOUT, _KERNELS_OFF, _BATCHES = "without", "kernel library, off", "batch library"
_VARIANTS = (_WITHOUT, _KERNELS_OFF, _BATCHES)
_CLIENT_CORES = 4
DEVICE = os.environ.get("SQUALL_BENCH_DEVICE", "gpu")
"""`cpu`: to try the bench where no GPU is."""


def plan_of(seconds: float, seed: int) -> Plan:
    """Poisson arrivals, and 5 s for the last replies."""
    arrivals = PoissonArrivals(kind="poisson", rate=f"{RATE_HZ}/s")
    offsets = arrivals.draw(np.random.default_rng(seed), round(seconds * _S))
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
            "r",
            "node-0",
            0,
            (TargetSettings("server-0", endpoint.host, endpoint.port, (endpoint.models[0].spec,)),),
            1,
            Rules(5 * _S),
            N_CONNECTIONS,
            str(folder),
            "http",
            priority="auto",
        )
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
def served(
    head: str, graphs: bool, folder: Path, environment: Mapping[str, str], nsys: NsysSession | None = None
) -> Iterator[Endpoint]:
    """A server of squall's own with `environment` beside what it would have. Meanwhile this process has the client's
    cores."""
    ours, theirs = _cores()
    server = _server(head, graphs, folder, environment, nsys)
    try:
        endpoint = server.start()
        os.sched_setaffinity(0, theirs)
        yield endpoint
    finally:
        os.sched_setaffinity(0, ours | theirs)
        server.stop()


def _server(
    head: str, graphs: bool, folder: Path, environment: Mapping[str, str], nsys: NsysSession | None = None
) -> TritonServer:
    model = ModelConfig.model_validate(
        {"name": head, "framework": "torch" if DEVICE == "gpu" else "numpy", "device": DEVICE,
         "precision": "fp16" if DEVICE == "gpu" else "fp32",
         "cuda_graphs": graphs, "max_batch_size": 256, "queue_delay": "0ms"}
    )  # fmt: skip
    (folder / "server").mkdir(parents=True)
    return TritonServer(
        [model], ServerConfig(), folder / "server", nsys, has_gpu=DEVICE == "gpu", cores=tuple(sorted(_cores()[0])),
        injected=environment,
    )  # fmt: skip


def _settings() -> dict[str, str]:
    """Settings of the library that this process was given, which a server does not inherit."""
    return {name: text for name, text in os.environ.items() if name.startswith("SQUALL_KERNEL_")}


def server_cost(library: Path, head: str, n_on: int, graphs: bool, kinds: KernelKinds) -> dict[str, Any]:
    """Recording on and off every 2 s in one server."""
    with (
        tempfile.TemporaryDirectory(prefix="squall-bench-") as text,
        tempfile.TemporaryDirectory(dir="/dev/shm") as shm,
    ):
        folder, rings_folder = Path(text), Path(shm)
        environment = kernel_environment(library, rings_folder, kinds, find_cupti()) | _settings()
        with served(head, graphs, folder, environment) as endpoint:
            _warm(endpoint, folder)
            rings = Rings(rings_folder)
            load = Load(endpoint, (2 * n_on + 1) * (_WINDOW_S + 0.02) + 1, folder)
            time.sleep(1)
            windows = alternate(rings.switch, n_on, _WINDOW_S, _GUARD_S)
            states, losses, n_kernels = rings.states(), rings.losses(), dict(rings.n_kernels)
            effects = window_effects(windows, *load.response())
        rings.end()
    return effects | {"head": head, "graphs": graphs, "switch_us": rings.switch_figures(), "states": states,
                      "losses": losses, "kernels": n_kernels}  # fmt: skip


class _NsysSwitch:
    """nsys recording or not, in a session that a server runs in. What it recorded is thrown away: at once where this
    nsys can cancel, else when it has imported it, which takes seconds of the server's cores."""

    def __init__(self, session: NsysSession) -> None:
        self._session = session
        self.can_cancel = True
        self.taken_s: dict[bool, list[float]] = {True: [], False: []}

    def __call__(self, is_on: bool) -> None:
        begun_s = time.monotonic()
        if is_on:
            self._session.start("bench")
        else:
            self._off()
        self.taken_s[is_on].append(time.monotonic() - begun_s)

    def _off(self) -> None:
        if self.can_cancel:
            command = [str(self._session.tools.nsys), "cancel", f"--session={self._session.name}"]
            try:
                run_step(command, self._session.env, _CANCEL_S)
                return
            except ClusterError:
                self.can_cancel = False
        self._session.stop()
        self._session.discard("bench")


def nsys_cost(
    head: str, most: int, graphs: bool, profiled: Mapping[str, Any], budget_s: float
) -> dict[str, Any]:
    """nsys recording for 2 s and not recording for 2 s in one server that it launched: `most` times, fewer where its
    steps take so long that `budget_s` would be over."""
    tools = find_nsys(cache_dir())
    if tools is None:
        raise RuntimeError("the bench is void: no nsys")
    with tempfile.TemporaryDirectory(prefix="squall-bench-") as text:
        folder = Path(text)
        profile = ProfileConfig.model_validate(profiled)
        session = NsysSession(tools, f"squall-bench-{os.getpid()}", folder / "nsys", profile)
        switch = _NsysSwitch(session)
        try:
            with served(head, graphs, folder, {}, session) as endpoint:
                _warm(endpoint, folder)
                for is_on in (True, False):
                    switch(is_on)
                taken_s = sum(one[0] for one in switch.taken_s.values())
                pair_s = 2 * _WINDOW_S + _LONGER * taken_s
                n_on = min(most, max(2, int(budget_s / pair_s)))
                seconds = n_on * pair_s + _WINDOW_S + 1
                load = Load(endpoint, seconds, folder)
                time.sleep(1)
                windows = alternate(switch, n_on, _WINDOW_S, _GUARD_S)
                effects = window_effects(
                    _within(windows, load.begins_ns + round(seconds * _S)), *load.response()
                )
        finally:
            session.shutdown()
    return effects | {
        "head": head, "graphs": graphs, **profiled, "nsys": tools.version_text,
        "is_cancelled": switch.can_cancel,
        "switch_s": {"on" if is_on else "off": round(sorted(s)[len(s) // 2], 2) for is_on, s in switch.taken_s.items()},
    }  # fmt: skip


def _within(windows: list[tuple[bool, int, int]], ends_ns: int) -> list[tuple[bool, int, int]]:
    """Those over by then, the last of them off."""
    kept = [one for one in windows if one[2] <= ends_ns]
    return kept[: len(kept) - 1 + len(kept) % 2]


def _warm(endpoint: Endpoint, folder: Path) -> None:
    (folder / "warm").mkdir()
    Load(endpoint, _WARM_S, folder / "warm").response()


def loaded_cost(library: Path, head: str, n_servers: int) -> dict[str, Any]:
    """Servers of a head as they are, with the kernel library loaded and off, and with the batch library, which records:
    `n_servers` of each, all there at once and loaded one after another, in another order in each round.

    One server differs from the next: each counts as one value, the mean over its rounds, and intervals are by
    bootstrap over servers.
    """
    quantiles: dict[str, list[list[Array]]] = {name: [[] for _ in range(n_servers)] for name in _VARIANTS}
    with (
        tempfile.TemporaryDirectory(prefix="squall-bench-") as text,
        tempfile.TemporaryDirectory(dir="/dev/shm") as shm,
        ExitStack() as stack,
    ):
        folder = Path(text)
        keys = [(name, number) for number in range(n_servers) for name in _VARIANTS]
        servers = [_with(library, head, name, folder / f"{place}", Path(shm) / f"{place}")
                   for place, (name, _) in enumerate(keys)]  # fmt: skip
        for server in servers:
            stack.callback(server.stop)
        with ThreadPoolExecutor(_STARTING) as starting:
            endpoints = list(starting.map(lambda one: one.start(), servers))
        ours, theirs = _cores()
        stack.callback(os.sched_setaffinity, 0, ours | theirs)
        os.sched_setaffinity(0, theirs)
        for place, endpoint in enumerate(endpoints):
            _warm(endpoint, folder / f"{place}")
        for round_ in range(_ROUNDS):
            for place in np.random.default_rng(round_).permutation(len(keys)).tolist():
                where = folder / f"{place}" / f"round-{round_}"
                where.mkdir()
                _, took_ns = Load(endpoints[place], _LOADED_S, where, round_ + 1).response()
                name, number = keys[place]
                quantiles[name][number].append(np.percentile(took_ns, (50, 95, 99)))
        for place, (name, _) in enumerate(keys):
            if name != _WITHOUT and not any((Path(shm) / f"{place}").iterdir()):
                raise RuntimeError(f"the bench is void: no ring by the {name}")
    means = {name: np.array(own).mean(axis=1) for name, own in quantiles.items()}
    without = means.pop(_WITHOUT)
    found: dict[str, Any] = {"head": head, "without_us": (without.mean(axis=0) / 1e3).round(1).tolist(),
                             "servers_p50_us": {name: (own[:, 0] / 1e3).round(1).tolist()
                                                for name, own in ({_WITHOUT: without} | means).items()}}  # fmt: skip
    for name, own in means.items():
        found[name] = {q: _change(own[:, i], without[:, i]) for i, q in enumerate(("p50", "p95", "p99"))}
    return found


def _change(with_it: Array, without: Array) -> dict[str, float]:
    """Of the mean of some servers against the mean of others, in percent, with its interval."""
    rng = np.random.default_rng(1)
    ratios = [
        float(rng.choice(with_it, len(with_it)).mean() / rng.choice(without, len(without)).mean())
        for _ in range(2_000)
    ]
    low, high = np.percentile(ratios, (2.5, 97.5))
    ratio = float(with_it.mean() / without.mean())
    return {
        name: round(100 * (one - 1), 2) for name, one in (("percent", ratio), ("low", low), ("high", high))
    }


def _with(library: Path, head: str, name: str, folder: Path, rings: Path) -> TritonServer:
    rings.mkdir()
    environment: Mapping[str, str] = {}
    if name == _KERNELS_OFF:
        environment = kernel_environment(library, rings, KINDS, find_cupti())
    elif name == _BATCHES:
        environment = batch_environment(rings, {})
    return _server(head, False, folder, environment)
