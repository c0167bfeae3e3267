"""Which entry an arrival carries: each order has its law, and is the same for any number of workers."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from squall.scenarios.config.inputs import OrderConfig
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.data.drawing import drawn, zipf_bounds
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.closed import deal_closed
from squall.scenarios.plan.drafting import plan_closed, plan_scenario
from squall.scenarios.plan.plan import deal, kind_code, kinds_of
from squall.scenarios.strict_yaml import parse_yaml
from tests.merged_plans import merge

ORDER: TypeAdapter[Any] = TypeAdapter(OrderConfig)
POISSON = {"kind": "poisson", "rate": "500/s"}


def scenario(path: Path, n: int, order: Any, arrivals: Any = POISSON, **clients: Any) -> Scenario:
    """Of two phases over data of `n` entries."""
    if not path.exists():
        path.write_text("x\n" * n)
    mapping: Any = parse_yaml(
        """
        {name: s, seed: 3, model: {name: head, max_batch_size: 8}, phases: [
          {name: warm, kind: warmup, duration: 2s}, {name: main, kind: measure, duration: 2s},
          {name: end, kind: drain, duration: 1s}]}
        """,
        "test",
    )
    mapping["clients"] = {"data": {"path": str(path), "order": order}, **clients}
    for phase in mapping["phases"][:2]:
        phase["arrivals"] = arrivals
    return scenario_from_mapping(mapping, "s.yaml")


def test_in_sequence_each_phase_goes_round_from_the_first_entry_on(tmp_path: Path) -> None:
    plan = plan_scenario(scenario(tmp_path / "a.txt", 7, "sequence"))
    for phase in (0, 1):
        variants = plan.variant[plan.phase == phase]
        assert np.array_equal(variants, np.arange(variants.size) % 7)


def test_at_random_every_entry_comes_equally_often(tmp_path: Path) -> None:
    plan = plan_scenario(scenario(tmp_path / "a.txt", 10, "random"))
    counts = np.bincount(plan.variant, minlength=10)
    expected = len(plan) / 10
    # χ² of 9 degrees of freedom is below 33.7 but for 1 in 10,000
    assert ((counts - expected) ** 2 / expected).sum() < 33.7


def test_zipf_gives_each_entry_its_popularity() -> None:
    order = ORDER.validate_python({"kind": "zipf", "exponent": 1.2})
    found = drawn(order, 50, np.random.default_rng(1))(100_000)
    weights = np.arange(1, 51) ** -1.2
    expected = weights / weights.sum() * found.size
    # χ² of 49 degrees of freedom is below 94 but for 1 in 10,000
    assert ((np.bincount(found, minlength=50) - expected) ** 2 / expected).sum() < 94
    assert zipf_bounds(50, 1.2)[-1] == 1.0


@pytest.mark.parametrize("order", ["sequence", "random", {"kind": "zipf", "exponent": 0.9}])
def test_workers_together_send_what_one_would(tmp_path: Path, order: Any) -> None:
    one = scenario(tmp_path / "a.txt", 300, order)
    plan = plan_scenario(one)
    assert plan.columns["variant"] == "<u2"
    parts = list(deal(plan, 5))
    assert merge(parts).sha256() == plan.sha256()
    assert plan_scenario(one).sha256() == plan.sha256()
    closed = plan_closed(scenario(tmp_path / "a.txt", 300, order, {"kind": "closed", "users": 6}))
    for part in deal_closed(closed, 5):
        for user in part.users.tolist():
            ours, theirs = (next(other.step_chunks(user, 1))[2] for other in (part, closed))
            assert np.array_equal(ours, theirs)


def test_users_in_sequence_share_the_entries(tmp_path: Path) -> None:
    plan = plan_closed(scenario(tmp_path / "a.txt", 100, "sequence", {"kind": "closed", "users": 3}))
    for user in range(3):
        entries = np.concatenate([chunk[2] for chunk in islice(plan.step_chunks(user, 0), 2)])
        assert entries.tolist() == [(user + 3 * place) % 100 for place in range(2 * 64)]


def test_the_order_is_part_of_a_closed_plans_digest(tmp_path: Path) -> None:
    zipf = [{"kind": "zipf", "exponent": exponent} for exponent in (1.0, 1.5)]
    users = {"kind": "closed", "users": 3}
    digests = {
        plan_closed(scenario(tmp_path / "a.txt", 9, order, users)).sha256()
        for order in ("sequence", "random", *zipf)
    }
    assert len(digests) == 4


def test_a_plan_is_as_wide_as_its_entries(tmp_path: Path) -> None:
    plan = plan_scenario(scenario(tmp_path / "a.txt", 65_537, "random"))
    assert plan.variant.dtype == np.uint32
    assert 65_537 // 2 < plan.variant.max() < 65_537


@given(st.lists(st.tuples(st.integers(1, 2**31 - 1), st.integers(0, 2**32 - 1)), min_size=1))
def test_a_kind_is_one_number_in_the_order_of_kinds(kinds: list[tuple[int, int]]) -> None:
    rows, variants = np.array(kinds, np.int64).T
    codes = kind_code(rows, variants)
    assert [one.tolist() for one in kinds_of(codes)] == [rows.tolist(), variants.tolist()]
    order = np.argsort(codes, kind="stable")
    assert [kinds[index] for index in order.tolist()] == sorted(kinds)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(
        "timestamp_ms,tokens,prompt\n" + "".join(f"{i},{i % 3 + 1},{(7 * i) % 5}\n" for i in range(40))
    )
    return path


def test_a_trace_names_the_entry_of_each_request(tmp_path: Path, trace: Path) -> None:
    arrivals = {"kind": "trace", "file": str(trace)}
    order = {"kind": "trace", "column": "prompt"}
    rows = {"kind": "trace", "size": "tokens", "max": 8}
    plan = plan_scenario(scenario(tmp_path / "a.txt", 5, order, arrivals, rows=rows))
    assert plan.variant.tolist() == [(7 * i) % 5 for i in range(40)] * 2
    assert plan.rows.tolist() == [i % 3 + 1 for i in range(40)] * 2


def test_a_trace_may_name_them_by_a_key_of_the_data(tmp_path: Path, trace: Path) -> None:
    keys = [4, 2, 0, 1, 3]
    np.savez(tmp_path / "a.npz", key=np.array(keys), IN=np.zeros((5, 2)))
    order = {"kind": "trace", "column": "prompt", "key": "key"}
    plan = plan_scenario(scenario(tmp_path / "a.npz", 5, order, {"kind": "trace", "file": str(trace)}))
    assert plan.variant.tolist() == [keys.index((7 * i) % 5) for i in range(40)] * 2


@pytest.mark.parametrize(
    ("keys", "key", "told"),
    [
        (
            None,
            None,
            "the trace's column 'prompt' says 4 in a request, and {path} has 4 entries, 0 to 3",
        ),
        (
            [4, 2, 0, 1],
            "key",
            "the trace's column 'prompt' says 3 in a request, and {path} has 4 entries, 0 to 4",
        ),
        ([4, 2, 0, 2], "key", "{path}: row 4: the key 2 of 'key' stands there a second time"),
        ([0.5] * 4, "key", "{path}: row 1: 'key' is no whole number, and was to be a key"),
        ([1, 2, 3, 4], "id", "{path}: has no column 'id' for a key, it has key"),
    ],
)
def test_an_entry_that_is_not_there_is_told(
    tmp_path: Path, trace: Path, keys: list[float] | None, key: str | None, told: str
) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, key=np.array(keys or [0] * 4))
    order = {"kind": "trace", "column": "prompt"} | ({"key": key} if key else {})
    with pytest.raises(ScenarioError) as caught:
        plan_scenario(scenario(path, 4, order, {"kind": "trace", "file": str(trace)}))
    assert told.format(path=path) in str(caught.value)


@pytest.mark.parametrize(
    ("clients", "told"),
    [
        ({"payload_variants": 8}, "data: each entry is a payload of its own; leave payload_variants out"),
        ({"shared_memory": True}, "data: its entries travel in messages; leave shared_memory out"),
        ({"data": {"path": "x", "order": "zip"}}, "clients.data.order"),
        ({"data": {"path": "x", "order": {"kind": "zipf"}}}, "clients.data.order.exponent: missing"),
        ({"data": {"path": "x", "limt": 3}}, "clients.data.limt: unknown key, did you mean 'limit'?"),
        ({"data": {}}, "clients.data.path: missing"),
        (
            {"data": {"path": "x", "order": {"kind": "trace", "column": "x"}}},
            "clients.data.order: kind 'trace' needs arrivals of kind 'trace'",
        ),
    ],
)
def test_what_data_cannot_be_is_told(tmp_path: Path, clients: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(tmp_path / "a.txt", 4, "random", **clients)
    assert told in str(caught.value)


def test_a_scenario_with_data_loads_back_to_an_equal_one(tmp_path: Path) -> None:
    one = scenario(tmp_path / "a.txt", 4, {"kind": "zipf", "exponent": 1.5})
    assert scenario_from_mapping(one.to_mapping(), "again") == one
