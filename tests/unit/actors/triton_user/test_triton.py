"""`infer` of a user: what is sent, what Locust and squall are told of it, what the caller gets."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from squall.actors.messages.grpc_wire import GrpcTemplate, grpc_template, read_outputs
from squall.actors.triton_user.answer import Answer
from squall.actors.triton_user.handed import SENT_KEY, Handed, Sent, UserModel, UserTarget
from squall.actors.triton_user.shared import Asking, Process
from squall.actors.triton_user.triton import NO_REPLY, Exchange, Triton
from squall.models.payload import encode_id
from squall.scenarios.errors import TargetError
from tests.unit.actors.messages.test_grpc import SPEC, response

FIRST_ID = 40
SENT_NS, DONE_NS = 1_000, 3_456_789


class Events:
    """Locust's request event, and the environment around it."""

    def __init__(self) -> None:
        self.fired: list[dict[str, Any]] = []
        self.environment = self.events = self.request = self

    def fire(self, **event: Any) -> None:
        self.fired.append(event)

    def context(self) -> Mapping[str, Any]:
        return {"mine": 1}


class Scripted(Triton[GrpcTemplate]):
    """Requests end as `script` says: in these replies, or as (outcome, detail)."""

    request_type = "grpc"

    def __init__(self, user: Any, *arguments: Any) -> None:
        super().__init__(user, *arguments)
        self.script: list[Any] = []
        self.sent: list[tuple[int, GrpcTemplate, bytes]] = []

    def _exchange(self, target: int, template: GrpcTemplate, wire_id: bytes, largest_bytes: int) -> Exchange:
        self.sent.append((target, template, wire_id))
        self.largest_bytes = largest_bytes
        told = self.script.pop(0)
        if isinstance(told, Reply):
            return Exchange(SENT_NS, DONE_NS, "", "", told, len(told.body))
        outcome, detail = told
        return Exchange(SENT_NS, DONE_NS, outcome, detail, None, 0)

    @staticmethod
    def _read(reply: Any) -> Mapping[str, Any]:
        return read_outputs(reply.body)


class Failure(Exception):
    """What Locust would be told."""


class Reply(NamedTuple):
    http_status: int
    grpc_status: int
    grpc_message: str
    body: bytes


def right(request_id: int, rows: int = 1) -> Reply:
    return Reply(200, 0, "", response(f"{request_id:012d}", (rows, 2), rows * 8))


def encode(_: str, *arguments: Any) -> GrpcTemplate:
    return grpc_template(*arguments[:3])


def scripted(*script: Any, n_variants: int = 4) -> tuple[Scripted, Events]:
    """A user of one server, and what Locust is told."""
    target = UserTarget("s", "http://h:1", "h:2", (SPEC,))
    ids = iter(range(FIRST_ID, FIRST_ID + 100))
    handed = Handed((target,), (UserModel("m", {}, n_variants=n_variants),), 1, ids.__next__)
    process, events = Process(handed), Events()
    shared = process.shared("grpc", Asking(None, 1, 1.0, {}, {}), lambda _: encode)
    user = Scripted(events, shared, process.seat(), Failure)
    user.script += script
    return user, events


def test_an_answer_is_told_to_locust_with_the_exact_time_and_the_row_to_be() -> None:
    user, events = scripted(right(FIRST_ID, 2))
    answer = user.infer(rows=2, variant=1)
    ((target, template, wire_id),) = user.sent
    assert (target, template.rows, wire_id) == (0, 2, encode_id(FIRST_ID))
    assert user.largest_bytes == 17 << 20, "16 MiB and twice its outputs, in whole MiB"
    (event,) = events.fired
    assert event.pop("start_time") > 0
    sent = Sent(FIRST_ID, 0, 0, 2, template.n_bytes, "ok", "", DONE_NS)
    assert event == {
        "request_type": "grpc", "name": "m", "response_time": (DONE_NS - SENT_NS) / 1e6,
        "response_length": len(right(FIRST_ID, 2).body), "response": answer, "exception": None, "url": "http://h:1",
        "context": {"mine": 1, SENT_KEY: sent},
    }  # fmt: skip
    assert (answer.is_ok, answer.request_id, answer.response_time_ns) == (True, FIRST_ID, DONE_NS - SENT_NS)
    assert answer.outputs["OUTPUT"].shape == (2, 2)
    assert answer.outputs is answer.outputs, "decoded once"


