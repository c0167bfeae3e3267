from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from squall.analysis.findings.finding import Scope, filled, make_finding
from squall.analysis.findings.rules.confidence import RunState, lowest, reasons_of
from squall.analysis.findings.rules.facts import facts, wall_partition
from squall.analysis.findings.rules.rule import Condition, assess, classify, is_share
from squall.analysis.findings.rules.tried import RULES, rules_of
from squall.analysis.metrics.measures import NAMES
from squall.analysis.record import to_json

WINDOW_RULES, BODY_RULES = rules_of("window", {}), rules_of("body", {})
LEVELS = {"window": WINDOW_RULES, "body": BODY_RULES}
FACTS = sorted(
    {
        name
        for rules in LEVELS.values()
        for rule in rules
        for name in (*rule.tried, *rule.evidence, *rule.give_back.wall, *rule.give_back.response)
    }
    | set(NAMES)
)

LINEAR_HEAD: dict[str, float | None] = {
    "n_batches": 568.0, "attribution_ratio": 1.0, "profiled_ratio": 1.0, "exec_mean_ns": 2_934_000.0,
    "wall_gpu_busy_ratio": 0.027, "wall_head_ratio": 0.332, "wall_body_idle_ratio": 0.156, "wall_tail_ratio": 0.038,
    "wall_unprofiled_ratio": 0.0, "wall_between_ratio": 0.447, "wall_edges_ratio": 0.0,
    "head_tail_of_exec_ratio": 0.67, "body_busy_ratio": 0.147, "issue_to_op_ratio": 14.79,
    "issue_interval_ns": 21_770.0, "op_median_ns": 1_472.0, "host_wait_of_idle_ratio": 0.99,
    "launch_depth_nonempty_mean": 1.0, "blocked_of_exec_ratio": 0.0078, "blocked_gpu_busy_ratio": 0.07,
    "mid_blocks_per_batch": 0.0, "copy_exposed_of_body_ratio": 0.0196, "copy_to_kernel_ratio": 0.15,
    "gpu_activity_ratio": 0.027, "foreign_busy_ratio": 0.0, "instance_is_cpu": 0.0,
}  # fmt: skip
"""The figures of a real capture, without requests: host-bound, its body launch-bound."""
SEQLEN_HEAD = LINEAR_HEAD | {
    "n_batches": 489.0, "exec_mean_ns": 4_194_000.0, "wall_gpu_busy_ratio": 0.266, "wall_head_ratio": 0.313,
    "wall_body_idle_ratio": 0.072, "wall_tail_ratio": 0.033, "wall_between_ratio": 0.316,
    "head_tail_of_exec_ratio": 0.506, "body_busy_ratio": 0.787, "issue_to_op_ratio": 1.17,
    "issue_interval_ns": 19_800.0, "op_median_ns": 16_960.0, "host_wait_of_idle_ratio": 0.74,
    "launch_depth_nonempty_mean": 11.6, "blocked_of_exec_ratio": 0.149, "blocked_gpu_busy_ratio": 0.915,
    "copy_exposed_of_body_ratio": 0.009, "copy_to_kernel_ratio": 0.01, "gpu_activity_ratio": 0.261,
}  # fmt: skip


def names(measures: dict[str, float | None]) -> tuple[str | None, str | None]:
    known = facts(measures)
    found = [classify(rules, known).named for rules in LEVELS.values()]
    return tuple(one.rule.name if one else None for one in found)  # type: ignore[return-value]


def test_the_two_models_of_the_real_capture_get_one_name_on_each_level() -> None:
    assert names(LINEAR_HEAD) == ("host-bound", "launch-bound")
    assert names(SEQLEN_HEAD) == ("host-bound", "GPU-bound")


