"""Tensors in shared memory: the bytes of requests that name places, replies without tensors, and the files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from squall.actors.load.shared_memory import (
    Places,
    Region,
    SharedMemorySettings,
    Slots,
    place_tensors,
    region_name,
    remove_regions,
)
from squall.actors.messages.grpc_wire import grpc_template
from squall.actors.messages.http_wire import http_template
from squall.actors.messages.template import NOT_IN_SLOT, Template
from squall.actors.messages.value_check import Tally, ValueCheck, ValueRule
from squall.actors.net import protobuf
from squall.models.made import make_inputs
from squall.models.payload import Place, encode_body, encode_id
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.errors import ClusterError, ScenarioError
from tests.unit.actors.messages.test_value_check import Reply

SPEC = ModelSpec(
    "m", "1", (TensorSpec("A", "FP32", (3,)), TensorSpec("B", "INT64", (1,))),
    (TensorSpec("X", "FP32", (2,)), TensorSpec("Y", "INT8", (1,))), 8,
)  # fmt: skip
KINDS = [(1, 0), (5, 0), (5, 1)]
INPUTS = {kind: make_inputs(SPEC, *kind, 1) for kind in KINDS}
NAME = region_name("run", 3)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[Region, dict[tuple[int, int], Places]]]:
    region, places = place_tensors(
        NAME, SPEC, INPUTS, SharedMemorySettings(True, True, "http://h:1"), tmp_path
    )
    yield region, places
    region.close()


Shared = tuple[Region, dict[tuple[int, int], Places]]


def test_every_tensor_has_a_place_of_its_own_with_its_inputs_written(shared: Shared) -> None:
    region, places = shared
    all_places = [place for one in places.values() for place in (*one.inputs.values(), *one.outputs.values())]
    assert len(all_places) == 12
    in_order = sorted(all_places, key=lambda place: place.offset)
    assert all(one.offset + one.n_bytes <= other.offset for one, other in pairwise(in_order))
    assert in_order[-1].offset + in_order[-1].n_bytes <= region.n_bytes
    assert {(place.region, place.offset % 64) for place in all_places} == {(NAME, 0)}
    for kind, arrays in INPUTS.items():
        for name, array in arrays.items():
            assert region.read(places[kind].inputs[name]) == array.tobytes()
        assert np.isnan(np.frombuffer(region.read(places[kind].outputs["X"]), "<f4")).all()
        assert len(region.read(places[kind].outputs["Y"])) == kind[0]


def test_over_http_a_request_names_its_places_and_carries_no_tensor(shared: Shared) -> None:
    places = shared[1][5, 1]
    body = encode_body(SPEC, INPUTS[5, 1], places.inputs, places.outputs)
    made = http_template("h:80", SPEC, body, 5)
    head, _, content = (made.head + encode_id(42) + made.tail).partition(b"\r\n\r\n")
    assert (
        f"Inference-Header-Content-Length: {len(content)}\r\nContent-Length: {len(content)}" in head.decode()
    )
    described = json.loads(content)
    for kind, of_kind in (("inputs", places.inputs), ("outputs", places.outputs)):
        assert {one["name"]: one["parameters"] for one in described[kind]} == {
            name: {
                "shared_memory_region": NAME,
                "shared_memory_offset": place.offset,
                "shared_memory_byte_size": place.n_bytes,
            }
            for name, place in of_kind.items()
        }
    assert described["inputs"][0]["shape"] == [5, 3]


def parameters_of(tensor: bytes, number: int) -> dict[str, str | int]:
    """The map<string, InferParameter> of that field."""
    found: dict[str, str | int] = {}
    for field, entry, _ in protobuf.read_fields(tensor):
        if field == number:
            (_, key, _), (_, value, _) = protobuf.read_fields(protobuf.as_bytes(entry))
            ((kind, content, _),) = protobuf.read_fields(protobuf.as_bytes(value))
            assert kind == (2 if isinstance(content, int) else 3)
            found[protobuf.as_bytes(key).decode()] = content if isinstance(content, int) else content.decode()
    return found


def test_over_grpc_a_request_names_its_places_and_carries_no_tensor(shared: Shared) -> None:
    places = shared[1][5, 1]
    made = grpc_template(SPEC, INPUTS[5, 1], 5, places.inputs, places.outputs)
    data = made.head + encode_id(42) + made.tail
    assert int.from_bytes(data[1:5], "big") == len(data) - 5
    fields = [(number, protobuf.as_bytes(value)) for number, value, _ in protobuf.read_fields(data[5:])]
    assert [number for number, _ in fields] == [1, 2, 3, 5, 5, 6, 6]
    inputs = [parameters_of(value, 4) for number, value in fields if number == 5]
    outputs = [parameters_of(value, 2) for number, value in fields if number == 6]
    assert inputs == [place.parameters() for place in places.inputs.values()]
    assert outputs == [place.parameters() for place in places.outputs.values()]


def http_reply(request_id: int, **changes: object) -> Reply:
    outputs = [
        {"name": "X", "datatype": "FP32", "shape": [5, 2]} | changes,
        {"name": "Y", "datatype": "INT8", "shape": [5, 1]},
    ]
    return Reply(json.dumps({"id": f"{request_id:012d}", "outputs": outputs}).encode())


def grpc_reply(request_id: int, raw: bytes = b"", name: str = "X") -> Reply:
    message = protobuf.field(3, f"{request_id:012d}")
    for output, datatype, shape in ((name, "FP32", (5, 2)), ("Y", "INT8", (5, 1))):
        described = protobuf.field(1, output) + protobuf.field(2, datatype) + protobuf.packed(3, shape)
        message += protobuf.field(5, described)
    message += protobuf.field(6, raw) + protobuf.field(6, b"")
    return Reply(b"\0" + len(message).to_bytes(4, "big") + message)


def template_of(protocol: str, shared: Shared) -> Template:
    region, places = shared[0], shared[1][5, 1]
    made: Template
    if protocol == "http":
        body = encode_body(SPEC, INPUTS[5, 1], places.inputs, places.outputs)
        made = http_template("h:80", SPEC, body, 5)
    else:
        made = grpc_template(SPEC, INPUTS[5, 1], 5, places.inputs, places.outputs)
    return made.answered_in(Slots(region, places.outputs))


@pytest.mark.parametrize(
    ("protocol", "right", "carrying", "other"),
    [
        ("http", http_reply(4), http_reply(4, data=[0.0] * 10), http_reply(4, name="Z")),
        ("grpc", grpc_reply(4), grpc_reply(4, bytes(40)), grpc_reply(4, name="Z")),
    ],
)
def test_a_reply_without_tensors_is_right_and_its_layout_is_known_then(
    shared: Shared, protocol: str, right: Reply, carrying: Reply, other: Reply
) -> None:
    made = template_of(protocol, shared)
    assert made.judge(carrying, encode_id(4)) == ("bad_reply", NOT_IN_SLOT)
    assert made.layout is None
    assert made.judge(right, encode_id(4)) == ("ok", "")
    layout = made.layout
    assert layout is not None
    assert layout.prefix + encode_id(4) + layout.suffix == right.body
    assert (layout.n_bytes, layout.n_json_bytes) == (len(right.body), 0)
    assert made.judge(right, encode_id(4)) == ("ok", "")
    assert made.judge(right, encode_id(5))[0] == "bad_reply"
    assert made.judge(carrying, encode_id(4)) == ("bad_reply", NOT_IN_SLOT)
    assert made.judge(other, encode_id(4))[0] == "bad_reply"
    assert made.layout is layout


def test_over_http_a_binary_part_in_spite_of_it_is_a_bad_reply(shared: Shared) -> None:
    made, reply = template_of("http", shared), http_reply(4, parameters={"binary_data_size": 40})
    reply.n_json_bytes = len(reply.body)
    reply.body += bytes(40)
    assert made.judge(reply, encode_id(4)) == ("bad_reply", NOT_IN_SLOT)


@pytest.mark.parametrize(("protocol", "reply"), [("http", http_reply(4)), ("grpc", grpc_reply(4))])
def test_values_are_compared_in_the_slots_and_unwritten_ones_are_wrong(
    shared: Shared, protocol: str, reply: Reply
) -> None:
    region, places = shared[0], shared[1][5, 1].outputs
    x, y = np.arange(10, dtype=np.float32).reshape(5, 2), np.arange(5, dtype=np.int8).reshape(5, 1)
    tally = Tally()
    made = template_of(protocol, shared).checked_by(
        ValueCheck({"X": x, "Y": y}, ValueRule(2, 1e-3, 0.0), tally)
    )
    assert made.judge(reply, encode_id(4))[1].startswith("output X is nan at [0, 0], expected 0")
    region.write(places["X"], x.tobytes())
    assert made.judge(reply, encode_id(4))[1].startswith("output Y is -1 at [4, 0], expected 4")
    region.write(places["Y"], y.tobytes())
    assert made.judge(reply, encode_id(4)) == ("ok", "")
    assert tally == Tally(3, 2)


def test_only_the_wanted_tensors_have_places(tmp_path: Path) -> None:
    for inputs, outputs in ((True, False), (False, True)):
        settings = SharedMemorySettings(inputs, outputs, "http://h:1")
        region, places = place_tensors(NAME, SPEC, INPUTS, settings, tmp_path)
        region.close()
        assert {bool(one.inputs) for one in places.values()} == {inputs}
        assert {bool(one.outputs) for one in places.values()} == {outputs}
        body = encode_body(SPEC, INPUTS[1, 0], places[1, 0].inputs, places[1, 0].outputs)
        assert (body.n_bytes > body.n_json_bytes) is outputs  # inputs that are not shared are carried


def test_an_output_of_open_size_is_refused(tmp_path: Path) -> None:
    spec = ModelSpec("m", "1", SPEC.inputs, (TensorSpec("X", "FP32", (-1,)),), 8)
    with pytest.raises(ScenarioError, match=r"clients.shared_memory: output X of model m has no fixed size"):
        place_tensors(NAME, spec, INPUTS, SharedMemorySettings(True, True, "http://h:1"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_memory_that_cannot_be_had_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="shared memory: cannot have"):
        Region(NAME, 1 << 60, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with Region(NAME, 1, tmp_path)._path.open() as taken:  # its file is there: the name is taken
        assert taken.name.endswith(NAME)


def test_a_region_goes_with_its_close_a_dead_ones_with_the_next_and_a_runs_with_its_agent(
    tmp_path: Path,
) -> None:
    dead = tmp_path / region_name("dead", 0)
    dead.write_bytes(b"x")
    dead.chmod(0o600)
    (tmp_path / "of-others").write_bytes(b"x")
    first = Region(region_name("one", 0), 64, tmp_path)
    second = Region(region_name("two", 0), 64, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"of-others", first.name, second.name}
    with pytest.raises(ClusterError, match="cannot make"):
        Region(first.name, 64, tmp_path)
    remove_regions("one", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"of-others", second.name}
    second.write(Place(second.name, 60, 4), b"last")
    assert second.read(Place(second.name, 60, 4)) == b"last"
    for region in (first, second, second):
        region.close()
    assert {path.name for path in tmp_path.iterdir()} == {"of-others"}


def test_regions_of_another_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / region_name("one", 0)
    theirs.write_bytes(b"x")
    theirs.chmod(0o600)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    remove_regions("one", tmp_path)
    Region(region_name("two", 0), 64, tmp_path)  # its sweep
    assert theirs.exists()
