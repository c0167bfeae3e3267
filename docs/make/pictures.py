"""Draws docs/arrivals from the snippets of docs/arrivals.md: `python -m docs.make.pictures`; with the name of a file it
writes the trace that the page replays there, as CSV, and draws nothing.

Each snippet becomes a phase of 10 minutes. Arrivals over time are those of the first of nine draws, a curve of
dispersion is their mean. All pictures share their axes: a point that draws nothing holds them open.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.report.plots import Plot, Trace, curve
from squall.analysis.report.png import write_png
from squall.scenarios.arrivals.kinds import OpenArrivals
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.exact.draws import lognormal
from squall.scenarios.series.burstiness import idc_shifted, window_counts
from squall.scenarios.strict_yaml import parse_yaml
from squall.scenarios.traces.part import TracePart
from squall.scenarios.traces.writing import write_trace
from squall.scenarios.units import NS_PER_S

PAGE = Path(__file__).parents[1] / "arrivals.md"
PHASE_NS, SHOWN_NS, BIN_NS = 600 * NS_PER_S, 60 * NS_PER_S, NS_PER_S // 2
SEEDS = range(1, 10)
WINDOWS_NS = tuple(NS_PER_S * digit * 10**power // 100 for power in range(4) for digit in (1, 2, 5))
MOST_PER_BIN = 200.0  # top of the axis of arrivals, at 50 a bin on average
IDC_AXIS = (0.1, 1_000.0)
TRACE_NAME, TRACE_NS, N_SESSIONS = "service.csv", 3_600 * NS_PER_S, 200

_SNIPPET = re.compile(r"^### `([\w-]+)`\n(?:(?!#).*\n)*?```yaml\n([^`]*)```", re.MULTILINE)
_SHAPE = re.compile(r"^\| `[\w-]+` \|.*`(\{kind: ([\w-]+),[^`]*\})` \|$", re.MULTILINE)


def process_of(text: str, trace: Path, horizon_ns: int) -> OpenArrivals:
    """The process of a snippet `arrivals: …` whose trace is at `trace`. Raises ScenarioError as a scenario does."""
    given = parse_yaml(text.replace(TRACE_NAME, str(trace)), "snippet")
    phase = {"name": "main", "kind": "measure", "duration": f"{horizon_ns}ns", **given}
    phases = [phase, {"name": "drain", "kind": "drain", "duration": "1s"}]
    scenario = scenario_from_mapping(
        {"name": "x", "seed": 1, "model": {"name": "x"}, "phases": phases}, "snippet"
    )
    return scenario.phases[0].arrivals  # type: ignore[return-value]


def write_page_trace(path: Path) -> None:
    """An hour of a web server at 10/s on stamps of 1 µs, the same on every call: lognormal tokens, Zipf sessions."""
    rng = np.random.default_rng(4)
    text = "arrivals: {kind: envelope, preset: nasa-web, rate: 10/s}"
    stamp_ns = process_of(text, path, TRACE_NS).draw(rng, TRACE_NS) // 1_000 * 1_000
    bounds = np.cumsum(1 / np.arange(1, N_SESSIONS + 1))
    session = np.searchsorted(bounds[:-1] / bounds[-1], rng.random(stamp_ns.size), side="right")
    laws = {"input_length": (6.5, 1.0), "output_length": (5.0, 0.7)}
    sizes = {
        name: np.rint(lognormal(rng, *law, stamp_ns.size)).astype(np.int64) for name, law in laws.items()
    }
    write_trace(path, "csv", [TracePart(stamp_ns, sizes, session.astype(np.int64))])


def draw(process: OpenArrivals, seed: int, horizon_ns: int) -> Int64s:
    """Offsets in ns, (n,), sorted."""
    return process.draw(np.random.default_rng(seed), horizon_ns)


def minute_plot(name: str, process: OpenArrivals, horizon_ns: int) -> Plot:
    """Arrivals over the first minute, and what the rate makes expect."""
    counts = window_counts(draw(process, SEEDS[0], horizon_ns), BIN_NS, 0, SHOWN_NS).astype(np.float64)
    edges_ns = np.arange(counts.size + 1, dtype=np.int64) * BIN_NS
    expected = np.diff([process.expected_count(edge_ns, horizon_ns) for edge_ns in edges_ns.tolist()])
    edges = (edges_ns / NS_PER_S).tolist()
    series = (
        curve("arrivals", edges, [*counts.tolist(), float(counts[-1])]),
        curve("expected", edges, [*expected.tolist(), float(expected[-1])], "reference"),
        _open_axes(0.0, MOST_PER_BIN),
    )
    return Plot(
        f"{name}: the first minute", "time, s", f"arrivals per {BIN_NS / NS_PER_S:g} s", "step", series
    )


def dispersion_plot(name: str, process: OpenArrivals) -> Plot:
    """The index of dispersion against the window, mean of the draws."""
    draws = [draw(process, seed, PHASE_NS) for seed in SEEDS]
    idc = [
        sum(idc_shifted(one, window_ns, 0, PHASE_NS) or 0.0 for one in draws) / len(draws)
        for window_ns in WINDOWS_NS
    ]
    windows_s = [window_ns / NS_PER_S for window_ns in WINDOWS_NS]
    ends = [windows_s[0], windows_s[-1]]
    series = (
        curve(name, windows_s, [max(one, IDC_AXIS[0]) for one in idc], "points"),
        curve("Poisson: 1", ends, [1.0, 1.0], "reference"),
        *(_open_axes(windows_s[0], end) for end in IDC_AXIS),
    )
    note = f"Below {IDC_AXIS[0]:g} drawn at the bottom." if min(idc) < IDC_AXIS[0] else ""
    return Plot("Dispersion of counts", "window, s", "variance over mean of counts", "loglog", series, note)


def _open_axes(x: float, y: float) -> Trace:
    """A curve of one point: it draws nothing, but the axes reach it. The name keeps it out of the legend."""
    return curve("_axes", [x], [y])


def draw_pictures(images: Path) -> None:
    """A picture of each kind, and one of all shapes of an envelope, over a minute each."""
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / TRACE_NAME
        write_page_trace(trace)
        for kind, text in _SNIPPET.findall(page):
            process = process_of(text, trace, PHASE_NS)
            write_png(
                images / f"{kind}.png", [minute_plot(kind, process, PHASE_NS), dispersion_plot(kind, process)]
            )
        shapes = {
            kind: process_of(f"arrivals: {{kind: envelope, rate: 100/s, shape: {text}}}", trace, SHOWN_NS)
            for text, kind in _SHAPE.findall(page)
        }
        write_png(images / "shapes.png", [minute_plot(kind, one, SHOWN_NS) for kind, one in shapes.items()])


if __name__ == "__main__":
    if sys.argv[1:]:
        write_page_trace(Path(sys.argv[1]))
    else:
        draw_pictures(PAGE.with_suffix(""))
