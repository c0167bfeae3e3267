"""What becomes of a run whose processes are killed or stopped, whose disks or memory fill, or that is interrupted.

    python -m tests.bench.faults [--cells PATTERN,...] [--repeat 3] [--again 20] [-j 1] [--slack 1] [--list]
        [--next cell|each|none] [--known FILE.json,...] [--out FILE.json] [--markdown FILE.md]

Each cell is a fault at a stage of a run of 8 s: `--list` names them; PATTERN is one of these names, * any text. A
cell is run --repeat times, --again times where one of those failed; runs that --known files hold count, so that a table
can be made in several sessions. `tests/bench/fault_checks.py` has what is checked.
--next: a clean run in the same place after the first of each cell, after each run, or none. --slack multiplies every
time limit, for a crowded machine. As root each run has a mount namespace with its own /tmp and /dev/shm; cells that
fill a disk need that. -j runs at once. Exit code 1 where a check failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.fault_cells import STAGES, Cell, all_cells
from tests.bench.fault_checks import failures
from tests.bench.fault_place import enter_own_mounts
from tests.bench.fault_run import Result, run_cell

_TAIL_LINES = 30


@dataclass(frozen=True)
class Options:
    """Of the command line."""

    repeat: int
    again: int
    slack: float
    follow: str


class Book:
    """What came of each run so far, by cell; `out` holds it at any time. Thread-safe."""

    def __init__(self, known: Sequence[Path], out: Path | None) -> None:
        """`known`: files of earlier sessions. Raises OSError, ValueError."""
        self._out = out
        self._lock = threading.Lock()
        self._runs: dict[str, list[dict[str, Any]]] = {}
        for path in known:
            for name, runs in json.loads(path.read_text()).items():
                self._runs.setdefault(name, []).extend(runs)

    def runs(self, cell: Cell) -> list[dict[str, Any]]:
        """Those of a cell, oldest first."""
        with self._lock:
            return list(self._runs.get(cell.name, ()))

    def add(self, cell: Cell, run: dict[str, Any]) -> None:
        """Takes note of one."""
        with self._lock:
            self._runs.setdefault(cell.name, []).append(run)
            if self._out is not None:
                self._out.write_text(json.dumps(self._runs, indent=1))


@dataclass(frozen=True)
class Tried:
    """A cell with what came of each of its runs: JSON's types."""

    cell: Cell
    runs: tuple[dict[str, Any], ...]

    @property
    def n_right(self) -> int:
        """Runs in which every check held."""
        return sum(not run["failures"] and not run["why_not"] for run in self.runs)

    @property
    def n_made(self) -> int:
        """Runs that met their fault."""
        return sum(not run["why_not"] for run in self.runs)


