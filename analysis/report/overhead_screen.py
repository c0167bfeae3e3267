"""The evaluation of `squall run --measure-overhead` within 80 columns, and as a page of Markdown. Rendering only."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from squall.analysis.compare.overhead import LABELS, percent
from squall.analysis.report.screen import WIDTH, figure_table
from squall.analysis.shown import markdown_row, markdown_text
from squall.analysis.statistics.paired import LEAST_PAIRS
from squall.analysis.verdict.overhead_file import Change, Changes, Overhead, RunEntry
from squall.analysis.wording import figure_text

_VERDICTS = {
    True: ("changed", "bold yellow"),
    False: ("not distinguishable", "green"),
    None: ("not assessed", "dim"),
}
_HEADS = ("change", "95 % interval", "")
_LATENCIES = ("p50_ns", "p95_ns", "p99_ns")


def render(evaluation: Overhead, folder: str) -> RenderableType:
    """What `squall run --measure-overhead` prints, from `squall.analysis.compare.overhead.evaluate`."""
    n, planned = evaluation.n_pairs, evaluation.n_pairs_planned
    head = Text("cost of profiling   ", style="bold")
    head.append(f"{n} of {planned} pairs whole", style="dim" if n == planned else "bold red")
    parts: list[RenderableType] = [head, Text()]
    for scope, changes in _scopes(evaluation) if n >= LEAST_PAIRS else ():
        rows = []
        for metric, one in changes.items():
            label, change, interval, verdict = _cells(metric, one)
            if metric in _LATENCIES and evaluation.latency_name:
                label = f"{label} {evaluation.latency_name} time"
            rows.append((label, change, interval, Text(verdict, _VERDICTS[one.is_distinguishable][1])))
        table = figure_table((scope, *_HEADS), rows, WIDTH)
        verdicts = table.columns[-1]
        verdicts.justify = "left"
        verdicts.no_wrap = False
        parts += [table, Text()]
    lines = [Text(f"left out: {line}", style="red") for line in evaluation.left_out]
    lines += [Text(f"note: {line}", style="dim") for line in evaluation.notes]
    return Group(*parts, Text(evaluation.verdict, style="bold"), *lines, Text(f"\n{folder}", style="dim"))


def page(evaluation: Overhead, title: str) -> str:
    """The evaluation as Markdown: sentences, changes by phase, and the figures of every run."""
    whole = f"{evaluation.n_pairs} of {evaluation.n_pairs_planned} pairs are whole."
    lines = [f"# {markdown_text(title)}", "", whole, ""]
    lines += [f"- {markdown_text(line)}" for line in evaluation.sentences]
    for scope, changes in _scopes(evaluation):
        rows = [markdown_row(_cells(metric, one)) for metric, one in changes.items()]
        lines += [
            "",
            f"## {markdown_text(scope)}",
            "",
            markdown_row(("figure", *_HEADS)),
            "|---|---|---|---|",
            *rows,
        ]
    lines += ["", "## Runs", "", "| run | pair | profilers | status | p50 | p95 | p99 | throughput |"]
    lines += ["|---|---|---|---|---|---|---|---|", *map(_run_line, evaluation.runs)]
    asides = [*(f"left out: {line}" for line in evaluation.left_out), *evaluation.notes]
    if asides:
        lines += ["", "## Notes", "", *(f"- {markdown_text(line)}" for line in asides)]
    return "\n".join(lines) + "\n"


def _scopes(evaluation: Overhead) -> list[tuple[str, Changes]]:
    """Pooled, then each phase; one phase alone is the same as pooled."""
    by_phase = evaluation.by_phase
    if len(by_phase) == 1:
        return [(f"Phase {next(iter(by_phase))}", evaluation.pooled)]
    phases = ((f"Phase {name}", one) for name, one in by_phase.items())
    return [("All measured phases", evaluation.pooled), *phases]


def _cells(metric: str, one: Change) -> tuple[str, str, str, str]:
    verdict = _VERDICTS[one.is_distinguishable][0]
    if one.ratio is None or one.low_ratio is None or one.high_ratio is None:
        return LABELS[metric], "-", "-", f"{verdict}: {one.reason}"
    interval = f"{percent(one.low_ratio)} … {percent(one.high_ratio)} %"
    return LABELS[metric], f"{percent(one.ratio)} %", interval, verdict


def _run_line(one: RunEntry) -> str:
    figures = (one.figures or {}).get("pooled", {})
    units = {**dict.fromkeys(_LATENCIES, "ns"), "throughput_hz": "hz"}
    values = (
        figure_text(figures[metric].value if metric in figures else None, unit)
        for metric, unit in units.items()
    )
    whose = (one.run or "-", str(one.pair + 1), "on" if one.is_profiled else "off", one.status or "none")
    return markdown_row((*whose, *values))