def test_what_is_not_there_is_not_assessed_and_says_what_is_missing() -> None:
    found = classify(WINDOW_RULES, facts(LINEAR_HEAD))
    missing = {one.rule.name: one.missing for one in found.unassessed}
    assert missing == {
        "client-bound": ("client_is_bottleneck", "client_lag_share_ratio", "load_is_closed"),
        "refused": ("refused_ratio",),
        "unserved": ("unreplied_ratio",),
        "under-offered": ("wall_unoffered_ratio", "queue_to_exec_ratio", "unserved_ratio"),
        "queue-bound": ("queue_share_ratio", "work_served_ratio", "load_of_ceiling_ratio"),
        "scheduler/IPC-bound": ("wall_between_waiting_ratio", "unserved_ratio"),
    }
    assert classify(BODY_RULES, {}).status == "not assessed"
    assert classify(BODY_RULES, facts(dict.fromkeys(NAMES))).named is None


def test_a_clause_that_fails_settles_a_rule_whose_other_measures_are_missing() -> None:
    launch = next(rule for rule in BODY_RULES if rule.name == "launch-bound")
    assert assess(launch, {"body_busy_ratio": 0.9}).holds is False
    assert assess(launch, {"body_busy_ratio": 0.1}).missing == (
        "issue_to_op_ratio",
        "host_wait_of_idle_ratio",
        "launch_depth_nonempty_mean",
    )


def condition(measure: str, comparison: Any, threshold: float) -> Condition:
    return Condition(measure=measure, comparison=comparison, threshold=threshold, reason="")


@pytest.mark.parametrize(
    ("tried", "just_in", "just_out"),
    [
        (condition("throttled_ratio", "at least", 0.1), 0.1, 0.0999),
        (condition("launch_depth_nonempty_mean", "at most", 1.5), 1.5, 1.5001),
        (condition("body_busy_ratio", "below", 0.5), 0.4999, 0.5),
    ],
)
def test_a_threshold_belongs_to_the_side_that_its_comparison_says(
    tried: Condition, just_in: float, just_out: float
) -> None:
    assert tried.holds({tried.measure: just_in}) is True
    assert tried.holds({tried.measure: just_out}) is False
    assert tried.holds({tried.measure: None}) is None
    assert abs(tried.margin({tried.measure: just_in}) or 0.0) < 0.01


def test_a_margin_is_in_units_of_the_threshold_and_of_a_share_of_its_nearer_end() -> None:
    assert condition("issue_to_op_ratio", "at least", 2.0).margin(
        {"issue_to_op_ratio": 14.0}
    ) == pytest.approx(6.0)
    assert condition("body_busy_ratio", "at least", 0.75).margin({"body_busy_ratio": 1.0}) == pytest.approx(
        1.0
    )
    assert condition("body_busy_ratio", "below", 0.5).margin({"body_busy_ratio": 0.75}) == pytest.approx(-0.5)
    assert is_share("body_busy_ratio")
    assert not is_share("issue_to_op_ratio")


def test_a_threshold_that_leaves_no_margin_is_refused() -> None:
    with pytest.raises(ValueError, match="margin"):
        condition("throttled_ratio", "at least", 0.0)
    with pytest.raises(ValueError, match="margin"):
        condition("throttled_ratio", "at least", 1.0)


def test_the_runner_up_is_the_next_rule_that_holds_or_else_the_nearest_miss() -> None:
    throttled = {"throttled_ratio": 0.5, "n_throttle_samples": 20.0, "wall_kernel_busy_ratio": 0.2}
    found = classify(WINDOW_RULES, facts(LINEAR_HEAD | throttled))
    assert found.runner_up is not None
    assert (found.runner_up.rule.name, found.runner_up.holds) == ("throttled", True)
    found = classify(BODY_RULES, facts(SEQLEN_HEAD))
    assert found.runner_up is not None
    assert (found.runner_up.rule.name, found.runner_up.holds) == ("sync-bound", False)
    assert found.runner_up.margin == pytest.approx((0.5 - 0.915) / 0.5)  # blocked while the GPU works
    found = classify(
        WINDOW_RULES, facts(SEQLEN_HEAD | {"wall_between_ratio": 0.2, "head_tail_of_exec_ratio": 0.2})
    )
    assert found.runner_up is not None
    assert found.runner_up.rule.name not in (
        "unserved",
        "refused",
    )  # they miss by least, but nothing is known of requests


