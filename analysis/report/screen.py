"""The screen at the end of a run, within 80 columns: in about 20 lines what decides, or all of it. Rendering only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from squall.analysis.compare.figures import KEPT
from squall.analysis.compare.of_run import unexpected_failures
from squall.analysis.report.summary_file import Summary
from squall.analysis.report.templates import (
    environment,
    interval_text,
    paragraphs,
    quantile_text,
    sentences,
)
from squall.analysis.requests.cold_words import cold_lines
from squall.analysis.storage.sealed import Verdict
from squall.analysis.verdict.lag_parts import LagPart
from squall.analysis.verdict.phase_figures import LoadFigures
from squall.analysis.wording import LATENCY_LABELS, count_text, duration_text, rate_text, share_text

WIDTH = 80
LABEL_WIDTH = 12
MOST_LINES, MOST_VERBOSE_LINES = 4, 16
"""Lines beside a label; the report holds the rest."""

FAULT_STYLE = "bold red"
STATUS_STYLES = {"VALID": "bold green", "INVALID": "bold red", "ABORTED": "bold yellow"}

_WHOLE_RATIO = 0.99
"""Of a phase, the load from which on it counts as whole: the last arrival of one worker alone is no end of it."""


def render(summary: Summary, run_dir: str, width: int = WIDTH, is_verbose: bool = False) -> RenderableType:
    """What `squall run` prints last, from `summary.summarise`. `run_dir` is where the files are.

    Text beside labels takes `width` columns; figures stand in tables of 80.
    """
    template = environment().get_template("screen.html.j2")
    facts = paragraphs(template.render(s=summary, run_dir=run_dir, is_verbose=is_verbose))
    return Group(
        _headline(summary),
        Padding(_load_table(summary.measure.load), (1, 0, 1, 0)) if is_verbose else Text(),
        _latency_table(summary),
        *(Text(line, FAULT_STYLE) for line in sentences("latency_notes", summary.measure)),
        *_interval_lines(summary),
        *(Text(line, "bold yellow") for line in cold_lines(summary.cold)),
        Text(),
        fact_grid(facts, width, MOST_VERBOSE_LINES if is_verbose else MOST_LINES),
        *_verdict(summary.verdict),
        *_promised(summary),
    )


def figure_table(
    heads: Sequence[str], rows: Iterable[Sequence[str | Text]], width: int | None = None, label_width: int = 0
) -> Table:
    """A table of figures: the first column holds labels, the others stand to the right."""
    table = Table(
        box=box.SIMPLE_HEAD, width=width, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False, header_style="dim"
    )  # fmt: skip
    for place, head in enumerate(heads):
        table.add_column(
            head, justify="right" if place else "left", no_wrap=True, min_width=0 if place else label_width
        )
    for row in rows:
        table.add_row(*row)
    return table


def fact_grid(facts: Iterable[tuple[str, str]], width: int, most: int) -> Table:
    """Each label with its lines beside it, of more than `most` the first."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=LABEL_WIDTH, style="bold", no_wrap=True)
    grid.add_column(width=width - LABEL_WIDTH - 2, overflow="fold")
    for label, group in groupby(facts, itemgetter(0)):
        lines = [line for _, line in group]
        rest = len(lines) - most
        shown = [*lines[:most], f"and {rest} more: see report.html"] if rest > 1 else lines
        for place, line in enumerate(shown):
            grid.add_row("" if place else label, Text(line))
    return grid


def _under(summary: Summary) -> str:
    """` under nsys`, to stand behind the word latency or a latency's name; empty without a profiler."""
    return f" under {summary.latency_under.profiler}" if summary.latency_under else ""


def _headline(summary: Summary) -> Text:
    measure = summary.measure
    phases = ", ".join(measure.phases) or "no measure phase"
    text = Text(summary.run, style="bold")
    length = duration_text(measure.duration_ns)
    if measure.loaded_ns is not None and measure.loaded_ns < _WHOLE_RATIO * measure.duration_ns:
        length = f"{duration_text(measure.loaded_ns)} of {length}"
    text.append(f"   {phases}, {length}, seed {summary.seed}   ", style="dim")
    text.append(summary.verdict.status, style=STATUS_STYLES[summary.verdict.status])
    if measure.failures.is_beyond:
        text.append(f", {share_text(measure.failures.failed_ratio)} failed", style=FAULT_STYLE)
        if n := measure.failures.n_never:
            text.append(f", {count_text(n)} never sent", style=FAULT_STYLE)
    return text


