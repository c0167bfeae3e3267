"""What a node's own process finds out for `squall doctor`: a plain class, run in a process of ours on each node."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from squall.actors.clock import SystemClock, clock_domain
from squall.actors.doctor.checkup import Checkup, Finding, Host, ThisHost, check_up
from squall.actors.doctor.host import CHECKS
from squall.actors.doctor.priority import ray_health_checks, ray_memory_monitor, ray_niceness, sending
from squall.actors.doctor.tools import GpuAnswers, NsysAnswers, containers, gpu, nsys
from squall.actors.inject.library import built_library
from squall.actors.load.lane import BUILD_MEND, IS_BUILT, NOT_BUILT
from squall.actors.load.sender import Sender
from squall.actors.nsys.proof import prove_nsys
from squall.actors.nsys.tools import NsysTools, find_nsys
from squall.actors.process.own_source import source_digest
from squall.actors.process.state import listening_pids
from squall.actors.sampling.clock_responder import ClockResponder
from squall.actors.sampling.gpu.source import GpuSource, missing_reason
from squall.analysis.nsys.scrub import count_events
from squall.analysis.requests.workers import LANE_COST
from squall.cluster.node.injected.effect import Injected, injected
from squall.cluster.node.injected.kernel_recording import NO_GPU, missing_kernels
from squall.cluster.node.triton_home import WHEEL, TritonHome, cache_dir, find_triton, require_numpy
from squall.scenarios.errors import AnalysisError, ClusterError, TargetError
from squall.scenarios.records import RayPriority

REQUIRED = (
    "squall",
    "ray",
    "numpy",
    "pyarrow",
    "pydantic",
    "hpack",
    "httptools",
    "tritonclient",
    "psutil",
    "duckdb",
    "locust",
    "gevent",
    "grpcio",
)
OPTIONAL = ("nvidia-nvtx", "nvidia-ml-py", "torch")
INJECT_MEND = "start it with what `squall inject` prints, on this host, as this user"
_GPM_PAIR_S = 0.15  # GPM takes two samples at least 100 ms apart
_TRITON_MEND = "put tritonserver on the PATH, run squall in NVIDIA's Triton image, or pass --server URL"
_AUTH_MEND = (
    "RAY_AUTH_MODE=token, and one token (`ray get-auth-token --generate`), for every `ray start` and squall"
)


class NodeCheckup:
    """Looks at the node it is made on. Its calls come one after the other."""

    def __init__(self) -> None:
        self._responder: ClockResponder | None = None

    def versions(self) -> dict[str, str | None]:
        """Python, packages (None where there is none) and a digest of squall's own source."""
        host = ThisHost()
        return {
            "python": platform.python_version(),
            **{name: host.package(name) for name in (*REQUIRED, *OPTIONAL)},
            "source": source_digest(),
        }

    def findings(self) -> list[Finding]:
        """All that concerns the node alone; takes seconds, most of them in a recording by nsys."""
        host = ThisHost()
        checks: list[tuple[str, Checkup]] = [
            *CHECKS,
            ("C lane", lane),
            ("batch library", library),
            ("sending", lambda _: sending(Sender("auto", is_spinning=False, core=None).tried())),
            ("Triton", partial(triton, home=find_triton, is_here=_is_fetched)),
            ("containers", containers),
            ("GPU", partial(gpu, gpus=GpuAnswers(missing_reason, _gpu_facts))),
            ("nsys", partial(nsys, tools=NsysAnswers(lambda: find_nsys(cache_dir()), _prove))),
            ("PyTorch", torch),
        ]
        return check_up(checks, host)

    def server_findings(self, port: int) -> list[Finding]:
        """Whether the libraries are in effect in the server that listens at `port` here.

        Of kernels nothing is said where there are none to record: without a GPU, and without the library.
        """
        pids = listening_pids(port)
        batches, kernels = injected(pids, "batches"), injected(pids, "kernels")
        found = [_in_server("batch", "batches", batches)]
        if kernels.folder is not None or missing_kernels() != NO_GPU:
            found.append(_in_server("kernel", "kernels", kernels))
        return found

    def ray_findings(self, settled: RayPriority) -> list[Finding]:
        """What the Ray that started this process does to processes; `settled`: to this one."""
        checks: list[tuple[str, Checkup]] = [
            ("Ray", ray_authentication),
            ("Ray niceness", lambda _: ray_niceness(settled)),
            ("Ray memory monitor", ray_memory_monitor),
            ("Ray health checks", ray_health_checks),
        ]
        return check_up(checks, ThisHost())

    def clock_domain(self) -> str:
        """See `squall.actors.clock.clock_domain`."""
        return clock_domain()

    def open_clock(self, host: str) -> tuple[tuple[str, int], bytes]:
        """Address and token of a clock responder at `host`, until `close`. Raises ClusterError."""
        try:
            self._responder = ClockResponder(SystemClock(), host)
        except OSError as error:
            raise ClusterError(f"cannot listen at {host}: {error.strerror}") from error
        return self._responder.address, self._responder.token

    def close(self) -> None:
        if self._responder is not None:
            self._responder.close()


def _in_server(library: str, what: str, found: Injected) -> Finding:
    if found.folder is None:
        return Finding("server", "limited", f"its {what} are not recorded: {found.reason}", INJECT_MEND)
    if found.writer == "hook":
        return Finding("server", "ok", "Python models of it record their batches")
    return Finding("server", "ok", f"the {library} library is in it")


