"""The plots of a published experiment beside ours. Data of the axes' units, no drawing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from squall.analysis.published.evaluated import Evaluated
from squall.analysis.published.little import OURS, PUBLISHED
from squall.analysis.published.orderings import ORDERED, middle
from squall.analysis.published.values import Value
from squall.analysis.render.plots import Plot, Trace, bars, curve, points
from squall.scenarios.published.figures import FIGURES

_SCALES = {"ns": (1e-6, ", ms"), "ratio": (100.0, ", %"), "hz": (1.0, "")}
"""From our units to those of axes."""
_NS_PER_US = 1e3
_NS_PER_MS = 1e6
_ALL_TICKS_WIDTH, _TICK_LINES = 60, 5
"""Letters that fit side by side below an axis, and the lines of each."""
_APART = 0.12
"""Between published and ours, of the distance from row to row."""
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
_STAGE = "stage_"


def plots_of(found: Evaluated) -> tuple[Plot, ...]:
    """Those that there is something for, in the order of the page."""
    plots = [
        operator_plot(found),
        stages_plot(found),
        *(beside_plot(found, name) for name in ORDERED if name != "mean_ns"),
        *(cycles_plot(found, whose) for whose in (PUBLISHED, OURS)),
        calls_plot(found),
        *(beside_plot(found, name) for name in GPU_SHARES),
    ]
    return tuple(plot for plot in plots if plot is not None)


def beside_plot(found: Evaluated, figure: str) -> Plot | None:
    """A figure of every row: published, and ours with its interval; None where neither has it."""
    kind = FIGURES[figure]
    scale, unit = _SCALES[kind.unit]
    rows = [
        row for row in found.rows if found.stated(row, figure) is not None or _shown(found.value(row, figure))
    ]
    published: list[tuple[float, float, float, float]] = []
    ours: list[tuple[float, Value]] = []
    for at, row in enumerate(rows):
        stated, value = found.stated(row, figure), found.value(row, figure)
        if stated is not None and (centre := middle(stated)) is not None and not isinstance(stated, str):
            ends = stated if isinstance(stated, tuple) else (stated, stated)
            published.append((at - _APART, scale * centre, scale * ends[0], scale * ends[1]))
        if value is not None and _shown(value):
            ours.append((at + _APART, value))
    if not published and not ours:
        return None
    counted = [(at, one) for at, one in ours if one.mean is not None]
    marked = [(at, one) for at, one in ours if one.mean is None]
    series: list[Trace] = [
        points("published", [one[0] for one in published], [one[1] for one in published],
               [one[2] for one in published], [one[3] for one in published]),
        points("here", [at for at, _ in counted], [_scaled(one.mean, scale) for _, one in counted],
               [_scaled(one.low, scale) for _, one in counted], [_scaled(one.high, scale) for _, one in counted]),
    ]  # fmt: skip
    if marked:
        x = [at for at, _ in marked]
        series.append(points("here, INVALID", x, [_scaled(one.marked, scale) for _, one in marked]))
    note = "Published as it stands, of a range its middle and ends; ours with a 95 % interval over seeds."
    return Plot(
        _title(kind.title),
        _axis(found),
        f"{kind.title}{unit}",
        "points",
        tuple(series),
        note,
        x_ticks=_ticks(found, rows),
    )


def _shown(value: Value | None) -> bool:
    return value is not None and (value.mean is not None or value.marked is not None)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else scale * value


def calls_plot(found: Evaluated) -> Plot | None:
    """Shares of the time in CUDA calls, stacked; None where no run was recorded."""
    rows = [row for row in found.rows if _number(found, row, "sync_share_ratio") is not None]
    if not rows:
        return None
    x = [float(at) for at in range(len(rows))]
    of_kind = {
        name: [100.0 * (_number(found, row, figure) or 0.0) for row in rows]
        for name, figure in SHARES.items()
    }
    rest = [max(0.0, 100.0 - sum(values[at] for values in of_kind.values())) for at in range(len(rows))]
    series = tuple(bars(name, x, [*values]) for name, values in {**of_kind, "other calls": rest}.items())
    note = "Ours, under nsys. A copy that blocks, as one of pageable memory does, counts as a copy."
    return Plot(
        "Time in CUDA's API",
        _axis(found),
        "share of it, %",
        "bar",
        series,
        note,
        x_ticks=_ticks(found, rows),
    )


def cycles_plot(found: Evaluated, whose: str) -> Plot | None:
    """Cycles of users, the article's or ours: in the request, and outside of any; None where no users are known."""
    cycles = [one for one in found.cycles if one.whose == whose]
    if not cycles:
        return None
    x = [float(at) for at in range(len(cycles))]
    inside = [min(one.response_ns, one.cycle_ns) / _NS_PER_MS for one in cycles]
    outside = [max(0.0, one.cycle_ns - one.response_ns) / _NS_PER_MS for one in cycles]
    series = (bars("in a request", x, [*inside]), bars("outside any request", x, [*outside]))
    note = "Little's law: users over requests/s is a cycle; what the mean response leaves of it lies outside."
    title = f"A user's cycle, {'here' if whose == OURS else 'published'}"
    return Plot(
        title, _axis(found), "ms", "bar", series, note, x_ticks=_ticks(found, [one.row for one in cycles])
    )


