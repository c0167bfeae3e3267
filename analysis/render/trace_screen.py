"""A trace's figures on the screen, within 80 columns, and as rows for its page. Rendering only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from squall.analysis.traces.notes import window_text
from squall.analysis.wording import count_text, duration_text, rate_text, share_text
from squall.scenarios.units import NS_PER_S, digits_text

WIDTH = 80
LABEL_WIDTH = 24
MOST_LABEL = 22
FIRST_DATE_NS = 631_152_000 * NS_PER_S
"""1990-01-01 UTC: stamps from here on are dates, smaller ones a trace's own numbers."""

Row = tuple[str, list[str]]


def render_trace(summary: Mapping[str, Any], name: str = "", width: int = WIDTH) -> RenderableType:
    """What `squall trace info` prints, from `trace_info.trace_summary`; `name` of the file or the run.

    Notes take `width` columns, tables what they need.
    """
    parts: list[RenderableType] = [_headline(summary, name)]
    for title, columns, rows in tables(summary):
        parts.append(Padding(_table(title, columns, rows), (1, 0, 0, 0)))
    if summary["notes"]:
        parts.append(Text())
        parts.append(_note_grid(summary["notes"], width))
    return Group(*parts)


def head_lines(summary: Mapping[str, Any]) -> list[str]:
    """Arrivals, span, rate, and what the stamps look like."""
    series, stamps = summary["as_is"], summary["stamps"]
    begin = f"from {_instant_text(summary['first_ns'])}" if summary["first_ns"] >= FIRST_DATE_NS else ""
    equal = share_text(stamps["equal_ratio"])
    lines = [
        f"{count_text(summary['n'])} arrivals in {_span_text(series['span_ns'])}, "
        f"{rate_text(series['rate_hz'])} {begin}",
        f"stamps in steps of {duration_text(stamps['resolution_ns'])}, {equal} equal to the one before",
    ]
    sessions = summary["sessions"]
    if sessions:
        lines.append(
            f"{count_text(sessions['n'])} sessions, the largest {sessions['top_count']}"
            f" hold {share_text(sessions['top_ratio'])} of the arrivals"
        )
    return [line.strip() for line in lines]


def tables(summary: Mapping[str, Any]) -> list[tuple[str, list[str], list[Row]]]:
    """Title, column heads and rows of the tables, all as text."""
    series = {"as is": summary["as_is"]}
    if summary["spread"] is not None:
        series = {"as logged": summary["as_is"], "spread in ticks": summary["spread"]}
    heads = list(series) if len(series) > 1 else [""]
    every = list(series.values())
    found = [
        ("Bursts", heads, _burst_rows(every)),
        ("Index of dispersion", _dispersion_heads(list(series)), _dispersion_rows(every)),
        ("Memory and tails", heads, _memory_rows(every)),
        ("Queue of constant service", heads, _queue_rows(every)),
    ]
    if summary["sizes"]:
        found.append(
            ("Sizes", ["mean", "c²", "p99", "max", "Hill 5 %", "Hill 1 %"], _size_rows(summary["sizes"]))
        )
    return found