def _prove(tools: NsysTools) -> tuple[int, int]:
    try:
        with tempfile.TemporaryDirectory(prefix="squall-doctor-") as folder:
            return prove_nsys(tools, Path(folder), count_events)
    except OSError as error:
        raise ClusterError(f"its files: {error.strerror}") from error
    except AnalysisError as error:
        raise ClusterError(str(error)) from error


def _gpu_facts() -> Mapping[str, Any]:
    """After two samples: what a GPU refuses and whether GPM works is known only then."""
    source = GpuSource()
    try:
        source.sample(0)
        time.sleep(_GPM_PAIR_S)
        source.sample(0)
        return source.facts()
    finally:
        source.close()


def _is_fetched() -> bool:
    """Whether the wheel's server lies in the cache, so that looking for it fetches nothing."""
    return (cache_dir() / f"triton-{WHEEL.replace('==', '-')}" / "complete").exists()


def triton(host: Host, home: Callable[[], TritonHome], is_here: Callable[[], bool]) -> Finding:
    """The server that a run would start: its version, and whether its Python backend finds a libpython."""
    if shutil.which("tritonserver") is None and not is_here():
        what = f"no tritonserver on the PATH; the first run fetches {WHEEL} from the package index"
        return Finding(
            "Triton", "limited", what, "squall demo, once, or SQUALL_CACHE_DIR of a node that has it"
        )
    try:
        found = home()
    except TargetError as error:
        what, _, mend = " ".join(str(error).split()).partition(": ")
        return Finding("Triton", "missing", what, mend or _TRITON_MEND)
    where = "on the PATH" if found.source == "PATH" else "of the wheel"
    what = f"{found.version or 'of a version that nothing tells'}, {where}"
    result = _triton_runs(host, found, what)
    if found.source == "PATH" or result.status != "ok":
        return result
    try:
        return replace(result, what=f"{result.what}; models of a repository import {require_numpy()}")
    except TargetError as error:
        what, _, mend = str(error).partition("; ")
        return replace(result, status="limited", what=f"{result.what}; for models: {what}", mend=mend)


def _triton_runs(host: Host, home: TritonHome, what: str) -> Finding:
    libraries = ":".join([*map(str, home.library_dirs), os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")
    answer = host.ask("env", f"LD_LIBRARY_PATH={libraries}", str(home.binary), "--help")
    if answer is None or "Usage: tritonserver" not in answer.text:  # its exit code is 1 all the same
        last = answer.text.splitlines()[-1] if answer is not None and answer.text else "it gives no answer"
        return Finding("Triton", "missing", f"{what}, does not start: {last}", _TRITON_MEND)
    backends = home.backends or home.binary.resolve().parents[1] / "backends"
    stub = backends / "python" / "triton_python_backend_stub"
    if not stub.exists():
        return Finding(
            "Triton", "limited", f"{what}, has no Python backend: no model of the zoo", _TRITON_MEND
        )
    linked = host.ask("env", f"LD_LIBRARY_PATH={libraries}", "ldd", str(stub))
    return _stub_finding(what, linked.text if linked is not None else "")


def _stub_finding(what: str, linked: str) -> Finding:
    """Whether the stub's libpython is there and is this Python's, from what ldd(1) says."""
    own = f"libpython{'.'.join(platform.python_version_tuple()[:2])}.so"
    python = next((line.strip() for line in linked.splitlines() if "libpython3" in line), "")
    if "not found" in python:
        name = python.split()[0]
        mend = f"apt-get install {name.partition('.so')[0]}"
        return Finding("Triton", "missing", f"{what}, its Python backend lacks {name}", mend)
    if python and not python.startswith(own):
        other = python.split()[0].partition(".so")[0].removeprefix("libpython")
        text = f"{what}, its Python backend is of {other}: packages of this environment do not load there"
        return Finding("Triton", "limited", text, f"make the environment with Python {other}")
    return Finding(
        "Triton", "ok", f"{what}, with a Python backend of {'.'.join(platform.python_version_tuple()[:2])}"
    )


def lane(host: Host) -> Finding:
    """Whether requests go through C; a run over TLS or with max_in_flight does without it all the same."""
    del host
    if IS_BUILT:
        return Finding("C lane", "ok", "built: requests go through C, but over TLS or with max_in_flight")
    return Finding("C lane", "limited", f"{NOT_BUILT}: {LANE_COST}", BUILD_MEND)


def library(host: Host) -> Finding:
    """Whether batches of models that record none themselves can be recorded."""
    del host
    if built_library("batches") is not None:
        return Finding("batch library", "ok", "built: batches of any model are recorded")
    what = "not built: only heads of squall record their batches"
    return Finding("batch library", "limited", what, BUILD_MEND)


def torch(host: Host) -> Finding:
    """Needed for models of framework torch alone; not imported here, that takes seconds."""
    version = host.package("torch")
    if version is None:
        what = "not installed: model.framework torch cannot be served"
        return Finding("PyTorch", "limited", what, "pip install torch")
    return Finding("PyTorch", "ok", version)


def ray_authentication(host: Host) -> Finding:
    """Whether Ray of this node takes calls from anybody who reaches its ports."""
    mode = host.environ("RAY_AUTH_MODE")
    if mode is None:
        folder = Path(host.environ("HOME") or "/") / ".ray"
        mode = "token" if host.environ("RAY_AUTH_TOKEN") or host.read(f"{folder}/auth_token") else "disabled"
    if mode.lower() == "token":
        return Finding("Ray", "ok", f"{host.package('ray')}, calls need a token")
    what = f"{host.package('ray')}: whoever reaches its ports can run code here (RAY_AUTH_MODE {mode})"
    return Finding("Ray", "limited", what, _AUTH_MEND)
