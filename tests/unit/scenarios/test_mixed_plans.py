"""Plans of several models: each arrival asks one of them in its share, by that model's own laws, whoever sends it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.scenarios.arrays import Int64s
from squall.scenarios.config.client import RoutingConfig
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.exact import draws
from squall.scenarios.model_shares import ONE_MODEL, VariantRange, models_of, ranges_of
from squall.scenarios.plan.closed import ClosedPlan, Step, deal_closed
from squall.scenarios.plan.deal import affinity_of
from squall.scenarios.plan.plan import Plan, codes_by_model, deal, kinds_of
from squall.scenarios.plan.route import planned_by_server, route
from squall.scenarios.run_plan import plan_run
from squall.scenarios.strict_yaml import parse_yaml
from tests.merged_plans import merge

MODELS: list[dict[str, Any]] = [
    {"name": "dense", "share": 3, "payload_variants": 5},
    {"name": "text", "rows": {"kind": "uniform", "low": 7, "high": 9}},
    {"name": "idle", "share": 0},
]
N_OF = {"main": 20_000, "burst": 5_000}


def scenario_of(
    models: Any = MODELS, *, n_servers: int = 1, closed: bool = False, **clients: Any
) -> Scenario:
    """Exactly `N_OF` arrivals of each phase; in the burst four of five ask `text`."""
    mapping: Any = parse_yaml(
        """
        {name: x, seed: 5, phases: [
          {name: main, kind: measure, duration: 10s, arrivals: {kind: constant, rate: 2000/s}},
          {name: burst, kind: measure, duration: 10s, arrivals: {kind: constant, rate: 500/s},
           shares: {dense: 1, text: 4}},
          {name: drain, kind: drain, duration: 1s}]}
        """,
        "test",
    )
    for phase in mapping["phases"][:2] if closed else ():
        phase["arrivals"] = {"kind": "closed", "users": 3}
    mapping |= {"models": models, "clients": clients}
    return scenario_from_mapping(
        mapping | ({} if n_servers == 1 else {"servers": {"count": n_servers}}), "test"
    )


def plan_of(scenario: Scenario) -> Plan:
    plan = plan_run(scenario, scenario.servers)
    assert isinstance(plan, Plan)
    return plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(scenario_of())


@pytest.fixture(scope="module")
def users() -> ClosedPlan:
    return closed_plan()


def steps(plan: ClosedPlan, user: int, phase: int = 0, n: int = 200) -> list[Step]:
    return list(islice(plan.steps(user, phase), n))


def asked(plan: Plan) -> Int64s:
    return models_of(plan.variant, plan.models)


def test_each_phase_asks_its_models_in_their_shares_within_the_error_of_so_many_draws(plan: Plan) -> None:
    models = asked(plan)
    for index, (n, shares) in enumerate(
        zip(N_OF.values(), ((3 / 4, 1 / 4, 0), (1 / 5, 4 / 5, 0)), strict=True)
    ):
        of_phase = models[plan.phase == index]
        assert of_phase.size == n
        for model, share in enumerate(shares):
            # n independent draws: their share has a standard error of √(p (1 - p) / n), 0.003 and 0.006 here
            assert abs(np.mean(of_phase == model) - share) <= 4 * np.sqrt(share * (1 - share) / n)


def test_which_model_is_next_does_not_depend_on_the_last_one(plan: Plan) -> None:
    first = asked(plan)[: N_OF["main"]] == 0
    together, apart = np.mean(first[1:] & first[:-1]), np.mean(first) ** 2
    assert abs(together - apart) < 4 * np.sqrt(apart * (1 - apart) / first.size)


def test_rows_and_variants_are_by_the_law_of_the_model_and_its_own_range(plan: Plan) -> None:
    assert plan.models == (VariantRange(0, 5), VariantRange(5, 4), VariantRange(9, 4))
    models = asked(plan)
    assert set(plan.rows[models == 0]) == {1}
    assert set(plan.rows[models == 1]) == {7, 8, 9}
    assert set(plan.variant[models == 0]) == set(range(5))
    assert set(plan.variant[models == 1]) == set(range(5, 9))


def test_arrivals_are_those_of_one_model(plan: Plan) -> None:
    alone = scenario_of().to_mapping() | {"model": {"name": "dense"}}
    alone["phases"][1].pop("shares")
    other = plan_of(
        scenario_from_mapping({key: one for key, one in alone.items() if key != "models"}, "alone")
    )
    assert np.array_equal(plan.offset_ns, other.offset_ns)
    assert len(other.models) == 1


def test_the_law_of_one_model_moves_no_other(plan: Plan) -> None:
    changed = [
        MODELS[0],
        MODELS[1] | {"rows": {"kind": "constant", "value": 2}, "payload_variants": 30},
        MODELS[2],
    ]
    other = plan_of(scenario_of(changed))
    assert np.array_equal(asked(plan), asked(other))
    is_first = asked(plan) == 0
    assert np.array_equal(plan.variant[is_first], other.variant[is_first])


@pytest.mark.parametrize("n_workers", [1, 5])
def test_parts_of_a_plan_know_whose_variants_are_whose_and_make_the_whole(n_workers: int, plan: Plan) -> None:
    parts = list(deal(plan, n_workers))
    assert {part.models for part in parts} == {plan.models}
    assert merge(parts).sha256() == plan.sha256()


def test_a_seed_is_one_plan_and_shares_and_ranges_are_in_its_digest(plan: Plan) -> None:
    assert plan_of(scenario_of()).sha256() == plan.sha256()
    fewer = plan_of(scenario_of([MODELS[0], MODELS[1], MODELS[2] | {"payload_variants": 3}]))
    assert np.array_equal(fewer.variant, plan.variant)
    assert fewer.sha256() != plan.sha256()


@pytest.mark.parametrize("kind", ["round-robin", "random", "weighted", "sticky"])
def test_an_arrival_goes_to_a_server_of_its_model(kind: str) -> None:
    models = [MODELS[0] | {"servers": [1, 2]}, MODELS[1] | {"servers": ["server-0", 2]}, MODELS[2]]
    scenario = scenario_of(models, n_servers=3)
    unrouted = plan_run(scenario, None)
    assert isinstance(unrouted, Plan)
    unrouted = replace(unrouted, affinity=affinity_of(None, unrouted.seq))  # each a session of its own
    routing = RoutingConfig.model_validate({"kind": kind})
    plan = route(unrouted, routing, [1.0] * 3, 5, served=scenario.served_at(3))
    assert isinstance(plan, Plan)
    assert plan.target is not None
    for model, servers in enumerate(((1, 2), (0, 2))):
        targets = plan.target[asked(plan) == model]
        counts = Counter(targets.tolist())
        assert set(counts) == set(servers)
        spread = 1 if kind == "round-robin" else 8 * np.sqrt(targets.size / 4)  # of n p, p = ½, on both sides
        assert abs(counts[servers[0]] - counts[servers[1]]) <= spread


def test_servers_that_serve_all_get_arrivals_as_those_of_one_model_do() -> None:
    plan = plan_of(scenario_of(n_servers=3))
    assert plan.target is not None
    assert np.array_equal(plan.target, np.arange(len(plan)) % 3)


def closed_plan(models: Any = MODELS) -> ClosedPlan:
    scenario = scenario_of(models, closed=True)
    plan = plan_run(scenario, scenario.servers)
    assert isinstance(plan, ClosedPlan)
    return plan


def test_users_ask_the_models_in_the_shares_of_the_phase(users: ClosedPlan) -> None:
    n = 5_000
    for phase, share in ((0, 3 / 4), (1, 1 / 5)):
        drawn = steps(users, 1, phase, n)
        models = models_of([step.variant for step in drawn], users.models)
        assert abs(np.mean(models == 0) - share) < 4 * np.sqrt(share * (1 - share) / n)
        assert set(models) == {0, 1}
        rows = np.array([step.rows for step in drawn])
        assert set(rows[models == 0]) == {1}
        assert set(rows[models == 1]) == {7, 8, 9}


def test_what_users_may_send_is_known_before_and_nothing_of_a_model_without_a_share(
    users: ClosedPlan,
) -> None:
    expected = [(1, variant) for variant in range(5)]
    expected += [(rows, variant) for rows in (7, 8, 9) for variant in range(5, 9)]
    assert np.transpose(kinds_of(users.kind_codes())).tolist() == list(map(list, expected))
    assert {(step.rows, step.variant) for step in steps(users, 0, n=2_000)} == set(expected)


def test_a_user_does_the_same_whichever_worker_it_belongs_to(users: ClosedPlan) -> None:
    (_, part, _) = deal_closed(users, 3)
    assert steps(part, 1) == steps(users, 1)
    shared = closed_plan([MODELS[0] | {"share": 2}, *MODELS[1:]])
    assert shared.sha256() != users.sha256() == closed_plan().sha256()


def test_a_user_has_a_server_for_each_model_where_not_all_serve_all() -> None:
    served = [MODELS[0] | {"servers": [1, 2]}, MODELS[1] | {"servers": [0, 2]}, MODELS[2]]
    scenario = scenario_of(served, n_servers=3, closed=True)
    plan = plan_run(scenario, scenario.servers)
    assert isinstance(plan, ClosedPlan)
    assert plan.targets.tolist() == [[1, 0, 0], [2, 2, 1], [1, 0, 2]]
    asked_at = [
        [codes.size for codes in codes_by_model(plan.kind_codes(server), plan.models)] for server in range(3)
    ]
    assert asked_at == [[0, 12, 0], [5, 0, 0], [5, 12, 0]]
    assert planned_by_server(plan, 3) == [2, 3, 2]  # users that ask it anything
    (_, part, _) = deal_closed(plan, 3)
    assert part.targets[0].tolist() == [2, 2, 1]


def test_ranges_follow_one_another_and_name_the_model_of_a_variant() -> None:
    ranges = ranges_of([2, 1, 3])
    assert ranges == (VariantRange(0, 2), VariantRange(2, 1), VariantRange(3, 3))
    assert models_of(np.arange(6, dtype=np.uint8), ranges).tolist() == [0, 0, 1, 2, 2, 2]
    assert models_of([4, 0], ONE_MODEL).tolist() == [0, 0]


def test_a_model_without_a_share_is_never_drawn_wherever_it_stands() -> None:
    found = draws.by_weight(np.arange(5), np.array([0.0, 1, 0, 2, 0]), np.random.default_rng(1), 10_000)
    assert set(found.tolist()) == {1, 3}


def with_data(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """`dense` with 700 entries by Zipf's law, `text` with 30 lines in sequence; `changes`: in the data of `dense`."""
    np.save(folder / "values.npy", np.zeros((700, 2), np.float32))
    (folder / "lines.txt").write_text("a line\n" * 30)
    order = {"kind": "zipf", "exponent": 0.9}
    return [
        {
            "name": "dense",
            "share": 3,
            "data": {"path": str(folder / "values.npy"), "order": order, **changes},
        },
        {**MODELS[1], "data": {"path": str(folder / "lines.txt")}},
        MODELS[2],
    ]


