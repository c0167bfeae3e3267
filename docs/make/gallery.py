"""The images and tables of docs/arrivals.md, made from the page's own snippets: `python -m docs.make.gallery`.

Each snippet becomes a phase of 10 minutes. A figure is the median of nine draws, a curve of dispersion their mean, the
arrivals over time are those of the first. All images share their axes: a point that draws nothing holds them open.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from docs.make.gallery_page import (
    PHASE_NS,
    SEEDS,
    TRACE_NAME,
    TRACE_SPAN_NS,
    Example,
    markdown_table,
    read_example,
    shape_snippets,
    snippets,
    with_block,
    write_example_trace,
)
from squall.analysis.arrays import Int64s
from squall.analysis.render.plots_data import Plot, Series
from squall.analysis.render.png import write_png
from squall.analysis.render.trace_plots import Styled
from squall.scenarios.arrivals.presets import CLIENT_PRESETS, PRESETS, Preset
from squall.scenarios.series.burstiness import gap_c2, gd1_wait_p99, idc_shifted, peak_to_mean, window_counts
from squall.scenarios.units import NS_PER_S, parse_duration

PAGE = Path(__file__).parents[1] / "arrivals.md"
SHOWN_NS = 60 * NS_PER_S
BIN_NS = NS_PER_S // 2
WINDOWS_NS = tuple(NS_PER_S * digit * 10**power // 100 for power in range(4) for digit in (1, 2, 5))
MOST_PER_BIN = 200.0  # top of the axis of arrivals, at 50 a bin on average
IDC_AXIS = (0.1, 1_000.0)


def example_plots(example: Example) -> list[Plot]:
    """Arrivals over the first minute, and dispersion against the window."""
    return [_minute_plot(example), _dispersion_plot(example)]


def _minute_plot(example: Example) -> Plot:
    counts = window_counts(example.draws[0], BIN_NS, 0, SHOWN_NS).astype(np.float64)
    edges_ns = np.arange(counts.size + 1, dtype=np.int64) * BIN_NS
    upto = [example.arrivals.expected_count(edge_ns, example.horizon_ns) for edge_ns in edges_ns.tolist()]
    expected = np.diff(upto)
    edges = (edges_ns / NS_PER_S).tolist()
    series = (
        Series("arrivals", edges, [*counts.tolist(), float(counts[-1])]),
        Styled("expected", edges, [*expected.tolist(), float(expected[-1])], "reference"),
        _open_axes(0.0, MOST_PER_BIN),
    )
    return Plot(
        f"{example.name}: the first minute",
        "time, s",
        f"arrivals per {BIN_NS / NS_PER_S:g} s",
        "step",
        series,
    )


def _dispersion_plot(example: Example) -> Plot:
    idc = mean_dispersion(example)
    windows_s = [window_ns / NS_PER_S for window_ns in WINDOWS_NS]
    ends = [windows_s[0], windows_s[-1]]
    series = (
        Styled(example.name, windows_s, [max(one, IDC_AXIS[0]) for one in idc], "points"),
        Styled("Poisson: 1", ends, [1.0, 1.0], "reference"),
        *(_open_axes(windows_s[0], end) for end in IDC_AXIS),
    )
    note = f"Below {IDC_AXIS[0]:g} drawn at the bottom." if min(idc) < IDC_AXIS[0] else ""
    return Plot("Dispersion of counts", "window, s", "variance over mean of counts", "loglog", series, note)


def _open_axes(x: float, y: float) -> Series:
    """A curve of one point: it draws nothing, but the axes reach it. The name keeps it out of the legend."""
    return Series("_axes", [x], [y])


def mean_dispersion(example: Example) -> list[float]:
    """Index of dispersion at each of `WINDOWS_NS`, mean over the draws."""
    found = [
        [idc_shifted(draw, window_ns, 0, example.horizon_ns) or 0.0 for draw in example.draws]
        for window_ns in WINDOWS_NS
    ]
    return [sum(one) / len(one) for one in found]


def shape_plots(examples: Sequence[Example]) -> list[Plot]:
    """The first minute of each shape."""
    return [_minute_plot(example) for example in examples]


FIGURES = ("kind", "gap c²", "IDC 0.1 s", "1 s", "10 s", "peak/mean 1 s", "10 s", "wait at 50 %", "at 80 %")


def figures_table(examples: Mapping[str, Example]) -> str:
    """Markdown table of `FIGURES`, a row for each example."""
    rows = [
        (f"[`{name}`](#{name})", *figures_of(example.draws, PHASE_NS)) for name, example in examples.items()
    ]
    return markdown_table(FIGURES, rows)


def figures_of(draws: Sequence[Int64s], end_ns: int) -> tuple[str, ...]:
    """Medians over the draws in the order of `FIGURES`; waits are p99 in service times of a G/D/1 queue."""
    found = [
        (
            gap_c2(times),
            *(idc_shifted(times, window_ns, 0, end_ns) for window_ns in _FIGURE_WINDOWS_NS),
            *(peak_to_mean(times, window_ns, 0, end_ns) for window_ns in _FIGURE_WINDOWS_NS[1:]),
            *(gd1_wait_p99(times, load) for load in (0.5, 0.8)),
        )
        for times in draws
    ]
    return tuple(
        _digits(float(np.median([value or 0.0 for value in column]))) for column in zip(*found, strict=True)
    )


_FIGURE_WINDOWS_NS = (NS_PER_S // 10, NS_PER_S, 10 * NS_PER_S)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


SCALINGS = (
    ("as it is", ""),
    ("`time_scale: 1/4`", "time_scale: 1/4"),
    ("`time_scale: 4`", "time_scale: 4"),
    ("`thin`, keep 0.25", "rate_scale: {kind: thin, keep: 0.25}"),
    ("`thin-by-session`, keep 0.25", "rate_scale: {kind: thin-by-session, keep: 0.25}"),
    ("`overlap`, 4 copies of 15 min", "rate_scale: {kind: overlap, copies: 4}"),
    ("`replicate`, 4 copies, jitter 1 s", "rate_scale: {kind: replicate, copies: 4, jitter: 1s}"),
    ("`envelope`, factor 4", "rate_scale: {kind: envelope, factor: 4}"),
)
"""What stands in the table of scalings, and the keys of the trace beside its file."""

SCALING_FIGURES = ("operation", "rate", "gap c²", "IDC 1 s", "10 s", "100 s", "peak/mean 1 s", "60 s")
_SCALING_WINDOWS_NS = (NS_PER_S, 10 * NS_PER_S, 100 * NS_PER_S)


def scaling_table(folder: Path) -> str:
    """Markdown table of what each scaling makes of the example trace in `folder`, over the time it then lasts."""
    return markdown_table(
        SCALING_FIGURES, [(name, *_scaled_figures(keys, folder)) for name, keys in SCALINGS]
    )


def _scaled_figures(keys: str, folder: Path) -> tuple[str, ...]:
    span_ns = TRACE_SPAN_NS
    if keys.startswith("time_scale"):
        above, _, below = keys.removeprefix("time_scale: ").partition("/")
        span_ns = span_ns * int(above) // int(below or 1)
    if "overlap" in keys:
        span_ns //= 4
    text = f"arrivals: {{kind: trace, file: {TRACE_NAME}{', ' if keys else ''}{keys}}}\n"
    example = read_example("scaled", text, folder, span_ns)
    times = example.draws[0]
    figures = (
        times.size * NS_PER_S / span_ns,
        gap_c2(times),
        *(idc_shifted(times, window_ns, 0, span_ns) for window_ns in _SCALING_WINDOWS_NS),
        *(peak_to_mean(times, window_ns, 0, span_ns) for window_ns in (NS_PER_S, 60 * NS_PER_S)),
    )
    return tuple("-" if value is None else _digits(value) for value in figures)


PRESET_FIGURES = (
    "preset",
    "residual",
    "`mmpp`: peak, base, tau",
    "`hawkes`: n, beta",
    "`fgn`: sigma, hurst",
    "`b-model`",
)
CLIENT_FIGURES = ("preset", "clients", "zipf", "cv", "cv_sigma")


def preset_tables() -> str:
    """Markdown tables of the parameters of `PRESETS` and of `CLIENT_PRESETS`, in the words of the scenario file."""
    fits = [(f"`{name}`", *_preset_row(preset)) for name, preset in PRESETS.items()]
    clients = [
        (f"`{name}`", *(f"{value:g}" for value in one.keys["clients"].values()))
        for name, one in CLIENT_PRESETS.items()
    ]
    return f"{markdown_table(PRESET_FIGURES, fits)}\n\n{markdown_table(CLIENT_FIGURES, clients)}"


def _preset_row(preset: Preset) -> tuple[str, ...]:
    residual = preset.keys["envelope"]["residual"]
    mmpp, hawkes, fgn = (preset.keys[kind] for kind in ("mmpp", "hawkes", "fgn"))
    tau_s = parse_duration(mmpp["tau"]) / NS_PER_S
    return (
        f"hawkes, n {residual['n']:g}, beta {residual['beta']:g}"
        if residual["kind"] == "hawkes"
        else residual["kind"],
        f"{mmpp['peak']:.3g}, {mmpp['base']:.3g}, {tau_s:.3g}s",
        f"{hawkes['n']:g}, {hawkes['beta']}",
        f"{fgn['sigma']:.3g}, {fgn['hurst']:.3g}",
        f"{preset.keys['b-model']['bias']:.3g}",
    )


def digests(examples: Mapping[str, Example], shapes: Sequence[Example]) -> dict[str, str]:
    """What each picture was drawn from, by its name: sha256 of the first draw of its process, or of all shapes."""
    drawn = {name: one.draw(SEEDS[0]).tobytes() for name, one in examples.items()}
    drawn["shapes"] = b"".join(one.draw(SEEDS[0]).tobytes() for one in shapes)
    return {name: hashlib.sha256(data).hexdigest()[:16] for name, data in drawn.items()}


def make_page(path: Path = PAGE) -> list[Path]:
    """Draws every image beside the page and writes its tables into it. Returns the images."""
    page = path.read_text(encoding="utf-8")
    images = path.parent / "arrivals"
    images.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_example_trace(folder / TRACE_NAME)
        examples = {kind: read_example(kind, text, folder) for kind, text in snippets(page).items()}
        shapes = [read_example(kind, text, folder, SHOWN_NS) for kind, text in shape_snippets(page).items()]
        written = [write_png(images / f"{kind}.png", example_plots(one)) for kind, one in examples.items()]
        written.append(write_png(images / "shapes.png", shape_plots(shapes)))
        page = with_block(page, "figures", figures_table(examples))
        page = with_block(page, "scalings", scaling_table(folder))
        drawn = digests(examples, shapes)
    page = with_block(page, "presets", preset_tables())
    path.write_text(page, encoding="utf-8")
    text = json.dumps(drawn, indent=1)
    (images / "drawn.json").write_text(text + "\n", encoding="utf-8")
    return written


def main() -> None:
    """Without an argument the page; with `--trace FILE` the trace that the page uses."""
    parser = argparse.ArgumentParser(prog="python -m docs.make.gallery", description=main.__doc__)
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the page's trace as CSV, and nothing else"
    )
    path = parser.parse_args().trace
    if path is None and not PAGE.exists():
        parser.error(f"{PAGE} is not there: run it in a clone of the repository")
    if path is not None:
        write_example_trace(path)
    else:
        make_page()


if __name__ == "__main__":
    main()
