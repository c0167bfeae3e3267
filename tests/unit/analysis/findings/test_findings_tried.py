"""The rules are all that their names say, each tried on its level."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from squall.analysis.findings.rules.rule import Level, RuleName
from squall.analysis.findings.rules.tried import RULES, refuse_gaps, rules_of


@pytest.mark.parametrize("name", get_args(RuleName))
def test_a_name_without_its_rule_is_refused(name: RuleName) -> None:
    said = rf"RULES of squall.analysis.findings.rules.tried: no rule is called '{name}', as RuleName says$"
    with pytest.raises(TypeError, match=said):
        refuse_gaps([rule for rule in RULES if rule.name != name])


def test_a_rule_without_a_name_or_with_that_of_another_is_refused() -> None:
    with pytest.raises(TypeError, match="'fan-bound' is no RuleName"):
        refuse_gaps([*RULES, replace(RULES[0], name="fan-bound")])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'client-bound' stands twice"):
        refuse_gaps([*RULES, RULES[0]])


def test_every_rule_is_tried_on_its_level_where_all_is_known() -> None:
    tried = {
        level: rules_of(level, {"cpu_taken_ratio": 0.0, "gpu_foreign_ratio": 0.0})
        for level in get_args(Level)
    }
    assert sorted(rule.name for rules in tried.values() for rule in rules) == sorted(get_args(RuleName))
    assert all(rule.level == level for level, rules in tried.items() for rule in rules)
