"""Experiment files: what a cell is, and the one line for each thing that is wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import ScenarioError
from squall.scenarios.experiments.experiment import load_experiment
from tests.sweep_runs import MATRIX, POISSON, SCENARIO, load, write_experiment

URL = "http://127.0.0.1:1"
ATTACHED = {**SCENARIO, "server": {"url": URL}}


def test_a_cell_is_the_scenario_with_its_factors(tmp_path: Path) -> None:
    found = load(tmp_path, include=[{"model.max_batch_size": 8, "server.nice": 3}])
    assert [cell.label for cell in found.cells] == [
        "max_batch_size=1, queue_delay=0s",
        "max_batch_size=1, queue_delay=5ms",
        "max_batch_size=8, queue_delay=0s, nice=3",
        "max_batch_size=8, queue_delay=5ms, nice=3",
    ]
    last = found.cells[3].scenario
    assert (last.models[0].model.max_batch_size, last.models[0].model.queue_delay_ns, last.server.nice) == (
        8,
        5_000_000,
        3,
    )
    assert found.factors == ("model.max_batch_size", "model.queue_delay", "server.nice")
    assert (found.name, found.seed) == ("held", 1)


def test_a_scenario_file_and_what_it_names_are_found_from_their_folders(tmp_path: Path) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "base.yaml").write_text(yaml.safe_dump(SCENARIO))
    found = load(
        tmp_path, scenario="scenarios/base.yaml",
        matrix={"phases.burst.arrivals": [POISSON, {"kind": "trace", "file": "a.csv"}]},
    )  # fmt: skip
    burst: Any = found.cells[1].scenario.phases[1].arrivals
    assert burst.file == str(tmp_path / "a.csv")
    assert found.cells[1].label == 'arrivals={"kind": "trace", "file": "a.csv"}'


def test_short_names_of_factors_tell_them_apart(tmp_path: Path) -> None:
    matrix = {f"phases.{phase}.arrivals.rate": ["50/s"] for phase in ("warm", "burst")}
    assert load(tmp_path, matrix=matrix).cells[0].label == "warm.arrivals.rate=50/s, burst.arrivals.rate=50/s"


def test_no_cell_ends_its_load_before_its_time(tmp_path: Path) -> None:
    aborting = {"threshold": "p(95)<50ms", "abortOnFail": True, "delayAbortEval": "1s"}
    ending = load(
        tmp_path, scenario={**SCENARIO, "stop_when": "decided", "promises": {"response": aborting}}
    ).cells  # fmt: skip
    whole = load(tmp_path, scenario={**SCENARIO, "promises": {"response": "p(95)<50ms"}}).cells
    for one in ending:
        seeded = one.with_seed(3)
        (promise,) = seeded.promises or ()
        assert (seeded.stop_when, promise.aborts_on_fail, promise.condition) == (None, False, "p(95)<50ms")
    assert [one.digest for one in ending] == [one.digest for one in whole]


def test_digests_of_cells_are_of_their_whole_mapping(tmp_path: Path) -> None:
    for cell in load(tmp_path).cells:
        plain = scenario_from_mapping(
            {
                **SCENARIO,
                "model": {
                    "name": "linear_head",
                    **{key.partition(".")[2]: value for key, value in cell.factors.items()},
                },
            },
            "plain",
        ).to_mapping()
        del plain["seed"]
        assert cell.digest == hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def test_a_cell_differs_from_its_seeds_by_the_seed_alone(tmp_path: Path) -> None:
    cell = load(tmp_path).cells[0]
    seeded = cell.with_seed(9)
    assert seeded.seed == 9
    assert {**seeded.to_mapping(), "seed": 1} == cell.scenario.to_mapping()


def test_how_the_file_is_written_does_not_matter_and_what_it_runs_does(tmp_path: Path) -> None:
    plain = load(tmp_path).described()
    other = {"model.queue_delay": ["0ms", "5000us"]}
    assert load(tmp_path, matrix={**MATRIX, "model.max_batch_size": [1, 8]}).described() == plain
    assert (
        load(tmp_path, matrix={**MATRIX, **other}).described()["cells"][0]["digest"]
        == plain["cells"][0]["digest"]
    )
    assert load(tmp_path, repeats=3).described() != plain
    assert load(tmp_path, scenario={**SCENARIO, "clients": {"timeout": "3s"}}).described() != plain


NO_SECRETS = (
    "what a factor is stands in every file of a sweep, and values of headers in none: write ${NAME}, and set that"
    " variable"
)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an empty matrix": ({"matrix": {}}, "matrix: is empty, it names key paths and their values"),
    "no matrix": ({"matrix": None}, "matrix: is empty, a sweep needs cells"),
    "no values": ({"matrix": {"model.instances": []}}, "matrix.model.instances: is empty, it needs at least one value"),
    "one value": ({"matrix": {"model.instances": 8}}, "matrix.model.instances: 8 is not a list"),
    "unknown key": (
        {"matrix": {"model.max_batch": [1]}},
        "model.max_batch=1: model.max_batch: unknown key, did you mean 'max_batch_size'?",
    ),
    "unknown key of the experiment": ({"repeat": 2}, "repeat: unknown key, did you mean 'repeats'?"),
    "a cell twice": (
        {"matrix": {"model.queue_delay": ["1ms", "1000us"]}},
        "cells queue_delay=1ms and queue_delay=1000us are the same scenario, leave one out",
    ),
    "exclude nothing": (
        {"exclude": [{"model.max_batch_size": 3}]},
        "exclude[0]: no cell of the matrix has model.max_batch_size=3",
    ),
    "exclude a stranger": (
        {"exclude": [{"model.max_batchsize": 3}]},
        "exclude[0]: model.max_batchsize is no key of matrix, did you mean 'model.max_batch_size'?",
    ),
    "exclude all": (
        {"exclude": [{"model.max_batch_size": 1}, {"model.max_batch_size": 8}]},
        "matrix: is empty, exclude takes every cell",
    ),
    "a value that is refused": (
        {"matrix": {"model.max_batch_size": [1, -8]}},
        "cell model.max_batch_size=-8: model.max_batch_size: -8 must be at least 1",
    ),
    "values that do not fit": (
        {"matrix": {"model.max_batch_size": [2], "model.preferred_batch_sizes": [[4]]}},
        "cell model.max_batch_size=2, model.preferred_batch_sizes=[4]: model: preferred batch size 4 is above"
        " max_batch_size 2",
    ),
    "an empty include": ({"include": [{}]}, "include[0]: is empty, it names key paths and their values"),
    "a seed as factor": (
        {"matrix": {"seed": [1, 2]}},
        "matrix: seed is no factor, repeats and seed of the experiment say which",
    ),
    "a secret as factor": (
        {"matrix": {"clients.headers.Authorization": ["${A}", "Bearer s3cret"]}},
        f"matrix: clients.headers.Authorization: {NO_SECRETS}",
    ),
    "a section with a secret as factor": (
        {"include": [{"clients": {"headers": {"Authorization": "Bearer s3cret"}}}]},
        f"include[0]: clients: {NO_SECRETS}",
    ),
    "no seeds": ({"repeats": 0}, "repeats: 0 must be at least 1"),
    "a strange objective": (
        {"objectives": ["p96"]},
        "objectives[0]: 'p96' must be 'p50', 'p95', 'p99' or 'throughput'",
    ),
    "an objective twice": ({"objectives": ["p95", "p95"]}, "objectives: p95 is named twice"),
    "reference of several": (
        {"reference": {"cell": {"model.max_batch_size": 1}}},
        "reference.cell: 2 cells of the sweep have model.max_batch_size=1, name one",
    ),
    "reference of none": (
        {"reference": {"cell": {"model.max_batch_size": 2}}},
        "reference.cell: no cell of the sweep has model.max_batch_size=2, name one",
    ),
    "a unit forgotten": (
        {"cooldown": {"pause": 5}},
        "cooldown.pause: 5 has no unit, write a duration such as 30s, 250ms or 2m",
    ),
    "restart never": (
        {"restart": "never"},
        "restart: never cannot be kept: squall starts its server anew for every run, unless server.url names one that"
        " runs; leave restart out, or say cell",
    ),
    "restart block": (
        {"restart": "block"},
        "restart: block cannot be kept: squall starts its server anew for every run, and one at server.url never; say"
        " cell or never",
    ),
    "restart of a server that is not ours": (
        {"restart": "cell", "matrix": {"clients.workers_per_node": [1, 2]}, "scenario": ATTACHED},
        "restart: cell cannot be kept: squall does not restart the server at server.url; say never",
    ),
    "no warm-up": (
        {"scenario": {**SCENARIO, "phases": SCENARIO["phases"][1:]}},
        "cell max_batch_size=1, queue_delay=0s: phases: no warmup comes before 'burst', and every run of a sweep needs"
        " one",
    ),
    "a bad scenario": ({"scenario": {**SCENARIO, "sed": 1}}, "scenario: sed: unknown key, did you mean 'seed'?"),
    "no scenario": ({"scenario": 3}, "scenario: is the path of a scenario file, or a scenario itself"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_one_line(tmp_path: Path, what: str) -> None:
    changes, line = BAD[what]
    path = write_experiment(tmp_path, **changes)
    with pytest.raises(ScenarioError) as raised:
        load_experiment(path)
    assert str(raised.value) == f"{path}: {line}"
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "the file is empty"),
        ("- 1", "an experiment is a mapping of keys, not a list"),
        ("matrix: {a: [1]}\nmatrix: {a: [1]}", "line 2, column 1: the key 'matrix' is given twice"),
    ],
)
def test_a_file_that_is_no_experiment_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as raised:
        load_experiment(path)
    assert str(raised.value) == f"{path}: {line}"


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.yaml: no such experiment file$"):
        load_experiment(tmp_path / "none.yaml")


def test_restart_that_can_be_kept_is_taken(tmp_path: Path) -> None:
    assert load(tmp_path, restart="cell").file.restart == "cell"
    own = {"scenario": ATTACHED, "matrix": {"clients.workers_per_node": [1, 2]}}
    assert load(tmp_path, restart="never", **own).file.restart == "never"


PAGE = (Path(__file__).parents[4] / "docs" / "sweep.md").read_text(encoding="utf-8")


def test_the_experiment_on_the_page_is_one(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(SCENARIO))
    path = tmp_path / "experiment.yaml"
    path.write_text(PAGE.partition("```yaml\n")[2].partition("```")[0])
    assert [cell.label for cell in load_experiment(path).cells] == [
        "max_batch_size=1, queue_delay=0s",
        "max_batch_size=8, queue_delay=0s",
        "max_batch_size=8, queue_delay=2ms",
        "max_batch_size=32, queue_delay=0s",
        "max_batch_size=32, queue_delay=2ms",
        "max_batch_size=32, queue_delay=10ms",
    ]
