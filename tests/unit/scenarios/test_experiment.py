"""Experiments: what a cell is, the order of runs, and the one line for each thing that is wrong."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import with_struck_keys
from squall.scenarios.errors import ScenarioError
from squall.scenarios.experiment import (
    CELL,
    REFERENCE,
    PlannedRun,
    combinations,
    load_experiment,
)
from tests.simulated_sweeps import experiment_of
from tests.sweep_runs import MATRIX, POISSON, SCENARIO, load, write_experiment
from tests.unit.scenarios.refused import assert_says, refused

ATTACHED = {
    "scenario": {**SCENARIO, "server": {"url": "http://127.0.0.1:1"}},
    "matrix": {"clients.workers_per_node": [1, 2]},
}
DIGESTS = ("one", "two", "three", "four", "five")
KEYS = st.sampled_from("abcd")
VALUES = st.integers(0, 2)
MATRICES = st.dictionaries(
    st.sampled_from("abc"), st.lists(VALUES, min_size=1, max_size=3, unique=True), max_size=3
)
ENTRIES = st.lists(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3), max_size=4)


def test_a_cell_is_the_scenario_with_its_factors_and_a_seed(tmp_path: Path) -> None:
    found = load(tmp_path, include=[{"model.max_batch_size": 8, "server.nice": 3}])
    assert [cell.label for cell in found.cells] == [
        "max_batch_size=1, queue_delay=0s",
        "max_batch_size=1, queue_delay=5ms",
        "max_batch_size=8, queue_delay=0s, nice=3",
        "max_batch_size=8, queue_delay=5ms, nice=3",
    ]
    last = found.cells[3]
    stated = {
        **SCENARIO,
        "model": {"name": "linear_head", "max_batch_size": 8, "queue_delay": "5ms"},
        "server": {"nice": 3},
    }
    plain = scenario_from_mapping(stated, "plain").to_mapping()
    assert last.scenario.to_mapping() == plain
    assert last.with_seed(9).to_mapping() == {**plain, "seed": 9}
    counted = with_struck_keys(plain)
    del counted["seed"]
    assert last.digest == hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()
    assert found.factors == ("model.max_batch_size", "model.queue_delay", "server.nice")
    assert (found.name, found.seed) == ("held", 1)


def test_a_scenario_file_and_what_it_names_are_found_from_their_folders(tmp_path: Path) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "base.yaml").write_text(yaml.safe_dump(SCENARIO))
    matrix = {"phases.burst.arrivals": [POISSON, {"kind": "trace", "file": "a.csv"}]}
    found = load(tmp_path, scenario="scenarios/base.yaml", matrix=matrix)
    burst: Any = found.cells[1].scenario.phases[1].arrivals
    assert burst.file == str(tmp_path / "a.csv")
    assert found.cells[1].label == 'arrivals={"kind": "trace", "file": "a.csv"}'


def test_short_names_of_factors_tell_them_apart(tmp_path: Path) -> None:
    matrix = {f"phases.{phase}.arrivals.rate": ["50/s"] for phase in ("warm", "burst")}
    assert load(tmp_path, matrix=matrix).cells[0].label == "warm.arrivals.rate=50/s, burst.arrivals.rate=50/s"


def test_no_cell_ends_its_load_before_its_time(tmp_path: Path) -> None:
    aborting = {"threshold": "p(95)<50ms", "abortOnFail": True, "delayAbortEval": "1s"}
    ending = {**SCENARIO, "stop_when": "decided", "promises": {"response": aborting}}
    whole = {**SCENARIO, "promises": {"response": "p(95)<50ms"}}
    cells, expected = (load(tmp_path, scenario=one).cells for one in (ending, whole))
    assert [cell.scenario for cell in cells] == [cell.scenario for cell in expected]
    assert [cell.digest for cell in cells] == [cell.digest for cell in expected]


def test_how_the_file_is_written_does_not_matter_and_what_it_runs_does(tmp_path: Path) -> None:
    plain = load(tmp_path).described()
    other = load(tmp_path, matrix={**MATRIX, "model.queue_delay": ["0ms", "5000us"]}).described()
    assert [cell["digest"] for cell in other["cells"]] == [cell["digest"] for cell in plain["cells"]]
    assert load(tmp_path, matrix={**MATRIX, "model.max_batch_size": [1, 8]}).described() == plain
    assert load(tmp_path, repeats=3).described() != plain
    assert load(tmp_path, scenario={**SCENARIO, "clients": {"timeout": "3s"}}).described() != plain


def refusal(path: Path) -> str:
    """What is said of the file, after its path."""
    with pytest.raises(ScenarioError) as raised:
        load_experiment(path)
    place, _, said = str(raised.value).partition(f"{path}: ")
    assert (place, raised.value.exit_code) == ("", 2)
    return said


OTHERWISE: list[dict[str, Any]] = [
    {
        "changes": {"scenario": {**SCENARIO, "phases": SCENARIO["phases"][1:]}},
        "place": "cell",
        "says": "phases: no warmup",
    },
    {
        "changes": {"scenario": {**SCENARIO, "sed": 1}},
        "place": "scenario: sed",
        "says": "did you mean 'seed'?",
    },
    {"changes": {"restart": "cell", **ATTACHED}, "place": "restart", "says": "cell cannot be kept"},
]


@pytest.mark.parametrize("case", [*refused("experiment"), *OTHERWISE])
def test_what_is_wrong_is_one_line(tmp_path: Path, case: dict[str, Any]) -> None:
    assert_says(refusal(write_experiment(tmp_path, **case["changes"])), case)


def test_restart_that_can_be_kept_is_taken(tmp_path: Path) -> None:
    assert load(tmp_path, restart="cell").file.restart == "cell"
    assert load(tmp_path, restart="never", **ATTACHED).file.restart == "never"


def test_the_experiment_on_the_page_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "sweep.md").read_text(encoding="utf-8")
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(SCENARIO))
    path = tmp_path / "experiment.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert len(load_experiment(path).cells) == 6


def test_the_example_of_githubs_page_gives_its_six_jobs() -> None:
    # docs.github.com, Workflow syntax, jobs.<job_id>.strategy.matrix.include, "Example: Expanding configurations"
    found = combinations(
        {"fruit": ["apple", "pear"], "animal": ["cat", "dog"]},
        [
            {"color": "green"},
            {"color": "pink", "animal": "cat"},
            {"fruit": "apple", "shape": "circle"},
            {"fruit": "banana"},
            {"fruit": "banana", "animal": "cat"},
        ],
    )
    assert found == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def brute(matrix: dict[str, list[int]], include: list[dict[str, int]], exclude: list[dict[str, int]]) -> Any:
    """Cell by cell, entry by entry, in the words of GitHub's page."""
    grid = []
    if matrix:
        for values in itertools.product(*matrix.values()):
            cell = dict(zip(matrix, values, strict=True))
            if not any(set(entry.items()) <= set(cell.items()) for entry in exclude):
                grid.append(cell)
    grown = [dict(cell) for cell in grid]
    lone = []
    for entry in include:
        was_added = False
        for place, cell in enumerate(grid):
            overwrites = [key for key in entry if key in cell and cell[key] != entry[key]]
            if not overwrites:
                for key, value in entry.items():
                    grown[place][key] = value
                was_added = True
        if not was_added:
            lone.append(entry)
    return grown + lone


