from __future__ import annotations

import re
from pathlib import Path

from docs.make.manual import rules_markdown
from squall.analysis.findings.rules.confidence import DEMANDS
from squall.analysis.findings.self_checks.self_checks import checks_over
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.manifest import Manifest

PAGE = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text(encoding="utf-8")


def test_the_rules_on_the_page_are_those_of_the_code() -> None:
    assert rules_markdown() in PAGE


def test_the_page_lists_every_self_check(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "empty", 1, Manifest())
    section = PAGE[PAGE.index("## Self-checks") : PAGE.index("## Window level")]
    listed = {
        name for row in re.findall(r"^\| (`.+?) \|", section, re.M) for name in re.findall(r"`([^`]+)`", row)
    }
    assert listed == {one.name for one in checks_over(None, [], store, None)}


def test_the_page_states_what_high_confidence_needs() -> None:
    assert f"| margin | {DEMANDS.clear_margin}; from {DEMANDS.bare_margin} on medium" in PAGE
    assert f"| batches | {DEMANDS.n_batches}, else low" in PAGE
    assert f"{DEMANDS.attribution_ratio:.0%}".replace("%", " %") in PAGE
