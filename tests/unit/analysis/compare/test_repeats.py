"""Runs that repeat one another, and quantiles over all of them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from squall.analysis.compare.overhead import evaluate
from squall.analysis.compare.overhead_file import OVERHEAD_FILE
from squall.analysis.compare.repeats import repeat_figures, repeats_of
from squall.scenarios.errors import StoreError
from tests.known import known
from tests.overhead_runs import MS, write_run
from tests.unit.analysis.compare.test_overhead import pairs_in

RATIOS = [(1.03, 1.00), (1.06, 1.02), (1.00, 0.99)]


def folder_of(folder: Path, ratios: list[tuple[float, float]] = RATIOS) -> list[str]:
    """The names of the bare runs of a folder of pairs."""
    plans = pairs_in(folder, ratios)
    (folder / OVERHEAD_FILE).write_text(json.dumps(evaluate(folder, plans, len(ratios)).to_json()))
    return [plan.run for plan in plans if not plan.is_profiled]


def test_runs_of_one_condition_repeat_one_another(tmp_path: Path) -> None:
    bare = folder_of(tmp_path)
    assert [path.name for path in repeats_of(tmp_path / bare[1])] == bare
    evaluation = json.loads((tmp_path / OVERHEAD_FILE).read_text())
    profiled = [one["run"] for one in evaluation["runs"] if one["is_profiled"]]
    assert [path.name for path in repeats_of(tmp_path / profiled[0])] == profiled


def test_quantiles_are_of_the_rows_of_all_repeats(tmp_path: Path) -> None:
    bare = folder_of(tmp_path)
    found = repeat_figures(tmp_path / bare[0], [0.5, 0.95])
    assert found is not None
    assert (found.runs, found.n_runs, found.latency_name) == (tuple(bare), 3, "response")
    one = np.round((10 + np.arange(1, 1_001) / 100) * MS)
    pooled = np.concatenate([np.round(one * ratio) for ratio in (1.00, 1.02, 0.99)])
    expected = np.quantile(pooled, [0.5, 0.95], method="inverted_cdf")
    assert [q.value_ns for q in found.measure] == expected.tolist()
    half = found.measure[0]
    assert half.own_ns == (15_000_000, 15_300_000, 14_850_000)
    assert (half.n, half.n_blocks, half.method) == (3_000, 3, "runs")
    assert known(half.low_ns) < 14_850_000 < 15_300_000 < known(half.high_ns)
    assert found.by_phase["burst"] == found.measure


def test_two_repeats_have_no_figures_and_a_run_alone_has_no_repeats(tmp_path: Path) -> None:
    bare = folder_of(tmp_path, RATIOS[:2])
    assert len(repeats_of(tmp_path / bare[0])) == 2
    assert repeat_figures(tmp_path / bare[0], [0.5]) is None
    alone = write_run(tmp_path / "elsewhere").run
    assert repeats_of(tmp_path / "elsewhere" / alone) == []
    assert repeat_figures(tmp_path / "elsewhere" / alone, [0.5]) is None


@pytest.mark.parametrize("status", ["INVALID", None])
def test_a_run_that_is_not_valid_repeats_nothing(tmp_path: Path, status: str | None) -> None:
    plans = pairs_in(tmp_path)
    broken = write_run(tmp_path, status=status).run
    plans[0] = type(plans[0])(**{**asdict(plans[0]), "run": broken})
    (tmp_path / OVERHEAD_FILE).write_text(json.dumps(evaluate(tmp_path, plans, 3).to_json()))
    kept = [plan.run for plan in plans[1:] if not plan.is_profiled]
    assert [path.name for path in repeats_of(tmp_path / kept[0])] == kept
    assert repeats_of(tmp_path / broken) == []


def test_runs_of_another_scenario_are_left_out(tmp_path: Path) -> None:
    bare = folder_of(tmp_path)
    path = tmp_path / bare[2] / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "scenario_digest": "another"}))
    assert [run.name for run in repeats_of(tmp_path / bare[0])] == bare[:2]


@pytest.mark.parametrize("name", ["../elsewhere/run", "/tmp/run", "..", "a/b", "a\nb", None])
def test_names_that_lead_out_of_the_folder_are_no_runs(tmp_path: Path, name: object) -> None:
    bare = folder_of(tmp_path)
    found = json.loads((tmp_path / OVERHEAD_FILE).read_text())
    next(one for one in found["runs"] if one["run"] == bare[1])["run"] = name
    (tmp_path / OVERHEAD_FILE).write_text(json.dumps(found))
    assert repeats_of(tmp_path / bare[0]) == []


def test_one_run_does_not_count_twice(tmp_path: Path) -> None:
    bare = folder_of(tmp_path)
    found = json.loads((tmp_path / OVERHEAD_FILE).read_text())
    for one in found["runs"]:
        one["run"] = bare[0]
    (tmp_path / OVERHEAD_FILE).write_text(json.dumps(found))
    assert repeats_of(tmp_path / bare[0]) == []


def test_a_repeat_behind_a_link_is_refused(tmp_path: Path) -> None:
    bare = folder_of(tmp_path / "runs")
    run = tmp_path / "runs" / bare[1]
    run.rename(tmp_path / "elsewhere")
    run.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=f"{bare[1]} is a link"):
        repeats_of(tmp_path / "runs" / bare[0])


def test_an_evaluation_behind_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    bare = folder_of(tmp_path)
    file = tmp_path / OVERHEAD_FILE
    file.rename(tmp_path / "other.json")
    file.symlink_to("other.json")
    assert repeats_of(tmp_path / bare[0]) == []
    file.unlink()
    os.mkfifo(file)
    assert repeats_of(tmp_path / bare[0]) == []