@given(MATRICES, ENTRIES, ENTRIES)
def test_any_matrix_gives_the_cells_of_the_brute_force(
    matrix: dict[str, list[int]], include: list[dict[str, int]], exclude: list[dict[str, int]]
) -> None:
    product = brute(matrix, [], [])
    fitting = [entry for entry in exclude if any(set(entry.items()) <= set(cell.items()) for cell in product)]
    expected = brute(matrix, include, fitting)
    if not expected:
        with pytest.raises(ValueError, match="matrix: is empty"):
            combinations(matrix, include, fitting)
    else:
        assert combinations(matrix, include, fitting) == expected
    if len(fitting) < len(exclude):
        with pytest.raises(ValueError, match="no cell of the matrix has"):
            combinations(matrix, include, exclude)


def test_a_number_is_not_a_truth_value() -> None:
    assert combinations({"a": [1, True, 1.0]}, (), [{"a": True}]) == [{"a": 1}, {"a": 1.0}]


def test_more_cells_than_a_sweep_takes_are_refused_before_they_are_made() -> None:
    with pytest.raises(ValueError, match=r"1,000,000,000,000 cells are above the 10,000"):
        combinations({key: list(range(1_000)) for key in "abcd"})


@given(st.integers(1, 5), st.integers(0, 10**9), st.integers(1, 7))
def test_every_block_holds_every_cell_once_with_a_seed_of_its_own(
    n_cells: int, seed: int, repeats: int
) -> None:
    runs = experiment_of(DIGESTS[:n_cells], seed, repeats, "blocked-random").cell_runs()
    found = [[run.cell for run in runs[first : first + n_cells]] for first in range(0, len(runs), n_cells)]
    assert len(found) == repeats
    assert all(sorted(block) == list(range(n_cells)) for block in found)
    assert [run.seed for run in runs] == [seed + place // n_cells for place in range(len(runs))]
    assert all(odd == even[::-1] for even, odd in zip(found[::2], found[1::2], strict=False))


def test_orders_are_drawn_alike_whichever_they_are() -> None:
    # 6 orders of 3 cells over 600 seeds: 100 each, sd sqrt(600 / 6 * 5 / 6) = 9.1; 4 sd = 37
    drawn = Counter(
        tuple(run.cell for run in experiment_of(DIGESTS[:3], seed, 1, "blocked-random").cell_runs())
        for seed in range(600)
    )
    assert len(drawn) == 6
    assert all(abs(n - 100) <= 37 for n in drawn.values())


def test_an_order_is_the_same_on_every_machine() -> None:
    assert [run.cell for run in experiment_of(DIGESTS, 1, 1, "blocked-random").cell_runs()] == [4, 3, 0, 2, 1]
    backwards = experiment_of(DIGESTS[::-1], 1, 1, "blocked-random").cell_runs()
    assert [4 - run.cell for run in backwards] == [4, 3, 0, 2, 1], "wherever it stands in the file"
    fixed = experiment_of(DIGESTS[:2], 4, 3, "fixed").cell_runs()
    assert [(run.cell, run.seed) for run in fixed] == [(0, 4), (0, 5), (0, 6), (1, 4), (1, 5), (1, 6)]


@given(st.integers(0, 30), st.integers(1, 9))
def test_the_reference_cell_is_run_first_last_and_after_every_so_many(n: int, every: int) -> None:
    runs = [PlannedRun(CELL, k, 0, 1) for k in range(n)]
    found = experiment_of(DIGESTS, 1, 1, "fixed", every).with_reference(runs)
    assert [run for run in found if run.role == CELL] == runs
    if not n:
        assert found == []
        return
    places = [place for place, run in enumerate(found) if run.role == REFERENCE]
    gaps = [after - before - 1 for before, after in pairwise(places)]
    assert (places[0], places[-1]) == (0, len(found) - 1)
    assert all(gap == every for gap in gaps[:-1])
    assert 1 <= gaps[-1] <= every
    assert [found[place].number for place in places] == list(range(len(places)))


def test_fresh_runs_have_seeds_that_chose_nothing(tmp_path: Path) -> None:
    experiment = load(tmp_path, seed=10, repeats=3, confirm=2)
    assert [run.seed for run in experiment.confirming_runs(1)] == [13, 14]
    one = load(tmp_path, matrix={"model.max_batch_size": [4]}, confirm=2)
    assert one.confirming_runs(0) == [], "one cell was not chosen among others"
