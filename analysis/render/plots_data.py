"""What the report's plots draw, reduced from the tables to a few thousand points.

Times are seconds from the agreed start, latencies ms, shares per cent: the units of the axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from squall.analysis.arrays import Bools, Floats, Int64s
from squall.analysis.clocks.timeline import RunPhase, measure_spans, phase_spans
from squall.analysis.limits import LIMITS
from squall.analysis.locust.asked import asked_users
from squall.analysis.locust.user_watch import per_second
from squall.analysis.metrics.windows import WINDOW_NS
from squall.analysis.requests.at_once import steps
from squall.analysis.requests.requests import Requests, together
from squall.analysis.requests.stimulus import compare_dispersion, sends_of
from squall.analysis.requests.streams import COLUMNS, measured_times
from squall.analysis.statistics.latency import INFINITE_NS
from squall.analysis.statistics.stretches import run_lengths
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.accounting import BANDS
from squall.analysis.summary.summary_file import Summary
from squall.analysis.tables.manifest import Manifest
from squall.analysis.wording import LATENCY_LABELS
from squall.scenarios.units import NS_PER_MS, NS_PER_S

MOST_POINTS = 2_000
"""Points of a curve: more than a screen has pixels across."""
CURVE_NS = tuple(tenths * (NS_PER_S // 10) for tenths in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000))
"""Windows of the curve of dispersion, from 0.1 to 100 s."""

TIME = "time from start, s"


@dataclass(frozen=True)
class Series:
    """One curve. `y` holds None where there is no value: the curve breaks there."""

    name: str
    x: list[float]
    y: list[float | None]

    def with_texts(self, change: Callable[[str], str]) -> Self:
        """See `Plot.with_texts`."""
        return replace(self, name=change(self.name))


@dataclass(frozen=True)
class Points(Series):
    """Marks without a line between them; `low` and `high`, (n,) each or empty, are the ends of a whisker at each,
    `x_low` and `x_high` of one along x. `labels`, (n,) or empty: what each is, where a pointer rests on it."""

    low: list[float | None]
    high: list[float | None]
    x_low: list[float | None] = field(default_factory=list)
    x_high: list[float | None] = field(default_factory=list)
    labels: tuple[str, ...] = ()

    def with_texts(self, change: Callable[[str], str]) -> Self:
        """See `Plot.with_texts`."""
        return replace(super().with_texts(change), labels=tuple(map(change, self.labels)))


@dataclass(frozen=True)
class Plot:
    """One plot: `kind` is line, step, bar, stack, ccdf, loglog or points. `absent` says why there is none; then no
    series.

    `x_ticks` names x = 0, 1, … where x counts things without a unit. `measured` holds name, start and end
    of the measure phases where x is time. `section`: `stimulus` where it belongs beside planned and sent load,
    `streams` and `locust` beside those.
    """

    title: str
    x_label: str
    y_label: str
    kind: str
    series: tuple[Series, ...] = ()
    note: str = ""
    absent: str = ""
    x_ticks: tuple[str, ...] = ()
    measured: tuple[tuple[str, float, float], ...] = ()
    section: str = ""

    def with_texts(self, change: Callable[[str], str]) -> Plot:
        """The plot with `change` of each of its texts, as what draws it takes them."""
        return replace(
            self,
            title=change(self.title),
            x_label=change(self.x_label),
            y_label=change(self.y_label),
            series=tuple(one.with_texts(change) for one in self.series),
            note=change(self.note),
            absent=change(self.absent),
            x_ticks=tuple(map(change, self.x_ticks)),
            measured=tuple((change(name), start_s, end_s) for name, start_s, end_s in self.measured),
        )


def bin_ns_for(span_ns: int) -> int:
    """Bin of plots over time: the least of 0.1, 1, 10, 60 … s that keeps within `MOST_POINTS`."""
    for bin_ns in (NS_PER_S // 10, NS_PER_S, 10 * NS_PER_S, 60 * NS_PER_S, 600 * NS_PER_S):
        if span_ns // bin_ns <= MOST_POINTS:
            return bin_ns
    return 3_600 * NS_PER_S


_COUNTS = ("n_arrivals", "n_sent", "n_done", "n_failed")
_DEPTHS = ("in_flight", "queue_depth")
"""Columns of `windows` that plots show."""


def bin_windows(windows: pa.Table, origin_ns: int, bin_ns: int) -> dict[str, npt.NDArray[Any]]:
    """Columns of `windows` per bin from `origin_ns`: counts summed, depths their largest, `t_s` its start.

    The bin at an end whose windows do not fill it has no counts (NaN): they would read as a rate that fell.
    """
    t_ns = windows.column("t_ns").to_numpy()
    starts, place = np.unique((t_ns - origin_ns) // bin_ns, return_inverse=True)
    is_part = np.bincount(place, minlength=len(starts)) < bin_ns // WINDOW_NS
    is_part[1:-1] = False
    binned: dict[str, npt.NDArray[Any]] = {"t_s": starts * bin_ns / NS_PER_S}
    for name in _COUNTS:
        counts = windows.column(name).fill_null(0).to_numpy()
        binned[name] = np.where(is_part, np.nan, np.bincount(place, weights=counts, minlength=len(starts)))
    for name in _DEPTHS:
        largest = np.full(len(starts), -np.inf)
        np.maximum.at(largest, place, windows.column(name).fill_null(-1).to_numpy().astype(np.float64))
        binned[name] = largest
    return binned


def quantile_by_bin(
    times_ns: Int64s,
    values_ns: Int64s,
    is_failed: Bools,
    origin_ns: int,
    bin_ns: int,
    percents: Sequence[int],
) -> tuple[Floats, list[list[float | None]]]:
    """Bin starts in s and, for each of `percents`, the nearest-rank quantile in ms of each bin's own rows; None where
    it is infinite.

    It describes the rows of a bin and carries no interval.
    """
    values = np.where(is_failed, INFINITE_NS, values_ns)
    bins = (times_ns - origin_ns) // bin_ns
    if (bins[1:] < bins[:-1]).any():
        order = np.argsort(bins, kind="stable")
        bins, values = bins[order], values[order]
    edges = [0, *accumulate(run_lengths(bins))]
    picked = np.empty((len(percents), len(edges) - 1), dtype=np.int64)
    for place, (first, end) in enumerate(pairwise(edges)):
        ranks = [-(-percent * (end - first) // 100) - 1 for percent in percents]
        picked[:, place] = np.partition(values[first:end], ranks)[ranks]
    return bins[edges[:-1]] * bin_ns / NS_PER_S, [
        [None if value == INFINITE_NS else value / NS_PER_MS for value in of_percent]
        for of_percent in picked.tolist()
    ]


def ccdf(
    values_ns: Int64s, is_failed: Bools, most_points: int = MOST_POINTS
) -> tuple[list[float], list[float]]:
    """(ms, share of rows slower than that), exact at each of at most `most_points` order statistics.

    Points lie evenly in the logarithm of the share, so that the tail keeps every row. Failed rows are
    slower than anything: the curve ends at their share. Values of 0 or less are left out: the axis is
    logarithmic.
    """
    n = len(values_ns)
    finite_ns = np.sort(values_ns[together(~is_failed)])
    if not len(finite_ns):
        return [], []
    steps = np.unique(np.round(np.logspace(0, np.log10(len(finite_ns)), most_points)).astype(np.int64))
    ranks = np.unique(len(finite_ns) - steps)  # 0-based, counted from the slowest
    kept = ranks[finite_ns[ranks] > 0]
    share = 1.0 - np.searchsorted(finite_ns, finite_ns[kept], side="right") / n
    positive = share > 0
    return (finite_ns[kept][positive] / NS_PER_MS).tolist(), share[positive].tolist()


def missing_reason(manifest: Manifest, collector: str) -> str:
    """Why a collector has nothing, and the mend, as the manifest states it."""
    one = manifest.collectors.get(collector)
    if one is None or one.status == "on":
        return "not recorded: the run has no such table"
    return f"not recorded: {one.reason or one.status}" + (f"; {one.mend}" if one.mend else "")


def report_plots(store: RunStore, summary: Summary) -> list[Plot]:
    """The plots of a run, in the order of the report. What a run did not record says so in `absent`."""
    manifest = store.manifest
    requests = Requests.read(store)
    spans = phase_spans(manifest)
    origin_ns = manifest.start_ns or (spans[0].start_ns if spans else 0)
    span_ns = spans[-1].end_ns - origin_ns if spans else 0
    measured = requests.in_phases(summary.measure.phases)
    measured_s = tuple(
        (span.name, (span.start_ns - origin_ns) / NS_PER_S, (span.end_ns - origin_ns) / NS_PER_S)
        for span in measure_spans(manifest)
    )
    plots = [
        *_window_plots(store, requests.is_open, origin_ns, bin_ns_for(span_ns)),
        *([_dispersion_plot(requests, measure_spans(manifest))] if requests.is_open else []),
        _latency_plot(requests, origin_ns, max(NS_PER_S, bin_ns_for(span_ns))),
        _ccdf_plot(measured),
        *_user_plots(store, manifest, origin_ns),
        *_stream_plots(store, requests, measured, summary, origin_ns, bin_ns_for(span_ns)),
        _parts_plot(measured, summary, manifest),
        _batch_plot(summary, manifest),
        _host_plot(store, manifest, origin_ns),
        _worker_plot(store, requests.is_open, manifest, origin_ns),
    ]
    return [replace(plot, measured=measured_s) if plot.x_label == TIME else plot for plot in plots]


def _floats(values: Floats) -> list[float | None]:
    """As plain numbers; infinity and what was null become None."""
    return [float(value) if np.isfinite(value) and value >= 0 else None for value in values]


def _window_plots(store: RunStore, is_open: bool, origin_ns: int, bin_ns: int) -> list[Plot]:
    bin_s = bin_ns / NS_PER_S
    load = (
        "Arrivals: scheduled and sent" if is_open else "Requests sent by the users",
        TIME,
        f"requests per {bin_s:g} s",
        "step",
    )
    depth = ("In flight and in the queue", TIME, "requests", "line")
    section = "stimulus" if is_open else ""
    if not store.has("windows"):
        absent = "not derived yet: run `squall analyze`"
        return [Plot(*load, absent=absent, section=section), Plot(*depth, absent=absent)]
    binned = bin_windows(store.read("windows", ["t_ns", *_COUNTS, *_DEPTHS]), origin_ns, bin_ns)
    t_s = binned["t_s"].tolist()
    named = {"scheduled": "n_arrivals", "sent": "n_sent"} if is_open else {"sent": "n_sent"}
    together = "The two lines lie on one another while the client keeps up."
    flows = tuple(Series(name, t_s, _floats(binned[column])) for name, column in named.items())
    depths = {"in flight": "in_flight", "in the queue": "queue_depth"}
    waits = tuple(Series(name, t_s, _floats(binned[column])) for name, column in depths.items())
    return [
        Plot(
            *load,
            flows,
            together if is_open else "The users wait for their replies: the load follows the server.",
            section=section,
        ),
        Plot(
            *depth,
            waits,
            f"At the end of each 100 ms, largest of each {bin_s:g} s. In the queue: its batch not begun.",
        ),
    ]


def _dispersion_plot(requests: Requests, spans: Sequence[RunPhase]) -> Plot:
    head = ("Dispersion: sent against planned", "window", "sent over planned, %", "line")
    names = tuple(f"{window_ns / NS_PER_S:g} s" for window_ns in CURVE_NS)
    series: list[Series] = []
    for sends in sends_of(requests, spans):
        planned, sent = sends.all_planned_ns, sends.all_sent_ns
        found = [compare_dispersion(planned, sent, sends.span, window_ns, LIMITS) for window_ns in CURVE_NS]
        kept = [(float(at), each) for at, each in enumerate(found) if each is not None]
        x = [at for at, _ in kept]
        series.append(Series(sends.span.name, x, [100.0 * each.change_ratio for _, each in kept]))
        if len(spans) == 1:
            limit = [100.0 * each.limit_ratio for _, each in kept]
            series += [Series("upper limit", x, [*limit]), Series("lower limit", x, [-one for one in limit])]
    if not any(one.x for one in series):
        return Plot(*head, absent="no measure phase holds ten windows with arrivals", section="stimulus")
    note = "Index of dispersion: variance over mean of the counts per window. The limits hold at 0.1, 1, 10 and 100 s."
    n_carried = 1 + int(max(at for one in series for at in one.x))
    return Plot(*head, tuple(series), note, x_ticks=names[:n_carried], section="stimulus")


def _latency_plot(requests: Requests, origin_ns: int, bin_ns: int) -> Plot:
    begun = requests.take(together(requests.has_begun))
    is_failed = ~begun.is_ok
    percents = (50, 95)
    t_s, values_ms = quantile_by_bin(begun.begin_ns, begun.latency_ns, is_failed, origin_ns, bin_ns, percents)
    series = [
        Series(f"p{percent}", t_s.tolist(), own) for percent, own in zip(percents, values_ms, strict=True)
    ]
    failed_s = (begun.begin_ns[is_failed][:MOST_POINTS] - origin_ns) / NS_PER_S
    series.append(Series("failed", failed_s.tolist(), [0.0] * len(failed_s)))
    what = "arrivals scheduled" if begun.is_open else "requests sent"
    note = f"Of the {what} in each {bin_ns / NS_PER_S:g} s. A gap: the quantile fell on failures."
    name = begun.latency_name
    return Plot(f"{name.capitalize()} time", TIME, f"{name}, ms", "line", tuple(series), note)


def _ccdf_plot(measured: Requests) -> Plot:
    failed, unsent = ~measured.is_ok, ~measured.is_sent
    is_failed = {"response": failed, "service": failed, "lag": unsent}
    labels = LATENCY_LABELS["open" if measured.is_open else "closed"]
    series = tuple(
        Series(label, *ccdf(getattr(measured, f"{kind}_ns"), is_failed[kind]))  # type: ignore[arg-type]
        for kind, label in labels.items()
    )
    note = "Every measured request counts; a curve that ends above the floor ends at the share that failed."
    return Plot("Share of requests slower than", "time, ms", "share of requests", "ccdf", series, note)


def _user_plots(store: RunStore, manifest: Manifest, origin_ns: int) -> list[Plot]:
    """Users of Locust over time; none of another load."""
    if manifest.locust is None:
        return []
    head = ("Users of Locust", TIME, "users", "line")
    if not store.has("locust_samples"):
        return [Plot(*head, absent="not recorded: the run has no such table", section="locust")]
    samples = store.read("locust_samples")
    t_ns, present = per_second(samples, "n_users")
    _, thinking = per_second(samples, "n_thinking")
    kept = slice(None, None, max(1, len(t_ns) // MOST_POINTS))
    t_s = ((t_ns - origin_ns) / NS_PER_S)[kept].tolist()
    counts = {"asked for": asked_users(manifest.locust, t_ns), "present": present, "thinking": thinking}
    series = tuple(Series(name, t_s, _floats(values[kept])) for name, values in counts.items())
    note = "At each second, summed over the workers; present and not thinking: in a request, in code, or late to wake."
    return [Plot(*head, series, note, section="locust")]


def _stream_plots(
    store: RunStore, requests: Requests, measured: Requests, summary: Summary, origin_ns: int, bin_ns: int
) -> list[Plot]:
    """Of requests that are answered response by response; none where they are not."""
    if summary.measure.streams is None:
        return []
    times = measured_times(store.read("responses", COLUMNS), measured, summary.measure.phases)
    spread = (
        Series("first response", *_points(ccdf(times.waits_ns, ~times.has_any))),
        Series("gap", *_points(ccdf(times.gaps_ns, np.zeros(len(times.gaps_ns), np.bool_)))),
    )
    since = "the scheduled instant" if measured.is_open else "the send"
    note = f"First responses since {since}; a gap is from a response to the next of its request."
    slower = Plot(
        "Share of first responses and gaps longer than",
        "time, ms",
        "share",
        "ccdf",
        spread,
        note,
        section="streams",
    )
    is_known = requests.is_sent & requests.is_done
    instants_ns, counts = steps(requests.sent_ns[is_known], requests.done_ns[is_known])
    t_s, most = largest_by_bin(instants_ns, counts, origin_ns, bin_ns)
    note = f"Requests whose responses have not all come, of all phases: most in each {bin_ns / NS_PER_S:g} s."
    flying = (Series("in flight", t_s.tolist(), _floats(most)),)
    return [slower, Plot("Streams in flight", TIME, "streams", "step", flying, note, section="streams")]


def largest_by_bin(times_ns: Int64s, counts: Int64s, origin_ns: int, bin_ns: int) -> tuple[Floats, Floats]:
    """Starts in s of all bins from the first change to the last, and the largest count in each; `counts` holds from
    each of the sorted `times_ns` on."""
    if not len(times_ns):
        return np.empty(0), np.empty(0)
    bins = (times_ns - origin_ns) // bin_ns
    edges = np.arange(bins[0], bins[-1] + 1)
    at_edge = np.searchsorted(times_ns, edges * bin_ns + origin_ns, side="right") - 1
    most = np.where(at_edge < 0, 0, counts[np.maximum(at_edge, 0)])
    np.maximum.at(most, bins - bins[0], counts)
    return edges * bin_ns / NS_PER_S, most.astype(np.float64)


def _points(curve: tuple[list[float], list[float]]) -> tuple[list[float], list[float | None]]:
    return curve[0], [*curve[1]]


_PARTS_NOTES = {
    "batch": "Wait: network, server front end and queue. Reply: the way back.",
    "server": "Network and handover both ways; residual: what the other parts do not explain.",
    "device": "Head, tail: of the batch before its first and after its last operation on the GPU; launch idle: the GPU "
    "waits for the next launch; residual: what the other parts do not explain.",
}


def _parts_plot(measured: Requests, summary: Summary, manifest: Manifest) -> Plot:
    name = measured.latency_name
    head = (f"Where the {name} time goes", f"band of {name} time", "mean time, ms", "stack")
    join = summary.measure.join
    account = join.accounting if join is not None else None
    if account is None:
        return Plot(*head, absent=missing_reason(manifest, "batches"))
    x = [float(place) for place in range(len(BANDS))]
    series = tuple(
        Series(part, x, [None if mean is None else mean / NS_PER_MS for mean in means])
        for part, means in account.bands.items()
    )
    note = f"{_PARTS_NOTES[account.level]} Ok requests joined by id."
    return Plot(*head, series, note, x_ticks=BANDS)


def _batch_plot(summary: Summary, manifest: Manifest) -> Plot:
    head = ("Batch sizes", "rows in the batch", "executions", "bar")
    batches, triton = summary.measure.batches, summary.measure.triton
    if batches is not None:
        counts, note = batches.rows_histogram, "From the models' own record."
    elif triton is not None:
        counts, note = triton.batch_size_histogram, "From Triton's statistics."
    else:
        return Plot(*head, absent=missing_reason(manifest, "triton"))
    histogram = {int(size): float(n) for size, n in counts.items()}
    return Plot(*head, (Series("executions", [float(s) for s in histogram], list(histogram.values())),), note)


def _sampled(table: pa.Table, key: str, values: Floats, label: str, origin_ns: int) -> list[Series]:
    """One series of `values` for each value of column `key`, every k-th kept beyond `MOST_POINTS`."""
    keys = np.array([str(word) for word in table.column(key).to_pylist()])
    t_s = (table.column("t_ns").to_numpy() - origin_ns) / NS_PER_S
    series = []
    for word in sorted(set(keys.tolist())):
        own = np.flatnonzero(keys == word)
        own = own[np.argsort(t_s[own])][:: max(1, len(own) // MOST_POINTS)]
        series.append(Series(f"{label} {word}", t_s[own].tolist(), values[own].tolist()))
    return series


def _columns(table: pa.Table, names: Sequence[str]) -> list[Floats]:
    return [np.asarray(table.column(name).to_numpy(), dtype=np.float64) for name in names]


def _host_plot(store: RunStore, manifest: Manifest, origin_ns: int) -> Plot:
    head = ("CPU of the nodes", TIME, "share of all cores, %", "line")
    if not store.has("host_samples"):
        return Plot(*head, absent=missing_reason(manifest, "host"))
    samples = store.read("host_samples")
    idle, iowait, steal = _columns(samples, ["cpu_idle", "cpu_iowait", "cpu_steal"])
    busy = _sampled(samples, "node", 100 * (1 - idle - iowait), "busy", origin_ns)
    return Plot(*head, (*busy, *_sampled(samples, "node", 100 * steal, "steal", origin_ns)))


def _worker_plot(store: RunStore, is_open: bool, manifest: Manifest, origin_ns: int) -> Plot:
    head = ("Lag of the load generators", TIME, "lag, ms", "line")
    if not store.has("worker_samples"):
        return Plot(*head, absent=missing_reason(manifest, "workers"))
    samples = store.read("worker_samples")
    loop, lag = (values / NS_PER_MS for values in _columns(samples, ["loop_lag_ns", "lag_max_ns"]))
    label = "largest send lag, worker" if is_open else "largest delay after a think time, worker"
    sends = _sampled(samples, "worker", lag, label, origin_ns)
    return Plot(*head, (*sends, *_sampled(samples, "worker", loop, "event loop, worker", origin_ns)))
