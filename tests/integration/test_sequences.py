"""Sequences of requests to a stateful model of a real Triton: what the model sees, request by request."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.actors.load.lane import IS_BUILT, NOT_BUILT
from squall.models.payload import LEAST_TRIAL_ID
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.sequences import IN_TURN, Place, SequenceRule, Sequences
from tests.integration.live_runs import (
    MET_ON_A_BUSY_MACHINE,
    Bench,
    planned_rows,
    scenario_mapping,
    unmet,
)

pytestmark = [pytest.mark.slow, pytest.mark.beside]

MODEL = '''
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils

START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END


class TritonPythonModel:
    """Adds up a sequence's inputs; the state is its own. It writes down what it was asked."""

    def initialize(self, args):
        self._seen = open(json.loads(args["model_config"])["parameters"]["seen"]["string_value"], "a")
        self._sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            value = float(np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "IN")).ravel()[0])
            sequence, flags = request.correlation_id(), request.flags()
            if flags & START or not sequence:  # Triton fills the slots of a batch that wait with requests of its own
                self._sums[sequence] = 0.0
            self._sums[sequence] += value
            if sequence:
                self._seen.write(json.dumps({
                    "id": request.request_id(), "sequence": sequence, "start": bool(flags & START),
                    "end": bool(flags & END),
                }) + "\\n")
                self._seen.flush()
            out = np.array([[self._sums[sequence]]], np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", out)]))
        return answers
'''
REFUSAL = """            if value > 2:
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("too large")))
                continue
            out = """
CONFIG = """
name: "adder"
backend: "python"
max_batch_size: 4
sequence_batching {{ max_sequence_idle_microseconds: 30000000, {strategy} }}
input [ {{ name: "IN", data_type: TYPE_FP32, dims: [ 1 ] }} ]
output [ {{ name: "OUT", data_type: TYPE_FP32, dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU, count: 2 }} ]
parameters: {{ key: "seen" value: {{ string_value: "{seen}" }} }}
"""
OLDEST = "oldest { max_candidate_sequences: 16 }"
DIRECT = "direct { }"
LENGTH = {"kind": "uniform", "low": 1, "high": 9}


def mapping_of(folder: Path, protocol: str, strategy: str = OLDEST, **sequences: Any) -> dict[str, Any]:
    version = folder / "models" / "adder" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG.format(seen=folder / "seen", strategy=strategy))
    return scenario_mapping(
        model={"name": "adder", "repository": str(folder / "models"), "max_batch_size": 4},
        clients={
            "workers_per_node": 2, "timeout": "20s", "protocol": protocol,
            "sequences": {"length": LENGTH, **sequences},
        },
        phases=[
            {"name": "main", "kind": "measure", "duration": "3s", "arrivals": {"kind": "poisson", "rate": "150/s"}},
            {"name": "drain", "kind": "drain", "duration": "20s"},
        ],
    )  # fmt: skip


def seen_by(folder: Path) -> dict[int, dict[str, Any]]:
    """What the model was asked, by request, in the order in which it was; without what was tried before the load,
    which was a sequence by itself."""
    seen = {int(one["id"]): one for one in map(json.loads, (folder / "seen").read_text().splitlines())}
    tried = [seen.pop(one) for one in list(seen) if one >= LEAST_TRIAL_ID]
    assert all(one["start"] and one["end"] for one in tried)
    return seen


def places_of(mapping: dict[str, Any], run: str, n_lanes: int, ids: list[int]) -> dict[int, Place]:
    scenario = scenario_from_mapping(mapping, "test")
    assert scenario.clients.sequences is not None
    sequences = Sequences(SequenceRule(n_lanes, scenario.clients.sequences.length, scenario.seed, run))
    return {one: sequences.place(one) for one in ids}


def assert_in_order(folder: Path) -> None:
    """Each sequence as it was asked for."""
    order = defaultdict(list)
    for request_id, told in seen_by(folder).items():
        order[told["sequence"]].append(request_id)
    assert len(order) > 1
    assert all(ids == sorted(ids) for ids in order.values())


def assert_as_laid_out(seen: dict[int, dict[str, Any]], places: dict[int, Place]) -> None:
    assert sorted(seen) == sorted(places)
    for request_id, place in places.items():
        told = seen[request_id]
        assert (told["sequence"], told["start"], told["end"]) == (
            place.correlation_id,
            place.is_start,
            place.is_end,
        )


@pytest.mark.parametrize(
    "strategy", [OLDEST, pytest.param(DIRECT, marks=pytest.mark.long)], ids=["oldest", "direct"]
)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_schedule_is_dealt_to_sequences(alone: Bench, tmp_path: Path, protocol: str, strategy: str) -> None:
    mapping = mapping_of(tmp_path, protocol, strategy, concurrent=8)
    mapping["phases"][0] |= {"duration": "5s", "arrivals": {"kind": "poisson", "rate": "30/s"}}
    live = alone.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    store = alone.store()
    rows = planned_rows(store)
    assert set(rows["outcome"]) == {"ok"}, set(rows["detail"])
    assert unmet(store) == []
    places = places_of(mapping, store.run, 8, rows["request_id"])
    assert_as_laid_out(seen_by(tmp_path), places)
    assert all(worker.has_lane == IS_BUILT for worker in store.manifest.workers)
    lengths = np.array([place.step + 1 for place in places.values() if place.is_end])
    assert len(lengths) > 12
    assert abs(lengths.mean() - 5) < 4 * np.sqrt(60 / 9) / np.sqrt(len(lengths)), "1 to 9: variance 60/9"
    assert set(store.read("joined").column("join_level").to_pylist()) == {"exact"}


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.long)])
def test_a_user_has_one_sequence_after_another(alone: Bench, tmp_path: Path, protocol: str) -> None:
    mapping = mapping_of(tmp_path, protocol)
    mapping["phases"][0]["arrivals"] = {"kind": "closed", "users": 6}
    live = alone.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    store = alone.store()
    rows = store.read("requests").to_pydict()
    assert set(rows["outcome"]) == {"ok"}, set(rows["detail"])
    assert_as_laid_out(seen_by(tmp_path), places_of(mapping, store.run, 6, rows["request_id"]))
    assert all(worker.has_lane == IS_BUILT for worker in store.manifest.workers)
    assert_in_order(tmp_path)


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.long)])
def test_a_sequence_keeps_its_order_its_server_and_its_connection(
    alone: Bench, tmp_path: Path, protocol: str
) -> None:
    """300 requests a second of 8 sequences to a model that takes 50 ms for each: nearly all wait for their turn."""
    mapping = mapping_of(tmp_path, protocol, concurrent=8, pinned=True)
    model = tmp_path / "models" / "adder" / "1" / "model.py"
    model.write_text(
        MODEL.replace("        answers = []\n", "        answers = []\n        time.sleep(0.05)\n")
    )
    mapping["servers"] = {"count": 2}
    mapping["phases"][0] |= {"duration": "1s", "arrivals": {"kind": "poisson", "rate": "300/s"}}
    live = alone.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    store = alone.store()
    rows = planned_rows(store)
    assert set(rows["outcome"]) == {"ok"}, set(rows["detail"])
    assert {worker.no_lane for worker in store.manifest.workers} <= {
        "sequences keep their connections",
        NOT_BUILT,
    }
    assert rows["detail"].count(IN_TURN) > len(rows["detail"]) / 2
    places = places_of(mapping, store.run, 8, rows["request_id"])
    assert_as_laid_out(seen_by(tmp_path), places)
    assert_in_order(tmp_path)
    servers = defaultdict(set)
    for request_id, target in zip(rows["request_id"], rows["target"], strict=True):
        servers[places[request_id].correlation_id].add(target)
    assert all(len(of_one) == 1 for of_one in servers.values())
    assert len(set().union(*servers.values())) == 2
    told = json.loads((store.run_dir / "summary.json").read_text())["measure"]["sequences"]
    n_ended = sum(place.is_end for place in places.values())
    assert (told["n_begun"], told["n_ended"], told["n_cut"]) == (len(servers), n_ended, 0)
    assert told["at_once_most_count"] >= 8
    assert set(store.read("joined").column("join_level").to_pylist()) == {"exact"}


@pytest.mark.parametrize("load", ["open", pytest.param("closed", marks=pytest.mark.long)])
def test_a_request_that_fails_cuts_its_sequence(alone: Bench, tmp_path: Path, load: str) -> None:
    """The model refuses inputs above 2, 2 % of standard normal ones. It keeps the slot of a sequence that was cut until
    that has been idle for a second."""
    mapping = mapping_of(tmp_path, "http")
    model = tmp_path / "models" / "adder" / "1" / "model.py"
    model.write_text(MODEL.replace("            out = ", REFUSAL))
    config = tmp_path / "models" / "adder" / "config.pbtxt"
    config.write_text(config.read_text().replace("idle_microseconds: 30000000", "idle_microseconds: 1000000"))
    mapping["clients"]["payload_variants"] = 128
    if load == "open":
        mapping["clients"]["sequences"]["concurrent"] = 8
    else:
        think = {"kind": "constant", "value": "20ms"}
        mapping["phases"][0]["arrivals"] = {"kind": "closed", "users": 8, "think": think}
    live = alone.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    store = alone.store()
    rows = store.read("requests").to_pydict()
    assert store.manifest.verdict is not None
    is_met = {check.name: check.is_met for check in store.manifest.verdict.checks}
    assert all(is_met.get(name, True) for name in MET_ON_A_BUSY_MACHINE), "`unsent` is of an open loop"
    places = places_of(mapping, store.run, 8, rows["request_id"])
    outcomes = dict(zip(rows["request_id"], rows["outcome"], strict=True))
    assert set(outcomes.values()) == {"ok", "server_error", "unsent"}
    sequences = defaultdict(list)
    for request_id in sorted(outcomes):
        sequences[places[request_id].correlation_id].append(outcomes[request_id])
    for of_one in sequences.values():
        n_ok = of_one.index("server_error") if "server_error" in of_one else len(of_one)
        rest = ["server_error"] + ["unsent"] * (len(of_one) - n_ok - 1)
        assert of_one == ["ok"] * n_ok + rest[: len(of_one) - n_ok]
    sent = [one for one, outcome in outcomes.items() if outcome != "unsent"]
    assert_as_laid_out(seen_by(tmp_path), {one: places[one] for one in sent})
    told = json.loads((store.run_dir / "summary.json").read_text())["measure"]["sequences"]
    n_cut = list(outcomes.values()).count("server_error")
    assert (told["n_cut"], told["cut_by"]) == (n_cut, {"server_error": n_cut})
    assert told["n_begun"] == len(sequences)


def test_a_stateful_model_without_sequences_is_told_before_anything_is_sent(
    alone: Bench, tmp_path: Path
) -> None:
    mapping = mapping_of(tmp_path, "http")
    del mapping["clients"]["sequences"]
    live = alone.start_run(mapping)
    assert live.end() == 2
    assert "clients.sequences: model adder is stateful" in live.error_line()
    assert not (tmp_path / "seen").read_text()
