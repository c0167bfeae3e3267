"""What a request of Locust's costs, beside one of squall's closed loop: the same users, bytes and Triton, in one run.

    python -m tests.bench.locust_cost [USERS] [SECONDS] [ROUNDS]

prints one table (on stderr how far it is) and then all figures as JSON. Each figure is of a whole `squall run`:
users who send the same request again as soon as they are answered, by Locust with a FastHttpUser and by squall's
own client, each with 1 and with 2 workers, in turn, the order reversed in every second round. The Triton is one
process for all of them.

- `cpu_us`: CPU of all processes of the load generator in the measured phase (`clients_ns` of `cpu_samples`:
  workers, of Locust its master and what writes its rows too) a second, over the requests sent in one.
- `rate_hz`: requests sent in the phase that ended ok, over its length: with no think time the highest that these
  workers reach with these users.
- `p50_ms`, `p95_ms`: service times by the rows; `own_p50_ms`, `own_p95_ms`: as Locust itself reports them, rounded,
  over the whole run.
- `seen_ms`: users / rate, what a request took its user by Little's law; `gap`: the share of it that is in no
  service time.

Nothing else may use the host meanwhile. A run with a failed request raises RuntimeError: there is no figure then. A
run that is INVALID has figures all the same, under that word: a load generator at its limit is what is measured.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import squall
from squall.analysis.run import Run
from squall.analysis.storage.timeline import measure_spans
from tests.bench.target import Target, real_triton

_PHASE = "measure"
_WARMUP_S = 2.0
_WORKERS = (1, 2)
_LOCUSTFILE = """
from pathlib import Path

from locust import FastHttpUser, constant, task

