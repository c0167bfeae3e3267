"""`squall perf` beside perf_analyzer: the same command lines against one Triton, in turn.

    python -m tests.bench.perf_flags [ROUNDS [FOLDER [null]]]

perf_analyzer is the program that SQUALL_BENCH_PERF_ANALYZER names, else the one on the PATH. Each line runs ROUNDS
times (3), the two tools in turn, so that drift of the host is in both. Printed as Markdown: throughput, p50 (the
percentile asked for, or with --verbose-csv the average) and p99 of each round, whether the headers of the CSV are
equal, and exit codes. FOLDER keeps what both wrote. With `null` the server is the null Triton, which takes 5 ms for
each request, so that the right figures are known; over HTTP alone, perf_analyzer asks more of gRPC than it answers.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.rivals import perf_analyzer_path
from tests.bench.target import real_triton
from tests.null_process import NullProcess

_COMMON = ("-p", "1000", "-s", "60")
"""Windows of a second, stable within 60 %: what is compared is the figures, and on a shared host 10 % is not met by
either."""
REAL_LINES = (
    "",
    "-i grpc --concurrency-range 4",
    "-b 4 --shape INPUT:64",
    "--shared-memory=system",
    "--input-data zero --verbose-csv",
)
NULL_LINES = (
    "",
    "--concurrency-range 2:4:2",
    "--percentile=95 --concurrency-range 2",
    "--request-rate-range 100 -a",
    "--request-rate-range 100 --request-distribution poisson -a",
    "--measurement-mode=count_windows --measurement-request-count=200",
    "--request-count 300",
)
"""After the examples of perf_analyzer's documentation, with models that are here."""
_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Told:
    """What one run of a tool wrote: the exit code and the CSV; no rows where it wrote none."""

    code: int
    header: tuple[str, ...]
    rows: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class Place:
    """Where a server answers, its model, and the command lines for it."""

    host: str
    http_port: int
    grpc_port: int
    model: str
    lines: tuple[str, ...]


@contextmanager
def real() -> Iterator[Place]:
    with real_triton() as target:
        yield Place(target.host, target.http_port, target.grpc_port, target.model, REAL_LINES)


@contextmanager
def null() -> Iterator[Place]:
    with NullProcess("--service=constant:5ms") as server:
        yield Place("127.0.0.1", server.ports["http"], server.ports["grpc"], "linear_head", NULL_LINES)


def run(command: Sequence[str], target: Place, line: str, folder: Path) -> Told:
    """One run; its output and CSV stay in `folder`."""
    folder.mkdir(parents=True)
    report = folder / "report.csv"
    is_grpc = "-i grpc" in line
    place = ["-u", f"{target.host}:{target.grpc_port if is_grpc else target.http_port}"]
    words = [*command, "-m", target.model, *place, *_COMMON, *line.split(), "-f", str(report)]
    if is_grpc and command[-1] == "perf":
        words += ["--http-url", f"{target.host}:{target.http_port}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    (folder / "output.txt").write_text(f"{' '.join(words)}\n{done.stdout}\n{done.stderr}")
    if not report.exists():
        return Told(done.returncode, (), ())
    rows = list(csv.DictReader(report.read_text().strip().splitlines()))
    return Told(done.returncode, tuple(rows[0]), tuple(rows))


def _of_level(told: Told, level: str) -> dict[str, str]:
    return next((row for row in told.rows if next(iter(row.values())) == level), {})


def _figures(told: Sequence[Told], level: str, column: str) -> str:
    return " / ".join(_of_level(one, level).get(column, "-") for one in told)


def main(rounds: int = 3, keep: str | None = None, server: str = "real") -> None:
    program = perf_analyzer_path()
    if program is None:
        raise SystemExit(
            "perf_analyzer is not installed: pip install perf-analyzer, and set SQUALL_BENCH_PERF_ANALYZER"
        )
    tools = {
        "perf_analyzer": [program],
        "squall perf": [sys.executable, "-m", "squall.cluster.entry", "perf"],
    }
    print(
        "| flags | level | tool | infer/s | latency µs | p99 µs | header | exit |\n|---|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as name, {"real": real, "null": null}[server]() as target:
        folder = Path(keep or name)
        for number, line in enumerate(target.lines):
            told: dict[str, list[Told]] = {tool: [] for tool in tools}
            for at in range(rounds):
                for tool in sorted(tools, reverse=bool(at % 2)):
                    place = folder / f"{number}-{at}-{tool.replace(' ', '-')}"
                    told[tool].append(run(tools[tool], target, line, place))
            _print(line, told)


def _print(line: str, told: dict[str, list[Told]]) -> None:
    headers = {one.header for all_of in told.values() for one in all_of if one.header}
    is_same = "same" if len(headers) == 1 else "other"
    decides = (
        "p95 latency"
        if "--percentile=95" in line
        else "Avg latency"
        if "--verbose-csv" in line
        else "p50 latency"
    )
    levels = {
        next(iter(row.values())): None for all_of in told.values() for one in all_of for row in one.rows
    }
    for level in sorted(levels, key=float):
        for tool, all_of in told.items():
            columns = (_figures(all_of, level, one) for one in ("Inferences/Second", decides, "p99 latency"))
            codes = " ".join(str(one.code) for one in all_of)
            print(
                f"| `{line}` | {level} | {tool} | {' | '.join(columns)} | {is_same} | {codes} |", flush=True
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, *sys.argv[2:])