def facts_of(result: Result, seconds: float) -> dict[str, Any]:
    """A run as JSON."""
    seen = result.seen
    made = {
        "took_s": round(seconds, 1),
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    if seen is None:
        failed = {"harness": result.why_not} if result.is_our_fault else {}
        return {"why_not": "" if failed else result.why_not, "failures": failed, **made}
    return {
        "why_not": "", "failures": failures(seen), **made,
        "code": seen.code, "status": seen.status,
        "ended_after_s": round(seen.seconds, 1), "n_planned": seen.n_planned,
        "outcomes": dict(Counter(outcome for _, outcome in seen.rows or ())), "n_received": len(seen.received),
        "n_executed": len(seen.server.executed), "stderr": list(seen.stderr)[-_TAIL_LINES:],
        **({"tracebacks": seen.tracebacks} if seen.tracebacks else {}),
    }  # fmt: skip


def try_cell(cell: Cell, options: Options, book: Book, folder: Path) -> None:
    """Makes the runs that it lacks, more where one failed; one alone where what it strikes is not there."""
    while True:
        runs = book.runs(cell)
        n = max(options.repeat, options.again) if any(run["failures"] for run in runs) else options.repeat
        if len(runs) >= n or (runs and runs[0]["why_not"]):
            return
        begun_s = time.monotonic()
        follows = options.follow == "each" or (options.follow == "cell" and not runs)
        with tempfile.TemporaryDirectory(prefix="f", dir=folder, ignore_cleanup_errors=True) as own:
            try:
                result = run_cell(cell, Path(own) / "c", options.slack, follows)
            except Exception as error:  # one run's trouble must not cost the others' results
                result = Result(cell.name, None, f"{type(error).__name__}: {error}", is_our_fault=True)
        run = facts_of(result, time.monotonic() - begun_s)
        book.add(cell, run)
        told = run["failures"] or run["why_not"] or f"{run['status']}, exit {run['code']}"
        print(f"{cell.name} {len(runs) + 1}/{n} {run['took_s']:.0f} s: {told}", file=sys.stderr, flush=True)


def markdown(tried: Sequence[Tried], command: str) -> str:
    """The table: a row per fault, a column per stage, and beneath what failed."""
    rows: dict[tuple[str, str], dict[str, Tried]] = {}
    for one in tried:
        rows.setdefault((one.cell.subject, one.cell.how), {})[one.cell.stage] = one
    other = [stage for stage in dict.fromkeys(one.cell.stage for one in tried) if stage not in STAGES]
    n_right, n_made = (sum(getattr(one, name) for one in tried) for name in ("n_right", "n_made"))
    lines = [
        f"{n_right} of {n_made} runs in {sum(bool(one.n_made) for one in tried)} cells met every check.",
        f"`{command}`: {_places(tried)}.", "",
        f"| fault | {' | '.join(STAGES)} | other |", "|---|" + "---|" * (len(STAGES) + 1),
    ]  # fmt: skip
    for (subject, how), cells in rows.items():
        others = "; ".join(f"{stage}: {_told(cells[stage])}" for stage in other if stage in cells)
        told = [_told(cells.get(stage)) for stage in STAGES]
        lines.append(f"| {subject}: {how} | {' | '.join(told)} | {others} |")
    failed = [one for one in tried if any(run["failures"] for run in one.runs)]
    if failed:
        lines += ["", "| cell | runs | check | what was seen |", "|---|---|---|---|"]
    for one in failed:
        counts = Counter(name for run in one.runs for name in run["failures"])
        for name, n in counts.items():
            why = next(run["failures"][name] for run in one.runs if name in run["failures"])
            lines.append(f"| {one.cell.name} | {n} of {len(one.runs)} | {name} | {why.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def _places(tried: Sequence[Tried]) -> str:
    """Where and when its runs were made, most first."""
    made = (run for one in tried for run in one.runs if not run["why_not"])
    found = Counter(f"{run['machine']}, {run['date']}" for run in made).most_common()
    return "; ".join(f"{place} ({n} runs)" for place, n in found)


def _told(tried: Tried | None) -> str:
    """How many of its runs met every check, and how they ended."""
    if tried is None:
        return ""
    if not tried.runs:
        return ""
    if not tried.n_made and not any(run["failures"] for run in tried.runs):
        return (
            "not there" if "not there" in tried.runs[0]["why_not"] else f"not run: {tried.runs[0]['why_not']}"
        )
    ends = sorted(
        {run.get("status") or f"exit {run.get('code')}" for run in tried.runs if not run["why_not"]}
    )
    return f"{tried.n_right}/{tried.n_made} {', '.join(ends)}"


def machine() -> str:
    """Cores, memory and system, without a name."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {gib:.0f} GiB, Linux {platform.release().partition('-')[0]}"


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.faults", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--cells", default="*")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--again", type=int, default=20)
    parser.add_argument("-j", type=int, default=1)
    parser.add_argument("--slack", type=float, default=1.0)
    parser.add_argument("--next", choices=("cell", "each", "none"), default="cell")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--known", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    asked = parser.parse_args()
    patterns = asked.cells.split(",")
    cells = [cell for cell in all_cells() if any(fnmatch.fnmatchcase(cell.name, one) for one in patterns)]
    if asked.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    if not cells:
        parser.error(f"--cells {asked.cells}: no such cell")
    enter_own_mounts("tests.bench.faults", sys.argv[1:])
    options = Options(asked.repeat, asked.again, asked.slack, asked.next)
    book = Book([Path(one) for one in asked.known.split(",") if one], asked.out)
    with (
        tempfile.TemporaryDirectory(prefix="sqf", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(asked.j) as pool,
    ):
        for done in [pool.submit(try_cell, cell, options, book, Path(folder)) for cell in cells]:
            done.result()
    tried = [Tried(cell, tuple(book.runs(cell))) for cell in cells]
    command = f"python -m tests.bench.faults --cells '{asked.cells}' --repeat {asked.repeat} -j {asked.j}"
    table = markdown(tried, command)
    if asked.markdown:
        asked.markdown.write_text(table)
    print(table)
    return int(any(run["failures"] for one in tried for run in one.runs))


if __name__ == "__main__":
    sys.exit(main())