def confidence(measures: dict[str, float | None], state: RunState = RunState()) -> tuple[str, list[str]]:  # noqa: B008
    known = facts(measures)
    found = list(reasons_of(classify(BODY_RULES, known), known, state))
    return lowest(level for level, _ in found), [reason for _, reason in found]


def test_confidence_falls_with_margin_batches_coverage_and_losses_and_says_why() -> None:
    assert confidence(LINEAR_HEAD) == ("high", [])
    assert confidence(SEQLEN_HEAD)[0] == "medium"  # 78.7 % busy, 75 % asked for
    assert confidence(LINEAR_HEAD | {"n_batches": 29.0})[0] == "low"
    assert confidence(LINEAR_HEAD | {"attribution_ratio": 0.97}) == (
        "medium",
        ["97.0 % of the operations on the GPU are tied to a batch"],
    )
    assert confidence(LINEAR_HEAD | {"attribution_ratio": 0.5})[0] == "low"
    assert confidence(LINEAR_HEAD | {"host_wait_of_idle_ratio": 0.71})[0] == "low"
    assert confidence(LINEAR_HEAD, RunState(losses=("worker 1 died",))) == (
        "medium",
        ["the run lost something: worker 1 died"],
    )
    assert confidence(LINEAR_HEAD, RunState(unmet_checks=("Little's law",)))[0] == "medium"
    assert confidence(LINEAR_HEAD, RunState(profiling_ratio=1.2)) == ("high", [])
    assert confidence(LINEAR_HEAD, RunState(profiling_ratio=1.25)) == (
        "low",
        ["profiling made the median latency 1.25 times as long"],
    )


def test_the_claim_has_the_figures_and_the_bound_is_the_share_of_the_part() -> None:
    known = facts(
        LINEAR_HEAD,
        {"wall_launch_idle_ratio": 0.15, "response_launch_idle_ratio": 0.2, "response_queue_ratio": 0.5},
    )
    found = make_finding("body", Scope("p", "s", "i"), classify(BODY_RULES, known), known, RunState(), {})
    assert (
        "works for 14.7 % of the body: an operation is issued every 21.8 µs and takes 1.47 µs" in found.claim
    )
    assert "14.8 times as long" in found.claim
    assert found.give_back.wall_ratio == 0.15
    assert (found.give_back.response_ratio, found.give_back.with_queue_ratio) == (0.2, 0.7)
    assert to_json(found)["evidence"][0]["threshold"] == 0.5


def test_a_closer_name_is_given_where_its_figures_are_there() -> None:
    known = facts(
        SEQLEN_HEAD | {"gpu_dram_util_ratio": 0.2, "sm_cover_ratio": 0.99, "sub_wave_time_ratio": 0.04}
    )
    found = make_finding("body", Scope("p", "s", "i"), classify(BODY_RULES, known), known, RunState(), {})
    assert found.details == ("memory",)  # 20 % of the peak over a phase of which the GPU was busy for 26 %
    assert "DRAM moves 76.6 % of its peak while the GPU is busy" in found.claim


def test_no_rule_is_not_the_same_as_not_assessed() -> None:
    idle = dict.fromkeys(FACTS, 0.0) | {"body_busy_ratio": 0.6, "issue_to_op_ratio": 1.5}
    found = classify(BODY_RULES, idle)
    assert found.status == "none"
    text = make_finding("body", Scope("p", "s"), found, idle, RunState(), {}).claim
    assert text.startswith("No rule of this level holds")
    assert classify(BODY_RULES, {**idle, "foreign_busy_ratio": None}).status == "not assessed"


