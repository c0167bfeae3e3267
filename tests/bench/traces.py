"""How near the best fitted generator comes to the public traces, and the parameters fitted to them.

    python -m tests.bench.traces [--presets] [FOLDER]

needs the traces in ../shared/traces or FOLDER, and prints Markdown: for each trace the best fit, and medians of nine
draws from seeds that the ranking did not see, against the trace's 90 % block-bootstrap band of the index of dispersion
(300-s blocks) and the ratio of the p99 wait of a G/D/1 queue; ! marks what lies outside the band or beyond a factor of
1.3. With --presets it prints the parameters of the named services and of the ServeGen clients instead.
"""

from __future__ import annotations

import csv
import gzip
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from squall.analysis.traces.dispersion import CURVES, fit_curve
from squall.analysis.traces.fit_report import FitReport, Ranked, fit_trace, rank
from squall.analysis.traces.fitted import Fitted, excerpts_of
from squall.analysis.traces.hawkes import fit_hawkes
from squall.analysis.traces.mmpp import fit_mmpp
from squall.scenarios.series.logging_tick import find_grid, spread_in_ticks
from squall.scenarios.traces.reading import TraceOptions, read_trace

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
S = 1_000_000_000
FRESH_SEED = 2024
N_SEEDS = 9
JUDGED = ("idc 1s", "idc 10s", "idc 100s", "wait 50%", "wait 80%")
DAY_WINDOWS = 144  # of 600 s
LARGEST_CV = math.sqrt(10)


_AS_IT_IS = TraceOptions()


@dataclass(frozen=True)
class Source:
    """A trace file and how it is read; a length where the file says one."""

    title: str
    file: str
    options: TraceOptions = _AS_IT_IS
    end_ns: int | None = None


SOURCES = (
    Source("Azure conversation 2023", "azure_llm_conv_2023.csv.gz"),
    Source("Mooncake conversation, spread in its 3-s tick", "mooncake_conversation_fast25.jsonl.gz"),
    Source(
        "NASA 1 Aug 1995, spread in the second",
        "nasa_http_1995-08-01.csv.gz",
        TraceOptions(column="unix_time", unit="s"),
    ),
    Source("NASA 13 Jul 1995, spread in the second", "nasa_http_1995-07-13_counts.csv.gz", end_ns=86_400 * S),
)
SERVEGEN = "servegen_client_windows_day1.csv.gz"


@dataclass(frozen=True)
class Row:
    """A trace with its best fit, and that fit on fresh seeds."""

    title: str
    report: FitReport
    fresh: Ranked

    @property
    def misses(self) -> list[str]:
        """Judged figures outside their band."""
        return [
            f.name
            for f in self.report.target
            if f.name in JUDGED and f.holds(self.fresh.medians[f.name]) is False
        ]


def times_of(source: Source, folder: Path = TRACES) -> tuple[NDArray[np.int64], int]:
    """Instants in [0, end) and the end; stamps that lie on a coarse grid are spread inside its ticks, seed 1."""
    times_ns = read_trace(folder / source.file, source.options).stamp_ns
    if source.end_ns is None:
        times_ns = times_ns - times_ns[0]
    tick_ns = find_grid(times_ns).tick_ns
    if tick_ns is not None:
        times_ns = spread_in_ticks(times_ns, tick_ns)
    return times_ns, source.end_ns or int(times_ns[-1]) + int(times_ns[-1]) // (times_ns.size - 1)


def row_of(source: Source, folder: Path = TRACES, fresh_seed: int = FRESH_SEED) -> Row:
    """Fits, ranks, and draws anew from the best."""
    report = fit_trace(*times_of(source, folder))
    return Row(
        source.title, report, rank(report.best.fitted, report.target, report.end_ns, fresh_seed, N_SEEDS)
    )