BODY = (Path(__file__).parent / "body").read_bytes()
HEADERS = {{"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "{n_json_bytes}"}}


class Caller(FastHttpUser):
    wait_time = constant(0)

    @task
    def infer(self):
        self.client.post("{path}", data=BODY, headers=HEADERS)
"""


@dataclass(frozen=True)
class Figure:
    """One run; see the module. `own_…` None of squall's own client, whose figures are the rows'."""

    tool: str
    n_workers: int
    status: str
    n_requests: int
    rate_hz: float
    cpu_us: float
    p50_ms: float
    p95_ms: float
    own_p50_ms: float | None
    own_p95_ms: float | None
    seen_ms: float
    gap: float


def scenario(
    target: Target, tool: str, n_workers: int, users: int, seconds: float, folder: Path
) -> dict[str, Any]:
    """Of `locust` or `squall`, with the files that it needs in `folder`."""
    phases: list[dict[str, Any]] = [
        {"name": "warmup", "kind": "warmup", "duration": f"{_WARMUP_S}s"},
        {"name": _PHASE, "kind": "measure", "duration": f"{seconds}s"},
        {"name": "drain", "kind": "drain", "duration": "2s"},
    ]
    whole: dict[str, Any] = {
        "name": f"{tool}-{n_workers}", "seed": 1, "model": {"name": target.model, "version": target.version},
        "server": {"url": f"http://{target.host}:{target.http_port}", "grpc_port": target.grpc_port},
        "clients": {"workers_per_node": n_workers}, "phases": phases, "profile": {"nsys": "off", "nvml": "off"},
    }  # fmt: skip
    if tool == "squall":
        for phase in phases[:2]:
            phase["arrivals"] = {"kind": "closed", "users": users}
        return whole
    _, n_json_bytes = target.write_body(folder)
    file = folder / "locustfile.py"
    file.write_text(_LOCUSTFILE.format(n_json_bytes=n_json_bytes, path=target.infer_path))
    locust = {"file": str(file), "include": [str(folder / "body")], "users": users, "spawn_rate": users}
    return {**whole, "load": {"locust": locust}}


def figure_of(run: Run, tool: str, n_workers: int, users: int) -> Figure:
    """Raises RuntimeError where a request failed, or none was measured."""
    span = next(one for one in measure_spans(run.manifest) if one.name == _PHASE)
    seconds = (span.end_ns - span.start_ns) / 1e9
    rows = run.table("requests", ["outcome", "sent_ns", "done_ns"], phase=_PHASE)
    outcomes = rows.column("outcome").to_pylist()
    if not outcomes or set(outcomes) != {"ok"}:
        raise RuntimeError(f"{tool} is void: {len(outcomes)} requests, {sorted(set(outcomes))}; {run.path}")
    sent, done = (rows.column(name).to_numpy() for name in ("sent_ns", "done_ns"))
    service_ms = (done - sent) / 1e6
    p50, p95 = np.percentile(service_ms, [50, 95])
    samples = run.table("cpu_samples", ["clients_ns", "interval_ns"], phase=_PHASE)
    cpu_ns, sampled_ns = (
        int(np.sum(samples.column(name).to_numpy())) for name in ("clients_ns", "interval_ns")
    )
    own = _own_quantiles(run)
    rate_hz = len(outcomes) / seconds
    seen_ms = users / rate_hz * 1e3
    return Figure(
        tool=tool,
        n_workers=n_workers,
        status=run.verdict.status,
        n_requests=len(outcomes),
        rate_hz=rate_hz,
        cpu_us=cpu_ns / sampled_ns * 1e6 / rate_hz,
        p50_ms=float(p50),
        p95_ms=float(p95),
        own_p50_ms=own.get("0.5"),
        own_p95_ms=own.get("0.95"),
        seen_ms=seen_ms,
        gap=1.0 - float(np.mean(service_ms)) / seen_ms,
    )


def _own_quantiles(run: Run) -> dict[str, float]:
    """Of Locust's only name; none of another load."""
    if run.manifest.locust is None:
        return {}
    (entry,) = (one for one in run.manifest.locust.entries if one.method == "POST")
    return dict(entry.quantiles_ms)


def measured(target: Target, users: int, seconds: float, n_rounds: int, out: Path) -> list[Figure]:
    """All figures, in the order in which they were measured."""
    cells = [(tool, n_workers) for tool in ("squall", "locust") for n_workers in _WORKERS]
    found = []
    for number in range(n_rounds):
        for tool, n_workers in cells if number % 2 == 0 else cells[::-1]:
            folder = out / f"{number}-{tool}-{n_workers}"
            folder.mkdir()
            run = squall.run(scenario(target, tool, n_workers, users, seconds, folder), folder)
            found.append(figure_of(run, tool, n_workers, users))
            print(f"round {number + 1} of {n_rounds}: {found[-1]}", file=sys.stderr)
    return found


def table(found: Sequence[Figure]) -> list[str]:
    """A line for each tool and number of workers: medians over the rounds, of the first two figures the range too."""
    columns = (
        "workers",
        "rate/s",
        "CPU us/request",
        "p50 ms",
        "p95 ms",
        "own p50",
        "own p95",
        "users/rate ms",
        "gap",
    )
    lines = [" | ".join(("tool", *columns)), " | ".join(["---"] * (len(columns) + 1))]
    for tool, n_workers in dict.fromkeys((one.tool, one.n_workers) for one in found):
        own = [one for one in found if (one.tool, one.n_workers) == (tool, n_workers)]

        def middle(name: str, own: Sequence[Figure] = own) -> float | None:
            values = [value for one in own if (value := getattr(one, name)) is not None]
            return statistics.median(values) if values else None

        def ranged(name: str, digits: int, own: Sequence[Figure] = own) -> str:
            values = [getattr(one, name) for one in own]
            return f"{middle(name):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"

        told = [middle(name) for name in ("p50_ms", "p95_ms", "own_p50_ms", "own_p95_ms", "seen_ms")]
        times = ["-" if one is None else f"{one:.3g}" for one in told]
        cells = [str(n_workers), ranged("rate_hz", 0), ranged("cpu_us", 1), *times, f"{middle('gap'):.1%}"]
        lines.append(" | ".join((tool, *cells)))
    return lines


def main(users: int = 64, seconds: float = 5.0, n_rounds: int = 3) -> None:
    with real_triton() as target, tempfile.TemporaryDirectory(prefix="squall-bench-") as folder:
        found = measured(target, users, seconds, n_rounds, Path(folder))
    print("\n".join(table(found)))
    print(json.dumps([asdict(one) for one in found]))


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float, int), sys.argv[1:], strict=False)))
