from __future__ import annotations

import re
from pathlib import Path

from analysis.findings.confidence import DEMANDS
from analysis.findings.manual import rules_markdown
from analysis.findings.self_checks import checks_over
from analysis.store import RunStore

PAGE = (Path(__file__).parents[4] / "docs" / "diagnosis.md").read_text(encoding="utf-8")


def test_the_rules_on_the_page_are_those_of_the_code() -> None:
    assert rules_markdown() in PAGE


def test_the_page_lists_every_self_check(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "empty", 1, {"phases": [], "plan": {"load": "open"}})
    section = PAGE[PAGE.index("## Self-checks") : PAGE.index("## Window level")]
    listed = {
        name for row in re.findall(r"^\| (`.+?) \|", section, re.M) for name in re.findall(r"`([^`]+)`", row)
    }
    assert listed == {one.name for one in checks_over(None, [], store, {})}  # type: ignore[arg-type]  # reads none


def test_the_page_states_what_high_confidence_needs() -> None:
    assert f"| margin | {DEMANDS.clear_margin}; from {DEMANDS.bare_margin} on medium" in PAGE
    assert f"| batches | {DEMANDS.n_batches}, else low" in PAGE
    assert f"{DEMANDS.attribution_ratio:.0%}".replace("%", " %") in PAGE
