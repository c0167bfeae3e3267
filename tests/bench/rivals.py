"""What other load generators cost the client, side by side against one real Triton.

    python -m tests.bench.rivals

prints a JSON list of figures; tools that are not installed are named on stderr. Tools are looked for on the PATH, or
where SQUALL_BENCH_PERF_ANALYZER (a program) and SQUALL_BENCH_LOCUST_PYTHON (a Python that imports locust, or grpc and
tritonclient.grpc) point.

How a figure is made: the tool runs for 0.4 of the time, then for the whole; requests of a run are the growth of the
server's own success count, not what the tool says of itself. CPU is user + system time of the tool's process and all
its children (wait4), and `cpu_us_per_request` is (CPU of the long run - CPU of the short) / (requests of the long
- requests of the short): start-up cancels. Quantiles are those of the long run, as the tool gives them. A run with an
error of any kind raises RuntimeError: there is no figure then. Nothing else may use the server meanwhile.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.bench.target import REQUEST_ID, ClientRun, Target, real_triton, run_client

_HERE = Path(__file__).parent
_TIMEOUT_S = 30.0
_SHORT_SHARE = 0.4
_ALIGNED = 0.2
"""Correlation of sent and scheduled gaps above which they belong together; gaps out of step have about 0."""
_WINDOWS = 3
_WINDOW_STRETCH = 1.2
"""perf_analyzer measures three windows, each 1.2 x the interval that it is given (2.60, seen in its exports)."""
_WRK_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/octet-stream"
wrk.headers["Inference-Header-Content-Length"] = "{n_json_bytes}"
wrk.body = assert(io.open({body}, "rb")):read("*a")
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\n{{"n_ok": %d, "n_failed": %d, "elapsed_s": %f, "service_us": {{"p50": %f, "p95": %f, "p99": %f}}}}\\n',
    summary.requests - e.status, e.connect + e.read + e.write + e.status + e.timeout, summary.duration / 1e6,
    latency:percentile(50), latency:percentile(95), latency:percentile(99)))
end
"""

Pair = tuple[ClientRun, ClientRun]
Quantiles = dict[str, float] | None
"""In us, by name: p50, p95, p99."""


@dataclass(frozen=True)
class Figure:
    """One tool's cost and what it saw. `n_requests` of the long run; `send_lag_us` where the tool can say."""

    tool: str
    version: str
    protocol: str
    load: str
    n_requests: int
    rate_hz: float
    cpu_us_per_request: float
    service_us: Quantiles
    send_lag_us: Quantiles


def perf_analyzer_path() -> str | None:
    """The program that SQUALL_BENCH_PERF_ANALYZER names, else the one on the PATH; None where there is none."""
    return shutil.which(os.environ.get("SQUALL_BENCH_PERF_ANALYZER", "perf_analyzer"))


def _rival_python() -> str:
    return os.environ.get("SQUALL_BENCH_LOCUST_PYTHON", sys.executable)


def _imports(modules: str) -> bool:
    if shutil.which(_rival_python()) is None:
        return False
    command = [_rival_python(), "-c", f"import {modules}"]
    return subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S).returncode == 0


def missing() -> dict[str, str]:
    """Tools that are not there, and how to install each."""
    python = "and set SQUALL_BENCH_LOCUST_PYTHON to the Python that has it"
    found = {
        "wrk": (shutil.which("wrk"), "apt-get install wrk"),
        "perf_analyzer": (
            perf_analyzer_path(),
            "pip install perf-analyzer, and set SQUALL_BENCH_PERF_ANALYZER",
        ),
        "locust": (_imports("locust"), f"pip install locust, {python}"),
        "grpc.aio": (_imports("grpc.aio, tritonclient.grpc"), f"pip install 'tritonclient[grpc]', {python}"),
    }
    return {tool: hint for tool, (is_there, hint) in found.items() if not is_there}


def wrk(target: Target, users: int, seconds: float) -> Figure:
    """One thread, `users` connections, the request built once. Whole seconds only: wrk takes no others.

    wrk corrects its quantiles for coordinated omission, by adding samples below each long one.
    """
    program = shutil.which("wrk") or "wrk"
    with tempfile.TemporaryDirectory() as name:
        body, n_json_bytes = target.write_body(Path(name))
        script = Path(name) / "post.lua"
        script.write_text(_WRK_SCRIPT.format(n_json_bytes=n_json_bytes, body=json.dumps(str(body))))
        url = f"http://{target.host}:{target.http_port}{target.infer_path}"

        def run(run_s: float) -> ClientRun:
            options = ["-t1", f"-c{users}", f"-d{max(1, round(run_s))}s", "-s", str(script)]
            return _run(target, "wrk", [program, *options, url], run_s)

        pair = _pair(run, seconds)
    about = subprocess.run([program, "-v"], capture_output=True, text=True).stdout
    (version,) = re.findall(r"\d+(?:\.\d+)+", about)[:1] or ["unknown"]
    return _figure("wrk", "http", f"closed, {users} users", pair, version=version)