def table(rows: list[Row]) -> Iterator[str]:
    """Lines of the Markdown table."""
    yield "| trace | arrivals | best fit | k | IDC 1 s | 10 s | 100 s | p99 wait at 50 % load | at 80 % |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        cells = []
        for figure in (f for name in JUDGED for f in row.report.target if f.name == name):
            median = row.fresh.medians[figure.name]
            mark = "!" if figure.name in row.misses else ""
            if figure.kind == "wait":
                cells.append(f"{_short(median)}{mark} ({_short(figure.value)}: x{median / figure.value:.2f})")
            else:
                cells.append(f"{median:.3g}{mark} ({figure.value:.3g}: {figure.low:.3g}-{figure.high:.3g})")
        best = row.report.best.fitted
        residual = ", ".join(f"{p.name} {p.value:.3g}" for p in best.parameters[1:])
        name = f"{best.name}{f' ({residual})' if residual else ''}"
        yield f"| {row.title} | {row.report.n:,} | {name} | {best.n_parameters} | {' | '.join(cells)} |"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def preset_table(folder: Path = TRACES) -> Iterator[str]:
    """Parameters of the processes without an envelope, for each trace, with standard errors."""
    heads = (
        "trace",
        "rate /s",
        "MMPP curve: peak, base, tau s",
        "MMPP ML",
        "Hawkes curve: n, beta /s",
        "Hawkes ML",
    )
    yield f"| {' | '.join(heads)} | fgn: sigma, hurst | b-model: bias |"
    yield "|---|---|---|---|---|---|---|---|"
    for source in SOURCES:
        times_ns, end_ns = times_of(source, folder)
        rate_hz, stretches = times_ns.size / end_ns * S, excerpts_of(times_ns, end_ns)
        by_curve = {fit.name: fit_curve(fit, times_ns, end_ns) for fit in CURVES}
        fits = [
            by_curve["mmpp-curve"],
            fit_mmpp(stretches, rate_hz),
            by_curve["hawkes-curve"],
            fit_hawkes(stretches, rate_hz),
            by_curve["fgn"],
            by_curve["b-model"],
        ]
        yield f"| {source.title} | {rate_hz:.4g} | {' | '.join(_values(fit) for fit in fits if fit)} |"


def _values(fit: Fitted) -> str:
    return ", ".join(
        f"{p.value:.4g}" + (f" ({p.stderr:.2g})" if p.stderr else " (-)") for p in fit.parameters[1:]
    )


def client_table(folder: Path = TRACES) -> Iterator[str]:
    """Clients, Zipf exponent, median cv and spread of its logarithm for each ServeGen model.

    The Zipf exponent maximises Σ share_k ln p_k, p_k ~ k^-z, over clients ranked by their mean rate over the day. The
    cv's median is weighted by requests; so is the deviation of ln cv, over client windows, each cut to 0.1 … √10.
    """
    yield "| model | clients | rate /s | zipf | top 1, top 10 share | median cv | sigma of ln cv |"
    yield "|---|---|---|---|---|---|---|"
    with gzip.open(folder / SERVEGEN, "rt") as file:
        rows = [row for row in csv.DictReader(file) if float(row["cv"]) > 0]
    for model in sorted({row["model"] for row in rows}):
        own = [row for row in rows if row["model"] == model]
        clients = np.unique([int(row["client"]) for row in own], return_inverse=True)[1]
        rates, cvs = (np.array([float(row[key]) for row in own]) for key in ("rate", "cv"))
        totals = np.sort(np.bincount(clients, weights=rates))[::-1] / DAY_WINDOWS
        shares = totals / totals.sum()
        logs = np.log(np.clip(cvs, 0.1, LARGEST_CV))
        sigma = math.sqrt(np.average((logs - np.average(logs, weights=rates)) ** 2, weights=rates))
        yield (
            f"| {model} | {totals.size} | {totals.sum():.4g} | {_zipf(shares):.2f} | {shares[0]:.0%}, "
            f"{shares[:10].sum():.0%} | {_weighted_median(cvs, rates):.2f} | {sigma:.2f} |"
        )


def _zipf(shares: NDArray[np.float64]) -> float:
    ranks = np.log(np.arange(1, shares.size + 1))
    candidates = np.linspace(0, 5, 5001)
    scores = [-z * (shares @ ranks) - math.log(np.exp(-z * ranks).sum()) for z in candidates]
    return float(candidates[int(np.argmax(scores))])


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    places = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(weights.sum() / 2, places, values[order]))


def main(arguments: list[str]) -> None:
    """Prints the tables."""
    folders = [Path(word) for word in arguments if not word.startswith("--")]
    folder = folders[0] if folders else TRACES
    if "--presets" in arguments:
        lines = [*preset_table(folder), "", *client_table(folder)]
    else:
        lines = list(table([row_of(source, folder) for source in SOURCES]))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
