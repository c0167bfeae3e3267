"""A published experiment and ours beside it: `reproduction.html`, the lines of the screen, and `docs/experiments.md`.

Rendering only, by rules alone: no sentence here is of one experiment. Sentences stand in `published_sentences.j2`, the
tables of what was found in `published.html.j2`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from squall.analysis.report.decision_page import DecisionTable
from squall.analysis.report.plots import Plot, Trace, bars, curve, points
from squall.analysis.report.templates import render_page
from squall.analysis.shown import markdown_text
from squall.analysis.studies.published_result import (
    NOT_MEASURED,
    ORDERED,
    OURS,
    OUTSIDE_LIMIT_RATIO,
    PUBLISHED,
    WHAT_COUNTS,
    WORDS,
    Claim,
    Reproduction,
    Value,
    middle,
)
from squall.analysis.studies.published_words import (
    NOTHING,
    claim_value_text,
    interval_text,
    number_text,
    ratio_text,
    stated_text,
)
from squall.analysis.wording import templates
from squall.scenarios.foreign_text import escaped
from squall.scenarios.published.figures import FIGURES
from squall.scenarios.units import NS_PER_MS

REHEARSAL = "A rehearsal in small sizes: its figures mean nothing."
SHARES = {
    "synchronisation": "sync_share_ratio",
    "launches": "launch_share_ratio",
    "copies": "copy_share_ratio",
}
GPU_SHARES = ("sm_util_ratio", "gpu_util_ratio", "gpu_active_ratio")
OPERATOR = {
    "host: a warmed-up call": "warm_call_ns",
    "GPU: kernels of a call": "call_kernel_ns",
    "host: the first call": "first_call_ns",
}
"""Curves of an operator over its size."""
CROSSOVER = "crossover_size_count"
STAGES = tuple(name for name in FIGURES if name.startswith("stage_"))
GROUPS: dict[str, Sequence[str]] = {
    "The article's table, ours beside it": ORDERED,
    "The GPU and its batches": (
        "gpu_compute_p50_ns", "execution_count", "batch_rows_mean", *GPU_SHARES, "idle_gap_p50_ns"
    ),
    "CUDA calls and waits": (*SHARES.values(), "sem_wait_ns", "h2d_mean_bytes"),
    "Kernels": (
        "kernel_mean_ns", "kernel_p50_ns", "kernels_per_batch_count", "gemms_per_batch_count",
        "layer_norm_share_ratio", "layer_norm_mean_ns",
    ),
    "What limits": ("regime", "bound_by"),
}  # fmt: skip
"""Figures of servers by table; those of Little's law have a table of their own, and what is left is of probes."""
_OF_LITTLE = ("users_count", "outside_ratio")
_MOST_COLUMNS = 6
"""Figures of probes in a table, of which each may have two columns."""
_ON_SCREEN = ("throughput_hz", "p50_ns", "p95_ns", "p99_ns", "outside_ratio", "regime")
_OF_PROBES = (
    "first_call_ns", "warm_call_ns", "call_kernel_ns", "kernel_of_cpu_ratio", CROSSOVER, "bound", "pipeline_ns",
    "gain_ratio", NOT_MEASURED,
)  # fmt: skip
MOST_NAMED = 5
"""Rows that plots name."""
_SCALES = {"ns": (1.0 / NS_PER_MS, ", ms"), "ratio": (100.0, ", %"), "hz": (1.0, "")}
"""From our units to those of axes."""
_NS_PER_US = 1e3
_ALL_TICKS_WIDTH, _TICK_LINES = 60, 5
"""Letters that fit side by side below an axis, and the lines of each."""
_APART = 0.12
"""Between published and ours, of the distance from row to row."""


def reproduction_page(found: Reproduction) -> str:
    """The whole page in one file that needs no network: the article's table first, ours beside it. Of a rehearsal it
    says first that its figures mean nothing."""
    say = _sentences()  # called here: a macro that a page calls is believed to have escaped what it was given
    return render_page(
        "published.html.j2",
        plots_of(found),
        found=found,
        tables=figure_tables(found),
        warning=f"{REHEARSAL} " if found.is_small else "",
        answer=say.answer(found),
        published=say.published(found.published.article),
        verdicts=say.verdicts(found),
        notes=(*reasons(found), *found.published.article.notes, WHAT_COUNTS),
        ordered=ORDERED,
        measured={name for run in found.directories for name in run.figures},
        **_SHOWN,
    )