def test_each_model_draws_entries_of_its_own_data_in_its_own_order(tmp_path: Path) -> None:
    plan = plan_of(scenario_of(with_data(tmp_path)))
    assert plan.models == (VariantRange(0, 700), VariantRange(700, 30), VariantRange(730, 4))
    assert plan.variant.dtype == np.uint16
    models = asked(plan)
    for index in range(2):
        lines = plan.variant[(models == 1) & (plan.phase == index)] - 700
        assert np.array_equal(lines, np.arange(lines.size) % 30), "from the first on in each phase"
    entries = plan.variant[(models == 0) & (plan.phase == 0)]
    weights = np.arange(1, 701) ** -0.9
    expected = weights / weights.sum() * entries.size
    counts = np.bincount(entries, minlength=700)
    # chi-square over 50 bins of 14 entries: 49 degrees of freedom, the mean is 49 and the deviation √98
    binned = [one.reshape(50, 14).sum(axis=1) for one in (counts, expected)]
    assert ((binned[0] - binned[1]) ** 2 / binned[1]).sum() < 49 + 5 * np.sqrt(98)


def test_the_data_of_one_model_moves_no_request_of_another(tmp_path: Path) -> None:
    made, plan = plan_of(scenario_of()), plan_of(scenario_of(with_data(tmp_path)))
    other = plan_of(scenario_of(with_data(tmp_path, limit=10, order="random")))
    assert np.array_equal(asked(plan), asked(made))
    assert np.array_equal(asked(plan), asked(other))
    is_text = asked(plan) == 1
    assert np.array_equal(plan.variant[is_text] - 700, other.variant[is_text] - 10)
    assert set(other.variant[asked(plan) == 0]) == set(range(10))
    assert len({one.sha256() for one in (made, plan, other)}) == 3
    for n_workers in (1, 2):
        assert merge(list(deal(plan, n_workers))).sha256() == plan.sha256()