def perf_analyzer(target: Target, protocol: str, users: int, seconds: float) -> Figure:
    """Closed loop, with --sync and with --async; the one that costs less CPU is kept, `load` says which.

    Its own request text around the same tensors. `rate_hz` is its own throughput.
    """
    figures = []
    for mode in ("sync", "async"):
        options = [f"--{mode}", "--concurrency-range", str(users)]
        pair = _pair(partial(_perf_analyzer_run, target, protocol, options), seconds)
        figures.append(_figure("perf_analyzer", protocol, f"closed, {users} users, {mode}", pair))
    return min(figures, key=lambda figure: figure.cpu_us_per_request)


def perf_analyzer_open(target: Target, rate_hz: float, protocol: str, seconds: float) -> Figure:
    """Poisson arrivals, --async. `rate_hz` of the figure is its own throughput.

    Send lag comes from a third run that replays known gaps (--request-intervals) and exports every stamp: send instant
    minus scheduled one, relative to its most punctual one, so a lower bound; None where the export lacks sends, so that
    gaps do not match. That run costs more CPU: not counted.
    """
    options = ["--async", "--request-rate-range", f"{rate_hz:g}", "--request-distribution", "poisson"]
    pair = _pair(partial(_perf_analyzer_run, target, protocol, options), seconds)
    gaps_us = np.random.default_rng(1).exponential(1e6 / rate_hz, round(3 * rate_hz * seconds))
    gaps_us = np.maximum(gaps_us, 1).astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        gaps, export = Path(folder) / "gaps", Path(folder) / "export.json"
        gaps.write_text("\n".join(map(str, gaps_us)))
        options = ["--async", "--request-intervals", str(gaps), "--profile-export-file", str(export)]
        _perf_analyzer_run(target, protocol, options, seconds)
        requests = json.loads(export.read_text())["experiments"][0]["requests"]
    sent_us = np.sort(np.array([one["timestamp"] for one in requests], np.int64)) / 1e3
    n, half = len(sent_us), len(sent_us) // 2
    late_us = sent_us - np.cumsum(gaps_us)[:n]
    late_us -= late_us.min()
    is_aligned = np.corrcoef(np.diff(sent_us[half:]), gaps_us[half + 1 : n])[0, 1] > _ALIGNED
    lag_us = {f"p{q}": round(float(np.percentile(late_us, q)), 1) for q in (50, 99)} if is_aligned else None
    return _figure("perf_analyzer", protocol, f"open, {rate_hz:g}/s", pair, send_lag_us=lag_us)


def locust(target: Target, users: int, seconds: float) -> Figure:
    """FastHttpUser, one process, no wait; see rival_locust."""
    with tempfile.TemporaryDirectory() as folder:
        program = [_rival_python(), str(_HERE / "rival_locust.py")]
        command = [*program, *_http_arguments(target, folder), str(users)]
        pair = _pair(lambda run_s: _run(target, "locust", [*command, str(run_s)], run_s), seconds)
    return _figure("locust", "http", f"closed, {users} users", pair)


def grpc_aio(target: Target, users: int, seconds: float) -> Figure:
    """One channel, `users` coroutines, a message serialised once, replies not parsed; see rival_grpc_aio."""
    inputs = target.inputs()
    tensors = [
        {"name": name, "datatype": datatype, "shape": inputs[name].shape, "hex": inputs[name].tobytes().hex()}
        for name, datatype in ((tensor.name, tensor.datatype) for tensor in target.spec.inputs)
    ]
    request = {"model": target.model, "version": target.version, "id": REQUEST_ID}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "request.json"
        file.write_text(json.dumps(request | {"inputs": tensors}))
        program, address = str(_HERE / "rival_grpc_aio.py"), f"{target.host}:{target.grpc_port}"
        command = [_rival_python(), program, address, str(file), str(users)]
        pair = _pair(lambda run_s: _run(target, "grpc.aio", [*command, str(run_s)], run_s), seconds)
    return _figure("grpc.aio", "grpc", f"closed, {users} users", pair)


def call_later_pacer(
    target: Target, offsets_ns: NDArray[np.int64], n_connections: int = 64, loop: str | None = None
) -> Figure:
    """Open loop at `offsets_ns` (sorted), one call_later a request; see rival_pacer.

    `loop`: uvloop or asyncio; None means uvloop where it can be imported.
    """
    loop = loop or ("uvloop" if importlib.util.find_spec("uvloop") else "asyncio")
    seconds = float(offsets_ns[-1]) / 1e9
    with tempfile.TemporaryDirectory() as folder:
        offsets = Path(folder) / "offsets"
        offsets.write_bytes(offsets_ns.astype("<i8").tobytes())
        program = [sys.executable, str(_HERE / "rival_pacer.py")]
        command = [*program, *_http_arguments(target, folder), str(offsets)]

        def run(run_s: float) -> ClientRun:
            count = np.count_nonzero(offsets_ns / 1e9 <= run_s)
            return _run(target, "asyncio", [*command, str(count), str(n_connections), loop], run_s)

        pair = _pair(run, seconds)
    return _figure("asyncio", "http", f"open, {len(offsets_ns) / seconds:.0f}/s", pair)


