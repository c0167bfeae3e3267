from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from squall.actors.messages.http_wire import HttpTemplate, error_text, http_template, judge_reply
from squall.actors.messages.template import NO_ID
from squall.models.made import make_inputs
from squall.models.payload import ID_DIGITS, encode_body, encode_id
from squall.models.spec import ModelSpec, TensorSpec

SPEC = ModelSpec("m", "3", (TensorSpec("INPUT", "FP32", (4,)),), (TensorSpec("OUTPUT", "FP32", (2,)),), 8)
WIRE_ID = encode_id(42)
JSON = b'{"id":"000000000042","outputs":[]}'


@pytest.mark.parametrize("rows", [1, 8])
def test_a_template_with_an_id_between_is_a_whole_request_of_the_size_it_states(rows: int) -> None:
    inputs = make_inputs(SPEC, rows, 0, 1)
    template = http_template("h:80", SPEC, encode_body(SPEC, inputs), rows)
    data = template.head + encode_id(42) + template.tail
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert first == "POST /v2/models/m/versions/3/infer HTTP/1.1"
    assert headers["host"] == "h:80"
    assert int(headers["content-length"]) == len(body)
    assert template.n_bytes == len(data)
    n_json = int(headers["inference-header-content-length"])
    content = json.loads(body[:n_json])
    assert content["id"] == "000000000042"
    assert content["inputs"][0]["shape"] == [rows, 4]
    assert content["outputs"] == [{"name": "OUTPUT", "parameters": {"binary_data": True}}]
    assert np.array_equal(np.frombuffer(body[n_json:], "<f4").reshape(rows, 4), inputs["INPUT"])


@pytest.mark.parametrize("request_id", [0, 7, 10**ID_DIGITS - 1])
def test_an_id_has_a_fixed_width(request_id: int) -> None:
    assert len(encode_id(request_id)) == ID_DIGITS
    assert int(encode_id(request_id)) == request_id


@pytest.mark.parametrize(
    ("status", "n_json", "body", "reply_bytes", "expected"),
    [
        (200, len(JSON), JSON + bytes(8), 8, ("ok", "")),
        (200, len(JSON), JSON + bytes(9), None, ("ok", "")),
        (200, 0, JSON, None, ("ok", "")),
        (200, 0, JSON, 8, ("bad_reply", "the reply has 0 tensor bytes, the model's spec says 8")),
        (
            200,
            len(JSON),
            JSON + bytes(4),
            8,
            ("bad_reply", "the reply has 4 tensor bytes, the model's spec says 8"),
        ),
        (200, 2, b"{}" + JSON, 8, ("bad_reply", "the reply does not carry the request's id")),
        (200, 0, b"", None, ("bad_reply", "the reply does not carry the request's id")),
        (
            200,
            -1,
            JSON,
            None,
            ("bad_reply", "the reply's Inference-Header-Content-Length is not within its body"),
        ),
        (
            200,
            99,
            JSON,
            None,
            ("bad_reply", "the reply's Inference-Header-Content-Length is not within its body"),
        ),
        (
            503,
            0,
            b'{"error":"Exceeds maximum queue size"}',
            8,
            ("rejected", "503 Exceeds maximum queue size"),
        ),
        (400, 0, b'{"error":"Request timeout expired"}', 8, ("rejected", "400 Request timeout expired")),
        (500, 0, b'{"error":"a\\n b"}', 8, ("server_error", "500 a b")),
        (302, 0, b"", 8, ("server_error", "302 ")),
        (200, 0, b'{"error":"a\\n b"}', 8, ("bad_reply", "status 200 with an error: a b")),
        (200, 0, b'{"error":', 8, ("bad_reply", "the reply does not carry the request's id")),
    ],
)
def test_a_reply_is_judged_by_status_id_and_size(
    status: int, n_json: int, body: bytes, reply_bytes: int | None, expected: tuple[str, str]
) -> None:
    assert judge_reply(status, n_json, body, WIRE_ID, reply_bytes) == expected


def test_equal_failures_have_equal_details_though_triton_names_the_request() -> None:
    details = {
        judge_reply(503, 0, b'{"error":"[request id: %s] full"}' % encode_id(i), encode_id(i), 8)
        for i in range(3)
    }
    assert details == {("rejected", "503 full")}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"<html>\n no </html>", "<html> no </html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[1]", "[1]"),
        (b'{"error": 5}', "5"),
        (b"x" * 900, "x" * 200),
        (b"[" * 100_000, "[" * 200),
    ],
)
def test_any_error_body_becomes_one_line_of_at_most_200_characters(body: bytes, text: str) -> None:
    assert error_text(body) == text


@dataclass
class Reply:
    status: int
    n_json_bytes: int
    body: bytes


def reply_of(request_id: str = "000000000042", **changes: Any) -> Reply:
    output = {"name": "OUTPUT", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    content = json.dumps({"model_name": "m", "id": request_id, "outputs": [output | changes]}).encode()
    return Reply(200, len(content), content + bytes(8))


def template() -> HttpTemplate:
    return http_template("h:80", SPEC, encode_body(SPEC, make_inputs(SPEC, 1, 0, 1)), 1)


def test_a_layout_that_was_found_right_once_is_known_and_still_checked_to_the_byte() -> None:
    made = template()
    for request_id in (42, 43, 42):
        assert made.judge(reply_of(f"{request_id:012d}"), encode_id(request_id)) == ("ok", "")
    assert made.judge(reply_of(f"{43:012d}"), encode_id(42)) == ("bad_reply", NO_ID)
    assert made.judge(reply_of(f"{42:012d}", name="OTHER"), encode_id(42))[0] == "bad_reply"
    short = reply_of(f"{42:012d}")
    short.body = short.body[:-1]
    assert made.judge(short, encode_id(42))[0] == "bad_reply"
    late = reply_of(f"{42:012d}")
    late.status = 500
    assert made.judge(late, encode_id(42))[0] == "server_error"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shape": [2, 1]}, "output OUTPUT is FP32 [2, 1], the model's spec says FP32 [1, 2]"),
        ({"shape": [2]}, "output OUTPUT is FP32 [2], the model's spec says FP32 [1, 2]"),
        ({"datatype": "INT32"}, "output OUTPUT is INT32 [1, 2], the model's spec says FP32 [1, 2]"),
        ({"name": "PROBS"}, "the reply has outputs PROBS, not those of the model"),
        ({"shape": "ab"}, "the reply's JSON is not that of an inference"),
        ({"parameters": {"binary_data_size": 4}}, "output OUTPUT has 4 bytes, the model's spec says 8"),
    ],
)
def test_a_reply_of_the_right_size_must_describe_the_tensors_of_the_spec(
    changes: dict[str, Any], why: str
) -> None:
    assert template().judge(reply_of(**changes), WIRE_ID) == ("bad_reply", why)
