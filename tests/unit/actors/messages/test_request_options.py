"""What each request says beside its inputs, as bytes: read back by JSON and by the classes of Triton's own client."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from squall.actors.load.targets import TargetSettings, Wire, encoded
from squall.actors.messages.grpc_wire import GrpcTemplate
from squall.actors.messages.http_wire import HttpTemplate
from squall.actors.messages.value_check import Tally, ValueCheck, ValueRule
from squall.models.made import make_inputs
from squall.models.payload import ID_DIGITS, PREFIX, Parameter, RequestOptions, encode_id, refuse_json
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.inputs import InputConfig
from squall.scenarios.errors import ScenarioError

A, B, C = TensorSpec("a", "FP32", (2,)), TensorSpec("b", "INT32", (3,)), TensorSpec("c", "BOOL", (1,))
SPEC = ModelSpec("m", "3", (TensorSpec("x", "FP32", (4,)),), (A, B, C), 8)
PARAMETERS: dict[str, Parameter] = {
    "lang": "dé", "top_k": 50, "low": -(2**63), "is_long": True, "is_odd": False, "t": 0.5, "priority": 2, "timeout": 9,
}  # fmt: skip


def template(protocol: str, spec: ModelSpec, options: RequestOptions) -> Any:
    target = TargetSettings("server-0", "h", 8000, (spec,))
    inputs = {(2, 0): make_inputs(spec, 2, 0, 1)}
    return encoded(target, target.spec, 0, Wire(protocol, options=options), inputs, None, {})[0, 2, 0]


def http_content(made: HttpTemplate, request_id: int = 7) -> dict[str, Any]:
    """The JSON of the request, as long as its header says."""
    head, _, body = (made.head + encode_id(request_id) + made.tail).partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert int(fields["Content-Length"]) == len(body)
    assert body.startswith(PREFIX)
    content: dict[str, Any] = json.loads(body[: int(fields["Inference-Header-Content-Length"])])
    assert content["id"] == f"{request_id:0{ID_DIGITS}}"
    return content


def grpc_content(made: GrpcTemplate, request_id: int = 7) -> Any:
    message = made.head + encode_id(request_id) + made.tail
    assert int.from_bytes(message[1:5], "big") == len(message) - 5
    return service_pb2.ModelInferRequest.FromString(message[5:])


def test_parameters_are_in_the_json() -> None:
    content = http_content(template("http", SPEC, RequestOptions(PARAMETERS)))
    assert content["parameters"] == PARAMETERS
    assert [type(one) for one in content["parameters"].values()] == [type(one) for one in PARAMETERS.values()]
    assert "parameters" not in http_content(template("http", SPEC, RequestOptions()))


def test_parameters_are_of_their_kinds_in_the_message() -> None:
    message = grpc_content(template("grpc", SPEC, RequestOptions(PARAMETERS)))
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    assert set(message.parameters) == set(PARAMETERS)
    for name, value in PARAMETERS.items():
        one = message.parameters[name]
        assert one.WhichOneof("parameter_choice") == kinds[type(value)]
        assert getattr(one, kinds[type(value)]) == value
    assert not grpc_content(template("grpc", SPEC, RequestOptions())).parameters


def test_only_outputs_that_are_asked_for_are_in_the_request_and_right_in_the_reply() -> None:
    spec = SPEC.asking_for(("c", "a"))
    http, grpc = template("http", spec, RequestOptions()), template("grpc", spec, RequestOptions())
    assert [one["name"] for one in http_content(http)["outputs"]] == ["c", "a"]
    assert [one.name for one in grpc_content(grpc).outputs] == ["c", "a"]
    for names, outcome in ((("a", "c"), "ok"), (("a", "b", "c"), "bad_reply"), (("a",), "bad_reply")):
        assert http.judge(*http_reply(names))[0] == outcome
        assert grpc.judge(*grpc_reply(names))[0] == outcome
    assert SPEC.asking_for(None) is SPEC


class Reply:
    """Of both protocols."""

    status = http_status = 200
    grpc_status = 0
    grpc_message = ""

    def __init__(self, body: bytes, n_json_bytes: int = 0) -> None:
        self.body, self.n_json_bytes = body, n_json_bytes


def http_reply(names: tuple[str, ...]) -> tuple[Reply, bytes]:
    outputs = [
        {
            "name": one.name, "datatype": one.datatype, "shape": [2, *one.dims],
            "parameters": {"binary_data_size": one.n_bytes(2)},
        }
        for one in (A, B, C) if one.name in names
    ]  # fmt: skip
    content = json.dumps({"id": encode_id(7).decode(), "outputs": outputs}).encode()
    size = sum(one.n_bytes(2) or 0 for one in (A, B, C) if one.name in names)
    return Reply(content + bytes(size), len(content)), encode_id(7)


def grpc_reply(names: tuple[str, ...]) -> tuple[Reply, bytes]:
    response = service_pb2.ModelInferResponse(model_name="m", id=encode_id(7).decode())
    for one in (A, B, C):
        if one.name in names:
            response.outputs.add(name=one.name, datatype=one.datatype, shape=[2, *one.dims])
            response.raw_output_contents.append(bytes(one.n_bytes(2) or 0))
    message = response.SerializeToString()
    return Reply(b"\0" + len(message).to_bytes(4, "big") + message), encode_id(7)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("a", "z"), "clients.request.outputs[1]: model m has no output 'z', it has a, b, c"),
        (("logit",), "clients.request.outputs[0]: model m has no output 'logit', did you mean 'logits'?"),
    ],
)
def test_an_output_that_the_model_has_not_is_refused(names: tuple[str, ...], text: str) -> None:
    spec = replace(SPEC, outputs=(replace(A, name="logits"),)) if names == ("logit",) else SPEC
    with pytest.raises(ScenarioError) as caught:
        spec.asking_for(names)
    assert str(caught.value) == text


TEXT = ModelSpec(
    "m", "3", (TensorSpec("x", "FP32", (4,)), TensorSpec("t", "BYTES", (1,)), TensorSpec("f", "BOOL", (2,))), (A, C), 8
)  # fmt: skip
JSON = RequestOptions(is_binary=False)


def json_reply(outputs: list[dict[str, Any]]) -> tuple[Reply, bytes]:
    return Reply(json.dumps({"id": encode_id(7).decode(), "outputs": outputs}).encode()), encode_id(7)


def test_tensors_in_the_json_are_those_that_were_made() -> None:
    made = template("http", TEXT, JSON)
    inputs = make_inputs(TEXT, 2, 0, 1)
    request = made.head + encode_id(7) + made.tail
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"Inference-Header-Content-Length" not in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Content-Type: application/json\r\n" in head
    content = json.loads(body)
    assert content["outputs"] == [{"name": name, "parameters": {"binary_data": False}} for name in ("a", "c")]
    for one in content["inputs"]:
        array = inputs[one["name"]]
        assert one["shape"] == list(array.shape)
        flat = array.ravel().tolist()
        assert one["data"] == [text.decode() for text in flat] if one["name"] == "t" else flat
        assert "parameters" not in one


RIGHT_A = {"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [0.5, 1, 2, 3]}
RIGHT_C = {"name": "c", "datatype": "BOOL", "shape": [2, 1], "data": [True, False]}


@pytest.mark.parametrize(
    ("first", "outcome", "why"),
    [
        (RIGHT_A, "ok", ""),
        (
            {**RIGHT_A, "data": [1, 2, 3]},
            "bad_reply",
            "output a has not the data of FP32 [2, 2] in the JSON",
        ),
        ({**RIGHT_A, "data": [1, 2, 3, "x"]}, "bad_reply", "output a has not the data of FP32 [2, 2]"),
        ({**RIGHT_A, "data": [1, 2, 3, [4]]}, "bad_reply", "output a has not the data of FP32 [2, 2]"),
        ({**RIGHT_A, "data": 4}, "bad_reply", "output a has not the data of FP32 [2, 2] in the JSON"),
        ({**RIGHT_A, "data": None}, "bad_reply", "output a has not the data of FP32 [2, 2] in the JSON"),
        ({**RIGHT_A, "datatype": "INT32"}, "bad_reply", "output a is INT32 [2, 2]"),
        (
            {key: RIGHT_A[key] for key in ("name", "datatype", "shape")},
            "bad_reply",
            "output a is not in the JSON",
        ),
    ],
)
def test_a_reply_in_json_is_held_to_the_spec(first: dict[str, Any], outcome: str, why: str) -> None:
    made = template("http", TEXT, JSON)
    found = made.judge(*json_reply([first, RIGHT_C]))
    assert found[0] == outcome
    assert found[1].startswith(why)
    assert made.layout is None  # its length is that of its numbers, so no other's is known


@pytest.mark.parametrize(
    ("of", "value", "outcome"),
    [
        (B, -3, "ok"), (B, 2**40, "bad_reply"), (B, 1.5, "bad_reply"), (B, True, "bad_reply"), (B, None, "bad_reply"),
        (A, 2, "ok"), (A, 0.1, "ok"), (A, "1", "bad_reply"), (A, True, "bad_reply"),
        (C, True, "ok"), (C, 1, "bad_reply"),
    ],
)  # fmt: skip
def test_numbers_in_json_are_of_their_datatype(of: TensorSpec, value: object, outcome: str) -> None:
    one = {"name": of.name, "datatype": of.datatype, "shape": [2, *of.dims], "data": [value] * 2 * of.dims[0]}
    assert template("http", replace(SPEC, outputs=(of,)), JSON).judge(*json_reply([one]))[0] == outcome


def test_values_in_json_are_compared_too() -> None:
    right = {"a": np.array([[0.5, 1], [2, 3]], np.float32)}
    check = ValueCheck(right, ValueRule(1, 1e-3, 1e-3), Tally())
    made = template("http", TEXT, JSON).checked_by(check)
    assert made.judge(*json_reply([RIGHT_A, RIGHT_C])) == ("ok", "")
    outcome, why = made.judge(*json_reply([{**RIGHT_A, "data": [0.5, 1, 2, 4]}, RIGHT_C]))
    assert (outcome, why) == ("bad_reply", "output a is 4 at [1, 1], expected 3: the largest difference")


@pytest.mark.parametrize(("what", "datatype"), [("input", "FP16"), ("output", "BF16")])
def test_what_triton_has_as_bytes_only_is_refused(what: str, datatype: str) -> None:
    odd = (TensorSpec("odd", datatype, (2,)),)
    spec = replace(SPEC, inputs=odd) if what == "input" else replace(SPEC, outputs=odd)
    with pytest.raises(ScenarioError) as caught:
        refuse_json(spec)
    assert str(caught.value) == (
        f"clients.request.binary: false: {what} odd of model m is {datatype}, which Triton has as bytes only"
    )
    refuse_json(SPEC)


HINTED = replace(SPEC, inputs=(*SPEC.inputs, TensorSpec("hint", "INT32", (3,), is_optional=True)))


@pytest.mark.parametrize("names", [{"x"}, {"x", "hint"}])
def test_an_optional_input_may_be_missing(names: set[str]) -> None:
    every = make_inputs(HINTED, 2, 0, 1, made={"hint": InputConfig(present=1.0)})
    inputs = {(2, 0): {name: every[name] for name in every if name in names}}
    target = TargetSettings("server-0", "h", 8000, (HINTED,))
    made = {
        one: encoded(target, target.spec, 0, Wire(one), inputs, None, {})[0, 2, 0] for one in ("http", "grpc")
    }
    in_json = encoded(target, target.spec, 0, Wire("http", options=JSON), inputs, None, {})[0, 2, 0]
    assert {one["name"] for one in http_content(made["http"])["inputs"]} == names  # type: ignore[arg-type]
    message = grpc_content(made["grpc"])  # type: ignore[arg-type]
    assert {one.name for one in message.inputs} == names
    assert len(message.raw_input_contents) == len(names)
    body = (in_json.head + encode_id(7) + in_json.tail).partition(b"\r\n\r\n")[2]
    assert {one["name"] for one in json.loads(body)["inputs"]} == names
    with pytest.raises(KeyError):  # one that is needed
        encoded(target, target.spec, 0, Wire("http"), {(2, 0): {"hint": every["hint"]}}, None, {})


def test_requests_with_and_without_an_input_do_not_share_what_is_known_of_replies() -> None:
    spec = replace(HINTED, inputs=tuple(replace(one, dims=(3,), is_optional=True) for one in HINTED.inputs))
    every = make_inputs(spec, 2, 0, 1)
    inputs = {(2, 0): {"x": every["x"]}, (2, 1): {"hint": every["hint"]}, (2, 2): {"x": every["x"]}}
    made = encoded(TargetSettings("server-0", "h", 8000, (spec,)), spec, 0, Wire("http"), inputs, None, {})
    assert made[0, 2, 0].known is made[0, 2, 2].known
    assert made[0, 2, 0].known is not made[0, 2, 1].known
