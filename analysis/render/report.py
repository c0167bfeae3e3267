"""`report.html`: the run on one page that needs no network. Rendering only, no arithmetic.

Figures come from `summary`, curves from `plots_data`; plotly.js is written into the page once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squall.analysis.locust.lines import locust_notes
from squall.analysis.record import to_json
from squall.analysis.render.diagnosis_lines import finding_lines, instance_text
from squall.analysis.render.figure_lines import (
    burstiness,
    child_text,
    interval_text,
    load_rows,
    quantile_text,
    sequence_lines,
    straggler_text,
    stream_counts,
    users_text,
)
from squall.analysis.render.observing_lines import cost_lines, profile_lines, recording_lines, under_text
from squall.analysis.render.plots_data import Plot, Points, Series, report_plots
from squall.analysis.render.promise_lines import breach_lines, decided_line, value_text
from squall.analysis.render.trace_plots import Band, Styled
from squall.analysis.requests.cold_words import cold_lines
from squall.analysis.schema import TABLES
from squall.analysis.shown import escaped_lines, html_text
from squall.analysis.statistics.latency import Quantile
from squall.analysis.storage.intact import refuse_probe
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.analysis.summary.summary_file import Summary
from squall.analysis.tables.manifest import Manifest
from squall.analysis.wording import (
    LATENCY_LABELS,
    count_text,
    duration_text,
    figure_text,
    moment_text,
    rate_text,
    share_text,
)

if TYPE_CHECKING:
    from jinja2 import Environment

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart with any colour vision (jfly.uni-koeln.de/color, 2008)."""
REFERENCE_COLOUR = "#59636e"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def write_report(store: RunStore, summary: Summary | None = None) -> Path:
    """Writes `report.html` into the run directory, sealed or not, and returns its path.

    `summary` is made anew if it is None. Raises `MissingTable` if the run has no requests, `AnalysisError`
    for a probe's.
    """
    refuse_probe(store)
    summary = summarise(store) if summary is None else summary
    return store.write_text("report.html", render_html(summary, store.manifest, report_plots(store, summary)))


def render_html(summary: Summary, manifest: Manifest, plots: list[Plot]) -> str:
    """The page. It loads nothing: styles, script and data are in it."""
    return render_page(
        "report.html.j2",
        plots,
        s=summary,
        m=to_json(manifest),
        labels=LATENCY_LABELS[summary.load],
        spreads=summary.measure.latency.spreads,
        lag_parts=summary.measure.latency.parts_of_lag,
        load_rows=[(name, one, burstiness(one)) for name, one in load_rows(summary.measure.load)],
        cost_lines=cost_lines(summary.collector_costs),
        under=under_text(summary.latency_under),
        profile_lines=profile_lines(summary.profile or {}, summary.latency_under),
        recording_lines=recording_lines(summary.recording),
        finding_lines=finding_lines(summary.findings, len(summary.findings)),
        stream_rows=_stream_rows(summary),
        stream_counts=stream_counts(summary.measure.streams) if summary.measure.streams else [],
        sequence_lines=sequence_lines(summary.measure.sequences) if summary.measure.sequences else [],
        instance_text=instance_text,
        cold_lines=cold_lines(summary.cold),
        locust_notes=locust_notes(summary.locust) if summary.locust else [],
    )


def _stream_rows(summary: Summary) -> list[tuple[str, float, Sequence[Quantile]]]:
    """First responses and gaps, of all requests and of those of each model: what they are, mean, quantiles."""
    of_all = {"": summary.measure.streams}
    of_all |= {f", {name}": one.streams for name, one in (summary.measure.by_model or {}).items()}
    found: list[tuple[str, float, Sequence[Quantile]]] = []
    for whose, one in of_all.items():
        if one is None:
            continue
        rows = [
            ("first response", one.first_response_mean_ns, one.first_response),
            ("gap", one.gap_mean_ns, one.gaps),
        ]
        found += [(f"{name}{whose}", mean, spread) for name, mean, spread in rows if mean is not None]
    return found


def render_page(template: str, plots: Sequence[Plot], **values: object) -> str:
    """A page from a template of this package, its plots drawn and plotly.js inside: `plots`, `plotly_js`."""
    from plotly.offline import get_plotlyjs

    drawn = [
        {"plot": plot, "html": "" if plot.absent else plot_html(plot, i)} for i, plot in enumerate(plots)
    ]
    page = _environment().get_template(template)
    return page.render(plots=drawn, plotly_js=get_plotlyjs(), **values)


