"""The page of a decision: everything it was given is on it, as text, and nothing is fetched."""

from __future__ import annotations

import re

from squall.analysis.report.decision_page import DecisionPage, DecisionTable, page_html
from squall.analysis.report.plots import Plot, curve, points

PAGE = DecisionPage(
    title="capacity of <my> & model",
    answer="It carries 300/s, 291 to 309",
    is_good=True,
    facts=("5 seeds, 14 runs",),
    notes=("a note",),
    plots=(
        Plot(
            "p95 by rate", "rate, 1/s", "p95, ms", "line",
            (
                points("seed 1", [1.0, 2.0], [3.0, None], [2.5, None], [3.5, None]),
                curve("limit", [1.0, 2.0], [4.0, 4.0], "reference"),
            ),
        ),
        Plot("nothing", "x", "y", "line", absent="no run has it"),
    ),
    tables=(DecisionTable("Runs", ("run", "p95"), (("run-1 <b>", "3 ms"),)),),
    commands=("squall capacity my.yaml",),
)  # fmt: skip


def test_a_page_holds_all_that_it_was_given_as_text() -> None:
    html = page_html(PAGE)
    assert "capacity of &lt;my&gt; &amp; model" in html
    for text in ("It carries 300/s", "5 seeds, 14 runs", "a note", "run-1 &lt;b&gt;", "no run has it"):
        assert text in html
    assert '"arrayminus":[0.5,0.0]' in html.replace(" ", "")
    assert "answer good" in html


def test_a_page_fetches_nothing() -> None:
    page = re.sub(r"<script.*?</script>", "", page_html(PAGE), flags=re.DOTALL)
    assert not re.search(r"(src|href)=", page)
