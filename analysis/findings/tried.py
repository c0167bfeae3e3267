"""Every rule in the order in which they are tried. `python -m squall.analysis.findings.tried` prints them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml
from pydantic import TypeAdapter

from squall.analysis.findings.rule import Level, Measures, Rule
from squall.analysis.limits import LIMITS
from squall.analysis.wording import templates


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
    environment = templates(__package__)
    environment.filters["quoted"] = lambda text: re.sub(r"{(\w+)}", r"`\1`", text)
    return environment.get_template("rules.md.j2").render(rules=RULES.values())


if __name__ == "__main__":
    sys.stdout.write(markdown())