@cache
def _environment() -> Environment:
    """Kept for the next page: a template takes longer to compile than to fill in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        return escaped_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("squall.analysis.render", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=shown,
    )
    environment.filters |= {
        "straggler": straggler_text,
        "duration": duration_text,
        "cell": _cell_text,
        "share": share_text,
        "count": count_text,
        "rate": rate_text,
        "figure": figure_text,
        "quantile": quantile_text,
        "interval": interval_text,
        "users": users_text,
        "child": child_text,
        "promised": value_text,
        "decided": decided_line,
        "breach": breach_lines,
        "pretty": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    }
    return environment


_INSTANTS = {name for table in TABLES.values() for name in table.instants}
"""Columns that hold points in time."""


def _cell_text(value: object, name: str) -> object:
    """A value of a table's column: instants as UTC's time of day, lengths of time with their unit."""
    if not name.endswith("_ns") or not isinstance(value, int | float):
        return value
    return moment_text(value) if name in _INSTANTS else duration_text(value)


def plot_html(plot: Plot, number: int) -> str:
    """The plot as a `div` with its script, `number` its place on the page, where plotly.js must be."""
    import plotly.graph_objects as go

    plot = plot.with_texts(html_text)
    figure = go.Figure([trace for i, series in enumerate(plot.series) for trace in _traces(plot, series, i)])
    axis = {"gridcolor": "#e6e8eb", "linecolor": "#8a9099", "ticks": "outside", "zeroline": False}
    figure.update_layout(
        template="none",
        height=340,
        margin={"l": 70, "r": 20, "t": 46, "b": 50},
        font={"family": FONT, "size": 13, "color": "#1f2328"},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        barmode="stack",
        hovermode="x unified" if plot.kind in ("line", "step") else "closest",
        xaxis={**axis, "title": plot.x_label},
        yaxis={**axis, "title": plot.y_label, "rangemode": "tozero", "automargin": True},
    )
    if plot.kind == "loglog":
        figure.update_xaxes(type="log", dtick=1, exponentformat="none")
        figure.update_yaxes(type="log", dtick="D2", exponentformat="none", rangemode="normal")
    if plot.kind == "ccdf":
        figure.update_xaxes(type="log", exponentformat="none")
        figure.update_yaxes(type="log", dtick=1, tickformat="~%", rangemode="normal")
    if plot.x_ticks:
        figure.update_xaxes(
            tickvals=list(range(len(plot.x_ticks))),
            ticktext=list(plot.x_ticks),
            automargin=True,
            tickangle=0 if any("<br>" in one for one in plot.x_ticks) else None,
        )
    for name, start_s, end_s in plot.measured:
        figure.add_vrect(
            start_s, end_s, fillcolor="#0072B2", opacity=0.06, line_width=0, layer="below",
            annotation={"text": name, "font_color": "#59636e"}, annotation_position="top left",
        )  # fmt: skip
    config = {"displayModeBar": False, "responsive": True}
    html = figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"plot-{number}", config=config)
    return str(html)


def _traces(plot: Plot, series: Series, number: int) -> list[Any]:
    """What plotly draws for the curve: one trace, two for a band."""
    import plotly.graph_objects as go

    colour = COLOURS[number % len(COLOURS)]
    if isinstance(series, Band):
        return _band_traces(series, COLOURS[(number + 1) % len(COLOURS)])
    if isinstance(series, Points):
        return [_points_trace(series, colour)]
    if plot.kind in ("bar", "stack"):
        return [go.Bar(name=series.name, x=series.x, y=series.y, marker_color=colour)]
    if series.name == "failed":
        marker = {"symbol": "x-thin", "size": 8, "line": {"width": 2, "color": "#000000"}}
        return [
            go.Scatter(
                name=series.name, x=series.x, y=series.y, mode="markers", marker=marker, cliponaxis=False
            )
        ]
    look: dict[str, Any] = {"mode": "lines"}
    line = {"color": colour, "width": 2, "dash": ("solid", "dot", "dash", "dashdot")[number % 4]}
    style = series.style if isinstance(series, Styled) else ""
    if style == "faint":
        line, look["opacity"] = {"color": colour, "width": 1}, 0.55
    elif style == "reference":
        line = {"color": REFERENCE_COLOUR, "width": 1.5, "dash": "dash"}
    elif style in ("solid", "points"):
        line["dash"], look["mode"] = "solid", "lines+markers" if style == "points" else "lines"
    if plot.kind == "step":
        line["shape"] = "hv"
    return [go.Scatter(name=series.name, x=series.x, y=series.y, line=line, **look)]


def _points_trace(points: Points, colour: str) -> Any:
    import plotly.graph_objects as go

    marker = {"color": colour, "size": 8}
    return go.Scatter(
        name=points.name,
        x=points.x,
        y=points.y,
        mode="markers",
        marker=marker,
        error_y=_whiskers(points.y, points.low, points.high),
        error_x=_whiskers(points.x, points.x_low, points.x_high),
        hovertext=points.labels or None,
        cliponaxis=False,
    )


def _whiskers(
    at: Sequence[float | None], low: Sequence[float | None], high: Sequence[float | None]
) -> dict[str, Any] | None:
    """What plotly draws from each mark to both ends; None where there are none."""
    if not low:
        return None
    up_down = [
        (0.0, 0.0) if y is None or below is None or above is None else (above - y, y - below)
        for y, below, above in zip(at, low, high, strict=True)
    ]
    return {
        "type": "data", "symmetric": False, "thickness": 1.2, "width": 4,
        "array": [up for up, _ in up_down], "arrayminus": [down for _, down in up_down],
    }  # fmt: skip


def _band_traces(band: Band, colour: str) -> list[Any]:
    """An edge without a line and the area from it up to the other, under one name."""
    import plotly.graph_objects as go

    fill = f"rgba({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))}, 0.18)"
    edge = {"mode": "lines", "line": {"width": 0}, "x": band.x, "hoverinfo": "skip"}
    return [
        go.Scatter(y=band.low, showlegend=False, **edge),
        go.Scatter(y=band.y, name=band.name, fill="tonexty", fillcolor=fill, **edge),
    ]
