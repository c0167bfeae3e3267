"""A comparison in words, those of `decisions.html.j2`: the answer, the screen, and Markdown."""

from __future__ import annotations

from squall.analysis.compare.change import DIFFERENT, SAME, UNDECIDED
from squall.analysis.compare.compared import Comparison
from squall.analysis.compare.metric_changes import MetricChange
from squall.analysis.compare.run_row import FAILURES
from squall.analysis.report.templates import decision
from squall.analysis.shown import markdown_text
from squall.analysis.verdict.run_figures import CLIENT_CPU, SERVER_CPU, THROUGHPUT
from squall.analysis.wording import figure_text, templates

LABELS = {
    "p50_ns": "p50", "p95_ns": "p95", "p99_ns": "p99", THROUGHPUT: "throughput", CLIENT_CPU: "client CPU per request",
    SERVER_CPU: "server CPU per request", FAILURES: "failures",
}  # fmt: skip


def answer(found: Comparison) -> str:
    """One sentence that answers whether B is no worse than A."""
    return decision("comparison", found, LABELS)[0]


def causes(found: Comparison) -> list[str]:
    """What changed, from requests to kernels; empty where nothing recorded tells."""
    return decision("changed", found)


def answers_text(found: Comparison) -> str:
    """Whether both sides answered alike, as far as anything tells."""
    return decision("answers", found.answers)[0]


def lines(found: Comparison) -> list[str]:
    """The screen: the answer, a line for each figure as benchstat has it, and why."""
    rows = [("", "A", "B", "B over A", ""), *(metric_row(one) for one in found.changes)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    table = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in rows
    ]
    differs = [f"differs: {one.text}" for one in found.differs] or ["differs: nothing in the scenario"]
    return [
        answer(found), "", *table, "", *differs, *(f"mark: {one}" for one in found.marks), *aside(found),
        *causes(found), answers_text(found),
    ]  # fmt: skip


def aside(found: Comparison) -> list[str]:
    """The runs that do not count, a line each, and why."""
    return [
        *(f"left out, seed {one.seed}: {one.left_out}" for one in found.pairs if one.left_out),
        *(f"not in a pair: {one}" for one in found.unpaired),
        *(f"run again: {one}" for one in found.replaced),
    ]


def metric_row(one: MetricChange) -> tuple[str, str, str, str, str]:
    """Label, A, B, change, and what it means: `~` where nothing is shown."""
    unit = "ratio" if one.is_share else "hz" if one.metric == THROUGHPUT else "ns"
    a, b = (
        figure_text(mean, unit) if mean is not None else f"infinite in {n}" if n else "-"
        for mean, n in ((one.mean_a, one.n_infinite_a), (one.mean_b, one.n_infinite_b))
    )
    if one.p_value is None:
        return LABELS[one.metric], a, b, "", one.reason
    means = f"p={one.p_value:.3f} n={one.n_pairs}"
    (change,) = decision("change", one)
    if not one.is_primary:
        return LABELS[one.metric], a, b, change, f"explore ({means})"
    words = {DIFFERENT: one.direction, SAME: "~ same", UNDECIDED: "~ undecided"}[one.verdict]
    if one.verdict == DIFFERENT and one.outcome in (SAME, UNDECIDED):
        words += ", within the margin" if one.outcome == SAME else ", perhaps within the margin"
    if one.n_more is not None:
        words += f", {one.n_more} more pairs needed"
    reason = f"; {one.reason}" if one.reason else ""
    return LABELS[one.metric], a, b, change, f"{words} ({means}){reason}"


def markdown(found: Comparison) -> str:
    """For a job's summary, by `comparison.md.j2`."""
    environment = templates("squall.analysis.report", lambda value: markdown_text(str(value)))
    return environment.get_template("comparison.md.j2").render(
        found=found,
        answer=answer(found),
        rows=map(metric_row, found.changes),
        told=[*found.marks, *causes(found), answers_text(found)],
    )
