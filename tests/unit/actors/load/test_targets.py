"""What a worker knows of each of its servers: its name in requests, and the requests that it needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from squall.actors.load.choice import Choice
from squall.actors.load.targets import TargetSettings, Wire, encoded, keys_needed
from squall.models.made import make_inputs
from tests.golden.driving import SPEC, S, plan_of

HERE = TargetSettings("server-0", "127.0.0.1", 8000, (SPEC,))
THERE = TargetSettings("server-1", "::1", 8001, (replace(SPEC, name="other"),))


def test_a_server_is_named_as_a_url_names_it() -> None:
    assert (HERE.authority, THERE.authority) == ("127.0.0.1:8000", "[::1]:8001")


def test_people_are_told_what_is_connected_to() -> None:
    assert (HERE.where, replace(HERE, unix="/run/triton").where) == ("127.0.0.1:8000", "/run/triton")


def test_each_server_has_requests_of_its_own() -> None:
    inputs = {(1, 0): make_inputs(SPEC, 1, 0, 1)}
    for number, target in enumerate((HERE, THERE)):
        ((key, template),) = encoded(target, target.spec, number, Wire("http"), inputs, None, {}).items()
        assert (key, template.target) == ((number, 1, 0), number)
        assert f"/v2/models/{target.spec.name}/".encode() in template.head
        assert f"Host: {target.authority}\r\n".encode() in template.head


def test_requests_whose_answers_have_one_layout_share_what_is_known_of_it() -> None:
    open_spec = replace(SPEC, inputs=(replace(SPEC.inputs[0], dims=(-1,)),))
    sizes = {(1, 0): 3, (1, 1): 3, (1, 2): 4, (2, 0): 3}
    inputs = {kind: make_inputs(open_spec, *kind, 1, {"INPUT": (size,)}) for kind, size in sizes.items()}
    for protocol in ("http", "grpc"):
        of = encoded(replace(HERE, specs=(open_spec,)), open_spec, 0, Wire(protocol), inputs, None, {})
        assert of[0, 1, 0].known is of[0, 1, 1].known
        assert len({id(of[0, *kind].known) for kind in sizes}) == 3


def test_only_what_is_sent_to_a_server_is_needed_of_it() -> None:
    plan = plan_of(range(4), S)
    plan.rows[:] = [1, 1, 2, 3]
    assert keys_needed(plan, 1, "planned") == {(0, 1, 0), (0, 2, 0), (0, 3, 0)}
    of_two = replace(plan, target=np.array([0, 1, 1, 0], np.uint8))
    assert keys_needed(of_two, 2, "planned") == {(0, 1, 0), (0, 3, 0), (1, 1, 0), (1, 2, 0)}


@pytest.mark.parametrize("choice", ["least-in-flight", "two-choices"])
def test_a_server_that_may_be_chosen_needs_every_request(choice: Choice) -> None:
    plan = plan_of(range(2), S)
    plan.rows[1] = 2
    assert keys_needed(plan, 2, choice) == {(target, rows, 0) for target in (0, 1) for rows in (1, 2)}