def operator_plot(found: Evaluated) -> Plot | None:
    """Times of an operator over its size, both axes logarithmic; None for another experiment."""
    sizes = [(int(row), row) for row in found.rows if row.isdigit()]
    curves = []
    for name, figure in OPERATOR.items():
        points = [(size, value) for size, row in sizes if (value := _number(found, row, figure))]
        if points:
            x, y = [float(size) for size, _ in points], [value / _NS_PER_US for _, value in points]
            curves.append(curve(name, x, [*y], "points"))
    if not curves:
        return None
    crossing = next(
        (one.mean for one in found.values if one.figure == CROSSOVER and one.mean is not None), None
    )
    note = "Where the curves of kernels and host cross, the operator turns from overhead- to compute-bound"
    note += f": from {crossing:,.0f} on." if crossing is not None else "."
    return Plot(
        "Host and kernels over size", "rows and columns of the matrices", "µs", "loglog", tuple(curves), note
    )


def stages_plot(found: Evaluated) -> Plot | None:
    """Stages of a pipeline, stacked, of each variant; None for another experiment."""
    stages = [name for name in FIGURES if name.startswith(_STAGE)]
    rows = [row for row in found.rows if any(_number(found, row, name) is not None for name in stages)]
    if not rows:
        return None
    x = [float(at) for at in range(len(rows))]
    series = []
    for name in stages:
        values = [_number(found, row, name) for row in rows]
        if any(value is not None for value in values):
            title = FIGURES[name].title.removesuffix(", median")
            series.append(bars(title, x, [_scaled(value, 1.0 / _NS_PER_MS) for value in values]))
    note = "Medians of each stage: between CUDA events those of the device, by the clock those of the host."
    return Plot(
        "Stages of the pipeline",
        _axis(found),
        "ms",
        "bar",
        tuple(series),
        note,
        x_ticks=_ticks(found, rows),
    )


def _number(found: Evaluated, row: str, figure: str) -> float | None:
    value = found.value(row, figure)
    return None if value is None else value.marked if value.mean is None else value.mean


def _title(text: str) -> str:
    is_name = text.startswith("nvidia") or text[1:2].isdigit()
    return text if is_name else text[0].upper() + text[1:]


def _ticks(found: Evaluated, rows: Sequence[str]) -> tuple[str, ...]:
    """Names below an axis, numbers where there are too many."""
    if found.is_numbered:
        return tuple(str(found.rows.index(row) + 1) for row in rows)
    width = _ALL_TICKS_WIDTH // max(1, len(rows))
    return tuple(_tick(row, width) for row in rows)


def _axis(found: Evaluated) -> str:
    return "number of the row" if found.is_numbered else ""


def _tick(name: str, width: int) -> str:
    """The name in short lines."""
    lines = textwrap.wrap(name, width, break_long_words=False)
    if len(lines) > _TICK_LINES:
        lines = [*lines[: _TICK_LINES - 1], f"{lines[_TICK_LINES - 1]} …"]
    return "\n".join(lines)
