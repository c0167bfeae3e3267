"""How the runs of a sweep follow one another: what is run again, what is not, and what each run leaves."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from squall.analysis.record import to_json
from squall.analysis.studies.sweep_rows import DONE, FAILED, INVALID
from squall.cluster.commands.decisions.sweep_journal import FILE
from squall.cluster.commands.decisions.sweep_rehearsal import rehearse
from squall.scenarios.errors import ClusterError, ScenarioError, StoreError, TargetError
from tests.sweep_runs import (
    OTHER_SITE,
    POISSON,
    SITE,
    FakeRuns,
    comparable,
    figures,
    load,
    sweep,
    write_experiment,
)

REFERENCE = {"cell": {"model.max_batch_size": 8, "model.queue_delay": "0s"}, "every": 3}


def states(folder: Path) -> list[str]:
    return [json.loads(line)["state"] for line in (folder / FILE).read_text().splitlines()]


def test_a_sweep_runs_every_cell_with_every_seed_and_the_best_with_fresh_ones(tmp_path: Path) -> None:
    runs = FakeRuns()
    experiment = load(tmp_path, repeats=3, confirm=2, reference=REFERENCE)
    folder, found = sweep(experiment, tmp_path, runs)
    roles = Counter(row.role for row in found.runs)
    assert roles == {"cell": 12, "reference": 5, "confirm": 2}
    assert Counter((row.cell, row.seed) for row in found.runs if row.role == "cell") == Counter(
        {(cell, seed): 1 for cell in range(4) for seed in (1, 2, 3)}
    )
    assert found.is_complete
    assert found.ranking.best == 0, "the smallest batch without a delay is quickest"
    assert [(row.cell, row.seed) for row in found.runs if row.role == "confirm"] == [(0, 4), (0, 5)]
    assert states(folder)[0] == "begun"
    assert Counter(states(folder)) == {"begun": 1, "planned": 19, "running": 19, "done": 19}


def test_tables_have_a_row_a_run_and_a_row_a_cell(tmp_path: Path) -> None:
    folder, found = sweep(load(tmp_path), tmp_path, FakeRuns(statuses={1: "INVALID"}))
    rows = list(csv.DictReader((folder / "runs.csv").read_text().splitlines()))
    assert len(rows) == 9
    assert rows[0]["model.max_batch_size"] in ("1", "8")
    assert [row["is_counted"] for row in rows].count("false") == 1
    table = pq.read_table(folder / "runs.parquet")
    assert table.num_rows == 9
    assert table.column("p95_ns").to_pylist() == [row.figures.p95_ns for row in found.runs]
    cells = pq.read_table(folder / "cells.parquet").to_pylist()
    assert [cell["model.queue_delay"] for cell in cells] == ["0s", "5ms", "0s", "5ms"]
    assert all(cell["p95_ns_low"] < cell["p95_ns"] < cell["p95_ns_high"] for cell in cells)
    assert sum(cell["is_best"] for cell in cells) == 1
    assert len((folder / "cells.csv").read_text().splitlines()) == 5
    held = json.loads((folder / "sweep.json").read_text())
    assert held["runs"] == to_json(found)["runs"]
    assert held["answer"] in (folder / "sweep.html").read_text().replace("&#39;", "'")


def test_an_invalid_run_is_run_once_more_and_stays_visible(tmp_path: Path) -> None:
    runs = FakeRuns(statuses={2: "INVALID", 5: "INVALID", 6: "INVALID"})
    _, found = sweep(load(tmp_path), tmp_path, runs)
    assert runs.digests[2] == runs.digests[3]
    assert runs.digests[5] == runs.digests[6]
    assert len(runs.digests) == 8 + 2
    bad = [
        (row.attempt, row.outcome, row.is_replaced, row.reason)
        for row in found.runs
        if row.outcome == INVALID
    ]
    assert bad == [
        (1, INVALID, True, "send lag"),
        (1, INVALID, True, "send lag"),
        (2, INVALID, False, "send lag"),
    ]
    assert sum(cell.n_invalid for cell in found.cells) == 1
    assert sum(cell.n_valid for cell in found.cells) == 7


@pytest.mark.parametrize("error", [TargetError("the server does not start"), ClusterError("it broke")])
def test_a_run_that_fails_is_a_row_and_the_sweep_goes_on(tmp_path: Path, error: BaseException) -> None:
    runs = FakeRuns(statuses={0: error})
    _, found = sweep(load(tmp_path), tmp_path, runs)
    assert len(runs.digests) == 8
    (failed,) = [row for row in found.runs if row.outcome == FAILED]
    assert (failed.reason, failed.position) == (str(error), 0)
    assert failed.run.startswith("run-"), "its directory is named"
    assert found.is_complete
    assert sum(cell.n_failed for cell in found.cells) == 1


@pytest.mark.parametrize("error", [ScenarioError("the trace is gone"), StoreError("the disk is full")])
def test_a_bad_scenario_and_a_full_disk_end_it_and_leave_what_was_found(
    tmp_path: Path, error: Exception
) -> None:
    experiment = load(tmp_path)
    with pytest.raises(type(error), match=str(error)):
        sweep(experiment, tmp_path, FakeRuns(statuses={3: error}))
    (folder,) = tmp_path.glob("held-sweep-*")
    held = json.loads((folder / "sweep.json").read_text())
    assert len(held["runs"]) == 3
    assert held["answer"].startswith("so far, after 3 of 8 runs: ")
    rest = FakeRuns()
    _, found = sweep(experiment, tmp_path, rest, resume=folder)
    assert len(rest.digests) == 5
    assert found.is_complete


def test_what_is_about_to_run_is_on_the_disk_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def sync(number: int) -> None:
        synced.append(number)
        real(number)

    monkeypatch.setattr(os, "fsync", sync)
    seen: list[tuple[str, int]] = []

    def look(_number: int, _: object) -> None:
        (folder,) = tmp_path.glob("held-sweep-*")
        seen.append((states(folder)[-1], len(states(folder)) - len(synced)))

    sweep(load(tmp_path), tmp_path, FakeRuns(before=look))
    assert seen == [("running", 0)] * 8, "a sync for every line"


class Killed(BaseException):
    """Stands for an end that nothing catches."""


def test_killed_at_37_percent_and_resumed_it_has_the_cells_order_and_table_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    changes: dict[str, Any] = {"repeats": 6, "confirm": 2, "reference": REFERENCE}
    invalid = {4: "INVALID"}
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    undisturbed = FakeRuns(statuses=invalid)
    _, whole = sweep(load(tmp_path, **changes), tmp_path / "whole", undisturbed)
    n = len(whole.runs)
    kill_at = round(0.37 * n)
    first = FakeRuns(statuses={**invalid, kill_at: Killed()})
    experiment = load(tmp_path, **changes)
    with pytest.raises(Killed):
        sweep(experiment, tmp_path / "cut", first)
    (folder,) = (tmp_path / "cut").iterdir()
    with (folder / FILE).open("ab") as file:
        file.write(b'{"state":"done","key":"torn')
    second = FakeRuns()
    _, found = sweep(experiment, tmp_path / "cut", second, resume=folder)
    assert comparable(found) == comparable(whole)
    assert found.cells == whole.cells
    finished, expected = first.digests[:kill_at], undisturbed.digests
    assert not any(
        Counter(finished)[one] + Counter(second.digests)[one] > Counter(expected)[one] for one in expected
    )
    assert len(finished) + len(second.digests) == n, "only the one that was cut off is run again"
    assert [row.is_replaced for row in found.runs].count(True) == 1, "the INVALID one is still to be seen"


def test_between_an_invalid_run_and_its_second_a_cut_loses_neither(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    with pytest.raises(Killed):
        sweep(experiment, tmp_path, FakeRuns(statuses={0: "INVALID", 1: Killed()}))
    (folder,) = tmp_path.glob("held-sweep-*")
    rest = FakeRuns(statuses={0: "INVALID"})
    _, found = sweep(experiment, tmp_path, rest, resume=folder)
    assert len(rest.digests) == 8
    assert [row.attempt for row in found.runs if row.outcome == INVALID] == [1, 2], "no third try"


def test_a_finished_sweep_that_is_resumed_runs_nothing(tmp_path: Path) -> None:
    experiment = load(tmp_path, confirm=1)
    folder, whole = sweep(experiment, tmp_path, FakeRuns(statuses={1: "INVALID", 2: "INVALID"}))
    (folder / "runs.csv").unlink()
    rest = FakeRuns()
    _, found = sweep(experiment, tmp_path, rest, resume=folder)
    assert rest.digests == []
    assert found == whole
    assert (folder / "runs.csv").exists(), "its files are made anew"


def test_runs_that_failed_are_run_again_when_the_sweep_is_taken_up_again(tmp_path: Path) -> None:
    experiment, gone = load(tmp_path), TargetError("the server is down")
    first = FakeRuns(statuses=dict.fromkeys(range(3, 8), gone))
    folder, _ = sweep(experiment, tmp_path, first)
    assert len(first.digests) == 8, "within one command each fails once"
    planned = rehearse(experiment, folder, Path("experiment.yaml"), SITE, False).runs
    assert [run["is_finished"] for run in planned] == [True] * 3 + [False] * 5
    second = FakeRuns(statuses={0: gone})
    _, found = sweep(experiment, tmp_path, second, resume=folder)
    assert second.digests == first.digests[3:]
    assert Counter((row.outcome, row.is_replaced) for row in found.runs) == {
        (DONE, False): 7, (FAILED, False): 1, (FAILED, True): 5,
    }  # fmt: skip
    third = FakeRuns()
    _, found = sweep(experiment, tmp_path, third, resume=folder)
    assert third.digests == first.digests[3:4]
    assert sum(cell.n_valid for cell in found.cells) == 8


def test_a_block_in_which_a_run_failed_is_run_whole_on_another_host(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    folder, _ = sweep(experiment, tmp_path, FakeRuns(statuses={5: TargetError("the server is down")}))
    rest = FakeRuns()
    _, found = sweep(experiment, tmp_path, rest, resume=folder, site=OTHER_SITE)
    assert {row.block for row in found.runs if row.site == OTHER_SITE.digest} == {1}
    assert len(rest.digests) == 4


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"matrix": {"model.name": ["linear_head", "seqlen_haed"]}},
            "cell name=seqlen_haed: model.name: unknown model 'seqlen_haed': did you mean 'seqlen_head'?",
        ),
        (
            {"matrix": {"model.settings.width": [64], "model.settings.clases": [4]}},
            "cell width=64, clases=4: model.settings.clases: unknown key, did you mean 'classes'?",
        ),
        (
            {"matrix": {"phases.burst.arrivals": [POISSON, {"kind": "trace", "file": "gone.csv"}]}},
            'cell arrivals={"kind": "trace", "file": "gone.csv"}: ',
        ),
        (
            {"matrix": {"phases.burst.arrivals.rate": ["60/s", "0.0001/s"]}},
            "cell rate=0.0001/s: phases: no arrival falls into burst",
        ),
    ],
)
def test_a_cell_that_cannot_be_run_is_one_line_before_anything_runs(
    tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    experiment, runs = load(tmp_path, **changes), FakeRuns()
    with pytest.raises(ScenarioError) as raised:
        sweep(experiment, tmp_path, runs)
    assert str(raised.value).startswith(f"experiment.yaml: {line}")
    assert "\n" not in str(raised.value)
    assert (runs.digests, list(tmp_path.glob("held-sweep-*"))) == ([], [])
    with pytest.raises(ScenarioError) as rehearsed:
        rehearse(experiment, None, Path("experiment.yaml"), SITE, False)
    assert str(rehearsed.value) == str(raised.value)


def test_a_trace_that_is_gone_refuses_only_what_is_still_to_be_run(tmp_path: Path) -> None:
    trace = tmp_path / "a.csv"
    trace.write_text("time\n" + "".join(f"{k / 100}\n" for k in range(100)))
    arrivals = {"kind": "trace", "file": str(trace), "column": "time", "unit": "s"}
    experiment = load(tmp_path, matrix={"phases.burst.arrivals": [POISSON, arrivals]})
    gone = TargetError("the server is down")
    (tmp_path / "whole").mkdir()
    whole, _ = sweep(experiment, tmp_path / "whole", FakeRuns())
    folder, _ = sweep(experiment, tmp_path, FakeRuns(statuses=dict.fromkeys(range(4), gone)))
    trace.unlink()
    rest = FakeRuns()
    sweep(experiment, tmp_path, rest, resume=whole)
    with pytest.raises(ScenarioError, match=r"a\.csv"):
        sweep(experiment, tmp_path, rest, resume=folder)
    assert rest.digests == []


def test_a_trace_that_was_made_anew_is_another_experiment(tmp_path: Path) -> None:
    trace = tmp_path / "a.csv"
    trace.write_text("time\n" + "".join(f"{k / 100}\n" for k in range(100)))
    arrivals = {"kind": "trace", "file": str(trace), "column": "time", "unit": "s"}
    experiment = load(tmp_path, matrix={"phases.burst.arrivals": [POISSON, arrivals]})
    folder, _ = sweep(experiment, tmp_path, FakeRuns())
    sweep(experiment, tmp_path, FakeRuns(), resume=folder)
    trace.write_text(trace.read_text() + "1.5\n")
    with pytest.raises(ScenarioError, match=r"was begun with: trace .*a\.csv changed; begin a new sweep"):
        sweep(experiment, tmp_path, FakeRuns(), resume=folder)
    with pytest.raises(ScenarioError, match=r"trace .*a\.csv changed"):
        rehearse(experiment, folder, Path("experiment.yaml"), SITE, False)


def test_force_runs_all_again_and_keeps_the_rows_that_were(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    folder, _ = sweep(experiment, tmp_path, FakeRuns())
    again = FakeRuns(lambda _, __: figures(9e6))
    _, found = sweep(experiment, tmp_path, again, resume=folder, is_forced=True)
    assert len(again.digests) == 8
    assert [row.is_replaced for row in found.runs].count(True) == 8
    assert {row.figures.p95_ns for row in found.runs if row.is_counted} == {9e6}
    third = FakeRuns()
    sweep(experiment, tmp_path, third, resume=folder)
    assert third.digests == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"repeats": 3}, "repeats"),
        ({"matrix": {"model.max_batch_size": [1, 8, 16]}}, "cells"),
        ({"seed": 2}, "seed"),
        ({"order": "fixed"}, "order"),
        ({"confirm": 1, "objectives": ["p50"]}, "objectives, confirm"),
    ],
)
def test_an_experiment_that_changed_since_it_was_begun_is_one_line(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    folder, _ = sweep(load(tmp_path), tmp_path, FakeRuns())
    runs = FakeRuns()
    with pytest.raises(ScenarioError) as raised:
        sweep(load(tmp_path, **changes), tmp_path, runs, resume=folder)
    assert str(raised.value) == (
        f"experiment.yaml: is not the experiment that {folder} was begun with: {named} changed; begin a new sweep"
    )
    assert runs.digests == []


def test_what_cannot_be_resumed_is_one_line(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    with pytest.raises(ScenarioError, match=r"holds no sweep: sweep\.jsonl: no such file or directory"):
        sweep(experiment, tmp_path, FakeRuns(), resume=tmp_path)
    (tmp_path / FILE).write_text("")
    with pytest.raises(ScenarioError, match=r"sweep\.jsonl: says of no experiment"):
        sweep(experiment, tmp_path, FakeRuns(), resume=tmp_path)
    (tmp_path / FILE).write_text('{"state": "begun", "experiment": {"a": 1}}\n{"state": "done"}\n')
    with pytest.raises(ScenarioError, match=r"sweep\.jsonl: line 2 is damaged: 'key'"):
        sweep(experiment, tmp_path, FakeRuns(), resume=tmp_path)
    (tmp_path / FILE).write_text(
        '{"state": "begun", "experiment": {"a": 1}}\n{"state": "done", "key": "k"}\n'
    )
    with pytest.raises(ScenarioError, match=r"line 2 is damaged: no run 'k' was planned before it"):
        sweep(experiment, tmp_path, FakeRuns(), resume=tmp_path)


def test_two_sweeps_do_not_write_one_folder(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    refused: list[str] = []

    def beside(number: int, _: object) -> None:
        if number == 0:
            (folder,) = tmp_path.glob("held-sweep-*")
            with pytest.raises(ScenarioError) as raised:
                sweep(experiment, tmp_path, FakeRuns(), resume=folder)
            refused.append(str(raised.value))

    sweep(experiment, tmp_path, FakeRuns(before=beside))
    assert [text.partition(": ")[2] for text in refused] == ["another squall sweep goes on in it"]


def test_on_another_host_whole_blocks_stay_and_those_that_were_begun_are_run_whole(tmp_path: Path) -> None:
    experiment = load(tmp_path, repeats=3, reference={**REFERENCE, "every": 4})
    first = FakeRuns(statuses={8: Killed()})  # the reference, block 0, the reference, two runs of block 1
    with pytest.raises(Killed):
        sweep(experiment, tmp_path, first)
    (folder,) = tmp_path.glob("held-sweep-*")
    second = FakeRuns()
    _, found = sweep(experiment, tmp_path, second, resume=folder, site=OTHER_SITE)
    here = [row for row in found.runs if row.site == OTHER_SITE.digest]
    assert [row.role for row in here] == ["reference", *["cell"] * 4, "reference", *["cell"] * 4, "reference"]
    assert Counter(row.block for row in here if row.role == "cell") == {1: 4, 2: 4}
    assert found.is_complete
    assert [row.host for row in found.runs] == sorted(
        (row.host for row in found.runs), key="GPU, driver".__contains__
    )
    blocks = {row.block for row in found.runs if row.role == "cell" and row.site != OTHER_SITE.digest}
    assert blocks == {0, 1}, "what the first host had begun stays in the table"
    third = FakeRuns()
    sweep(experiment, tmp_path, third, resume=folder, site=OTHER_SITE)
    assert third.digests == []
    pairs = next(one for one in found.ranking.others).n_pairs
    assert pairs >= 3


def test_the_same_cell_on_another_host_or_version_is_another_run() -> None:
    from dataclasses import replace

    from tests.sweep_runs import SITE

    others = [
        replace(SITE, squall="1.1"), replace(SITE, cpu_model="x"), replace(SITE, n_cores=3), replace(SITE, gpus=("A",)),
        replace(SITE, gpus=("A", "A")), replace(SITE, driver="501"), replace(SITE, cluster="10.0.0.1:6379"),
    ]  # fmt: skip
    assert len({SITE.digest, *(other.digest for other in others)}) == 1 + len(others)


def test_a_failed_quantile_is_infinite_in_the_tables_and_no_number_in_json(tmp_path: Path) -> None:
    def broken(scenario: Any, _: int) -> Any:
        if scenario.models[0].model.max_batch_size == 8:
            return figures(throughput_hz=10.0, n_failed=60, p95_ns=5e6, infinite=("p95_ns", "p99_ns"))
        return figures(1e6 * (5 + scenario.seed))

    folder, found = sweep(load(tmp_path), tmp_path, FakeRuns(broken))
    assert found.ranking.unranked == (2, 3)
    cells = pq.read_table(folder / "cells.parquet").column("p95_ns").to_pylist()
    assert cells[2:] == [float("inf")] * 2
    assert "Infinity" not in (folder / "sweep.json").read_text()
    assert "infinite in 2 of 2 runs" in (folder / "sweep.html").read_text()


def test_a_sweep_whose_every_run_fails_has_an_answer(tmp_path: Path) -> None:
    runs = FakeRuns(statuses={number: TargetError("gone") for number in range(8)})
    folder, found = sweep(load(tmp_path, confirm=2), tmp_path, runs)
    assert len(runs.digests) == 8, "nothing was chosen that fresh runs could be made of"
    assert found.ranking.best is None
    assert (
        json.loads((folder / "sweep.json").read_text())["answer"]
        == "no cell has a finite p95 in its valid runs"
    )


def test_the_file_itself_may_be_written_anew_and_moved(tmp_path: Path) -> None:
    folder, _ = sweep(load(tmp_path), tmp_path, FakeRuns())
    write_experiment(tmp_path, order="blocked-random")
    rest = FakeRuns()
    sweep(load(tmp_path, order="blocked-random"), tmp_path, rest, resume=folder)
    assert rest.digests == []
    assert DONE == "done"
