"""Routing: which server gets an arrival, in shares as asked, the same anywhere, and no arrival lost."""

from __future__ import annotations

import json
import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.arrays import pieces
from squall.scenarios.config.client import CHOSEN_AT_SEND, RoutingConfig, RoutingKind, ValueCheckConfig
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.closed import ClosedPlan, deal_closed
from squall.scenarios.plan.deal import DealRule, affinity_of
from squall.scenarios.plan.drafting import plan_closed, plan_scenario
from squall.scenarios.plan.plan import PhaseSpan, Plan, deal
from squall.scenarios.plan.route import planned_by_server, route
from squall.scenarios.strict_yaml import parse_yaml
from tests.many_examples import examples
from tests.merged_plans import is_in_file, merge

PLANNED: tuple[RoutingKind, ...] = ("round-robin", "random", "weighted", "sticky", "trace", "mirror")
SCHEDULE = ("seq", "offset_ns", "phase", "rows", "variant")


def plan_of(n: int, n_sessions: int = 0, rule: DealRule = "sequence") -> Plan:
    """n arrivals in two phases, several at some instants; each of a session by itself unless told."""
    rng = np.random.default_rng(5)
    seq = np.arange(n)
    sessions = rng.integers(0, n_sessions, n) if n_sessions else None
    return Plan(
        seq=seq, offset_ns=seq // 3 * 1_000, phase=(seq >= n // 4).astype(np.uint8),
        rows=rng.integers(1, 9, n).astype(np.int32), variant=rng.integers(0, 4, n).astype(np.uint8),
        spans=(PhaseSpan("warm", "warmup", 0, n // 4 * 334), PhaseSpan("main", "measure", n // 4 * 334, n * 334)),
        deal=rule, affinity=affinity_of(sessions, seq),
    )  # fmt: skip


def routed(plan: Plan | ClosedPlan, kind: RoutingKind, weights: list[float], seed: int = 1) -> Any:
    return route(plan, RoutingConfig(kind=kind), weights, seed)


def target_of(plan: Plan | ClosedPlan) -> list[int]:
    assert plan.target is not None
    return plan.target.ravel().tolist()


@pytest.mark.parametrize("kind", get_args(RoutingKind))
def test_for_one_server_and_where_a_worker_chooses_the_plan_is_what_it_was(kind: RoutingKind) -> None:
    plan = plan_of(50)
    assert routed(plan, kind, [3.0]) is plan
    assert planned_by_server(plan, 1) == [50]
    assert (routed(plan, kind, [1.0, 1.0]) is plan) == (kind in CHOSEN_AT_SEND)
    assert planned_by_server(plan, 2) is None


@pytest.mark.parametrize("kind", PLANNED)
def test_routing_adds_a_server_to_each_arrival_and_is_the_same_in_pieces_and_files(
    kind: RoutingKind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = plan_of(400, n_sessions=9, rule="session")
    n_times = 2 if kind == "mirror" else 1
    two = routed(plan, kind, [1.0, 2.0])
    for name in (*SCHEDULE[1:], "affinity"):
        assert getattr(two, name).tolist() == np.repeat(getattr(plan, name), n_times).tolist()
    assert two.seq.tolist() == list(range(400 * n_times))
    assert two.spans == plan.spans
    assert planned_by_server(two, 2) == np.bincount(target_of(two), minlength=2).tolist()
    if kind == "mirror":
        assert target_of(two) == [0, 1] * 400
    with pytest.raises(ValueError, match="routed already"):
        routed(two, kind, [1.0, 2.0])
    monkeypatch.setattr("squall.scenarios.plan.growing.MOST_ROWS_IN_MEMORY", 7)
    monkeypatch.setattr("squall.scenarios.plan.route.pieces", lambda n_rows, _=0: pieces(n_rows, 60))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    filed = routed(plan, kind, [1.0, 2.0])
    for name in (*SCHEDULE, "target", "affinity") if kind == "mirror" else ("target",):
        assert is_in_file(getattr(filed, name))
        assert getattr(filed, name).tobytes() == getattr(two, name).tobytes()
    assert filed.sha256() == two.sha256()
    assert not any(tmp_path.iterdir())


def within(count: int, n: int, share: float) -> bool:
    """Five standard deviations of a binomial count: wrong once in a million."""
    return abs(count - n * share) < 5 * math.sqrt(n * share * (1 - share))


@pytest.mark.parametrize(
    ("kind", "weights", "seed"),
    [
        *(
            (kind, [1.0, 2.5, 0.5], seed)
            for kind in ("random", "weighted", "sticky")
            for seed in (0, 1, 2**70)
        ),
        *((kind, [2.0] * n, 1) for kind in ("random", "sticky", "trace") for n in (2, 7, 64)),
    ],
)
def test_each_server_has_its_share_without_a_pattern(
    kind: RoutingKind, weights: list[float], seed: int
) -> None:
    n = 60_000
    target = np.array(target_of(routed(plan_of(n), kind, weights, seed)))
    shares = np.ones(len(weights)) if kind == "random" else np.array(weights)
    shares /= shares.sum()
    # chi-square of k degrees of freedom: mean k, variance 2k, a tail longer than the normal one
    chi2 = ((np.bincount(target, minlength=len(weights)) - n * shares) ** 2 / (n * shares)).sum()
    assert chi2 < len(weights) + 6 * math.sqrt(2 * len(weights)) + 12
    again = (shares**2).sum()  # the next one goes to the same server so often
    # the pairs overlap, and with unequal shares neighbours of pairs go together: at most 3 times the variance
    assert abs((target[1:] == target[:-1]).sum() - n * again) < 5 * math.sqrt(3 * n * again * (1 - again))


def test_the_digest_sees_kind_servers_weights_and_seed() -> None:
    plan = plan_of(1_000, n_sessions=50)
    plans = [plan, *(routed(plan, kind, [1.0, 2.0]) for kind in PLANNED)]
    plans += [routed(plan, "weighted", [1.0, 2.5]), routed(plan, "round-robin", [1.0] * 3)]
    seeded: tuple[RoutingKind, ...] = ("random", "weighted", "sticky")
    plans += [routed(plan, kind, [1.0, 2.0], 2) for kind in seeded]
    plans.append(replace(plan, target=np.zeros(1_000, np.uint8)))
    assert len({one.sha256() for one in plans}) == len(plans)


def test_weights_of_any_size_are_shares() -> None:
    for kind in ("weighted", "sticky"):
        tiny = planned_by_server(routed(plan_of(2_000), kind, [5e-324, 1e308, 1e308]), 3)
        assert tiny is not None
        assert tiny[0] == 0
        assert within(tiny[1], 2_000, 0.5)
        alike = [target_of(routed(plan_of(500), kind, [scale, 3 * scale])) for scale in (1.0, 8.0, 2.0**-40)]
        assert alike[0] == alike[1] == alike[2]


@pytest.mark.parametrize("weights", [[1.0] * 5, [1.0, 2.0, 4.0, 0.5, 1.5]])
def test_a_server_more_takes_its_share_of_the_sessions_and_moves_no_other(weights: list[float]) -> None:
    n, plan = 30_000, plan_of(30_000)
    before = np.array(target_of(routed(plan, "sticky", weights[:-1])))
    after = np.array(target_of(routed(plan, "sticky", weights)))
    moved = before != after
    assert set(after[moved].tolist()) == {4}
    assert within(int(moved.sum()), n, weights[-1] / sum(weights))
    shares = np.bincount(before[moved], minlength=4)  # and it takes them from all, as these have them
    assert all(
        within(int(share), int(moved.sum()), weight / sum(weights[:-1]))
        for share, weight in zip(shares, weights, strict=False)
    )


@pytest.mark.parametrize("kind", ["round-robin", "mirror"])
@pytest.mark.parametrize(("n_workers", "n_servers"), [(1, 2), (2, 2), (5, 2), (3, 4), (4, 6)])
def test_value_checks_reach_every_server_through_every_worker(
    kind: RoutingKind, n_workers: int, n_servers: int
) -> None:
    plan = routed(plan_of(4_000), kind, [1.0] * n_servers)
    every = ValueCheckConfig(share=0.01).every(n_workers * n_servers)
    pairs = list(zip((plan.seq % n_workers).tolist(), target_of(plan), strict=True))
    taken, dealt = set(pairs[::every]), set(pairs)
    assert taken == dealt
    assert {server for _, server in taken} == set(range(n_servers))


def test_more_mirrored_arrivals_than_a_plan_takes_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.scenarios.plan.route.LARGEST_ARRIVAL_COUNT", 225)
    with pytest.raises(ScenarioError) as caught:
        routed(plan_of(100), "mirror", [1.0] * 4)
    assert str(caught.value) == (
        "clients.routing: mirrored to 4 servers, phase 'main' has 300 requests, above the 225 that a plan takes"
    )
    assert len(routed(plan_of(100), "mirror", [1.0] * 3)) == 300  # 225 of them in the larger phase


@pytest.mark.parametrize("rule", ["sequence", "hash", "session"])
@pytest.mark.parametrize("kind", PLANNED)
@given(st.integers(1, 20), st.integers(2, 9), st.randoms(use_true_random=False))
@examples(12)
def test_the_union_of_the_parts_is_the_routed_plan_byte_for_byte(
    rule: DealRule, kind: RoutingKind, n_workers: int, n_servers: int, shuffle: Any
) -> None:
    plan = routed(plan_of(200, n_sessions=20, rule=rule), kind, [1.0] * n_servers)
    parts = list(deal(plan, n_workers))
    shuffle.shuffle(parts)
    merged = merge(parts)
    assert all(getattr(merged, name).tobytes() == getattr(plan, name).tobytes() for name in plan.columns)
    assert merged.sha256() == plan.sha256()


def scenario(servers: int, arrivals: Any, deal: DealRule = "sequence", **routing: Any) -> Scenario:
    mapping: Any = parse_yaml(
        "{name: x, seed: 4, model: {name: head}, clients: {},"
        " phases: [{name: m, kind: measure, duration: 3s}, {name: end, kind: drain, duration: 1s}]}",
        "test",
    )
    mapping["phases"][0]["arrivals"] = arrivals
    mapping["clients"] |= {"routing": routing, "deal": deal}
    return scenario_from_mapping(mapping | {"servers": {"count": servers}}, "test")


def test_one_and_two_servers_have_one_schedule() -> None:
    several = scenario(2, {"kind": "poisson", "rate": "90/s"}, kind="random")
    mapping = {key: value for key, value in several.to_mapping().items() if key not in ("servers", "clients")}
    one, two = plan_scenario(scenario_from_mapping(mapping, "test")), plan_scenario(several)
    assert one.sha256() == two.sha256()
    assert routed(two, "random", [1.0, 1.0]).offset_ns.tolist() == one.offset_ns.tolist()


def test_a_plan_for_sticky_routing_keeps_its_sessions(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        plan_scenario(scenario(2, {"kind": "poisson", "rate": "9/s"}, kind="sticky"))
    assert str(caught.value) == (
        "clients.routing: the arrivals of phase 'm' have no sessions; use random or round-robin, or a trace with a"
        " column of sessions"
    )
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,session\n" + "".join(f"{i / 100},user-{i % 7}\n" for i in range(200)))
    plan = plan_scenario(scenario(2, {"kind": "trace", "file": str(path)}, kind="sticky"))
    target = target_of(routed(plan, "sticky", [1.0, 1.0]))
    assert [len(set(target[user::7])) for user in range(7)] == [1] * 7
    assert len(set(target)) == 2


WORDS = ["server-2", "a", "server-0", "b", "server-1", "c", "d", "server-9"]
SERVERS = [2, 0, 0, 0, 1, 0, 1, 2]
"""Of each word: the one of that name, or by a hash that no release changes."""


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_column_of_the_trace_names_the_server_of_each_arrival(kind: str, tmp_path: Path) -> None:
    """Its sessions have no part in it, nor has the seed."""
    rows = [(i / 100, f"u{i % 5}", WORDS[i % 8]) for i in range(240)]
    path = tmp_path / f"trace.{kind}"
    names = ("timestamp_s" if kind == "parquet" else "timestamp", "session", "model")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    if kind == "csv":
        path.write_text("\n".join(",".join(map(str, row)) for row in (names, *rows)))
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    else:
        pq.write_table(pa.table(columns), path)
    plan = plan_scenario(scenario(3, {"kind": "trace", "file": str(path)}, kind="trace", column="model"))
    for seed in (4, 5):
        assert target_of(routed(plan, "trace", [1.0] * 3, seed)) == SERVERS * 30


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "a.csv",
            "timestamp,session,model\n0.1,u,a\n",
            "row 1: no column 'tenant' of ids; it has session, model",
        ),
        ("a.txt", "0.1\n0.2\n", "row 1: no column 'tenant' of ids; it has none"),
    ],
)
def test_a_trace_without_the_column_is_one_line(name: str, content: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ScenarioError) as caught:
        plan_scenario(scenario(2, {"kind": "trace", "file": str(path)}, kind="trace", column="tenant"))
    assert str(caught.value) == f"{path}: {told}"


@pytest.mark.parametrize(
    ("arrivals", "clients", "told"),
    [
        ("{kind: trace, file: x}", "{deal: session}", "clients.deal: by session needs the trace's sessions"),
        (
            "{kind: trace, file: x}",
            "{column: null}",
            "kind 'trace' and column, that of the trace, go together",
        ),
        ("{kind: trace, file: x}", "{kind: sticky}", "kind 'trace' and column"),
        (
            "{kind: poisson, rate: 9/s}",
            "{kind: trace}",
            "needs arrivals of kind 'trace', and phase 'm' has others",
        ),
        (
            "{kind: trace, file: x, rate_scale: {kind: thin-by-session, keep: 0.5}}",
            "{kind: trace}",
            "'thin-by-session' makes other sessions",
        ),
    ],
)
def test_what_routing_by_a_column_cannot_go_with_is_one_line(arrivals: str, clients: str, told: str) -> None:
    keys = {"kind": "trace", "column": "model"} | parse_yaml(clients, "test")
    with pytest.raises(ScenarioError, match=re.escape(told)):
        scenario(2, parse_yaml(arrivals, "test"), **keys)


def users_of(n: int) -> ClosedPlan:
    return plan_closed(scenario(2, {"kind": "closed", "users": n}, kind="random"))


@pytest.mark.parametrize("kind", ["round-robin", "random", "weighted", "sticky"])
@pytest.mark.parametrize("n_workers", [1, 3])
def test_a_user_stays_with_its_server_whoever_sends_for_it(kind: RoutingKind, n_workers: int) -> None:
    plan = routed(users_of(900), kind, [1.0, 2.0])
    target = target_of(plan)
    share = {"round-robin": 0.5, "random": 0.5}.get(kind, 1 / 3)
    assert within(target.count(0), 900, share)
    assert planned_by_server(plan, 2) == [target.count(0), target.count(1)]
    found = {
        int(user): server
        for part in deal_closed(plan, n_workers)
        for user, server in zip(part.users, target_of(part), strict=True)
    }
    assert [found[user] for user in range(900)] == target
    if kind == "round-robin":
        assert target == [0, 1] * 450


def test_the_digest_of_users_sees_their_servers_and_stays_without() -> None:
    plan = users_of(50)
    assert routed(plan, "round-robin", [1.0]) is plan
    assert routed(plan, "two-choices", [1.0, 1.0]) is plan
    assert planned_by_server(plan, 2) is None
    plans = [plan, *(routed(plan, kind, [1.0, 1.0]) for kind in PLANNED[:3])]
    assert len({one.sha256() for one in plans}) == 3  # random is weighted with equal weights
