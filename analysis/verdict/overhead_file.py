"""`overhead.json`: what profiling changed as typed objects, and as the file beside the runs that were compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from squall.analysis.record import from_json, to_json
from squall.analysis.storage.beneath import read_plain
from squall.analysis.verdict.run_figures import Reading
from squall.scenarios.errors import AnalysisError
from squall.scenarios.foreign_text import is_component, json_of
from squall.scenarios.records import Frozen

OVERHEAD_FILE = "overhead.json"


class PairRun(Frozen):
    """One run of pair `pair`, the `position`-th of all, both from 0. `run`: name of its directory, empty where none was
    made; `error`: why it ended early."""

    pair: int
    position: int
    is_profiled: bool
    run: str = ""
    error: str = ""


class RunEntry(PairRun, kw_only=True):
    """A run that was judged. `status`: that of its verdict, None where it has none; `reason`: why its pair is left out,
    empty where the run counts. `figures`: readings by metric, of `pooled` and of each phase; None where the run does
    not tell."""

    status: str | None
    reason: str
    collectors_on: tuple[str, ...]
    figures: Mapping[str, Mapping[str, Reading]] | None

    @property
    def called(self) -> str:
        """What notes call it: `the bare run NAME`."""
        kind = "profiled" if self.is_profiled else "bare"
        return f"the {kind} run {self.run or f'#{self.position + 1}'}"


class Change(Frozen):
    """profiled / bare of a metric over `n_pairs` pairs, with its 95 % interval; all None where it is not assessed, and
    `reason` says why. `profiled`, `bare`: the figures themselves, by pair, in the unit of the metric."""

    n_pairs: int
    profiled: tuple[float | None, ...]
    bare: tuple[float | None, ...]
    ratio: float | None
    low_ratio: float | None
    high_ratio: float | None
    is_distinguishable: bool | None
    reason: str


Changes = Mapping[str, Change]
"""By metric, in the order of `squall.analysis.verdict.run_figures.METRICS`."""


class Overhead(Frozen):
    """The runs, the pairs left out, the changes with intervals, and a sentence on each. Its fields are the keys of
    `overhead.json`.

    `is_complete`: all pairs that were planned are whole. `latency_name`: response or service; None without a whole
    pair. `pooled`: over all measured phases. `verdict`: the sentence on the p99.
    """

    n_pairs_planned: int
    n_pairs: int
    is_complete: bool
    latency_name: str | None
    runs: tuple[RunEntry, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    pooled: Changes
    by_phase: Mapping[str, Changes]
    sentences: tuple[str, ...]
    verdict: str

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        found: dict[str, Any] = to_json(self)
        return found

    @classmethod
    def from_json(cls, found: object) -> Overhead:
        """The evaluation that the file holds. Raises AnalysisError where it is none, or lacks a key, and where a run
        is no name of a folder beside it, or is there twice."""
        read = from_json(cls, found)
        names = [one.run for one in read.runs if one.run]
        if not all(map(is_component, names)) or len(set(names)) < len(names):
            raise AnalysisError(f"{OVERHEAD_FILE} names runs that squall did not name")
        return read


def find_overhead(run_dir: Path) -> Overhead | None:
    """The evaluation that the run belongs to; None for a run that is not one of pairs, and for a file that is damaged
    or of a version that lacks a key."""
    path = run_dir.resolve().parent / OVERHEAD_FILE
    try:
        found = Overhead.from_json(json_of(read_plain(path)))
    except (OSError, ValueError, AnalysisError):
        return None
    return found if any(one.run == run_dir.resolve().name for one in found.runs) else None


def profiling_ratio(run_dir: Path) -> float | None:
    """p50 of the profiled over the bare runs of the evaluation that the run belongs to; None where none says."""
    found = find_overhead(run_dir)
    change = found.pooled.get("p50_ns") if found is not None else None
    return change.ratio if change is not None else None
