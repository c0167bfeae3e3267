"""Plans whose requests are of sequences: all of one have one worker and one server."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from squall.scenarios.config.client import CHOSEN_AT_SEND, RoutingConfig, RoutingKind
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.plan import Plan, deal
from squall.scenarios.plan.route import route
from tests.merged_plans import merge
from tests.unit.scenarios.plan.test_plan import planned

N_LANES = 10
KINDS = [one for one in get_args(RoutingKind) if one not in (*CHOSEN_AT_SEND, "mirror", "trace")]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(sequences={"length": 3, "concurrent": N_LANES})


@pytest.mark.parametrize("n_workers", [1, 2, 3, 7, 10])
def test_a_worker_has_whole_lanes_of_the_schedule_without_sequences(plan: Plan, n_workers: int) -> None:
    assert plan.sha256() == planned().sha256()
    assert len(plan) > 20 * N_LANES
    parts = list(deal(plan, n_workers))
    lanes = [set((part.seq % N_LANES).tolist()) for part in parts]
    assert all(lanes)
    assert sorted(one for of in lanes for one in of) == list(range(N_LANES))
    assert merge(parts).sha256() == plan.sha256()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_has_whole_lanes(plan: Plan, kind: RoutingKind) -> None:
    target = route(plan, RoutingConfig(kind=kind), [1.0, 1.0], 5).target
    assert target is not None
    of_lane = [set(target[plan.seq % N_LANES == lane].tolist()) for lane in range(N_LANES)]
    assert all(len(servers) == 1 for servers in of_lane)
    assert {0, 1} == set().union(*of_lane)
    if kind == "round-robin":
        assert np.bincount(target).tolist() == [
            int((plan.seq % N_LANES % 2 == server).sum()) for server in (0, 1)
        ]


@pytest.mark.parametrize(
    ("clients", "text"),
    [
        ({"deal": "hash"}, "sequences: a worker is dealt whole ones; leave deal out"),
        ({"routing": {"kind": "mirror"}}, "sequences: routing 'mirror' would split one over servers"),
        ({"sequences": {"length": 3, "order": "late"}}, "clients.sequences.order: 'late' must be 'wait' or 'none'"),
        (
            {"sequences": {"length": 3, "on_failure": "retry"}},
            "clients.sequences.on_failure: 'retry' must be 'stop' or 'continue'",
        ),
        (
            {"sequences": {"length": 3, "pinned": True, "order": "none"}},
            "pinned: a connection takes one request of its sequence at a time; use order: wait",
        ),
        ({"sequences": {"length": 3, "pinned": 3}}, "clients.sequences.pinned"),
    ],
)  # fmt: skip
def test_what_sequences_cannot_have_is_one_line(clients: dict[str, Any], text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        planned(**{"sequences": {"length": 3}, **clients})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