def _http_arguments(target: Target, folder: str) -> list[str]:
    body, n_json_bytes = target.write_body(Path(folder))
    return [target.host, str(target.http_port), target.infer_path, str(body), str(n_json_bytes)]


def _pair(run: Callable[[float], ClientRun], seconds: float) -> Pair:
    return run(_SHORT_SHARE * seconds), run(seconds)


def _run(target: Target, tool: str, command: list[str], seconds: float) -> ClientRun:
    """Of a tool whose last line is its result in JSON."""
    return run_client(target, tool, command, seconds, lambda out: json.loads(out.splitlines()[-1]))


def _perf_analyzer_run(target: Target, protocol: str, options: list[str], seconds: float) -> ClientRun:
    """Three windows that last `seconds` in all; the stability check, which would stop the tool, is off."""
    program = perf_analyzer_path() or "perf_analyzer"
    about = subprocess.run([program, "--version"], capture_output=True, text=True)
    port = target.http_port if protocol == "http" else target.grpc_port
    with tempfile.TemporaryDirectory() as name:
        report, tensors = Path(name) / "report.csv", Path(name) / "tensors"
        tensors.mkdir()
        for tensor, values in target.inputs().items():
            (tensors / tensor).write_bytes(values.tobytes())

        def read(stdout: str) -> dict[str, Any]:
            (row,) = csv.DictReader(report.read_text().strip().splitlines())
            counted = re.search(r"Request count: (\d+)", stdout)
            return {
                "version": (about.stdout + about.stderr).strip().removeprefix("Perf Analyzer Version "),
                "n_ok": int(counted[1]) if counted else 0,
                "n_failed": 0,
                "rate_hz": float(row["Inferences/Second"]),
                "service_us": {f"p{q}": float(row[f"p{q} latency"]) for q in (50, 95, 99)},
            }

        interval_ms = round(seconds / _WINDOWS / _WINDOW_STRETCH * 1_000)
        command = [
            program, "-m", target.model, "-x", target.version, "-i", protocol, "-u", f"{target.host}:{port}",
            "-b", "1", "--input-data", str(tensors), "--measurement-mode", "time_windows", "-p", str(interval_ms),
            "-s", "9999", "-r", str(_WINDOWS), "-f", str(report), *options,
        ]  # fmt: skip
        return run_client(target, "perf_analyzer", command, seconds, read)


def _figure(tool: str, protocol: str, load: str, pair: Pair, **more: Any) -> Figure:
    """`more` adds to what the long run said."""
    short, long = pair
    said, n = long.said | more, long.n_requests
    if n <= short.n_requests:
        raise RuntimeError(f"{tool} is void: {n} requests in the long run, {short.n_requests} in the short")
    rate_hz = round(said.get("rate_hz") or n / said["elapsed_s"], 1)
    cpu_us = round((long.cpu_s - short.cpu_s) / (n - short.n_requests) * 1e6, 1)
    lag_us = said.get("send_lag_us")
    return Figure(tool, said["version"], protocol, load, n, rate_hz, cpu_us, said["service_us"], lag_us)


def main(users: int = 8, seconds: float = 5.0, rate_hz: float = 1_000.0) -> None:
    absent = missing()
    for tool, hint in absent.items():
        print(f"{tool} is not installed: {hint}", file=sys.stderr)
    rng = np.random.default_rng(1)
    offsets_ns = np.cumsum(rng.exponential(1e9 / rate_hz, round(rate_hz * seconds))).astype(np.int64)
    with real_triton() as target:
        calls: list[tuple[str, Callable[[], Figure]]] = [
            ("wrk", lambda: wrk(target, users, seconds)),
            ("perf_analyzer", lambda: perf_analyzer(target, "http", users, seconds)),
            ("perf_analyzer", lambda: perf_analyzer(target, "grpc", users, seconds)),
            ("locust", lambda: locust(target, users, seconds)),
            ("grpc.aio", lambda: grpc_aio(target, users, seconds)),
            ("asyncio", lambda: call_later_pacer(target, offsets_ns)),
            ("asyncio", lambda: call_later_pacer(target, offsets_ns, loop="asyncio")),
            ("perf_analyzer", lambda: perf_analyzer_open(target, rate_hz, "http", seconds)),
            ("perf_analyzer", lambda: perf_analyzer_open(target, rate_hz, "grpc", seconds)),
        ]
        figures = [asdict(call()) for tool, call in calls if tool not in absent]
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
