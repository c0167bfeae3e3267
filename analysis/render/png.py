"""Plots to a PNG or SVG file. Rendering only; the one user of matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from squall.analysis.render.plots_data import Plot, Series
from squall.analysis.render.report import COLOURS, REFERENCE_COLOUR
from squall.analysis.render.trace_plots import Band, Styled
from squall.analysis.shown import escaped_lines
from squall.analysis.storage.beneath import read_plain
from squall.analysis.storage.part import error_reason
from squall.scenarios.errors import AnalysisError

SUFFIXES = (".png", ".svg")
WIDTH_PX = 1400
ROW_PX = 460
DPI = 100
NOTE_CHARS = 88
GRID_COLOUR = "#e6e8eb"
FEW_DECADES = 1_000  # below it an axis of powers of ten alone has too few numbers
DASHES = ("-", ":", "--", "-.")
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
        "axes.labelcolor": "#1f2328",
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
            _draw(figure.add_subplot(n_rows, n_columns, place + 1), plot.with_texts(escaped_lines))
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
    note = textwrap.wrap(plot.note, NOTE_CHARS)
    axes.set_title(plot.title, loc="left", fontsize=11.5, fontweight="bold", pad=8 + 13 * len(note))
    axes.text(
        0, 1.025, "\n".join(note), transform=axes.transAxes, fontsize=8.5, color=REFERENCE_COLOUR, va="bottom"
    )
    if plot.absent:
        axes.set_axis_off()
        axes.text(0.5, 0.5, plot.absent, transform=axes.transAxes, ha="center", color=REFERENCE_COLOUR)
        return
    for number, series in enumerate(plot.series):
        _draw_series(axes, plot, series, COLOURS[number % len(COLOURS)], number)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(visible=True, color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _scale(axes, plot)
    if len(plot.series) > 1:
        axes.legend(frameon=False, fontsize=9)


def _scale(axes: Any, plot: Plot) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if plot.kind in ("ccdf", "loglog"):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        percent = plot.kind == "ccdf"
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{100 * value:g} %" if percent else f"{value:g}")
        )
        low, high = axes.get_ylim()
        if plot.kind == "loglog" and high / low < FEW_DECADES:
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
    if plot.x_ticks:
        axes.set_xticks(range(len(plot.x_ticks)), plot.x_ticks)


def _draw_series(axes: Any, plot: Plot, series: Series, colour: str, number: int) -> None:
    y = [math.nan if value is None else value for value in series.y]
    if isinstance(series, Band):
        low = [math.nan if value is None else value for value in series.low]
        next_colour = COLOURS[(number + 1) % len(COLOURS)]
        axes.fill_between(series.x, low, y, color=next_colour, alpha=0.18, linewidth=0, label=series.name)
        return
    if plot.kind in ("bar", "stack"):
        axes.bar(series.x, y, color=colour, label=series.name)
        return
    look: dict[str, Any] = {"color": colour, "linewidth": 1.8, "linestyle": DASHES[number % len(DASHES)]}
    style = series.style if isinstance(series, Styled) else ""
    if style == "faint":
        look |= {"linewidth": 0.9, "alpha": 0.5, "linestyle": "-"}
    elif style == "reference":
        look |= {"color": REFERENCE_COLOUR, "linewidth": 1.4, "linestyle": "--"}
    elif style == "solid":
        look |= {"linestyle": "-"}
    elif style == "points":
        look |= {"marker": "o", "markersize": 5, "linestyle": "-"}
    elif plot.kind == "step":
        look |= {"linestyle": "-"}
    if plot.kind == "step":
        look["drawstyle"] = "steps-post"
    axes.plot(series.x, y, label=series.name, **look)
