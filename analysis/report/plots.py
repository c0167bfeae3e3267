"""A plot: what Plotly draws, and the words of the page around it.

Curves are traces of Plotly's own, as dicts: https://plotly.com/javascript/reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from squall.scenarios.records import Frozen

Trace = dict[str, Any]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, told apart with any colour vision (jfly.uni-koeln.de/color, 2008)."""
DASHES = ("solid", "dot", "dash", "dashdot")
REFERENCE_COLOUR, GRID_COLOUR, INK = "#59636e", "#e6e8eb", "#1f2328"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_PALE = "2e"
"""How opaque an area is, behind the digits of its colour."""

_STYLES: dict[str, Trace] = {
    "": {"line": {"width": 2}},
    "solid": {"line": {"width": 2, "dash": "solid"}},
    "points": {"line": {"width": 2, "dash": "solid"}, "mode": "lines+markers"},
    "faint": {"line": {"width": 1, "dash": "solid"}, "opacity": 0.55},
    "reference": {"line": {"width": 1.5, "dash": "dash", "color": REFERENCE_COLOUR}},
}

Values = Sequence[float | None]


def curve(name: str, x: Sequence[float], y: Values, style: str = "") -> Trace:
    """A line, which breaks at None. `style`: empty (dashed by its place in the plot), solid, points (solid, and a mark
    at each), faint, or reference (dashed, grey)."""
    return {"name": name, "x": x, "y": y, "mode": "lines", **_STYLES[style]}


def points(
    name: str,
    x: Sequence[float],
    y: Values,
    low: Values = (),
    high: Values = (),
    x_low: Values = (),
    x_high: Values = (),
    labels: Sequence[str] = (),
) -> Trace:
    """Marks without a line; `low` and `high`, (n,) each or empty, are the ends of a whisker at each, `x_low` and
    `x_high` of one along x. `labels`, (n,) or empty: what each is, where a pointer rests on it."""
    return {
        "name": name, "x": x, "y": y, "mode": "markers", "marker": {"size": 8}, "cliponaxis": False,
        "error_y": _whiskers(y, low, high), "error_x": _whiskers(x, x_low, x_high), "hovertext": labels,
    }  # fmt: skip


def _whiskers(at: Values, low: Values, high: Values) -> Trace:
    known = [
        (0.0, 0.0) if y is None or below is None or above is None else (above - y, y - below)
        for y, below, above in zip(at, low, high, strict=bool(low))
    ]
    ends = {"array": [up for up, _ in known], "arrayminus": [down for _, down in known]}
    return {"type": "data", "symmetric": False, "thickness": 1.2, "width": 4, **ends} if known else {}


def bars(name: str, x: Sequence[float], y: Values) -> Trace:
    """Bars from 0, or from the end of those before them in the plot."""
    return {"name": name, "x": x, "y": y, "type": "bar"}


def band(name: str, x: Sequence[float], high: Values, low: Values) -> Trace:
    """The area between `low` and `high` where both are known, pale, in the colour of the trace after it."""
    known = [one for one in zip(x, high, low, strict=True) if None not in one]
    back = known[::-1]
    around = {
        "x": [at for at, *_ in known + back],
        "y": [up for _, up, _ in known] + [down for *_, down in back],
    }
    return {
        "name": name,
        **around,
        "mode": "lines",
        "fill": "toself",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


class Plot(Frozen):
    """One plot: `kind` says what its axes are: line, step, bar, points (from 0 on), ccdf (both logarithmic, y a share)
    or loglog. `absent` says why there is none; then no traces.

    `x_ticks` names x = 0, 1, … where x counts things without a unit. `measured` holds name, start and end
    of the measure phases where x is time. `section`: `stimulus` where it belongs beside planned and sent load,
    `streams` and `locust` beside those.
    """

    title: str
    x_label: str
    y_label: str
    kind: str
    traces: Sequence[Trace] = ()
    note: str = ""
    absent: str = ""
    x_ticks: Sequence[str] = ()
    measured: Sequence[tuple[str, float, float]] = ()
    section: str = ""

    def figure(self, shown: Callable[[str], str]) -> dict[str, Any]:
        """The figure as Plotly takes it, `data` and `layout`, with `shown` of each text in it."""
        is_log = self.kind in ("ccdf", "loglog")
        axis = {
            "gridcolor": GRID_COLOUR, "linecolor": "#8a9099", "ticks": "outside", "zeroline": False,
            "exponentformat": "none", "automargin": True, "type": "log" if is_log else "linear",
        }  # fmt: skip
        x = {**axis, "title": {"text": self.x_label}}
        y = {**axis, "title": {"text": self.y_label}, "rangemode": "normal" if is_log else "tozero"}
        if self.kind == "loglog":
            x["dtick"], y["dtick"] = 1, "D2"
        elif self.kind == "ccdf":
            y |= {"dtick": 1, "tickformat": "~%"}
        if self.x_ticks:
            x |= {"tickvals": [*range(len(self.x_ticks))], "ticktext": [*self.x_ticks]}
            x |= {"tickangle": 0} if any("\n" in one for one in self.x_ticks) else {}
        layout = {
            "height": 340,
            "margin": {"l": 70, "r": 20, "t": 46, "b": 50},
            "font": {"family": FONT, "size": 13, "color": INK},
            "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
            "barmode": "stack",
            "hovermode": "x unified" if self.kind in ("line", "step") else "closest",
            "shapes": [_phase(*one) for one in self.measured],
            "xaxis": x,
            "yaxis": y,
        }
        traces = [self._trace(trace, number) for number, trace in enumerate(self.traces)]
        return _changed({"data": traces, "layout": layout}, shown)  # type: ignore[no-any-return]

    def _trace(self, trace: Trace, number: int) -> Trace:
        """With the colours and dashes of its place, where it has none of its own."""
        colour, next_colour = (COLOURS[at % len(COLOURS)] for at in (number, number + 1))
        marker = {"color": colour, **trace.get("marker", {})}
        if "line" not in trace:
            return {**trace, "marker": marker}
        look = {"color": colour, "dash": DASHES[number % len(DASHES)], **trace["line"]}
        look |= {"shape": "hv"} if self.kind == "step" else {}
        return {**trace, "marker": marker, "line": look, "fillcolor": next_colour + _PALE}


def _phase(name: str, start: float, end: float) -> dict[str, Any]:
    """A pale stretch over the whole height, named in its corner."""
    label = {"text": name, "textposition": "top left", "font": {"color": REFERENCE_COLOUR}}
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end, "y0": 0, "y1": 1,
        "fillcolor": f"{COLOURS[0]}0f", "line": {"width": 0}, "layer": "below", "label": label,
    }  # fmt: skip


def _changed(value: Any, shown: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {key: _changed(own, shown) for key, own in value.items()}
    if isinstance(value, list | tuple) and not all(isinstance(own, float | None) for own in value):
        return [_changed(own, shown) for own in value]
    return value