def test_users_go_through_the_data_of_each_model_in_turn(tmp_path: Path) -> None:
    plan = closed_plan(with_data(tmp_path, order="sequence"))
    for user in range(3):
        variants = np.array([step.variant for step in steps(plan, user, n=500)])
        models = models_of(variants, plan.models)
        for number, (own, n) in enumerate(zip(plan.models[:2], (700, 30), strict=True)):
            entries = variants[models == number] - own.first
            assert entries.tolist() == [(place * 3 + user) % n for place in range(entries.size)]
    assert len(plan.kind_codes()) == 700 + 3 * 30
    assert closed_plan(with_data(tmp_path, order="random")).sha256() != plan.sha256()
    (_, part, _) = deal_closed(plan, 3)
    assert steps(part, 1) == steps(plan, 1)


def test_the_digest_of_users_knows_the_order_of_each_models_entries(tmp_path: Path) -> None:
    first, other = (
        closed_plan(with_data(tmp_path, order={"kind": "zipf", "exponent": exponent}))
        for exponent in (1.0, 1.0 + 1e-9)
    )
    assert steps(first, 0, n=64) == steps(other, 0, n=64), "what is drawn first"
    assert first.sha256() != other.sha256()


def test_data_that_is_not_there_is_told_with_the_name_of_its_model(tmp_path: Path) -> None:
    models = with_data(tmp_path)
    (tmp_path / "lines.txt").unlink()
    told = f"^models.text.data: {tmp_path / 'lines.txt'}: no such file or folder of data$"
    with pytest.raises(ScenarioError, match=told):
        plan_of(scenario_of(models))
    with pytest.raises(ScenarioError, match=told):
        closed_plan(models)


def test_the_codes_of_a_plan_are_split_by_the_model_that_they_ask(plan: Plan) -> None:
    parts = codes_by_model(plan.kind_codes(), plan.models)
    found = [list(zip(*(column.tolist() for column in kinds_of(part)), strict=True)) for part in parts]
    assert found == [[(1, n) for n in range(5)], [(rows, n) for rows in (7, 8, 9) for n in range(4)], []]
    assert np.array_equal(codes_by_model(plan.kind_codes(), ONE_MODEL)[0], plan.kind_codes())
