"""Requests made once for each process: the same bytes as squall's own client sends, over either protocol."""

from __future__ import annotations

import numpy as np
import pytest

from squall.actors.load.shared_memory import Places
from squall.actors.load.targets import Wire
from squall.actors.messages.http_wire import HttpTemplate, http_template
from squall.actors.triton_user.caller_inputs import Arrays
from squall.actors.triton_user.handed import UserModel, UserTarget
from squall.actors.triton_user.payloads import Payloads
from squall.actors.triton_user.servers import Servers
from squall.models.made import make_inputs
from squall.models.payload import RequestOptions, encode_body
from squall.models.spec import ModelSpec, TensorSpec

OUT = (TensorSpec("Y", "FP32", (2,)),)
DENSE = ModelSpec("dense", "3", (TensorSpec("X", "FP32", (4,)),), OUT, 8)
OPEN = ModelSpec("open", "1", (TensorSpec("IDS", "INT32", (-1,)),), OUT, 8)
SEED = 5
HEADERS = {"X-Key": "v"}


def encoded(url: str, spec: ModelSpec, inputs: Arrays, rows: int, options: RequestOptions) -> HttpTemplate:
    return http_template(
        url.removeprefix("http://"), spec, encode_body(spec, inputs, options=options), rows, HEADERS
    )


def payloads(*models: UserModel, specs: tuple[ModelSpec, ...] = (DENSE, OPEN)) -> Payloads[HttpTemplate]:
    targets = tuple(UserTarget(f"s{i}", f"http://h{i}:8000", f"h{i}:8001", specs) for i in range(2))
    return Payloads(Servers(targets, models), encoded, SEED)


DENSE_MODEL = UserModel("dense", {}, options=RequestOptions({"p": 1}))
OPEN_MODEL = UserModel("open", {"IDS": (3,)})


def test_a_request_is_made_once_and_is_that_of_squalls_own_client() -> None:
    made = payloads(DENSE_MODEL, OPEN_MODEL)
    first = made.make(1, 0, 2, 4)
    assert made.make(1, 0, 2, 4) is first
    assert list(made.made) == [(1, 0, 2, 4)]
    own = Wire("http", HEADERS, DENSE_MODEL.options).template(
        "h1:8000", DENSE, make_inputs(DENSE, 2, 4, SEED), 2, Places({}, {})
    )
    assert (first.head, first.tail, first.n_bytes) == (own.head, own.tail, own.n_bytes)
    assert (first.rows, first.target, first.kind) == (2, 1, 0)


def test_requests_whose_answers_have_one_layout_share_what_is_known_of_it() -> None:
    made = payloads(DENSE_MODEL, OPEN_MODEL)
    keys = ((0, 0, 2, 0), (0, 0, 2, 1), (0, 0, 3, 0), (1, 0, 2, 0))
    one, other, longer, elsewhere = (made.make(*key) for key in keys)
    assert one.known is other.known
    assert one.known is not longer.known
    assert one.known is not elsewhere.known
    assert made.own(0, 0, {"X": np.zeros((2, 4), np.float32)}, 1).known is one.known


def test_inputs_of_the_callers_are_encoded_anew_and_not_kept() -> None:
    made = payloads(DENSE_MODEL, OPEN_MODEL)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    template = made.own(0, 0, {"X": x}, 1)
    assert template.tail.endswith(x.tobytes())
    assert template.rows == 2
    assert made.made == {}


def test_open_sizes_are_those_of_the_model_or_refused_with_the_ways_to_state_them() -> None:
    assert b'"shape":[2,3]' in payloads(DENSE_MODEL, OPEN_MODEL).make(0, 1, 2, 0).tail
    unstated = payloads(DENSE_MODEL, UserModel("open", {}))
    with pytest.raises(ValueError, match=r"input IDS open \(\[-1\]\): state it in the user class, shapes = "):
        unstated.make(0, 1, 2, 0)
    own = unstated.own(0, 1, {"IDS": np.zeros((1, 7), np.int32)}, 1)
    assert b'"shape":[1,7]' in own.tail, "the caller states it"


@pytest.mark.parametrize(
    ("rows", "variant", "why"), [(0, 0, "rows=0"), (9, 0, "rows=9"), (1, -1, "variant=-1")]
)
def test_rows_and_variants_that_there_are_not_are_refused(rows: int, variant: int, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        payloads(DENSE_MODEL, OPEN_MODEL).make(0, 0, rows, variant)


def test_the_known_layouts_do_not_keep_the_inputs() -> None:
    made = payloads(DENSE_MODEL, OPEN_MODEL)
    for i in range(5):
        made.own(0, 0, {"X": np.full((1, 4), i, np.float32)}, 1)
    assert len(made._known) == 1
