"""Runs that were made already, as the two sides of a comparison."""

from __future__ import annotations

from pathlib import Path

from squall.analysis.compare.compared import DEFAULT_MARGIN, Comparison, evaluate
from squall.analysis.compare.corrections import MOST_LOOKS
from squall.analysis.compare.pairing import pair_runs, refuse_incomparable
from squall.analysis.compare.run_row import read_row
from squall.analysis.storage.beneath import read_plain, refuse_ways_out
from squall.analysis.storage.intact import content_errors_of
from squall.analysis.storage.part import error_reason
from squall.cluster.commands.options import run_dirs
from squall.scenarios.errors import ScenarioError
from squall.scenarios.foreign_text import json_of

SIDES = ("a", "b")
"""Folders of the runs that `squall compare` made itself."""


def sides_of(a: Path, b: Path | None) -> tuple[Path, Path]:
    """The folders of both sides; of one folder that a comparison made, the two in it. Raises ScenarioError, StoreError
    where something leads out of that folder."""
    if b is not None:
        return a, b
    refuse_ways_out(a)
    own = [a / side for side in SIDES]
    if not all(one.is_dir() for one in own):
        raise ScenarioError(f"compare: {a} is one side: name the other, or a folder that squall compare made")
    return own[0], own[1]


def made_with(folder: Path) -> tuple[float, int]:
    """Margin and looks of the comparison that made `folder`, as its `compare.json` has them; without one the defaults.
    Raises ScenarioError where that cannot be read."""
    path = folder / "compare.json"
    try:
        told = json_of(read_plain(path))
        margin_ratio, n_looks = float(told["margin_ratio"]), int(told["n_looks"])
        if 0.0 < margin_ratio < 1.0 and 1 <= n_looks <= MOST_LOOKS:
            return margin_ratio, n_looks
        reason = "its margin_ratio or n_looks is none"
    except FileNotFoundError:
        return DEFAULT_MARGIN, 1
    except OSError as error:
        reason = error_reason(error)
    except (ValueError, KeyError, TypeError, OverflowError):
        reason = "it has no margin_ratio and n_looks"
    raise ScenarioError(f"compare: {path} cannot be read: {reason}; state --margin and --looks")


def compare_folders(a: Path, b: Path, margin_ratio: float, n_looks: int = 1) -> Comparison:
    """What the runs in two folders show. Raises ScenarioError where they cannot be compared."""
    dirs_a, dirs_b = run_dirs(a), run_dirs(b)
    both = {path.resolve() for path in dirs_a} & {path.resolve() for path in dirs_b}
    if both:
        raise ScenarioError(f"compare: {sorted(both)[0].name} is on both sides")
    runs_a, runs_b = (list(map(read_row, paths)) for paths in (dirs_a, dirs_b))
    with content_errors_of(f"{a} or {b}"):
        paired = pair_runs(runs_a, runs_b)
        refuse_incomparable(paired, runs_a, runs_b)
        return evaluate(str(a), str(b), paired, margin_ratio, n_looks)