def _burst_rows(every: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows: list[Row] = [
        ("c² of gaps", [count_text(one["gap_c2_ratio"]) for one in every]),
        ("local c² of gaps", [_local_text(one) for one in every]),
    ]
    for place, peak in enumerate(every[0]["peaks"]):
        label = f"peak to mean, {window_text(peak['window_ns'])}"
        rows.append((label, [_peak_text(one, place) for one in every]))
    return rows


def _local_text(one: Mapping[str, Any]) -> str:
    if one["local_c2_ratio"] is None:
        return "-"
    return f"{count_text(one['local_c2_ratio'])} in {one['n_local_windows']} x {window_text(one['local_window_ns'])}"


def _peak_text(one: Mapping[str, Any], place: int) -> str:
    if place >= len(one["peaks"]):
        return "-"
    peak = one["peaks"][place]
    after_ns = peak["start_ns"] - one["first_ns"]
    return (
        f"{count_text(peak['peak_to_mean_ratio'])} ({count_text(peak['count'])} at {_clock_text(after_ns)})"
    )


def _dispersion_heads(names: Sequence[str]) -> list[str]:
    return [*(names if len(names) > 1 else ["IDC"]), "90 % band", "windows"]


def _dispersion_rows(every: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The index of each series, and the band of the last one."""
    rows = []
    for at_window in zip(*(series["dispersion"] for series in every), strict=True):
        cells = [_rough_text(one["idc_ratio"], one["is_rough"]) for one in at_window]
        last = at_window[-1]
        low, high = last["low_ratio"], last["high_ratio"]
        band = "-" if low is None else f"{count_text(low)} … {count_text(high)}"
        rows.append((window_text(last["window_ns"]), [*cells, band, count_text(last["n_windows"])]))
    return rows


def _rough_text(value: float | None, is_rough: bool) -> str:
    return f"~{count_text(value)}" if is_rough and value is not None else count_text(value)


def _memory_rows(every: Sequence[Mapping[str, Any]]) -> list[Row]:
    unit = window_text(every[0]["count_unit_ns"])
    rows: list[Row] = [
        ("gap with the next", [_signed(one["gap_autocorrelation"]) for one in every]),
        ("  by rank (Spearman)", [_signed(one["gap_rank_correlation"]) for one in every]),
    ]
    lags = ", ".join(every[0]["count_autocorrelation"])
    cells = [" ".join(_signed(value) for value in one["count_autocorrelation"].values()) for one in every]
    rows.append((f"counts {unit}, lag {lags}", cells))
    rows.append(
        ("Hill of gaps, 5 % / 1 %", [" / ".join(tail_texts(one["gap_tails"])) or "-" for one in every])
    )
    hursts = ("hurst_variance_time", "hurst_variance_time_from_10", "hurst_haar")
    rows.append(("Hurst vt / vt10 / Haar", [" / ".join(_fixed(one[key]) for key in hursts) for one in every]))
    return rows


def _queue_rows(every: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows: list[Row] = [
        (
            f"p99 wait at {100 * float(load):g} % load",
            [_services_text(one["gd1_wait_p99"][load]) for one in every],
        )
        for load in every[0]["gd1_wait_p99"]
    ]
    return [*rows, ("safe load", [share_text(one["safe_load_ratio"]) for one in every])]


def _size_rows(sizes: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    rows = []
    for name, one in sizes.items():
        label = name if len(name) <= MOST_LABEL else f"{name[: MOST_LABEL - 1]}…"
        plain = [_large_text(one[key]) for key in ("mean", "c2_ratio", "p99", "max")]
        rows.append((label, [*plain, *(tail_texts(one["tails"]) or ["-", "-"])]))
    return rows


def tail_texts(tails: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each index with its standard error, `1.32(0.04)`; `-` where there is none."""
    return [
        "-" if one["index"] is None else f"{count_text(one['index'])}({digits_text(one['stderr'], 1)})"
        for one in tails
    ]


def _headline(summary: Mapping[str, Any], name: str) -> Text:
    first, *rest = head_lines(summary)
    text = Text(f"{name}\n" if name else "", style="bold")
    text.append(first, style="" if name else "bold")
    for line in rest:
        text.append(f"\n{line}", style="dim")
    return text


def _note_grid(notes: Sequence[str], width: int) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(width=width - 2, overflow="fold")
    for note in notes:
        grid.add_row("•", Text(note))
    return grid


def _table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False, header_style="dim",
    )  # fmt: skip
    table.add_column(
        title, no_wrap=True, min_width=LABEL_WIDTH if len(columns) <= 4 else None, header_style="bold"
    )
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for label, cells in rows:
        table.add_row(label, *cells)
    return table


def _large_text(value: float | None) -> str:
    """`value` as `count_text`, from ten million on in millions and so on: `1.00 G`."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value is not None and value >= max(size, 1e7):
            return f"{digits_text(value / size)} {letter}"
    return count_text(value)


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _services_text(wait: float | None) -> str:
    return "-" if wait is None else f"{count_text(wait)} services"


def _span_text(span_ns: int) -> str:
    """`58 min 22 s`, `2 d 3 h`: the two largest units."""
    if span_ns < 60 * NS_PER_S:
        return duration_text(span_ns)
    s = round(span_ns / NS_PER_S)
    for size, unit, part, part_unit in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if s >= size:
            return f"{s // size:,} {unit} {s % size // part} {part_unit}"
    return f"{s} s"


def _clock_text(after_ns: int) -> str:
    """Time after the first arrival as h:mm:ss."""
    s = after_ns // NS_PER_S
    return f"{s // 3_600}:{s % 3_600 // 60:02}:{s % 60:02}"


def _instant_text(t_ns: int) -> str:
    return f"{datetime.fromtimestamp(t_ns // NS_PER_S, UTC):%Y-%m-%d %H:%M:%S} UTC"
