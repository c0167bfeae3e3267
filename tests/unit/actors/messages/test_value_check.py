"""Values of replies against those that are expected: which replies are compared, and what is a wrong value."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.actors.messages.grpc_wire import grpc_template
from squall.actors.messages.http_wire import http_template
from squall.actors.messages.template import NO_ID, Template
from squall.actors.messages.value_check import Tally, ValueCheck, ValueRule
from squall.actors.net import protobuf
from squall.models.made import make_inputs
from squall.models.payload import encode_body, encode_id, read_tensor
from squall.models.spec import ModelSpec, TensorSpec

ROWS = 2
SPEC = ModelSpec(
    "m", "1", (TensorSpec("INPUT", "FP32", (4,)),),
    (TensorSpec("SCORE", "FP32", (2,)), TensorSpec("LABEL", "INT64", (1,)), TensorSpec("HALF", "FP16", (2,))), 8,
)  # fmt: skip
INPUTS = make_inputs(SPEC, ROWS, 0, 1)
Arrays = dict[str, NDArray[np.generic]]


def right() -> Arrays:
    return {
        "SCORE": np.array([[0.5, -1.25], [3e4, 0.0]], np.float32),
        "LABEL": np.array([[7], [-1]], np.int64),
        "HALF": np.array([[1.5, math.nan], [math.inf, 2.0]], np.float16),
    }


@dataclass
class Reply:
    """Of both protocols at once: each template reads its own fields."""

    body: bytes
    status: int = 200
    n_json_bytes: int = 0
    http_status: int = 200
    grpc_status: int = 0
    grpc_message: str = ""


def http_reply(request_id: int, arrays: Arrays) -> Reply:
    outputs = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(arrays[tensor.name].shape),
         "parameters": {"binary_data_size": arrays[tensor.name].nbytes}}
        for tensor in reversed(SPEC.outputs)
    ]  # fmt: skip
    content = json.dumps({"id": f"{request_id:012d}", "outputs": outputs}).encode()
    tensors = b"".join(arrays[tensor.name].tobytes() for tensor in reversed(SPEC.outputs))
    return Reply(content + tensors, n_json_bytes=len(content))


def grpc_reply(request_id: int, arrays: Arrays) -> Reply:
    message = protobuf.field(1, "m") + protobuf.field(3, f"{request_id:012d}")
    for tensor in reversed(SPEC.outputs):
        shape = protobuf.packed(3, arrays[tensor.name].shape)
        head = protobuf.field(1, tensor.name) + protobuf.field(2, tensor.datatype)
        message += protobuf.field(5, head + shape)
    for tensor in reversed(SPEC.outputs):
        message += protobuf.field(6, arrays[tensor.name].tobytes())
    return Reply(b"\0" + len(message).to_bytes(4, "big") + message)


@dataclass
class Wire:
    template: Template
    reply: Callable[[int, Arrays], Reply]
    tally: Tally


@pytest.fixture(params=["http", "grpc"])
def wire(request: pytest.FixtureRequest) -> Wire:
    """A template of which each third request is compared."""
    tally = Tally()
    check = ValueCheck(right(), ValueRule(3, 1e-3, 1e-5), tally)
    if request.param == "http":
        plain: Template = http_template("h:1", SPEC, encode_body(SPEC, INPUTS), ROWS)
        return Wire(plain.checked_by(check), http_reply, tally)
    return Wire(grpc_template(SPEC, INPUTS, ROWS).checked_by(check), grpc_reply, tally)


def test_just_the_requests_whose_id_is_a_multiple_are_compared_and_counted(wire: Wire) -> None:
    wrong = right() | {"LABEL": np.array([[7], [0]], np.int64)}
    for i in range(9):
        outcome, why = wire.template.judge(wire.reply(i, wrong), encode_id(i))
        assert outcome == ("ok" if i % 3 else "bad_reply"), i
        assert why == ("" if i % 3 else "output LABEL is 0 at [1, 0], expected -1: the largest difference")
    assert wire.tally == Tally(3, 3)
    for i in range(9):
        assert wire.template.judge(wire.reply(i, right()), encode_id(i)) == ("ok", "")
    assert wire.tally == Tally(6, 3)


def changed(name: str, at: tuple[int, int], value: float) -> Arrays:
    arrays = right()
    arrays[name][at] = value
    return arrays


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        (changed("SCORE", (1, 0), 3.002e4), ""),
        (changed("SCORE", (1, 0), 3.004e4), "SCORE is 30040 at [1, 0], expected 30000"),
        (changed("SCORE", (1, 1), 9e-6), ""),
        (changed("SCORE", (1, 1), 2e-5), "SCORE is 2e-05 at [1, 1], expected 0"),
        (changed("SCORE", (0, 0), math.nan), "SCORE is nan at [0, 0], expected 0.5"),
        (changed("SCORE", (0, 1), -math.inf), "SCORE is -inf at [0, 1], expected -1.25"),
        (changed("HALF", (0, 1), 1.0), "HALF is 1 at [0, 1], expected nan"),
        (changed("HALF", (1, 0), 65504.0), "HALF is 65504 at [1, 0], expected inf"),
    ],
)
def test_a_value_is_right_within_the_tolerance_and_nan_only_where_it_is_expected(
    wire: Wire, arrays: Arrays, why: str
) -> None:
    found = wire.template.judge(wire.reply(3, arrays), encode_id(3))
    assert found == (("bad_reply", f"output {why}: the largest difference") if why else ("ok", ""))


def test_the_largest_of_several_differences_is_named(wire: Wire) -> None:
    arrays = right() | {"SCORE": np.array([[0.6, -1.0], [3e4, 0.2]], np.float32)}
    _, why = wire.template.judge(wire.reply(3, arrays), encode_id(3))
    assert why == "output SCORE is -1 at [0, 1], expected -1.25: the largest difference"


def test_what_fails_otherwise_is_not_compared(wire: Wire) -> None:
    wrong = changed("SCORE", (0, 0), 9.0)
    assert wire.template.judge(wire.reply(6, wrong), encode_id(3)) == ("bad_reply", NO_ID)
    failed = wire.reply(3, wrong)
    failed.status, failed.grpc_status = 500, 13
    assert wire.template.judge(failed, encode_id(3))[0] == "server_error"
    assert wire.tally == Tally(0, 0)


def test_an_output_without_its_bytes_cannot_be_compared_and_is_not_passed_over() -> None:
    spec = ModelSpec("m", "1", SPEC.inputs, (TensorSpec("SCORE", "FP32", (-1,)),), 8)
    check = ValueCheck({"SCORE": right()["SCORE"]}, ValueRule(1, 0.0, 0.0), Tally())
    made = http_template("h:1", spec, encode_body(spec, INPUTS), ROWS).checked_by(check)
    output: dict[str, Any] = {
        "name": "SCORE",
        "datatype": "FP32",
        "shape": [2, 2],
        "data": [0.5, -1.25, 3e4, 0.0],
    }
    body = json.dumps({"id": "000000000003", "outputs": [output]}).encode()
    why = "output SCORE is not binary, its values cannot be compared"
    assert made.judge(Reply(body), encode_id(3)) == ("bad_reply", why)
    output |= {"shape": [2, 3], "parameters": {"binary_data_size": 16}}
    body = json.dumps({"id": "000000000003", "outputs": [output]}).encode()
    outcome, why = made.judge(Reply(body + bytes(16), n_json_bytes=len(body)), encode_id(3))
    assert (outcome, why.partition(":")[0]) == ("bad_reply", "output SCORE cannot be read")
    output |= {"shape": [2, 1], "parameters": {"binary_data_size": 8}}
    body = json.dumps({"id": "000000000003", "outputs": [output]}).encode()
    why = "output SCORE has shape [2, 1], expected is [2, 2]"
    assert made.judge(Reply(body + bytes(8), n_json_bytes=len(body)), encode_id(3)) == ("bad_reply", why)


def fault(expected: NDArray[Any], found: NDArray[Any]) -> str:
    """With a tolerance in which most is right."""
    tally = Tally()
    why = ValueCheck({"OUT": expected}, ValueRule(1, 1.0, 1.0), tally).fault_of({"OUT": found})
    assert tally == Tally(1, int(why != ""))
    return why


@pytest.mark.parametrize(
    ("expected", "found", "why"),
    [
        (np.array([2**60], np.int64), np.array([2**60 + 1], np.int64),
         "is 1152921504606846977 at [0], expected 1152921504606846976: the largest difference"),
        (np.array([2**64 - 1], np.uint64), np.array([2**64 - 2], np.uint64),
         "is 18446744073709551614 at [0], expected 18446744073709551615: the largest difference"),
        (np.array([1000], np.int32), np.array([1001], np.int32),
         "is 1001 at [0], expected 1000: the largest difference"),
        (np.array([[3, 250]], np.uint8), np.array([[4, 0]], np.uint8),
         "is 0 at [0, 1], expected 250: the largest difference"),
        (np.array([True, False]), np.array([True, True]), "is True at [1], expected False: the largest difference"),
        (np.array([1], np.int8), np.array([[1]], np.int8), "has shape [1, 1], expected is [1]"),
        (np.zeros((0, 2), np.int8), np.zeros((0, 2), np.int8), ""),
        (np.zeros((0,)), np.zeros((0,), np.float32), ""),
        (np.array([2**60], np.int64), np.array([2**60], np.int64), ""),
    ],
)  # fmt: skip
def test_whole_numbers_and_booleans_are_compared_exactly(
    expected: NDArray[Any], found: NDArray[Any], why: str
) -> None:
    assert fault(expected, found) == (f"output OUT {why}" if why else "")


@pytest.mark.parametrize(
    ("expected", "found", "why"),
    [
        ([b"a", b""], [b"a", b""], ""),
        ([b"a\0", b""], [b"a", b""],
         r"has b'a' at [0, 0] from byte 0 of 1, expected b'a\x00' of 2: the first of 1 that differ"),
        ([b"0123456789abcdefghijklmnop", b"x"], [b"0123456789ab_defghijklmnop", b"y"],
         "has b'89ab_defghijklmn' at [0, 0] from byte 8 of 26, expected b'89abcdefghijklmn' of 26: the first of 2 that"
         " differ"),
    ],
)  # fmt: skip
def test_bytes_are_compared_exactly_and_shown_where_they_differ(
    expected: list[bytes], found: list[bytes], why: str
) -> None:
    arrays = [np.array([elements], object) for elements in (expected, found)]
    assert fault(*arrays) == (f"output OUT {why}" if why else "")


def test_raw_data_of_each_datatype_is_read_as_numpy_wrote_it() -> None:
    values = np.array([[0, 1, 1], [1, 0, 1]])
    for datatype, dtype in (("BOOL", np.bool_), ("UINT8", np.uint8), ("FP64", np.float64)):
        assert np.array_equal(read_tensor(datatype, (2, 3), values.astype(dtype).tobytes()), values)
    upper = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert np.array_equal(read_tensor("BF16", (2, 3), upper.tobytes()), values)
    with pytest.raises(ValueError, match="TYPE_FP32 is no datatype"):
        read_tensor("TYPE_FP32", (1,), b"\1\0\0\0")


def test_an_output_whose_values_are_not_known_is_not_compared(wire: Wire) -> None:
    check = ValueCheck({"LABEL": right()["LABEL"]}, ValueRule(1, 1e-3, 1e-5), Tally())
    made = wire.template.checked_by(check)
    assert made.judge(wire.reply(3, changed("SCORE", (0, 0), 9.0)), encode_id(3)) == ("ok", "")
    assert made.judge(wire.reply(3, changed("LABEL", (0, 0), 9)), encode_id(3))[0] == "bad_reply"