def screen_lines(found: Reproduction) -> list[str]:
    """The answer, a line for each row and claim, how the runs ended."""
    names = _ON_SCREEN if found.published.probe is None else _OF_PROBES
    return _sentences().screen(found, names, REHEARSAL).splitlines()  # type: ignore[no-any-return]


def experiments_document(all_found: Sequence[Reproduction]) -> str:
    """The whole text of `docs/experiments.md`, a section for each experiment in the order given."""
    from markupsafe import Markup

    def shown(value: object) -> object:
        return markdown_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    template = templates("squall.analysis.studies", shown).get_template("published_experiments.md.j2")
    return template.render(
        all=all_found, WORDS=WORDS, say=_sentences(), reasons=reasons, anchor=_anchor,
        what_counts=WHAT_COUNTS, rehearsal=REHEARSAL, figure_tables=figure_tables, **_SHOWN,
    )  # fmt: skip


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return "".join(one for one in title.lower().replace(" ", "-") if one.isalnum() or one in "-_")


def reasons(found: Reproduction) -> list[str]:
    """Why figures differ, by what is in the data: hardware and backend, Little's law, regimes, CUDA's API."""
    return _sentences().reasons(found).splitlines()  # type: ignore[no-any-return]


@cache
def _sentences() -> Any:
    """The macros of `published_sentences.j2` by name, each a function that returns its text."""

    def on_one_line(value: object) -> object:
        return escaped(value) if isinstance(value, str) else value

    environment = templates("squall.analysis.studies", on_one_line)
    environment.globals |= {"WORDS": WORDS, "limit": OUTSIDE_LIMIT_RATIO, **_SHOWN}
    return environment.get_template("published_sentences.j2").module


def value_text(value: Value | None) -> str:
    """Ours: the mean with its interval, a text, or what is marked INVALID; `-` for nothing."""
    if value is None:
        return NOTHING
    if value.is_measured:
        return value.text or interval_text(
            lambda end: number_text(value.figure, end), value.mean, value.low, value.high
        )
    status = value.note.partition(":")[0] or NOTHING
    return status if value.marked is None else f"{number_text(value.figure, value.marked)} [{status}]"


def claim_reading(one: Claim) -> str:
    """Our value of a claim with its interval; `-` for nothing."""
    return one.text or interval_text(
        lambda end: claim_value_text(one.figure, one.to, end), one.value, one.low, one.high
    )


_SHOWN: dict[str, Any] = {
    "FIGURES": FIGURES,
    "ratio": ratio_text,
    "reading": claim_reading,
    "number": number_text,
    "stated": stated_text,
    "value": value_text,
}
"""What templates write figures with."""


# tables of figures


def figure_tables(found: Reproduction) -> list[DecisionTable]:
    """Published beside ours, by group of figures; then those of parts that do not lead: the same in a run of another
    length, or under another collector. Tables without any figure are left out."""
    of_servers = {*_OF_LITTLE, *(name for names in GROUPS.values() for name in names)}
    there = {one.figure for one in found.values}
    rest = [name for name in FIGURES if name in there and name not in of_servers]
    groups = {**GROUPS}
    for first in range(0, len(rest), _MOST_COLUMNS):
        title = f"The probe's figures{f', {first // _MOST_COLUMNS + 1}' if first else ''}"
        groups[title] = rest[first : first + _MOST_COLUMNS]
    tables = [
        _table(title, _beside(found, names), _runs_note(found, names)) for title, names in groups.items()
    ]
    others = [one for one in found.values if found.value(one.row, one.figure) is not one]
    names = [name for name in FIGURES if any(one.figure == name for one in others)]
    rows = []
    for place in dict.fromkeys((one.row, one.part) for one in others):
        own = {one.figure: one for one in others if (one.row, one.part) == place}
        cells = {FIGURES[name].title: value_text(own.get(name)) for name in names}
        rows.append({"row": "{} ({})".format(*place), **cells})
    tables.append(_table("The same in other runs", rows, "Beside the figures above, not in them."))
    return [table for table in tables if table.rows]


