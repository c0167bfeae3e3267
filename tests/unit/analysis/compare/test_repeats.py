"""Runs that repeat one another, and quantiles over all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from squall.analysis.compare.repeats import repeat_figures, repeats_of
from squall.scenarios.errors import StoreError
from tests.known import known
from tests.overhead_runs import MS, RATIOS, profiled_pairs, write_run


def repeats(folder: Path, run: str, side: str = "a") -> list[str]:
    return [path.name for path in repeats_of(folder / side / run)]


def test_quantiles_are_of_the_rows_of_all_runs_of_one_condition(tmp_path: Path) -> None:
    bare, profiled = profiled_pairs(tmp_path)
    assert (repeats(tmp_path, bare[1]), repeats(tmp_path, profiled[0], "b")) == (bare, profiled)
    found = known(repeat_figures(tmp_path / "a" / bare[0], [0.5, 0.95]))
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
    bare, _ = profiled_pairs(tmp_path, RATIOS[:2])
    alone = write_run(tmp_path / "elsewhere" / "a").run
    assert (repeats(tmp_path, bare[0]), repeats(tmp_path / "elsewhere", alone)) == (bare, [])
    assert repeat_figures(tmp_path / "a" / bare[0], [0.5]) is None
    assert repeat_figures(tmp_path / "elsewhere" / "a" / alone, [0.5]) is None


@pytest.mark.parametrize("status", ["INVALID", None])
def test_a_run_that_is_not_valid_or_of_another_scenario_repeats_nothing(
    tmp_path: Path, status: str | None
) -> None:
    bare, _ = profiled_pairs(tmp_path, runs={0: {"status": status}})
    assert (repeats(tmp_path, bare[0]), repeats(tmp_path, bare[1])) == ([], bare[1:])
    path = tmp_path / "a" / bare[2] / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "scenario_digest": "another"}))
    assert repeats(tmp_path, bare[1]) == bare[1:2]


@pytest.mark.parametrize("name", ["../elsewhere/run", "/tmp/run", "..", "a/b", "a\nb", None, "twice"])
def test_names_that_lead_out_of_the_folder_or_are_there_twice_are_no_runs(
    tmp_path: Path, name: object
) -> None:
    bare, _ = profiled_pairs(tmp_path, RATIOS[:2])
    found = json.loads((tmp_path / "compare.json").read_text())
    found["pairs"][1]["run_a"] = bare[0] if name == "twice" else name
    (tmp_path / "compare.json").write_text(json.dumps(found))
    assert repeats(tmp_path, bare[0]) == []


def test_a_repeat_behind_a_link_is_refused(tmp_path: Path) -> None:
    (first, run), _ = profiled_pairs(tmp_path / "runs", RATIOS[:2])
    (tmp_path / "runs" / "a" / run).rename(tmp_path / "elsewhere")
    (tmp_path / "runs" / "a" / run).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=f"{run} is a link"):
        repeats(tmp_path / "runs", first)


@pytest.mark.parametrize("replace", [lambda file: file.symlink_to("other.json"), os.mkfifo])
def test_an_evaluation_behind_a_link_or_a_pipe_is_not_read(
    tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    bare, _ = profiled_pairs(tmp_path, RATIOS[:2])
    (tmp_path / "compare.json").rename(tmp_path / "other.json")
    replace(tmp_path / "compare.json")
    assert repeats(tmp_path, bare[0]) == []
