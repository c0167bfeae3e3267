"""What a gRPC request costs the client, beside `h2load` of nghttp2: the same bytes to the same server.

    python -m tests.bench.h2load [SECONDS] [--triton]

prints one JSON object. Both have 4 connections and 64 calls in flight, in a closed loop without think time, against the
null Triton on loopback (`--triton`: a real one), in turn: ours, h2load, ours, … in three rounds after one that is
thrown away. h2load sends as many requests as ours did in SECONDS (4). CPU is user and system time of the client
process, of the long run less that of a short one, over the difference of their requests: start-up cancels. A run
in which a request fails raises RuntimeError.

`normal`: both are scheduled as any process is. `real time`: both with SCHED_FIFO, as squall's sender is where it may; a
client that goes first wakes for each reply, so that it reads few at a time, where the server wants its core.

What each does beside sending and reading: h2load posts one body again and again, and looks at the HTTP status
alone; ours writes another id into each request, compares each reply with what the model promises, draws which payload
is sent when, and keeps a row of each on disk.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from squall.actors.load.lane import IS_BUILT
from squall.actors.messages.grpc_wire import PATH, grpc_template
from squall.actors.process.priority import Priority
from tests.bench.engine import closed
from tests.bench.target import REQUEST_ID, Target, real_triton, run_client
from tests.null_process import NullProcess, null_spec

_CONNECTIONS, _STREAMS = 4, 16
_ROUNDS = 3
_SHORT_SHARE = 0.4
_INSTALL = "apt-get install nghttp2-client"
_SCHEDULING: dict[str, tuple[Priority, list[str]]] = {
    "normal": ("normal", []),
    "real time": ("auto", ["chrt", "--fifo", "1"]),
}
"""Of each way both are scheduled: ours, and what starts h2load so."""


def schedulings() -> list[str]:
    """Those that this process may have."""
    return [
        name for name, (_, first) in _SCHEDULING.items()
        if not first or not subprocess.run([*first, "true"], capture_output=True).returncode
    ]  # fmt: skip


@contextmanager
def null_triton(width: int = 64) -> Iterator[Target]:
    """The null Triton as a target: it answers at once, with zeros."""
    spec = null_spec(width)
    with NullProcess(f"--width={width}") as server:
        ports = server.ports
        yield Target("127.0.0.1", ports["http"], ports["grpc"], spec.name, spec.version, spec, "null")


def write_message(target: Target, folder: Path) -> Path:
    """The request as ours sends it, with its length before it, in a file."""
    template = grpc_template(target.spec, target.inputs(), 1)
    path = folder / "message"
    path.write_bytes(template.head + REQUEST_ID.encode() + template.tail)
    return path


def h2load(target: Target, n_requests: int, seconds: float, first: list[str]) -> float:
    """CPU us per request of h2load, in one thread, started by `first`; `seconds`: about how long that takes."""
    url = f"http://{target.host}:{target.grpc_port}{PATH}"
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *first, "h2load", "-c", str(_CONNECTIONS), "-m", str(_STREAMS), "-H", "content-type: application/grpc",
            "-H", "te: trailers", "-d", str(write_message(target, Path(folder))),
        ]  # fmt: skip
        short, long = (
            run_client(target, "h2load", [*command, "-n", str(n), url], 2 * seconds, _said)
            for n in (round(_SHORT_SHARE * n_requests), n_requests)
        )
    return (long.cpu_s - short.cpu_s) / (long.n_requests - short.n_requests) * 1e6


def _said(stdout: str) -> dict[str, Any]:
    found = re.search(r"(\d+) succeeded, (\d+) failed", stdout)
    if not found:
        raise RuntimeError(f"h2load is void, it says {stdout[-2_000:]}")
    return {"n_ok": int(found[1]), "n_failed": int(found[2])}


def beside(target: Target, seconds: float, scheduling: str) -> dict[str, Any]:
    """CPU us per request of both in turn: of each round, the medians and their ratio."""
    priority, first = _SCHEDULING[scheduling]
    ours, theirs, rates_hz = [], [], []
    for _ in range(_ROUNDS + 1):
        figure = closed(target, "grpc", _CONNECTIONS * _STREAMS, seconds, priority=priority)
        ours.append(figure["cpu_us_per_request"])
        theirs.append(round(h2load(target, figure["n_requests"], seconds, first), 2))
        rates_hz.append(figure["rate_hz"])
    ours, theirs = ours[1:], theirs[1:]
    medians = {"squall": statistics.median(ours), "h2load": statistics.median(theirs)}
    return {
        "scheduling": scheduling, "rate_hz": rates_hz[1:], "cpu_us_per_request": {"squall": ours, "h2load": theirs},
        "medians": medians, "ratio": round(medians["squall"] / medians["h2load"], 2),
        "ratio_by_round": [round(one / other, 2) for one, other in zip(ours, theirs, strict=True)],
    }  # fmt: skip


def main(arguments: list[str]) -> None:
    if shutil.which("h2load") is None:
        print(f"h2load is not installed: {_INSTALL}", file=sys.stderr)
        return
    seconds = float(next((one for one in arguments if one != "--triton"), 4.0))
    with real_triton() if "--triton" in arguments else null_triton() as target:
        figures = [beside(target, seconds, scheduling) for scheduling in schedulings()]
    about = subprocess.run(["h2load", "--version"], capture_output=True, text=True).stdout.strip()
    machine = {"cpu_count": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    print(
        json.dumps(
            {"machine": machine, "h2load": about, "server": target.server_version, "has_lane": IS_BUILT,
             "figures": figures}, indent=2,
        )
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