def test_a_claim_says_in_words_which_of_its_figures_is_not_known() -> None:
    known = facts({"gpu_activity_ratio": 0.9, "launch_depth_nonempty_mean": 4.0, "foreign_busy_ratio": 0.0})
    found = classify(BODY_RULES, known)
    finding = make_finding("body", Scope("p", "s", "i"), found, known, RunState(), {})
    assert finding.rule == "GPU-bound"
    assert finding.claim.startswith(
        "The GPU works for an unknown share of the body: its kernels set the pace"
    )
    assert finding.claim.endswith("(launches that wait for it while any do: 4).")
    claims = [filled(rule.claim, {}) for rules in LEVELS.values() for rule in rules]
    assert {"an unknown time", "an unknown number of times"} <= set(
        re.findall(r"an unknown \w+(?: of times)?", " ".join(claims))
    )


def test_the_worst_batches_of_a_rule_are_shown_with_their_whole_key() -> None:
    shown = [one.rows.shown for one in RULES.values() if one.rows.table == "batch_costs"]
    assert len(shown) > 5
    assert {names[:3] for names in shown} == {("instance", "instance_device", "batch_id")}


VALUES = st.one_of(
    st.none(),
    st.floats(0, 1),
    st.floats(-1e300, 1e300),
    st.sampled_from([0.0, 1e300, math.nan, math.inf, -math.inf]),
)


@given(st.dictionaries(st.sampled_from(FACTS), VALUES), st.booleans())
@example({"exec_mean_ns": 1e-200, "queue_p50_ns": 4.1e131}, False)  # their quotient is no number
def test_any_measures_classify_and_no_name_rests_on_what_is_missing(
    measures: dict[str, float | None], has_losses: bool
) -> None:
    known = facts(measures)
    state = RunState(losses=("lost",) if has_losses else ())
    for level, rules in LEVELS.items():
        found = classify(rules, known)
        finding = make_finding(level, Scope("p", "s", "i"), found, known, state, wall_partition(known))
        _is_sound(to_json(finding))
        if found.named is not None:
            for clause in found.named.rule.clauses:
                values = [known.get(one.measure) for one in clause]
                assert any(value is not None and math.isfinite(value) for value in values)
        assert finding.rule == (found.named.rule.name if found.named else found.status)
        if found.named is not None:
            assert "-" not in re.split(r"[ .,;(]+", finding.claim)


def _is_sound(finding: dict[str, Any]) -> None:
    assert finding["confidence"] in ("high", "medium", "low")
    assert finding["claim"]
    assert "nan" not in finding["claim"]
    shares = [value for value in finding["shares"].values() if value is not None]
    if all(abs(value) <= 1e6 for value in shares):
        assert math.fsum(shares) == pytest.approx(1.0)


@given(st.lists(st.integers(0, 10**9), min_size=8, max_size=8).filter(any), st.booleans(), st.booleans())
def test_shares_of_a_wall_add_up_to_one(lengths: list[int], has_requests: bool, is_profiled: bool) -> None:
    parts = (
        "gpu_busy",
        "head",
        "body_idle",
        "tail",
        "unprofiled",
        "between_waiting",
        "between_empty",
        "edges",
    )
    wall: dict[str, float | None] = {
        f"wall_{part}_ratio": length / sum(lengths) for part, length in zip(parts, lengths, strict=True)
    }
    waiting, empty = wall["wall_between_waiting_ratio"] or 0.0, wall["wall_between_empty_ratio"] or 0.0
    wall["wall_between_ratio"] = waiting + empty
    if not has_requests:
        wall |= {"wall_between_waiting_ratio": None, "wall_between_empty_ratio": None}
    if not is_profiled:
        wall |= {f"wall_{part}_ratio": None for part in parts[:5]}
    found = wall_partition(wall)
    assert found["unexplained"] == pytest.approx(0.0, abs=1e-9)
    assert math.fsum(value for value in found.values() if value is not None) == pytest.approx(1.0)