@pytest.mark.parametrize(
    ("told", "outcome", "detail"),
    [
        (("timeout", NO_REPLY), "timeout", NO_REPLY),
        (Reply(200, 14, "full", b""), "rejected", "14 full"),
        (Reply(200, 3, "no", b""), "server_error", "3 no"),
        (right(7), "bad_reply", "the reply does not carry the request's id"),
        (right(FIRST_ID, 2), "bad_reply", "output OUTPUT is FP32 [2, 2], the model's spec says FP32 [1, 2]"),
    ],
)
def test_a_failure_is_an_answer_a_failed_request_of_locusts_and_an_outcome(
    told: Any, outcome: str, detail: str
) -> None:
    user, events = scripted(told)
    answer = user.infer(name="mine", variant=0)
    (event,) = events.fired
    assert (answer.is_ok, answer.outcome, answer.detail) == (False, outcome, detail)
    assert isinstance(event["exception"], Failure)
    assert str(event["exception"]) == f"{outcome}: {detail}"
    assert event["name"] == "mine"
    sent = event["context"][SENT_KEY]
    assert (sent.outcome, sent.detail, sent.done_ns) == (outcome, detail, DONE_NS)
    with pytest.raises(TargetError, match=f"request {FIRST_ID} has no outputs, it ended as {outcome}"):
        _ = answer.outputs


def test_each_request_has_the_next_id_and_the_payload_is_made_once() -> None:
    user, _ = scripted(right(FIRST_ID), right(FIRST_ID + 1))
    assert [user.infer(variant=0).request_id, user.infer("m", variant=0).request_id] == [
        FIRST_ID,
        FIRST_ID + 1,
    ]
    assert user.sent[0][1] is user.sent[1][1]


def test_the_variant_is_drawn_so_that_the_seed_of_a_locustfile_holds() -> None:
    def drawn() -> list[int]:
        random.seed(8)
        user, _ = scripted(*map(right, range(FIRST_ID, FIRST_ID + 20)), n_variants=3)
        for _ in range(20):
            assert user.infer().is_ok
        return [variant for _, template, _ in user.sent for variant in _variants(user, template)]

    first = drawn()
    assert set(first) == {0, 1, 2}
    assert drawn() == first


def _variants(user: Scripted, template: GrpcTemplate) -> list[int]:
    return [key[3] for key, made in user._made.items() if made is template]


def test_inputs_of_the_callers_are_sent_and_have_no_variant() -> None:
    user, _ = scripted(right(FIRST_ID, 3))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert user.infer(inputs={"INPUT": x}).is_ok
    assert user.sent[0][1].tail.endswith(x.tobytes())
    with pytest.raises(ValueError, match="variant is of inputs that squall makes"):
        user.infer(inputs={"INPUT": x}, variant=0)


def test_what_does_not_suit_is_an_error_of_the_code_and_takes_no_id() -> None:
    user, events = scripted(right(FIRST_ID))
    calls: list[dict[str, Any]] = [{"model": "n"}, {"rows": 99}, {"inputs": {}}]
    for wrong in calls:
        with pytest.raises(ValueError, match=r"no model 'n'|rows=99|no inputs"):
            user.infer(**wrong)
    assert (user.sent, events.fired) == ([], [])
    assert user.infer().request_id == FIRST_ID


def test_an_answer_says_itself_in_a_line() -> None:
    assert (
        repr(Answer(3, "timeout", "slow", 1_500_000, dict, None)) == "<answer 3: timeout, 'slow', 1.500 ms>"
    )
