"""Every rule, and which are tried in what order. A name without its rule, or with two, fails when this is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never, get_args

from squall.analysis.findings.rules.body_rules import BODY_RULES
from squall.analysis.findings.rules.cpu_rules import CPU_RULES, with_cpu
from squall.analysis.findings.rules.gpu_rules import GPU_RULES, with_gpu
from squall.analysis.findings.rules.rule import Level, Measures, Rule, RuleName
from squall.analysis.findings.rules.window_rules import UNDER_OFFERED, WINDOW_RULES

RULES: tuple[Rule, ...] = (*WINDOW_RULES, *BODY_RULES, *CPU_RULES, *GPU_RULES)


def rules_of(level: Level, measures: Measures) -> tuple[Rule, ...]:
    """The rules of a level in the order in which they are tried on `measures`."""
    match level:
        case "window":
            return with_cpu(with_gpu(WINDOW_RULES, measures), measures, UNDER_OFFERED.name)
        case "body":
            return BODY_RULES
        case _:
            assert_never(level)


def refuse_gaps(rules: Sequence[Rule]) -> None:
    """Raises TypeError unless there is one rule of each name."""
    names = [rule.name for rule in rules]
    faults = [
        f"no rule is called {name!r}, as RuleName says" for name in get_args(RuleName) if name not in names
    ]
    faults += [f"{name!r} is no RuleName" for name in names if name not in get_args(RuleName)]
    faults += [f"{name!r} stands twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    if faults:
        raise TypeError(f"RULES of {__name__}: {'; '.join(faults)}")


refuse_gaps(RULES)
