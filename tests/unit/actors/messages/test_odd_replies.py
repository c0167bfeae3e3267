"""Replies that hold what no inference answers: JSON and protobuf of any kind are judged without an error, in bounds."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest

from squall.actors.messages.grpc_headers import HeaderBlocks
from squall.actors.messages.grpc_stream import streamed
from squall.actors.messages.grpc_wire import MESSAGE_HEAD, grpc_template
from squall.actors.messages.http_stream import http_stream_template
from squall.actors.messages.http_wire import HttpTemplate, http_template
from squall.actors.messages.value_check import StreamCheck, Tally, ValueCheck, ValueRule
from squall.actors.net import protobuf
from squall.actors.net.http2 import ProtocolFault
from squall.models.answer_function import AnswerFunction, function_answers
from squall.models.made import make_inputs
from squall.models.payload import RequestOptions, encode_body, encode_id, read_json_data
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.errors import ScenarioError
from tests.unit.actors.messages.test_grpc import reply

OPEN = ModelSpec("m", "3", (TensorSpec("INPUT", "FP32", (4,)),), (TensorSpec("OUTPUT", "FP32", (-1,)),), 0)
INPUTS = make_inputs(OPEN, 1, 0, 1)
WIRE_ID = encode_id(42)
RULE = ValueRule(every=1, rtol=0.1, atol=0.1)
EVERY = {"OUTPUT": np.zeros(2, np.float32)}


@dataclass
class HttpReply:
    body: bytes
    n_json_bytes: int = 0
    status: int = 200


def template(is_json: bool = False) -> HttpTemplate:
    body = encode_body(OPEN, INPUTS, options=RequestOptions(is_binary=not is_json))
    made = http_template("h:80", OPEN, body, 1)
    return made.checked_by(ValueCheck(EVERY, RULE, Tally()))


def json_reply(**changes: str) -> bytes:
    """An output whose fields are given as text of JSON."""
    fields = {"name": '"OUTPUT"', "datatype": '"FP32"', "shape": "[2]", "data": "[0, 0]"} | changes
    said = ",".join(f'"{name}":{value}' for name, value in fields.items())
    return f'{{"id":"000000000042","outputs":[{{{said}}}]}}'.encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": "[1e999]"},
        {"shape": "[-Infinity]"},
        {"shape": "[NaN]"},
        {"shape": f"[{'9' * 400}]"},
        {"shape": f"[{'9' * 5_000}]"},
        {"shape": "[-1]"},
        {"shape": "{}"},
        {"shape": "7"},
        {"shape": "[[2]]"},
        {"shape": "[null]"},
        {"shape": 50_000 * "[" + 50_000 * "]"},
        {"parameters": '{"binary_data_size": 1e999}'},
        {"parameters": '{"binary_data_size": "x"}'},
        {"parameters": "3"},
        {"parameters": "[]"},
        {"data": "1e999"},
        {"data": "[1e999]"},
        {"data": f"[{'9' * 400}, 0]"},
        {"data": '["0", "0"]'},
        {"data": "[null, {}]"},
        {"data": "{}"},
        {"data": 900 * "[" + 900 * "]"},
        {"data": "[true, false]"},
        {"name": "7"},
        {"name": '"\\u001b[2J"'},
    ],
)
@pytest.mark.parametrize("is_json", [False, True])
def test_odd_json_is_a_bad_reply_of_one_line(changes: dict[str, str], is_json: bool) -> None:
    body = json_reply(**changes)
    for n_json in (0, len(body)):
        outcome, detail = template(is_json).judge(HttpReply(body, n_json), WIRE_ID)
        assert outcome == "bad_reply"
        assert detail.isprintable()
        assert len(detail) <= 200


@pytest.mark.parametrize(
    "body", [b"[1e999]", b'"000000000042"', b'{"id":"000000000042","outputs":"x"}', b"[" * 99_999]
)
def test_what_is_no_object_is_a_bad_reply(body: bytes) -> None:
    assert template().judge(HttpReply(body + WIRE_ID), WIRE_ID)[0] == "bad_reply"
    assert template().judge(HttpReply(body), WIRE_ID)[0] == "bad_reply"


def test_a_long_text_among_numbers_takes_no_more_than_its_bytes() -> None:
    data = ["x" * 1_000_000, *[0] * 1_000]
    tracemalloc.start()
    with pytest.raises(ValueError, match="not only numbers"):
        read_json_data("FP32", data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_numbers_in_nested_lists_are_still_numbers() -> None:
    assert read_json_data("INT32", [[1, 2], [3, 4]]) == np.arange(1, 5, dtype="<i4").tobytes()
    with pytest.raises(ValueError, match="not"):
        read_json_data("INT32", [1.5])


@pytest.mark.parametrize(
    "value", ["[[1], 2]", f"[{'9' * 400}, 0]", "[null, 0]", "[{}, []]", "[1e999, 0]", "{}"]
)
def test_an_odd_response_of_a_stream_is_a_bad_reply_of_one_line(value: str) -> None:
    check = StreamCheck([EVERY], RULE, Tally())
    made = http_stream_template("h:80", OPEN, INPUTS, 1, {}, None).checked_by(check)
    event = b'data: {"id":"000000000042","OUTPUT":' + value.encode() + b"}"
    response = made.judge_response(event, WIRE_ID)
    assert response.outcome == "bad_reply"
    assert response.detail.isprintable()


def message(*fields: bytes) -> bytes:
    return protobuf.field(3, WIRE_ID) + b"".join(fields)


def output(*dims: int) -> bytes:
    said = protobuf.field(1, "OUTPUT") + protobuf.field(2, "FP32") + protobuf.packed(3, dims)
    return protobuf.field(5, said)


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (message(5_000 * protobuf.field(5, b"")), "the protobuf message has more than 2048 fields"),
        (message(5_000 * protobuf.field(6, b"")), "the protobuf message has more than 2048 fields"),
        (message(output(*[1] * 65)), "an output has more than 64 dimensions"),
        (message(output(*[1] * 5_000)), "a protobuf field has more than 1000 numbers"),
        (message(output(2**62), protobuf.field(6, bytes(8))), "output OUTPUT cannot be read"),
        (message(output(-1), protobuf.field(6, bytes(7))), "output OUTPUT is FP32 [-1]"),
    ],
    ids=["outputs", "tensors", "dimensions", "numbers", "elements", "negative"],
)
def test_odd_protobuf_is_a_bad_reply(content: bytes, detail: str) -> None:
    made = grpc_template(OPEN, INPUTS, 1).checked_by(ValueCheck(EVERY, RULE, Tally()))
    outcome, why = made.judge(reply(MESSAGE_HEAD.pack(0, len(content)) + content), WIRE_ID)
    assert outcome == "bad_reply"
    assert why.startswith(detail)


def test_a_shape_without_end_says_no_number_of_tokens() -> None:
    spec = replace(OPEN, outputs=(TensorSpec("OUTPUT", "FP32", (-1, -1)),))
    made = streamed(grpc_template(spec, INPUTS, 1), "OUTPUT")
    whole = protobuf.field(2, message(output(2**62, 2**62), protobuf.field(6, bytes(8))))
    assert made.judge_response(whole, WIRE_ID).n_tokens == -1


def test_a_status_of_many_digits_is_no_status() -> None:
    value = b"9" * 100
    block = b"\x00\x07:status" + bytes([len(value)]) + value
    with pytest.raises(ProtocolFault, match="a status of 100 digits"):
        HeaderBlocks([]).read(block)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RecursionError


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("deep"), Unspeakable(), ValueError("\x1b[2J")]
)
def test_whatever_a_function_of_the_users_raises_is_told_in_one_line(error: Exception) -> None:
    def call(_: object) -> dict[str, np.ndarray]:
        raise error

    with pytest.raises(ScenarioError, match=f"it raised {type(error).__name__}") as caught:
        function_answers(AnswerFunction("m:call", call, None), OPEN, [(1, 0, INPUTS)])
    assert str(caught.value).isprintable()


def test_a_reply_that_is_right_is_still_ok() -> None:
    described = {"name": "OUTPUT", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    body = json.dumps({"id": "000000000042", "outputs": [described]}).encode()
    assert template().judge(HttpReply(body + bytes(8), len(body)), WIRE_ID) == ("ok", "")
    assert template(True).judge(HttpReply(json_reply()), WIRE_ID) == ("ok", "")
