"""The page of a decision: its answer in words, plots, tables, and how to make it again. Rendering only.

`squall check`, `sweep`, `capacity`, `compare` and `trace info` each fill in a `DecisionPage`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from squall.analysis.report.plots import Plot
from squall.analysis.report.templates import render_page
from squall.scenarios.records import Frozen


class DecisionTable(Frozen):
    """Rows of texts under `heads`, as many cells a row as heads; the first cell is its label. `is_wrapped`: cells may
    have several lines, so that the table is as wide as the page."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    is_wrapped: bool = False


class DecisionPage(Frozen):
    """`answer`: one sentence that answers the question. `is_good`: how it is coloured; None: neither good nor bad.

    `facts`: lines below it. `commands`: what makes the decision again, one a line. `template`: that of the page, which
    shows `values` as tables.
    """

    title: str
    answer: str
    is_good: bool | None
    facts: tuple[str, ...]
    notes: tuple[str, ...]
    plots: tuple[Plot, ...]
    tables: tuple[DecisionTable, ...]
    commands: tuple[str, ...]
    template: str = "decision_page.html.j2"
    values: Mapping[str, Any] = field(default_factory=dict)


def page_html(page: DecisionPage) -> str:
    """The whole page in one file that needs no network."""
    assert all(len(row) == len(one.heads) for one in page.tables for row in one.rows)
    return render_page(page.template, page.plots, page=page, **page.values)
