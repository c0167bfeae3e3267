"""Plots to a PNG or SVG file. Rendering only.

Plotly writes pictures with a browser alone, which a machine may not have: matplotlib, of which this is the one user,
draws its traces here.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from squall.analysis.report.plots import GRID_COLOUR, INK, REFERENCE_COLOUR, Plot, Trace
from squall.analysis.shown import escaped_lines
from squall.analysis.storage.beneath import read_plain
from squall.analysis.storage.part import error_reason
from squall.scenarios.errors import AnalysisError

SUFFIXES = (".png", ".svg")
WIDTH_PX = 1400
ROW_PX = 460
DPI = 100
NOTE_CHARS = 88
FEW_DECADES = 1_000  # below it an axis of powers of ten alone has too few numbers
LINE_STYLES = {"solid": "-", "dot": ":", "dash": "--", "dashdot": "-."}
_MOST_SETTINGS_BYTES = 1024**2


def write_png(path: Path, plots: Sequence[Plot], title: str = "") -> Path:
    """Draws the plots two in a row into `path`, 1400 px wide, as PNG or SVG by its suffix. Returns the path.

    The same plots give the same bytes. Raises AnalysisError for another suffix, without a plot, and where the working
    folder has a `matplotlibrc` that is no file of text.
    """
    _refuse_settings_that_are_no_text()
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if path.suffix.lower() not in SUFFIXES:
        raise AnalysisError(f"{path}: a plot is written as {' or '.join(SUFFIXES)}, or .html for a page")
    if not plots:
        raise AnalysisError(f"{path}: there is no plot to write")
    n_columns = min(2, len(plots))
    n_rows = math.ceil(len(plots) / n_columns)
    head_px = 44 if title else 0
    style = {
        "font.size": 10,
        "axes.edgecolor": "#8a9099",
        "axes.labelcolor": INK,
        "svg.hashsalt": "squall",
        "svg.fonttype": "none",
        "text.parse_math": False,  # a dollar in a name is a dollar
    }
    with rc_context():
        rcdefaults()  # else a matplotlibrc in the working folder, which others may have made, could have LaTeX run
        rcParams.update(style)
        height_px = n_rows * ROW_PX + head_px
        layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, wspace=0.03, hspace=0.04)
        figure = Figure(figsize=(WIDTH_PX / DPI, height_px / DPI), dpi=DPI, layout=layout)
        if title:
            figure.suptitle(escaped_lines(title), x=0.012, ha="left", fontsize=14, fontweight="bold")
        for place, plot in enumerate(plots):
            _draw(figure.add_subplot(n_rows, n_columns, place + 1), plot)
        figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    return path


def _refuse_settings_that_are_no_text() -> None:
    """Matplotlib opens them when it is imported: it waits at a pipe."""
    path = Path("matplotlibrc")
    if not path.exists() or path.is_dir():  # which it passes over
        return
    try:
        if "".join(read_plain(path, _MOST_SETTINGS_BYTES).decode().split()).isprintable():
            return
        reason = "it has control characters"  # which matplotlib would print
    except UnicodeDecodeError:
        reason = "it is no UTF-8"
    except OSError as error:
        reason = error_reason(error)
    raise AnalysisError(f"{path.absolute()}: {reason}, and matplotlib would read it: remove it")


def _draw(axes: Any, plot: Plot) -> None:
    note = textwrap.wrap(escaped_lines(plot.note), NOTE_CHARS)
    title = escaped_lines(plot.title)
    axes.set_title(title, loc="left", fontsize=11.5, fontweight="bold", pad=8 + 13 * len(note))
    grey = {"color": REFERENCE_COLOUR, "transform": axes.transAxes}
    axes.text(0, 1.025, "\n".join(note), fontsize=8.5, va="bottom", **grey)
    if plot.absent:
        axes.set_axis_off()
        axes.text(0.5, 0.5, escaped_lines(plot.absent), ha="center", **grey)
        return
    for trace in plot.figure(escaped_lines)["data"]:
        _draw_trace(axes, trace)
    axes.set(xlabel=escaped_lines(plot.x_label), ylabel=escaped_lines(plot.y_label))
    if plot.kind in ("ccdf", "loglog"):
        _scale_log(axes, is_share=plot.kind == "ccdf")
    else:
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
    if plot.x_ticks:
        axes.set_xticks(range(len(plot.x_ticks)), [*map(escaped_lines, plot.x_ticks)])
    axes.grid(visible=True, color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(plot.traces) > 1:
        axes.legend(frameon=False, fontsize=9)


def _scale_log(axes: Any, is_share: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set(xscale="log", yscale="log")
    for axis, is_percent in ((axes.xaxis, False), (axes.yaxis, is_share)):
        scale, unit = (100, " %") if is_percent else (1, "")
        form = f"{{:g}}{unit}"
        axis.set_major_formatter(
            FuncFormatter(lambda value, _, form=form, scale=scale: form.format(scale * value))
        )
        axis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    if not is_share and high / low < FEW_DECADES:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def _draw_trace(axes: Any, trace: Trace) -> None:
    """A curve or an area of Plotly's: what of these a trace's plots have."""
    y = [math.nan if value is None else value for value in trace["y"]]
    if "fill" in trace:
        axes.fill(trace["x"], y, color=trace["fillcolor"], linewidth=0, label=trace["name"])
        return
    line = trace["line"]
    axes.plot(
        trace["x"],
        y,
        label=trace["name"],
        color=line["color"],
        linewidth=0.9 * line["width"],
        linestyle=LINE_STYLES[line["dash"]],
        alpha=trace.get("opacity"),
        marker="o" if "markers" in trace["mode"] else "",
        markersize=5,
        drawstyle="steps-post" if line.get("shape") == "hv" else "default",
    )
