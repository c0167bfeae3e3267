"""The evaluation of `squall run --measure-overhead` within 80 columns, and as a page of Markdown. Rendering only."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from squall.analysis.compare.overhead import LABELS, percent
from squall.analysis.compare.overhead_file import Change, Changes, Overhead, RunEntry
from squall.analysis.shown import markdown_row, markdown_text
from squall.analysis.statistics.paired import LEAST_PAIRS
from squall.analysis.wording import duration_text, rate_text

WIDTH = 80
_VERDICTS = {
    True: ("changed", "bold yellow"),
    False: ("not distinguishable", "green"),
    None: ("not assessed", "dim"),
}


def render(evaluation: Overhead, folder: str) -> RenderableType:
    """What `squall run --measure-overhead` prints, from `squall.analysis.compare.overhead.evaluate`."""
    n, planned = evaluation.n_pairs, evaluation.n_pairs_planned
    head = Text("cost of profiling   ", style="bold")
    head.append(f"{n} of {planned} pairs whole", style="dim" if n == planned else "bold red")
    parts: list[RenderableType] = [head, Text()]
    for name, changes in _scopes(evaluation) if n >= LEAST_PAIRS else ():
        parts += [_table(name, changes, evaluation.latency_name), Text()]
    lines = [Text(f"left out: {line}", style="red") for line in evaluation.left_out]
    lines += [Text(f"note: {line}", style="dim") for line in evaluation.notes]
    return Group(*parts, Text(evaluation.verdict, style="bold"), *lines, Text(f"\n{folder}", style="dim"))


def page(evaluation: Overhead, title: str) -> str:
    """The evaluation as Markdown: sentences, changes by phase, and the figures of every run."""
    lines = [
        f"# {markdown_text(title)}", "", f"{evaluation.n_pairs} of {evaluation.n_pairs_planned} pairs are whole.", ""
    ]  # fmt: skip
    lines += [f"- {markdown_text(line)}" for line in evaluation.sentences]
    for name, changes in _scopes(evaluation):
        lines += [
            "",
            f"## {markdown_text(name)}",
            "",
            "| figure | change | 95 % interval | |",
            "|---|---|---|---|",
        ]
        lines += [markdown_row(_cells(metric, one)) for metric, one in changes.items()]
    lines += ["", "## Runs", "", "| run | pair | profilers | status | p50 | p95 | p99 | throughput |"]
    lines += ["|---|---|---|---|---|---|---|---|", *(_run_line(one) for one in evaluation.runs)]
    left_out, notes = evaluation.left_out, evaluation.notes
    if left_out or notes:
        lines += ["", "## Notes", "", *(f"- left out: {markdown_text(line)}" for line in left_out)]
        lines += [f"- {markdown_text(line)}" for line in notes]
    return "\n".join(lines) + "\n"


def _scopes(evaluation: Overhead) -> list[tuple[str, Changes]]:
    """Pooled, then each phase; one phase alone is the same as pooled."""
    by_phase = evaluation.by_phase
    if len(by_phase) == 1:
        return [(f"Phase {next(iter(by_phase))}", evaluation.pooled)]
    return [
        ("All measured phases", evaluation.pooled),
        *((f"Phase {name}", one) for name, one in by_phase.items()),
    ]


def _table(name: str, changes: Changes, latency_name: str | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, width=WIDTH, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
                  header_style="dim")  # fmt: skip
    table.add_column(name)
    for header in ("change", "95 % interval"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("")
    for metric, one in changes.items():
        label, change, interval, verdict = _cells(metric, one)
        if metric in ("p50_ns", "p95_ns", "p99_ns") and latency_name:
            label = f"{label} {latency_name} time"
        style = _VERDICTS[one.is_distinguishable][1]
        table.add_row(label, change, interval, Text(verdict, style=style))
    return table


def _cells(metric: str, one: Change) -> tuple[str, str, str, str]:
    verdict = _VERDICTS[one.is_distinguishable][0]
    if one.ratio is None or one.low_ratio is None or one.high_ratio is None:
        return LABELS[metric], "-", "-", f"{verdict}: {one.reason}"
    interval = f"{percent(one.low_ratio)} … {percent(one.high_ratio)} %"
    return LABELS[metric], f"{percent(one.ratio)} %", interval, verdict


def _run_line(one: RunEntry) -> str:
    figures = (one.figures or {}).get("pooled", {})

    def value(metric: str) -> float | None:
        return figures[metric].value if metric in figures else None

    cells = [
        one.run or "-", str(one.pair + 1), "on" if one.is_profiled else "off", one.status or "none",
        *(duration_text(value(metric)) for metric in ("p50_ns", "p95_ns", "p99_ns")),
        rate_text(value("throughput_hz")),
    ]  # fmt: skip
    return markdown_row(cells)
