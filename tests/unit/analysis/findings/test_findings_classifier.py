"""What the rules make of figures: names, how sure they are and what is missing, by cases and by what always holds."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from squall.analysis.findings.confidence import RunState
from squall.analysis.findings.facts import facts, wall_partition
from squall.analysis.findings.finding import Scope, make_finding
from squall.analysis.findings.rule import Condition, Level, assess, classify
from squall.analysis.findings.tried import RULES, rules_of
from squall.analysis.metrics.measures import NAMES
from squall.analysis.record import to_json
from tests.unit.analysis.findings.said import said

CASES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "measures.yaml").read_text())
LEVELS: tuple[Level, ...] = ("window", "body")
FACTS = sorted(
    {
        name
        for rule in RULES.values()
        for name in (*rule.tried, *rule.evidence, *rule.give_back.wall, *rule.give_back.response)
    }
    | set(NAMES)
)


def measures_of(case: dict[str, Any]) -> dict[str, float | None]:
    return facts({**CASES["instances"][case.get("of", "nothing")], **case.get("with", {})})


@pytest.mark.parametrize(("level", "case"), [(level, case) for level in LEVELS for case in CASES[level]])
def test_figures_are_told_so(level: Level, case: dict[str, Any]) -> None:
    known = measures_of(case)
    found = classify(rules_of(level, {}), known)
    finding = make_finding(level, Scope("p", "s", "i"), found, known, RunState(**case.get("state", {})), {})
    expected = {name: value for name, value in case.items() if name not in ("of", "with", "state")}
    assert said(finding, expected) == expected


@pytest.mark.parametrize("case", CASES["tried"])
def test_a_rule_holds_whatever_is_missing_that_decides_nothing(case: dict[str, Any]) -> None:
    tried = assess(RULES[case["rule"]], measures_of(case))
    assert (tried.holds, list(tried.missing)) == (case["holds"], case["missing"])


@pytest.mark.parametrize(
    ("measure", "comparison", "threshold", "value", "holds", "margin"), CASES["conditions"]
)
def test_a_condition_holds_up_to_its_threshold_by_a_margin(
    measure: str, comparison: Any, threshold: float, value: float | None, holds: Any, margin: float | None
) -> None:
    tried = Condition(measure=measure, comparison=comparison, threshold=threshold, reason="")
    assert tried.holds({measure: value}) is holds
    assert tried.margin({measure: value}) == (None if margin is None else pytest.approx(margin))


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
    for level in LEVELS:
        found = classify(rules_of(level, {}), known)
        finding = make_finding(level, Scope("p", "s", "i"), found, known, state, wall_partition(known))
        told = to_json(finding)
        assert told["confidence"] in ("high", "medium", "low")
        assert told["claim"]
        assert "nan" not in told["claim"]
        shares = [value for value in told["shares"].values() if value is not None]
        if all(abs(value) <= 1e6 for value in shares):
            assert math.fsum(shares) == pytest.approx(1.0)
        if found.named is not None:
            for clause in found.named.rule.clauses:
                values = [known.get(one.measure) for one in clause]
                assert any(value is not None and math.isfinite(value) for value in values)
        assert finding.rule == (found.named.rule.name if found.named else found.status)
        if found.named is not None:
            assert "-" not in re.split(r"[ .,;(]+", finding.claim)
