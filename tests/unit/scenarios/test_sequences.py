"""Which sequence a request is of: a function of its id, held to its own description."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from squall.actors.messages.grpc_wire import grpc_template
from squall.actors.messages.http_wire import http_template
from squall.actors.messages.sequence_wire import SequenceBytes, n_bytes_of
from squall.models.made import make_inputs
from squall.models.payload import encode_body, encode_id
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.rows import ConstantRows, UniformRows
from squall.scenarios.sequences import Place, SequenceRule, Sequences

LAW = UniformRows(kind="uniform", low=1, high=7)
SPEC = ModelSpec("m", "3", (TensorSpec("INPUT", "FP32", (4,)),), (TensorSpec("OUTPUT", "FP32", (2,)),), 8)
INPUTS = make_inputs(SPEC, 1, 0, 1)


def sequences(n_lanes: int = 4, seed: int = 7, run: str = "r") -> Sequences:
    return Sequences(SequenceRule(n_lanes, LAW, seed, run))


@given(st.integers(1, 9), st.integers(0, 2**32), st.permutations(range(400)))
def test_requests_of_a_lane_follow_each_other_from_start_to_end(
    n_lanes: int, seed: int, ids: list[int]
) -> None:
    made = sequences(n_lanes, seed)
    places = {one: made.place(one) for one in ids}  # whatever the order of asking
    lanes: dict[int, list[Place]] = defaultdict(list)
    for request_id in range(400):
        lanes[request_id % n_lanes].append(places[request_id])
    for lane in lanes.values():
        assert lane[0].is_start
        for before, after in itertools.pairwise(lane):
            assert after.is_start == before.is_end
            assert (after.correlation_id == before.correlation_id) != before.is_end
            assert after.step == (0 if before.is_end else before.step + 1)
    lengths = [place.step + 1 for place in places.values() if place.is_end]
    assert all(1 <= length <= 7 for length in lengths)
    of_lane = {(place.correlation_id, request_id % n_lanes) for request_id, place in places.items()}
    assert len(of_lane) == len({correlation_id for correlation_id, _ in of_lane}), "no two lanes share an id"


@given(st.integers(1, 9), st.lists(st.integers(0, 600), max_size=50))
def test_places_of_many_are_those_of_each(n_lanes: int, ids: list[int]) -> None:
    number, step, length = sequences(n_lanes).spread(np.array(ids, np.int64))
    made = sequences(n_lanes)
    base = made.place(0).correlation_id
    for one, of_run, at, n in zip(ids, number.tolist(), step.tolist(), length.tolist(), strict=True):
        place = made.place(one)
        assert (of_run, at) == (place.correlation_id - base, place.step)
        assert (at == n - 1) == place.is_end


def test_a_worker_that_knows_some_of_the_lanes_says_the_same() -> None:
    whole, part = sequences(), sequences()
    assert all(part.place(one) == whole.place(one) for one in range(1, 2_000, 2))


def test_lengths_are_those_of_the_law() -> None:
    made = sequences(n_lanes=2)
    lengths = [made.place(one).step + 1 for one in range(40_000) if made.place(one).is_end]
    # uniform of 1 to 7: mean 4, variance 4; 4 standard errors
    assert abs(np.mean(lengths) - 4) < 4 * 2 / np.sqrt(len(lengths))
    assert set(lengths) == set(range(1, 8))


def test_two_runs_have_other_ids_and_the_same_lengths() -> None:
    one, other = sequences(run="a"), sequences(run="b")
    for request_id in range(100):
        a, b = one.place(request_id), other.place(request_id)
        assert a.correlation_id != b.correlation_id
        assert a[1:] == b[1:]


@pytest.mark.parametrize("run", ["r", "", "x" * 100])
def test_ids_have_19_digits_and_are_int64(run: str) -> None:
    made = Sequences(SequenceRule(3, ConstantRows(value=1), 1, run))
    for request_id in (0, 1, 10**6):
        assert 10**18 <= made.place(request_id).correlation_id < 2**63


@pytest.mark.parametrize("request_id", [0, 3, 4_711])
def test_the_bytes_are_the_parameters_that_triton_takes(request_id: int) -> None:
    place = sequences().place(request_id)
    between = SequenceBytes(sequences(), "grpc")
    made = grpc_template(SPEC, INPUTS, 1, n_between_bytes=n_bytes_of("grpc", {}))
    data = made.head + encode_id(request_id) + between(request_id) + made.tail
    assert made.n_bytes == len(data)
    asked = service_pb2.ModelInferRequest.FromString(data[5:])
    assert asked.id == f"{request_id:012d}"
    assert asked.parameters["sequence_id"].int64_param == place.correlation_id
    assert asked.parameters["sequence_start"].bool_param is place.is_start
    assert asked.parameters["sequence_end"].bool_param is place.is_end

    between = SequenceBytes(sequences(), "http")
    body = encode_body(SPEC, INPUTS).with_between(n_bytes_of("http", {}))
    http = http_template("h", SPEC, body, 1)
    data = http.head + encode_id(request_id) + between(request_id) + http.tail
    assert http.n_bytes == len(data)
    head, _, content = data.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(content)}\r\n".encode() in head + b"\r\n"
    said = json.loads(content[: body.n_json_bytes])
    assert said["id"] == f"{request_id:012d}"
    assert said["parameters"] == {
        "sequence_id": place.correlation_id, "sequence_start": place.is_start, "sequence_end": place.is_end,
    }  # fmt: skip
    assert len(content) - body.n_json_bytes == said["inputs"][0]["parameters"]["binary_data_size"]
