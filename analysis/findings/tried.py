"""Every rule in the order in which they are tried. `python -m squall.analysis.findings.tried` prints them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from squall.analysis.findings.rule import Clause, Level, Measures, Rule
from squall.analysis.limits import LIMITS


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # whichever there is
    """YAML in which `!limit NAME` is one of the limits of the verdict."""


_Loader.add_constructor("!limit", lambda _, node: getattr(LIMITS, node.value))


def _read(path: Path) -> dict[str, Rule]:
    stated = yaml.load(path.read_text("utf-8"), _Loader)
    return {rule.name: rule for rule in TypeAdapter(tuple[Rule, ...]).validate_python(stated)}


RULES = _read(Path(__file__).with_name("rules.yaml"))
"""By name, in the order in which they are tried."""


def rules_of(level: Level, measures: Measures) -> tuple[Rule, ...]:
    """The rules of a level that are tried on `measures`, in order."""
    return tuple(
        rule
        for rule in RULES.values()
        if rule.level == level and (not rule.asked_where or measures.get(rule.asked_where) is not None)
    )


def markdown() -> str:
    """A section for each rule: what it claims, its conditions with their reasons, what to do, what it does not show."""
    return "\n".join(line for rule in RULES.values() for line in _section(rule))


def _section(rule: Rule) -> Iterator[str]:
    yield from (f"## {rule.name} ({rule.level})", "", _quoted(rule.claim), "")
    if rule.asked_where:
        yield from (f"Tried where `{rule.asked_where}` is known.", "")
    yield from _table(rule.clauses)
    for one in rule.details:
        yield from (
            f"Closer name **{one.name}**: {_quoted(one.claim)}. {one.next_step}",
            "",
            *_table(one.clauses),
        )
    told = {
        "Stated beside it": _names(rule.evidence),
        "Gives back at most, of the wall": _names(rule.give_back.wall),
        "of the mean latency": _names(rule.give_back.response),
        "with the queue that it feeds": "`response_queue_ratio` more" if rule.give_back.feeds_queue else "",
        "Next": rule.next_step,
        "Not shown": rule.not_shown,
        "Rows": f"`{rule.rows.table}`, largest `{rule.rows.order}` first",
    }
    yield from (f"- {what}: {text}" for what, text in told.items() if text)
    yield ""


def _table(clauses: Sequence[Clause]) -> Iterator[str]:
    yield from ("| all of | threshold | why there |", "|---|---|---|")
    for clause in clauses:
        for one in clause:
            either = "" if one is clause[0] else "or "
            yield f"| {either}`{one.measure}` | {one.comparison} {one.threshold:g} | {one.reason} |"
    yield ""


def _names(measures: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in measures)


def _quoted(text: str) -> str:
    return re.sub(r"{(\w+)}", r"`\1`", text)


if __name__ == "__main__":
    sys.stdout.write(markdown())