def _table(title: str, rows: Sequence[Mapping[str, str]], note: str) -> DecisionTable:
    """A table as wide as the page, of rows with their cells by head."""
    heads = tuple(rows[0]) if rows else ()
    return DecisionTable(title, heads, tuple(tuple(row.values()) for row in rows), note, is_wrapped=True)


def _beside(found: Reproduction, figures: Sequence[str]) -> list[dict[str, str]]:
    """A row for each of the experiment; of each figure that there is what was published, if anything was, and ours."""
    stated = {name for name in figures for row in found.rows if found.stated(row, name) is not None}
    ours = {name for name in figures for row in found.rows if found.value(row, name)}
    rows = []
    for at, row in enumerate(found.rows):
        cells = {}
        for name in figures:
            if name in stated:
                cells[f"{FIGURES[name].title}, published"] = stated_text(name, found.stated(row, name))
            if name in stated | ours:
                cells[f"{FIGURES[name].title}, here"] = value_text(found.value(row, name))
        if any(cell != NOTHING for cell in cells.values()):
            rows.append({"row": f"{at + 1}. {row}" if _is_numbered(found) else row, **cells})
    return rows


def _is_numbered(found: Reproduction) -> bool:
    """Whether there are too many rows for their names to stand below an axis; sizes are numbers by themselves."""
    return sum(not row.isdigit() for row in found.rows) > MOST_NAMED


def _runs_note(found: Reproduction, figures: Sequence[str]) -> str:
    """Which runs the figures are of."""
    values = [one for row in found.rows for name in figures if (one := found.value(row, name))]
    parts = {part: [one for one in values if one.part == part] for part in (one.part for one in values)}
    abouts = {} if found.is_small else found.published.parts  # a rehearsal has other lengths and seeds
    return _sentences().runs_note(parts, abouts)  # type: ignore[no-any-return]


# plots, in the units of their axes


def plots_of(found: Reproduction) -> tuple[Plot, ...]:
    """Those that there is something for, in the order of the page."""
    return (
        *_operator_plot(found),
        *_stages_plot(found),
        *(plot for name in ORDERED if name != "mean_ns" for plot in _beside_plot(found, name)),
        *(plot for whose in (PUBLISHED, OURS) for plot in _cycles_plot(found, whose)),
        *_calls_plot(found),
        *(plot for name in GPU_SHARES for plot in _beside_plot(found, name)),
    )


def _beside_plot(found: Reproduction, figure: str) -> list[Plot]:
    """A figure of every row: published, and ours with its interval; none where neither has it."""
    kind = FIGURES[figure]
    scale, unit = _SCALES[kind.unit]
    rows = [
        row for row in found.rows
        if _number(found, row, figure) is not None or found.stated(row, figure) is not None
    ]  # fmt: skip
    series: dict[str, list[Sequence[float | None]]] = {"published": [], "here": [], "here, INVALID": []}
    for at, row in enumerate(rows):  # x, y and the ends of its whisker
        stated, value = found.stated(row, figure), found.value(row, figure)
        if (centre := middle(stated)) is not None:
            ends = stated if isinstance(stated, tuple) else (None, None)
            series["published"].append((at - _APART, centre, *ends))
        if value is not None and value.number is not None:
            name = "here" if value.mean is not None else "here, INVALID"
            series[name].append((at + _APART, value.number, value.low, value.high))
    if not any(series.values()):
        return []
    is_name = kind.title.startswith("nvidia") or kind.title[1:2].isdigit()
    title = kind.title if is_name else kind.title[0].upper() + kind.title[1:]
    note = "Published as it stands, of a range its middle and ends; ours with a 95 % interval over seeds."
    traces = [
        _marks(name, marks, scale) for name, marks in series.items() if marks or name != "here, INVALID"
    ]
    return [_plot(found, title, f"{kind.title}{unit}", "points", traces, rows, note)]


def _marks(name: str, marks: Sequence[Sequence[float | None]], scale: float) -> Trace:
    """Marks of x, y and the ends of a whisker, None where there is none."""
    y, low, high = (
        [None if (value := mark[place]) is None else scale * value for mark in marks] for place in (1, 2, 3)
    )
    return points(name, [mark[0] or 0.0 for mark in marks], y, low, high)


