"""Requests that are answered response by response, as bytes: what is sent, and what is made of each response."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from squall.actors.messages.grpc_headers import call_headers
from squall.actors.messages.grpc_stream import streamed
from squall.actors.messages.grpc_wire import grpc_template
from squall.actors.messages.http_stream import HttpStreamTemplate, http_stream_template
from squall.actors.messages.http_wire import http_head
from squall.actors.messages.template import NO_ID, Response
from squall.actors.messages.value_check import StreamCheck, Tally, ValueRule
from squall.models.payload import encode_id, objects
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.errors import ScenarioError

SPEC = ModelSpec(
    "chat", "2", (TensorSpec("PROMPT", "BYTES", (1,)), TensorSpec("temperature", "FP32", (1,))),
    (TensorSpec("TEXT", "BYTES", (-1,)), TensorSpec("ids", "INT32", (-1,))), 4, is_decoupled=True,
)  # fmt: skip
INPUTS: dict[str, np.ndarray[Any, Any]] = {
    "PROMPT": objects(['Straße "3"'.encode()]).reshape(1, 1),
    "temperature": np.array([[0.5]], np.float32),
}
ID = encode_id(42)


def grpc_message(request_id: str = "000000000042", error: str = "", ids: str = "INT32") -> bytes:
    inner = service_pb2.ModelInferResponse(model_name="chat", id=request_id)
    inner.outputs.add(name="TEXT", datatype="BYTES", shape=[1, 2])
    inner.outputs.add(name="ids", datatype=ids, shape=[1, 3])
    inner.raw_output_contents.extend([b"\x01\x00\x00\x00a\x00\x00\x00\x00", bytes(12)])
    message = service_pb2.ModelStreamInferResponse(
        error_message=error, infer_response=None if error else inner
    )
    return bytes(message.SerializeToString())


def event(**changes: Any) -> bytes:
    said = {"id": "000000000042", "model_name": "chat", "TEXT": "a", "ids": [1, 2, 3], **changes}
    return b"data: " + json.dumps({name: value for name, value in said.items() if value is not None}).encode()


@pytest.mark.parametrize("tokens", [None, "ids", "TEXT"])
def test_a_grpc_response_counts_the_elements_of_the_output_that_is_named(tokens: str | None) -> None:
    made = streamed(grpc_template(SPEC, INPUTS, 1), tokens)
    assert made.judge_response(grpc_message(), ID) == Response(
        "ok", "", {None: -1, "ids": 3, "TEXT": 2}[tokens]
    )


@pytest.mark.parametrize(
    ("message", "outcome", "detail"),
    [
        (grpc_message("000000000043"), "bad_reply", NO_ID),
        (grpc_message(ids="INT64"), "bad_reply", "output ids is INT64 [1, 3]"),
        (grpc_message(error="[request id: 000000000042] out of words"), "server_error", "out of words"),
        (grpc_message(error="Exceeds maximum queue size"), "rejected", "Exceeds maximum queue size"),
        (grpc_message()[:-3], "bad_reply", "the protobuf message is cut short"),
    ],
)
def test_a_grpc_response_that_is_not_as_promised_says_why(message: bytes, outcome: str, detail: str) -> None:
    found = streamed(grpc_template(SPEC, INPUTS, 1), "ids").judge_response(message, ID)
    assert (found.outcome, found.n_tokens) == (outcome, -1)
    assert found.detail.startswith(detail)


def http_of(tokens: str | None = None) -> HttpStreamTemplate:
    return http_stream_template("h:1", SPEC, INPUTS, 1, {"Accept": "text/event-stream"}, tokens)


def test_an_http_request_is_the_json_that_generate_takes() -> None:
    made = http_of()
    head, _, body = (made.head + ID + made.tail).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/chat/versions/2/generate_stream HTTP/1.1\r\nHost: h:1\r\n")
    assert b"\r\nAccept: text/event-stream\r\n" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {"id": "000000000042", "PROMPT": 'Straße "3"', "temperature": 0.5}


def test_a_request_has_one_host_whatever_the_headers_say() -> None:
    headers = {"HOST": "models.example", "X-A": "b"}
    made = http_stream_template("h:1", SPEC, INPUTS, 1, headers, None)
    for head in (made.head, http_head("h:1", SPEC, 9, 9, headers)):
        assert head.split(b"\r\n")[1:3] == [b"Host: models.example", b"X-A: b"]
        assert head.lower().count(b"host:") == 1
    found = call_headers("http", "h:1", headers)
    assert [value for name, value in found if name in (":authority", "host")] == ["models.example"]
    assert ("x-a", "b") in found


def test_an_http_request_leaves_out_an_optional_input_that_is_not_there() -> None:
    spec = replace(SPEC, inputs=(SPEC.inputs[0], replace(SPEC.inputs[1], is_optional=True)))
    made = http_stream_template("h:1", spec, {"PROMPT": INPUTS["PROMPT"]}, 1, {}, None)
    assert json.loads((made.head + ID + made.tail).partition(b"\r\n\r\n")[2]) == {
        "id": "000000000042", "PROMPT": 'Straße "3"'
    }  # fmt: skip


def test_a_refusal_that_is_repeated_for_each_response_is_told_once() -> None:
    body = b'data: {"error":"out of words"}\n\n'
    for n_times in (1, 3):
        assert http_of().judge(SimpleNamespace(status=400, n_json_bytes=0, body=body * n_times), ID) == (
            "server_error",
            "400 out of words",
        )


@pytest.mark.parametrize("tokens", [None, "ids", "TEXT"])
def test_an_http_event_counts_the_elements_of_the_output_that_is_named(tokens: str | None) -> None:
    expected = Response("ok", "", {None: -1, "ids": 3, "TEXT": 1}[tokens])
    assert http_of(tokens).judge_response(event(), ID) == expected


@pytest.mark.parametrize(
    ("message", "outcome", "detail"),
    [
        (event(id="000000000043"), "bad_reply", NO_ID),
        (event(id=None), "bad_reply", "a response's JSON is not that of an inference"),
        (event(TEXT=None), "bad_reply", "the response has no output TEXT"),
        (event(TEXT=3), "bad_reply", "output TEXT is not BYTES"),
        (event(ids=["a"]), "bad_reply", "output ids is not INT32"),
        (b'data: {"error":"out of words"}', "server_error", "out of words"),
        (b'data: {"error":"Exceeds maximum queue size"}', "rejected", "Exceeds maximum queue size"),
        (b"data: {", "bad_reply", "a response's JSON is not that of an inference"),
        (b"data: []", "bad_reply", "a response's JSON is not that of an inference"),
        (b": a comment", "bad_reply", "an event without data"),
    ],
)
def test_an_http_event_that_is_not_as_promised_says_why(message: bytes, outcome: str, detail: str) -> None:
    assert http_of("ids").judge_response(message, ID) == Response(outcome, detail)


@pytest.mark.parametrize(
    ("rows", "inputs", "why"),
    [
        (2, INPUTS, "clients.rows: 2 rows, and generate_stream carries one"),
        (
            1,
            {"temperature": np.ones((1, 2, 2), np.float32)},
            "input temperature is [1, 2, 2], and generate_stream",
        ),
        (1, {"PROMPT": objects([b"\xff"]).reshape(1, 1)}, "input PROMPT is not UTF-8"),
    ],
)
def test_what_generate_cannot_carry_is_refused_before_it_is_sent(rows: int, inputs: Any, why: str) -> None:
    with pytest.raises(ScenarioError) as told:
        http_stream_template("h:1", SPEC, {**INPUTS, **inputs}, rows, {}, None)
    assert str(told.value).startswith(why)
    assert "grpc" in str(told.value) or "UTF-8" in str(told.value)


def right(*ids: list[int]) -> StreamCheck:
    """Of each response its ids, and the text of both protocols' examples in the first place."""
    outputs: list[dict[str, np.ndarray[Any, Any]]] = [{"ids": np.array([one], np.int32)} for one in ids]
    return StreamCheck(outputs, ValueRule(2, 0, 0), Tally())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_each_response_is_held_to_the_values_at_its_place(protocol: str) -> None:
    """The message has the ids 0 0 0, the event 1 2 3."""
    is_grpc = protocol == "grpc"
    message, given = (grpc_message(), [0, 0, 0]) if is_grpc else (event(), [1, 2, 3])
    made = streamed(grpc_template(SPEC, INPUTS, 1), "ids") if is_grpc else http_of("ids")
    checked = made.checked_by(right(given, [0, 2, 3, 4], given[::-1]))
    assert checked.judge_response(message, ID, 0) == Response("ok", "", 3)
    shapes = "[1, 3]" if is_grpc else "[3]"
    assert checked.judge_response(message, ID, 1) == Response(
        "bad_reply", f"response 2: output ids has shape {shapes}, expected is [1, 4]", 3, True
    )
    last = checked.judge_response(message, ID, 2)
    assert last.is_wrong == (not is_grpc)
    assert is_grpc or last.detail.startswith("response 3: output ids is 1 at [0, 0], expected 3")
    assert checked.judge_response(message, ID, 3).detail == "response 4 is one more than are expected"


def test_text_of_an_event_is_compared_as_bytes() -> None:
    for text, is_wrong in (("ä", False), ("b", True)):
        outputs = {"TEXT": objects([text.encode()]).reshape(1, 1)}
        made = http_of().checked_by(StreamCheck([outputs], ValueRule(2, 0, 0), Tally()))
        assert made.judge_response(event(TEXT="ä"), ID).is_wrong == is_wrong


def test_a_request_that_is_not_in_turn_is_not_compared() -> None:
    made = http_of().checked_by(right([7]))
    assert made.judge_response(event(id="000000000043"), encode_id(43)) == Response("ok", "")


def test_so_many_responses_are_expected() -> None:
    assert right([1], [2]).fault_of_count(2) == ""
    assert right([1], [2]).fault_of_count(1) == "the stream had 1 responses, expected are 2"
