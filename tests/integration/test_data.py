"""Inputs from files of the user's: what a real Triton sees of them, and that bad ones end before anything is sent."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.analysis.storage.store import RunStore
from squall.models.payload import objects, write_tensor
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.plan.plan import Plan
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping
from tests.reporting import NATIVE, SHARED, compiled

pytestmark = [pytest.mark.slow, pytest.mark.beside]

MODEL = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Writes down what it was asked."""

    def initialize(self, args):
        self._seen = open(json.loads(args["model_config"])["parameters"]["seen"]["string_value"], "a")

    def execute(self, requests):
        answers = []
        for request in requests:
            ids, mask = (np.from_dlpack(pb_utils.get_input_tensor_by_name(request, name)) for name in ("ids", "mask"))
            told = {"id": request.request_id(), "ids": ids.tolist(), "mask": mask.tolist()}
            self._seen.write(json.dumps(told) + "\\n")
            self._seen.flush()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("out", ids[:, :1].copy())]))
        return answers
'''
CONFIG = """
name: "reader"
backend: "python"
max_batch_size: 4
input [
  {{ name: "ids", data_type: TYPE_INT64, dims: [ -1 ] }},
  {{ name: "mask", data_type: TYPE_INT64, dims: [ -1 ] }}
]
output [ {{ name: "out", data_type: TYPE_INT64, dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
parameters: {{ key: "seen" value: {{ string_value: "{seen}" }} }}
"""
ECHO_CONFIG = """
name: "minimal"
backend: "minimal"
max_batch_size: 4
input [ {{ name: "{name}", data_type: TYPE_{datatype}, dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT", data_type: TYPE_{datatype}, dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
"""
N_ENTRIES = 600
LENGTHS = np.clip(np.rint(np.random.default_rng(3).lognormal(4.0, 0.8, N_ENTRIES)), 1, 512).astype(int)


def token_ids(number: int) -> list[int]:
    """Of an entry; the first says which one it is."""
    return [number, *np.random.default_rng([9, number]).integers(0, 30_522, LENGTHS[number] - 1).tolist()]


def tokens(path: Path) -> Path:
    table = pa.table(
        {"tokens": pa.array([token_ids(number) for number in range(N_ENTRIES)], pa.list_(pa.int32()))}
    )
    pq.write_table(table, path, row_group_size=100)
    return path


def phases(rate: str = "150/s", seconds: int = 4) -> list[dict[str, Any]]:
    arrivals = {"kind": "poisson", "rate": rate}
    return [
        {"name": "main", "kind": "measure", "duration": f"{seconds}s", "arrivals": arrivals},
        {"name": "drain", "kind": "drain", "duration": "20s"},
    ]


def write_reader(folder: Path) -> Path:
    """The model that writes down what it sees; where it does."""
    version, seen = folder / "models" / "reader" / "1", folder / "seen"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG.format(seen=seen))
    return seen


def write_echo(folder: Path, name: str, datatype: str) -> None:
    """The model that answers with its input, which is called `name`."""
    model = folder / "models" / "minimal"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(ECHO_CONFIG.format(name=name, datatype=datatype))
    compiled([NATIVE / "minimal_backend.c"], model / "libtriton_minimal.so", *SHARED, "-O2")


def reader(folder: Path, data: dict[str, Any], **clients: Any) -> tuple[dict[str, Any], Path]:
    """A scenario of the model that writes down what it sees, and where."""
    seen = write_reader(folder)
    mapping = scenario_mapping(
        model={"name": "reader", "repository": str(folder / "models"), "max_batch_size": 4},
        clients={
            "timeout": "20s", "data": data, "inputs": {"mask": {"like": "ids", "low": 1.0, "high": 1.0}},
            "workers_per_node": 2, **clients,
        },
        phases=phases(),
    )  # fmt: skip
    return mapping, seen


def echo(folder: Path, name: str, datatype: str, data: dict[str, Any], **clients: Any) -> dict[str, Any]:
    """A scenario of the model that answers with its input."""
    write_echo(folder, name, datatype)
    return scenario_mapping(
        model={"name": "minimal", "repository": str(folder / "models"), "max_batch_size": 4},
        clients={"workers_per_node": 2, "timeout": "20s", "data": data, **clients},
        phases=phases(),
    )


def ended_well(bench: Bench, mapping: dict[str, Any]) -> tuple[RunStore, dict[str, Any], Plan]:
    live = bench.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    store = bench.store()
    rows = planned_rows(store)
    assert set(rows["outcome"]) == {"ok"}
    plan = plan_scenario(scenario_from_mapping(mapping, "test"))
    assert plan.sha256() == store.manifest.plan.sha256
    return store, rows, plan


@pytest.mark.parametrize(
    ("protocol", "n_workers"),
    [
        pytest.param("http", 1, marks=pytest.mark.long),
        ("http", 5),
        pytest.param("grpc", 2, marks=pytest.mark.long),
    ],
)
def test_the_server_sees_the_entries_of_the_data_however_many_workers_send(
    alone: Bench, tmp_path: Path, protocol: str, n_workers: int
) -> None:
    data = {"path": str(tokens(tmp_path / "tokens.parquet")), "columns": {"ids": "tokens"}, "order": "random"}
    mapping, seen = reader(tmp_path, data, protocol=protocol, workers_per_node=n_workers)
    store, rows, plan = ended_well(alone, mapping)
    told = {int(one["id"]): one for one in map(json.loads, seen.read_text().splitlines())}
    assert sorted(told) == rows["request_id"]
    # each request is the entry that the plan says, which is the same for any number of workers
    for number, entry in enumerate(plan.variant.tolist()):
        assert told[number]["ids"] == [token_ids(entry)]
        assert told[number]["mask"] == [[1] * LENGTHS[entry]]
    # two samples, Kolmogorov-Smirnov: D < c(α)·√((n+m)/(n·m)), c = √(-ln(α/2)/2) = 2.23 at α = 1e-4
    seen_lengths = np.sort([len(one["ids"][0]) for one in told.values()])
    n, m = seen_lengths.size, N_ENTRIES
    grid = np.arange(1, 513)
    shares = [np.searchsorted(np.sort(one), grid, side="right") / len(one) for one in (seen_lengths, LENGTHS)]
    assert np.abs(shares[0] - shares[1]).max() < 2.23 * np.sqrt((n + m) / (n * m))
    facts = store.manifest.data
    assert facts is not None
    assert (facts.format, facts.n_entries, facts.n_encoded) == (
        "parquet",
        N_ENTRIES,
        len(set(plan.variant.tolist())),
    )
    assert all(worker.has_lane for worker in store.manifest.workers)


@pytest.mark.parametrize(
    ("protocol", "share"), [pytest.param("http", 0.1, marks=pytest.mark.long), ("grpc", 0.1), ("http", 1.0)]
)
def test_replies_to_entries_are_compared_value_by_value(
    alone: Bench, tmp_path: Path, protocol: str, share: float
) -> None:
    """Through the lane where a tenth are compared, in Python where all are; several rows are entries that follow."""
    values = np.random.default_rng(5).standard_normal((50, 7)).astype(np.float32)
    np.save(tmp_path / "values.npy", values)
    answers: dict[str, Any] = {
        f"OUTPUT/{rows}/{entry}": values[np.arange(entry, entry + rows) % 50]
        for rows in (1, 2, 3)
        for entry in range(50)
    }
    np.savez(tmp_path / "answers.npz", **answers)
    mapping = echo(
        tmp_path, "IN", "FP32", {"path": str(tmp_path / "values.npy"), "order": {"kind": "zipf", "exponent": 0.8}},
        protocol=protocol, rows={"kind": "uniform", "low": 1, "high": 3},
        check={"share": share, "reference": str(tmp_path / "answers.npz"), "rtol": 0.0, "atol": 0.0},
    )  # fmt: skip
    store, rows, plan = ended_well(alone, mapping)
    checks = store.manifest.value_checks
    assert checks is not None
    assert checks.n_wrong == 0
    assert checks.n_checked is not None
    assert checks.n_checked >= 0.9 * share * len(rows["outcome"])
    popular = Counter(plan.variant.tolist())
    assert popular[0] > popular[40]


@pytest.mark.long
def test_a_head_of_the_zoo_is_held_to_its_answers_to_the_entries(alone: Bench, tmp_path: Path) -> None:
    values = np.random.default_rng(6).standard_normal((30, 16)).astype(np.float64)
    pq.write_table(pa.table({"x": pa.array(values.tolist())}), tmp_path / "x.parquet")
    mapping = scenario_mapping(phases=phases(seconds=2))
    mapping["clients"] |= {
        "data": {"path": str(tmp_path / "x.parquet"), "columns": {"INPUT": "x"}, "order": "random"},
        "check": {"share": 0.5},
    }
    store, rows, _ = ended_well(alone, mapping)
    checks = store.manifest.value_checks
    assert checks is not None
    assert checks.n_checked is not None
    assert (checks.n_wrong, checks.n_checked >= 0.45 * len(rows["outcome"])) == (0, True)


@pytest.mark.long
@pytest.mark.parametrize("protocol", [pytest.param("http", marks=pytest.mark.long), "grpc"])
def test_lines_of_text_come_back_as_long_as_they_are(alone: Bench, tmp_path: Path, protocol: str) -> None:
    lines = ["é" * (1 + 37 * number % 900) for number in range(40)]
    (tmp_path / "prompts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    mapping = echo(tmp_path, "TEXT", "STRING", {"path": str(tmp_path / "prompts.txt")}, protocol=protocol)
    _, rows, plan = ended_well(alone, mapping)
    assert plan.variant[:80].tolist() == [*range(40), *range(40)]
    beside = {
        n_bytes - len(write_tensor(objects([lines[plan.variant[number]].encode()])))
        for number, n_bytes in zip(rows["request_id"], rows["response_bytes"], strict=True)
    }
    assert max(beside) - min(beside) <= 6  # digits of the lengths that a reply states


@pytest.mark.long
def test_users_of_a_closed_loop_go_through_the_data_in_turn(alone: Bench, tmp_path: Path) -> None:
    data = {"path": str(tokens(tmp_path / "tokens.parquet")), "columns": {"ids": "tokens"}}
    mapping, seen = reader(tmp_path, data)
    mapping["phases"][0] |= {"duration": "1s", "arrivals": {"kind": "closed", "users": 3}}
    live = alone.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    told = {int(one["id"]): one["ids"][0][0] for one in map(json.loads, seen.read_text().splitlines())}
    assert len(told) > 30
    assert all(entry == number % N_ENTRIES for number, entry in told.items())


@pytest.mark.parametrize(
    "fault",
    [
        "column",
        pytest.param("dtype", marks=pytest.mark.long),
        pytest.param("ragged", marks=pytest.mark.long),
        "cut",
    ],
)
def test_bad_data_ends_in_one_line_and_nothing_is_sent(alone: Bench, tmp_path: Path, fault: str) -> None:
    path = tmp_path / "bad.parquet"
    rows: list[Any] = [[1, 2]] * 30
    if fault == "ragged":
        rows[20] = [1, 2, 3]
    if fault == "dtype":
        rows = [[1.5]] * 30
    pq.write_table(pa.table({"idz" if fault == "column" else "ids": rows}), path)
    if fault == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    mapping, seen = reader(tmp_path, {"path": str(path)}, rows={"kind": "constant", "value": 2})
    live = alone.start_run(mapping)
    assert live.end() == 2
    line = live.error_line()
    assert f"{path}: " in line
    expected = {
        "column": "has no column 'ids' for input ids of model reader, it has idz",
        "dtype": "row 1: input ids is INT64, and the data has numbers with a fraction",
        "ragged": "row 20: ids is [2], and [3] in another of the 2 entries of one request: its rows have one shape",
        "cut": "cannot be read, is it whole?",
    }
    assert expected[fault] in line
    assert not seen.exists() or not seen.read_text()