def _plot(
    found: Reproduction,
    title: str,
    y_label: str,
    kind: str,
    series: Sequence[Trace],
    rows: Sequence[str],
    note: str,
) -> Plot:
    """A plot over rows: their names below the axis, numbers where there are too many."""
    if _is_numbered(found):
        axis, ticks = "number of the row", [str(found.rows.index(row) + 1) for row in rows]
    else:
        axis, ticks = "", [_tick(row, _ALL_TICKS_WIDTH // max(1, len(rows))) for row in rows]
    return Plot(title, axis, y_label, kind, tuple(series), note, x_ticks=tuple(ticks))


def _tick(name: str, width: int) -> str:
    """The name in short lines."""
    return "\n".join(
        textwrap.wrap(name, width, break_long_words=False, max_lines=_TICK_LINES, placeholder=" …")
    )


def _stack(
    found: Reproduction, title: str, unit: str, rows: Sequence[str], curves: Mapping[str, Sequence[float | None]],
    note: str,
) -> list[Plot]:  # fmt: skip
    """Curves over rows, one on another; none without rows."""
    x = [float(at) for at in range(len(rows))]
    series = [bars(name, x, [*values]) for name, values in curves.items()]
    return [_plot(found, title, unit, "bar", series, rows, note)] if rows else []


def _calls_plot(found: Reproduction) -> list[Plot]:
    """Shares of the time in CUDA calls; none where no run was recorded."""
    rows = [row for row in found.rows if _number(found, row, "sync_share_ratio") is not None]
    curves = {
        name: [100.0 * (_number(found, row, figure) or 0.0) for row in rows]
        for name, figure in SHARES.items()
    }
    curves["other calls"] = [max(0.0, 100.0 - sum(of_row)) for of_row in zip(*curves.values(), strict=True)]
    note = "Ours, under nsys. A copy that blocks, as one of pageable memory does, counts as a copy."
    return _stack(found, "Time in CUDA's API", "share of it, %", rows, curves, note)


def _cycles_plot(found: Reproduction, whose: str) -> list[Plot]:
    """Cycles of users, the article's or ours: in the request, and outside of any; none where no users are known."""
    cycles = [one for one in found.cycles if one.whose == whose]
    curves = {
        "in a request": [min(one.response_ns, one.cycle_ns) / NS_PER_MS for one in cycles],
        "outside any request": [max(0.0, one.cycle_ns - one.response_ns) / NS_PER_MS for one in cycles],
    }
    note = "Little's law: users over requests/s is a cycle; what the mean response leaves of it lies outside."
    title = f"A user's cycle, {'here' if whose == OURS else 'published'}"
    return _stack(found, title, "ms", [one.row for one in cycles], curves, note)


def _stages_plot(found: Reproduction) -> list[Plot]:
    """Stages of a pipeline of each variant; none for another experiment."""
    rows = [row for row in found.rows if any(_number(found, row, name) is not None for name in STAGES)]
    curves: dict[str, list[float | None]] = {}
    for name in STAGES:
        values = [_number(found, row, name) for row in rows]
        if any(value is not None for value in values):
            title = FIGURES[name].title.removesuffix(", median")
            curves[title] = [None if value is None else value / NS_PER_MS for value in values]
    note = "Medians of each stage: between CUDA events those of the device, by the clock those of the host."
    return _stack(found, "Stages of the pipeline", "ms", rows, curves, note)


def _operator_plot(found: Reproduction) -> list[Plot]:
    """Times of an operator over its size, both axes logarithmic; none for another experiment."""
    curves = []
    for name, figure in OPERATOR.items():
        known = {
            float(row): value / _NS_PER_US
            for row in found.rows
            if row.isdigit() and (value := _number(found, row, figure))
        }
        if known:
            curves.append(curve(name, [*known], [*known.values()], "points"))
    if not curves:
        return []
    crossing = next((one.mean for one in found.values if one.figure == CROSSOVER and one.mean), None)
    note = "Where the curves of kernels and host cross, the operator turns from overhead- to compute-bound"
    note += "." if crossing is None else f": from {crossing:,.0f} on."
    axis = "rows and columns of the matrices"
    return [Plot("Host and kernels over size", axis, "µs", "loglog", tuple(curves), note)]


def _number(found: Reproduction, row: str, figure: str) -> float | None:
    value = found.value(row, figure)
    return None if value is None else value.number