_SCALES = {
    "gap c²": "gap_c2_ratio",
    "IDC 0.1 s": "idc_100ms_ratio",
    "1 s": "idc_1s_ratio",
    "10 s": "idc_10s_ratio",
    "peak/mean": "peak_to_mean_1s_ratio",
}


def _load_table(load: LoadFigures) -> Table:
    """A closed loop has only what its users sent; of several phases there is no burstiness."""
    series = {"sent by users": load.delivered}
    if load.intended is not None:
        series = {"intended": load.intended, "delivered": load.delivered}
    rows = [
        (name, count_text(one.n), rate_text(one.rate_hz),
         *(count_text(getattr(one, field, None)) for field in _SCALES.values()))
        for name, one in series.items()
    ]  # fmt: skip
    return figure_table(("Load", "requests", "rate", *_SCALES), rows, WIDTH)


def _latency_table(summary: Summary) -> Table:
    latency = summary.measure.latency
    names = [f"p{100 * quantile.q:g}" for quantile in latency.spreads[summary.latency_name].quantiles]
    head = f"Latency{_under(summary).replace(' ', chr(10), 1)}"  # a column has no room for both
    rows: list[list[str | Text]] = []
    for kind, label in LATENCY_LABELS[summary.load].items():
        spread = latency.spreads[kind]
        values = ["few n" if one.is_refused else quantile_text(one) for one in spread.quantiles]
        ends = (duration_text(spread.mean_of_finite_ns), duration_text(spread.max_of_finite_ns))
        rows.append([label, ends[0], *values, ends[1]])
    if any(part and part.is_above for part in latency.lag_parts):
        rows.append(["lag's part", "", *map(_lag_part_text, latency.lag_parts), ""])
    return figure_table((head, "mean", *names, "max"), rows, WIDTH)


def _lag_part_text(part: LagPart | None) -> Text:
    """The share of a quantile that is lag, marked where it is more than is allowed."""
    if part is None:
        return Text("-", "dim")
    text = share_text(part.ratio)
    return Text(f"! {text}", FAULT_STYLE) if part.is_above else Text(text, "dim")


def _interval_lines(summary: Summary) -> list[RenderableType]:
    headline = summary.latency_name
    quantiles = summary.measure.latency.spreads[headline].quantiles
    p95 = next(quantile for quantile in quantiles if quantile.q == 0.95)
    text = Text(f"{LATENCY_LABELS[summary.load][headline]} p95 ", style="bold")
    text.append(f"{quantile_text(p95)}{_under(summary)}", style="bold")
    text.append(f"   95 % interval {interval_text(p95)}   n {count_text(p95.n)}")
    text.append(f" (like {count_text(round(p95.n_eff))} independent)", style="dim")
    return [text, *([_indented(p95.interval_reason, "dim")] if p95.interval_reason else [])]


def _indented(line: str, style: str = "") -> RenderableType:
    return Padding(Text(line, style), (0, 0, 0, 2))


def _verdict(verdict: Verdict) -> list[RenderableType]:
    """The status with the first cause beside it, the other reasons, and how many checks are met."""
    *reasons, counted = sentences("verdict", verdict)
    first, *others = [*reasons[:MOST_LINES], counted]
    rest = len(reasons) - MOST_LINES
    return [
        Text.assemble("\n", (verdict.status, STATUS_STYLES[verdict.status]), f"   {first}"),
        *map(_indented, others),
        *([_indented(f"and {rest} more: see summary.json", "dim")] if rest > 0 else []),
    ]


def _promised(summary: Summary) -> list[RenderableType]:
    """The last line: failures beyond what is expected, then whether what was promised was kept."""
    failed = unexpected_failures(summary.measure.failures, summary.promises, summary.locust)
    parts = [f"FAILED: {failed}"] if failed else []
    parts += sentences("outcome", summary.promises) if summary.promises else []
    is_kept = not failed and all(one.verdict == KEPT for one in summary.promises or ())
    return [Text(" ".join(parts), "bold green" if is_kept else FAULT_STYLE)] if parts else []
