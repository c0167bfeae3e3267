"""`reproduction.html`: a published experiment and ours beside it, on one page. Rendering only."""

from __future__ import annotations

from squall.analysis.published.evaluated import Evaluated
from squall.analysis.published.plots import plots_of
from squall.analysis.published.sentences import REHEARSAL, answer, published_text, reasons, verdicts_text
from squall.analysis.published.tables import (
    claims_table,
    cycles_table,
    differences_table,
    figure_tables,
    orderings_tables,
    other_parts_table,
    runs_table,
)
from squall.analysis.published.values import WHAT_COUNTS
from squall.analysis.render.decision_page import DecisionPage, page_html


def reproduction_page(found: Evaluated) -> str:
    """The whole page in one file that needs no network. Of a rehearsal it says first that its figures mean nothing."""
    return page_html(page_of(found))


def page_of(found: Evaluated) -> DecisionPage:
    """What is on the page: the article's table first, ours beside it."""
    article = found.published.article
    warning = f"{REHEARSAL} " if found.is_small else ""
    first, *rest = [*figure_tables(found), None]
    tables = [
        *rest,
        *orderings_tables(found),
        claims_table(found),
        cycles_table(found),
        other_parts_table(found),
        differences_table(found),
        runs_table(found),
    ]
    return DecisionPage(
        title=f"{warning}{found.published.title}: published and measured",
        answer=f"{warning}{answer(found)}.",
        is_good=None,
        facts=(
            published_text(found),
            f"Measured: {found.host}, {found.date}. {verdicts_text(found)}.",
        ),
        notes=(*reasons(found), *article.notes, WHAT_COUNTS),
        plots=plots_of(found),
        first_tables=() if first is None else (first,),
        tables=tuple(table for table in tables if table is not None),
        commands=(found.command,),
    )
