"""Runs that repeat one another, and quantiles over all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.analysis.compare.overhead import evaluate
from squall.analysis.compare.repeats import repeat_figures, repeats_of
from squall.analysis.verdict.overhead_file import OVERHEAD_FILE
from squall.scenarios.errors import StoreError
from tests.known import known
from tests.overhead_runs import MS, write_run
from tests.unit.analysis.compare.test_overhead import RATIOS, pairs_in


def folder_of(
    folder: Path, ratios: Sequence[tuple[float, float]] = RATIOS, **options: Any
) -> tuple[list[str], list[str]]:
    """The names of the bare and of the profiled runs of a folder of pairs."""
    plans = pairs_in(folder, ratios, **options)
    (folder / OVERHEAD_FILE).write_text(json.dumps(evaluate(folder, plans, len(ratios)).to_json()))
    bare, profiled = ([plan.run for plan in plans if plan.is_profiled is one] for one in (False, True))
    return bare, profiled


def repeats(folder: Path, run: str) -> list[str]:
    return [path.name for path in repeats_of(folder / run)]


def test_quantiles_are_of_the_rows_of_all_runs_of_one_condition(tmp_path: Path) -> None:
    bare, profiled = folder_of(tmp_path)
    assert (repeats(tmp_path, bare[1]), repeats(tmp_path, profiled[0])) == (bare, profiled)
    found = known(repeat_figures(tmp_path / bare[0], [0.5, 0.95]))
    assert (found.runs, found.n_runs, found.latency_name) == (tuple(bare), 3, "response")
    one = np.round((10 + np.arange(1, 1_001) / 100) * MS)
    pooled = np.concatenate([np.round(one * ratio) for _, ratio in RATIOS])
    expected = np.quantile(pooled, [0.5, 0.95], method="inverted_cdf")
    assert [q.value_ns for q in found.measure] == expected.tolist()
    half = found.measure[0]
    assert (half.own_ns, half.n, half.n_blocks, half.method) == (
        (15_000_000, 15_300_000, 14_850_000), 3_000, 3, "runs",
    )  # fmt: skip
    assert known(half.low_ns) < 14_850_000 < 15_300_000 < known(half.high_ns)
    assert found.by_phase["burst"] == found.measure


def test_two_repeats_have_no_figures_and_a_run_alone_has_no_repeats(tmp_path: Path) -> None:
    bare, _ = folder_of(tmp_path, RATIOS[:2])
    alone = write_run(tmp_path / "elsewhere").run
    assert (repeats(tmp_path, bare[0]), repeats(tmp_path / "elsewhere", alone)) == (bare, [])
    assert repeat_figures(tmp_path / bare[0], [0.5]) is None
    assert repeat_figures(tmp_path / "elsewhere" / alone, [0.5]) is None


@pytest.mark.parametrize("status", ["INVALID", None])
def test_a_run_that_is_not_valid_or_of_another_scenario_repeats_nothing(
    tmp_path: Path, status: str | None
) -> None:
    bare, _ = folder_of(tmp_path, runs={0: {"status": status}})
    assert (repeats(tmp_path, bare[0]), repeats(tmp_path, bare[1])) == ([], bare[1:])
    path = tmp_path / bare[2] / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "scenario_digest": "another"}))
    assert repeats(tmp_path, bare[1]) == bare[1:2]


@pytest.mark.parametrize("name", ["../elsewhere/run", "/tmp/run", "..", "a/b", "a\nb", None, "twice"])
def test_names_that_lead_out_of_the_folder_or_are_there_twice_are_no_runs(
    tmp_path: Path, name: object
) -> None:
    bare, _ = folder_of(tmp_path, RATIOS[:2])
    found = json.loads((tmp_path / OVERHEAD_FILE).read_text())
    next(one for one in found["runs"] if one["run"] == bare[1])["run"] = bare[0] if name == "twice" else name
    (tmp_path / OVERHEAD_FILE).write_text(json.dumps(found))
    assert repeats(tmp_path, bare[0]) == []


def test_a_repeat_behind_a_link_is_refused(tmp_path: Path) -> None:
    (first, run), _ = folder_of(tmp_path / "runs", RATIOS[:2])
    (tmp_path / "runs" / run).rename(tmp_path / "elsewhere")
    (tmp_path / "runs" / run).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=f"{run} is a link"):
        repeats(tmp_path / "runs", first)


@pytest.mark.parametrize("replace", [lambda file: file.symlink_to("other.json"), os.mkfifo])
def test_an_evaluation_behind_a_link_or_a_pipe_is_not_read(
    tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    bare, _ = folder_of(tmp_path, RATIOS[:2])
    (tmp_path / OVERHEAD_FILE).rename(tmp_path / "other.json")
    replace(tmp_path / OVERHEAD_FILE)
    assert repeats(tmp_path, bare[0]) == []
