"""`docs/experiments.md`: what was published, what ours found, where they agree and where not. Made of the files that
`squall reproduce` leaves, by rules alone: no sentence here is of one experiment."""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.published.evaluated import Evaluated
from squall.analysis.published.orderings import WORDS, Ordering
from squall.analysis.published.sentences import (
    REHEARSAL,
    answer,
    claim_text,
    ordering_text,
    published_text,
    reasons,
    verdicts_text,
)
from squall.analysis.published.tables import cycles_table, figure_tables, other_parts_table
from squall.analysis.published.values import VALID, WHAT_COUNTS
from squall.analysis.render.decision_page import DecisionTable
from squall.analysis.shown import markdown_row, markdown_text
from squall.analysis.wording import names_text

_HEAD = """# Published experiments, run again

Made of the files in [experiments/](experiments) by `python -m docs.make.experiments`: no figure here was typed. Each is
one command, `squall reproduce NAME`, and leaves such a file, `reproduction.json`, beside its page and its runs.

GPU, backend and client are not those of the articles: absolutes are only shown, orderings and ratios are compared. Ours
are told apart by the paired test of `squall compare` alone ([compare.md](compare.md)), over seeds, with Holm's
correction for all orderings of an experiment: with 95 % no two rows that are alike are told apart. Latencies are of
runs without a profiler; what nsys saw stands beside them, of runs of its own. By Little's law users over requests/s is
the cycle of a user: what a response leaves of it passed outside any request, thinking or inside the load generator.
"""
_NONE = "Nothing was run yet: there is no file in `docs/experiments/`.\n"


def experiments_document(reproductions: Sequence[Evaluated]) -> str:
    """The whole text, a section for each experiment in the order given."""
    if not reproductions:
        return f"{_HEAD}\n{_NONE}"
    return "\n".join(
        [_HEAD, f"{WHAT_COUNTS}\n", _overview(reproductions), *(_section(one) for one in reproductions)]
    )


def _overview(reproductions: Sequence[Evaluated]) -> str:
    lines = [markdown_row(("experiment", "of", "ran on", "date", "found")), f"| ---{' | ---:' * 4} |"]
    for one in reproductions:
        link = f"[{markdown_text(one.published.name)}](#{_anchor(_title(one))})"
        found = f"{REHEARSAL} {answer(one)}" if one.is_small else answer(one)
        lines.append(f"| {link} {markdown_row((one.published.title, one.host, one.date, found))}")
    return "\n".join(lines) + "\n"


def _title(found: Evaluated) -> str:
    return f"{found.published.name}: {found.published.title}"


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return "".join(one for one in title.lower().replace(" ", "-") if one.isalnum() or one in "-_")


def _section(found: Evaluated) -> str:
    article = found.published.article
    parts = [
        f"## {markdown_text(_title(found))}\n",
        *([f"**{REHEARSAL}**\n"] if found.is_small else []),
        f"**{markdown_text(answer(found))}.**\n",
        f"- {markdown_text(published_text(found))}",
        *(f"- {markdown_text(note)}" for note in article.notes),
        f"- Ran on: {markdown_text(found.host)}, {markdown_text(found.date)}, by {markdown_text(found.command)}.",
        f"- {markdown_text(verdicts_text(found))}.{_invalid_text(found)}\n",
    ]
    for table in [*figure_tables(found), other_parts_table(found)]:
        if table is not None:
            parts += [
                f"### {markdown_text(table.title)}\n",
                *([f"{markdown_text(table.note)}\n"] if table.note else []),
                _markdown(table),
            ]
    parts += _orderings(found.orderings)
    if found.claims:
        parts += ["### Claims\n", *(f"- {markdown_text(claim_text(one))}" for one in found.claims), ""]
    table = cycles_table(found)
    if table is not None:
        parts += ["### Little's law\n", _markdown(table)]
    parts += ["### Why they differ\n", *(f"- {markdown_text(line)}" for line in reasons(found)), ""]
    return "\n".join(parts)


def _invalid_text(found: Evaluated) -> str:
    """The reasons of runs that are not VALID, each once with its rows."""
    rows_of: dict[str, list[str]] = {}
    for run in found.directories:
        if run.status != VALID:
            reason = f"{run.status}: {run.reason}" if run.reason else run.status
            rows = rows_of.setdefault(reason, [])
            is_of_one = run.row and run.part in found.published.parts
            name = f"{run.row} ({run.part})" if is_of_one else run.part
            rows += [name] if name not in rows else []
    return "".join(
        f" {markdown_text(names_text(rows))}: {markdown_text(reason).rstrip('.')}."
        for reason, rows in rows_of.items()
    )


def _orderings(orderings: Sequence[Ordering]) -> list[str]:
    if not orderings:
        return []
    lines = ["### Orderings\n"]
    for word in WORDS:
        lines += [f"- {markdown_text(ordering_text(one))}" for one in orderings if one.word == word]
    return [*lines, ""]


def _markdown(table: DecisionTable) -> str:
    """A table of Markdown; numbers to the right."""
    ends = ["---", *("---:" if len(table.heads) > 1 else "---" for _ in table.heads[1:])]
    rows = [table.heads, ends, *table.rows]
    return "\n".join(map(markdown_row, rows)) + "\n"
