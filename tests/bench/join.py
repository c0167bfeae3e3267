"""What the join of a large run costs, beside a bare query, a pandas merge_asof and nsys stats; and ingest, apart.

    python -m tests.bench.join [--scale RATIO]... [--repeats N]... [--memory SIZE] [--steps WORD]... [--out FOLDER]

prints Markdown. Each step runs in a process of its own on a run of `tests.bench.big_runs`, at scale 0.001, 0.01 and
0.1 (1 is 10 million requests and 50 million kernels: 2.3 GB on the disk, and room to spill), and on an export of
`tests.bench.big_exports` of 1 and 10 repeats (100: 5.5 million kernels, 1.5 GB). Runs and exports are made in FOLDER
and kept there, for the next time; without it in a temporary one. pandas and nsys are passed over where not installed.

Columns: the rows that the step reads; wall and CPU seconds; rows a second of wall; the largest resident memory of the
process (VmHWM); and how many times the CPU time of the size before, over how many times its rows: 1 is linear, and
less where a fixed part still counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from squall.analysis.storage.store import RunStore
from squall.scenarios.units import parse_size
from tests.bench.big_exports import write_big_export
from tests.bench.big_runs import write_big_run
from tests.bench.join_steps import EXPORT_STEPS, RUN_STEPS, Step

MIB = 1 << 20
SCALES = (0.001, 0.01, 0.1)
REPEATS = (1, 10)


@dataclass(frozen=True)
class Cost:
    """What a step took. `failure` is why it did not end, empty if it did."""

    rows: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    failure: str = ""


def measured(step: Step, path: Path, memory_limit_bytes: int, n_rows: int) -> Cost:
    """`step` in a process of its own; `n_rows` where it does not say itself how many it read."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, step, path, memory_limit_bytes))
    process.start()
    theirs.close()
    try:
        wall_s, cpu_s, peak_bytes, result, failure = ours.recv()
    except (EOFError, ConnectionError):
        process.join()
        return Cost(n_rows, 0.0, 0.0, 0, f"ended with exit code {process.exitcode}")
    process.join()
    return Cost(result if isinstance(result, int) else n_rows, wall_s, cpu_s, peak_bytes, failure)


def _work(pipe: Connection, step: Step, path: Path, memory_limit_bytes: int) -> None:
    result, failure = None, ""
    start, cpu_before_s = time.perf_counter(), _cpu_s()
    try:
        result = step.do(path, memory_limit_bytes)
    except Exception as error:  # the process edge: told to the parent
        failure = f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    wall_s = time.perf_counter() - start
    peak_bytes = max(_own_peak_bytes(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
    pipe.send((wall_s, _cpu_s() - cpu_before_s, peak_bytes, result, failure))


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _own_peak_bytes() -> int:
    """Largest resident memory since the process began; ru_maxrss would count that of the parent before the exec."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status states no VmHWM: Linux is needed")


def lines_of(title: str, costs: Iterable[Cost]) -> Iterator[str]:
    """A line of the table for each size."""
    before: Cost | None = None
    for cost in costs:
        cells = [title, f"{cost.rows:,}", f"{cost.wall_s:.1f}", f"{cost.cpu_s:.1f}"]
        cells += [f"{cost.rows / cost.wall_s:,.0f}" if cost.wall_s else "", f"{cost.peak_bytes / MIB:,.0f}"]
        if cost.failure:
            cells[4] = cost.failure
        grew = before is not None and before.cpu_s > 0 and not (cost.failure or before.failure)
        cells.append(
            f"{cost.cpu_s / before.cpu_s / (cost.rows / before.rows):.2f}" if before and grew else ""
        )
        yield f"| {' | '.join(cells)} |"
        before = cost


def table(
    steps: dict[str, Step], paths: list[Path], memory_limit_bytes: int, counts: list[dict[str, int]]
) -> Iterator[str]:
    """The table, a step after the other; on each path in order of size."""
    yield "| step | rows | wall s | CPU s | rows/s | peak MiB | CPU ratio / rows ratio |"
    yield "|---|---|---|---|---|---|---|"
    for step in steps.values():
        if step.needs and not (find_spec(step.needs) or shutil.which(step.needs)):
            yield f"| {step.title} | not installed | | | | | |"
            continue
        rows = [sum(count.get(name, 0) for name in step.reads) for count in counts]
        costs = [measured(step, path, memory_limit_bytes, n) for path, n in zip(paths, rows, strict=True)]
        yield from lines_of(step.title, costs)


def runs(folder: Path, scales: Iterable[float]) -> list[Path]:
    """A run of each scale, made in `folder` unless it is there."""
    found = []
    for scale in scales:
        parent = folder / f"scale-{scale:g}"
        sealed = [
            path.parent for path in parent.glob("*/manifest.json") if RunStore.open(path.parent).is_sealed
        ]
        found.append(sealed[0] if sealed else write_big_run(parent, scale).run_dir)
    return found


def exports(folder: Path, repeats: Iterable[int]) -> list[Path]:
    """An export of each number of repeats, made in `folder` unless it is there."""
    found = []
    for n in repeats:
        path = folder / f"repeats-{n}.sqlite"
        if not path.exists():
            write_big_export(path.with_suffix(".open"), n).rename(path)
        found.append(path)
    return found


def _run_rows(run: Path) -> dict[str, int]:
    return {name: entry.rows for name, entry in (RunStore.open(run).manifest.tables or {}).items()}


def _export_rows(export: Path) -> dict[str, int]:
    tables = {"calls": "CUPTI_ACTIVITY_KIND_RUNTIME", "kernels": "CUPTI_ACTIVITY_KIND_KERNEL"}
    with closing(sqlite3.connect(export)) as file:
        return {
            ours: file.execute(f"SELECT count(*) FROM {theirs}").fetchone()[0]
            for ours, theirs in tables.items()
        }


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.join")
    parser.add_argument("--scale", type=float, nargs="*", default=SCALES)
    parser.add_argument("--repeats", type=int, nargs="*", default=REPEATS)
    parser.add_argument("--memory", type=parse_size, default=parse_size("4GiB"))
    parser.add_argument(
        "--steps", nargs="*", choices=[*RUN_STEPS, *EXPORT_STEPS], default=[*RUN_STEPS, *EXPORT_STEPS]
    )
    parser.add_argument("--out", type=Path)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Prints both tables."""
    options = _options(arguments)
    with TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for known, make, sizes, count in (
            (RUN_STEPS, runs, options.scale, _run_rows),
            (EXPORT_STEPS, exports, options.repeats, _export_rows),
        ):
            steps = {name: step for name, step in known.items() if name in options.steps}
            paths = make(folder, sorted(sizes)) if steps else []
            if paths:
                for line in table(steps, paths, options.memory, [count(path) for path in paths]):
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
                sys.stdout.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
