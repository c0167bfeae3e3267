"""The rules as docs/diagnosis.md lists them: `python -m docs.make.manual` prints that part; a test
holds it.
"""

from __future__ import annotations

from squall.analysis.findings.rules.body_rules import BODY_RULES
from squall.analysis.findings.rules.cpu_rules import CPU_RULES
from squall.analysis.findings.rules.gpu_rules import GPU_RULES
from squall.analysis.findings.rules.rule import Clause, Condition, Detail, Rule
from squall.analysis.findings.rules.window_rules import WINDOW_RULES


def rules_markdown() -> str:
    """Both levels, rule by rule, in the order in which they are tried."""
    parts = []
    levels = (
        ("Window level", WINDOW_RULES),
        ("Body level", BODY_RULES),
        ("Window level: CPU of the server", CPU_RULES),
        ("Window level: GPU of the server", GPU_RULES),
    )
    for title, rules in levels:
        parts.append(f"## {title}")
        parts += [_rule(number, rule) for number, rule in enumerate(rules, start=1)]
    return "\n\n".join(parts) + "\n"


def _rule(number: int, rule: Rule) -> str:
    lines = [f"### {number}. {rule.name}", _plain(rule.claim), "", *_table(rule.clauses)]
    for one in rule.details:
        lines += _detail(one)
    also = [name for name in rule.measures if name not in {one.measure for one in rule.conditions}]
    if also:
        lines += ["", f"Stated beside it: {_names(also)}."]
    lines += [
        "",
        f"- **Gives back at most** {_bound(rule)}.",
        f"- **Next**: {rule.next_step}",
        f"- **Not shown**: {rule.not_shown}",
        f"- **Rows**: `{rule.rows.table}`, largest `{rule.rows.order}` first.",
    ]
    return "\n".join(lines)


def _detail(one: Detail) -> list[str]:
    return ["", f"Closer name **{one.name}**: {_plain(one.claim)}. {one.next_step}", "", *_table(one.clauses)]


def _table(clauses: tuple[Clause, ...]) -> list[str]:
    lines = ["| all of | threshold | why there |", "|---|---|---|"]
    for clause in clauses:
        lines += [
            f"| {'or ' if number else ''}`{one.measure}` | {one.comparison} {_threshold(one)} | {one.reason} |"
            for number, one in enumerate(clause)
        ]
    return lines


def _threshold(one: Condition) -> str:
    if one.measure.endswith(("_bytes", "_per_s")):
        return f"{one.threshold:,.0f}"
    return f"{one.threshold:g}"


def _bound(rule: Rule) -> str:
    wall, response = (_sum(names) for names in (rule.give_back.wall, rule.give_back.response))
    parts = [f"{wall} of the wall"] if wall else []
    parts += [f"{response} of the mean latency"] if response else []
    text = ", ".join(parts) or "nothing by itself"
    if not rule.give_back.feeds_queue:
        return text
    if beside := _sum(rule.give_back.beside_queue):
        return f"{text}, and with all of the queue that it feeds {beside} + `response_queue_ratio`"
    return f"{text}, and with all of the queue that it feeds `response_queue_ratio` more"


def _sum(names: tuple[str, ...]) -> str:
    return " + ".join(f"`{name}`" for name in names)


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _plain(text: str) -> str:
    """A claim without its figures: measures by name."""
    return text.replace("{", "`").replace("}", "`")


if __name__ == "__main__":
    print(rules_markdown(), end="")
