"""The null server's faults: the share that was asked for, in any stretch, and the answer that the kind says."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.actors.null.faults import GRPC_STATUS, WORDS, Fault
from squall.actors.null.http import HttpPeer, HttpService
from squall.actors.null.model import NullModel, Peer, Tally
from squall.models.made import make_inputs
from squall.models.payload import encode_body, encode_id
from squall.models.spec import head_spec

SPEC = head_spec("linear_head", "1", {"width": 4, "classes": 2}, 8)


@given(st.floats(0.001, 1.0), st.integers(0, 400), st.integers(1, 400))
def test_of_any_requests_in_a_row_the_share_fails(share: float, n_before: int, n: int) -> None:
    fault = Fault("wrong", share)
    for _ in range(n_before):
        fault.takes_next()
    n_failed = sum(fault.takes_next() for _ in range(n))
    assert math.floor(n * share) - 1 <= n_failed <= math.ceil(n * share) + 1


def test_every_request_fails_where_all_are_to() -> None:
    fault = Fault.parse("501:1")
    assert all(fault.takes_next() for _ in range(100))


@pytest.mark.parametrize("text", ["503", "503:0", "503:1.1", "404:1", "wrong:x", "", "close:-1"])
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"fault|share|float"):
        Fault.parse(text)


def answered(fault: str) -> HttpPeer:
    """The peer of one request with the id 7, after the fault."""
    one = Fault.parse(fault)

    def submit(peer: Peer, stream: int, answer: Tally, wire_id: bytes, now_ns: int) -> None:  # noqa: ARG001
        assert one.takes_next()
        one.answer(peer, stream, answer, wire_id)

    peer = HttpPeer(HttpService(NullModel("linear_head", 4, 2, 8), submit))
    body = encode_body(SPEC, make_inputs(SPEC, 1, 0, 1))
    head = (
        f"POST /v2/models/linear_head/infer HTTP/1.1\r\nContent-Length: {body.n_bytes}\r\n"
        f"Inference-Header-Content-Length: {body.n_json_bytes}\r\n\r\n"
    )
    peer.feed(head.encode() + b'{"id":"' + encode_id(7) + body.suffix, 1)
    return peer


@pytest.mark.parametrize("status", WORDS)
def test_a_status_comes_with_tritons_error_object_and_the_connection_stays(status: int) -> None:
    peer = answered(f"{status}:1")
    head, _, body = b"".join(peer.out).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(body) == {"error": WORDS[status]}
    assert not peer.is_over
    assert status in GRPC_STATUS


def test_a_wrong_answer_carries_another_id_and_a_closed_connection_no_answer() -> None:
    wrong = b"".join(answered("wrong:1").out)
    assert wrong.startswith(b"HTTP/1.1 200 ")
    assert b"9" * len(encode_id(7)) in wrong
    assert encode_id(7) not in wrong
    closed = answered("close:1")
    assert (closed.out, closed.is_over) == ([], True)
