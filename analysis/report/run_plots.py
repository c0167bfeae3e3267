"""The plots of a run's report, reduced from the tables to a few thousand points.

Times are seconds from the agreed start, latencies ms, shares per cent: the units of the axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Bools, Floats, Int64s
from squall.analysis.limits import LIMITS
from squall.analysis.metrics.windows import WINDOW_NS
from squall.analysis.report.accounting import BANDS
from squall.analysis.report.plots import Plot, Trace, bars, curve, points
from squall.analysis.report.summary_file import Summary
from squall.analysis.requests.asked import asked_users
from squall.analysis.requests.at_once import steps
from squall.analysis.requests.requests import Requests, together
from squall.analysis.requests.stimulus import compare_dispersion, sends_of
from squall.analysis.requests.streams import COLUMNS, measured_times
from squall.analysis.requests.user_watch import per_second
from squall.analysis.statistics.latency import INFINITE_NS
from squall.analysis.statistics.stretches import run_lengths
from squall.analysis.storage.locust import LocustFacts
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans, phase_spans
from squall.analysis.wording import LATENCY_LABELS
from squall.scenarios.units import NS_PER_MS, NS_PER_S

MOST_POINTS = 2_000
"""Points of a curve: more than a screen has pixels across."""
CURVE_NS = tuple(tenths * (NS_PER_S // 10) for tenths in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000))
"""Windows of the curve of dispersion, from 0.1 to 100 s."""

TIME = "time from start, s"


def bin_ns_for(span_ns: int) -> int:
    """Bin of plots over time: the least of 0.1, 1, 10, 60 … s that keeps within `MOST_POINTS`."""
    for bin_ns in (NS_PER_S // 10, NS_PER_S, 10 * NS_PER_S, 60 * NS_PER_S, 600 * NS_PER_S):
        if span_ns // bin_ns <= MOST_POINTS:
            return bin_ns
    return 3_600 * NS_PER_S


_BINNED = {
    "n_arrivals": ("sum", "scheduled"),
    "n_sent": ("sum", "sent"),
    "in_flight": ("max", "in flight"),
    "queue_depth": ("max", "in the queue"),
}
"""Columns of `windows` that plots show: what a bin has of them, and what they are called."""


def bin_windows(windows: pa.Table, origin_ns: int, bin_ns: int) -> dict[str, Floats]:
    """Columns of `windows` per bin from `origin_ns`: counts summed, depths their largest, `t_s` its start; NaN where
    none is known.

    The bin at an end whose windows do not fill it has no counts: they would read as a rate that fell.
    """
    numbers = (windows["t_ns"].to_numpy() - origin_ns) // bin_ns
    grouped = windows.append_column("bin", pa.array(numbers)).group_by("bin")
    aggregates = [(name, how) for name, (how, _) in _BINNED.items()]
    found = grouped.aggregate([*aggregates, ("t_ns", "count")]).sort_by("bin")
    is_part = found["t_ns_count"].to_numpy() < bin_ns // WINDOW_NS
    is_part[1:-1] = False
    binned = {"t_s": found["bin"].to_numpy() * (bin_ns / NS_PER_S)}
    for name, how in aggregates:
        values = found[f"{name}_{how}"].to_numpy().astype(np.float64)
        binned[name] = np.where(is_part, np.nan, values) if how == "sum" else values
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


def ccdf(values: Int64s, n: int, most_points: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """(x, share of `n` rows above that), exact at each of at most `most_points` of the `values`, the finite ones of
    these rows; the others are above anything, so that the curve ends at their share.

    Points lie evenly in the logarithm of the share, so that the tail keeps every row. Values of 0 or less are left out:
    the axis is logarithmic. Empty where none is below another.
    """
    ascending = np.sort(values)
    steps = np.unique(np.round(np.geomspace(1, max(1, len(values)), most_points)).astype(np.int64))
    picked = np.unique(ascending[len(values) - steps] if len(values) else ascending)
    share = 1.0 - np.searchsorted(ascending, picked, side="right") / n if n else np.ones(0)
    is_drawn = (share > 0) & (picked > 0)
    return picked[is_drawn].astype(np.float64), share[is_drawn]


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


def run_plots(store: RunStore, summary: Summary) -> list[Plot]:
    """The plots of a run, in the order of the report. What a run did not record says so in `absent`."""
    spans = phase_spans(store.manifest)
    origin_ns = store.manifest.start_ns or (spans[0].start_ns if spans else 0)
    requests = Requests.read(store)
    drawn = _Drawn(
        store,
        summary,
        requests,
        requests.in_phases(summary.measure.phases),
        origin_ns,
        bin_ns_for(spans[-1].end_ns - origin_ns if spans else 0),
    )
    measured_s = [
        (span.name, (span.start_ns - origin_ns) / NS_PER_S, (span.end_ns - origin_ns) / NS_PER_S)
        for span in measure_spans(store.manifest)
    ]
    return [replace(one, measured=measured_s) if one.x_label == TIME else one for one in drawn.plots()]


def _floats(values: Floats) -> list[float | None]:
    """As plain numbers; infinity and what was null become None."""
    return [float(value) if np.isfinite(value) and value >= 0 else None for value in values]


_PARTS_NOTES = {
    "batch": "Wait: network, server front end and queue. Reply: the way back.",
    "server": "Network and handover both ways; residual: what the other parts do not explain.",
    "device": "Head, tail: of the batch before its first and after its last operation on the GPU; launch idle: the GPU "
    "waits for the next launch; residual: what the other parts do not explain.",
}


@dataclass(frozen=True)
class _Drawn:
    """A run whose plots are made: all its requests, those of the measured phases, where the axes of time begin, and
    the bins on them."""

    store: RunStore
    summary: Summary
    requests: Requests
    measured: Requests
    origin_ns: int
    bin_ns: int

    def plots(self) -> Iterator[Plot]:
        yield from self._of_windows()
        if self.requests.is_open:
            yield self._dispersion()
        yield self._latency()
        yield self._slower()
        if (locust := self.store.manifest.locust) is not None:
            yield self._users(locust)
        if self.summary.measure.streams is not None:
            yield from self._streams()
        yield self._parts()
        yield self._batches()
        yield self._sampled(
            "host_samples",
            "host",
            "node",
            Plot("CPU of the nodes", TIME, "share of all cores, %", "line"),
            lambda of: {
                "busy": 100 * (1 - of("cpu_idle") - of("cpu_iowait")),
                "steal": 100 * of("cpu_steal"),
            },
        )
        lag = "send lag" if self.requests.is_open else "delay after a think time"
        yield self._sampled(
            "worker_samples",
            "workers",
            "worker",
            Plot("Lag of the load generators", TIME, "lag, ms", "line"),
            lambda of: {
                f"largest {lag}, worker": of("lag_max_ns") / NS_PER_MS,
                "event loop, worker": of("loop_lag_ns") / NS_PER_MS,
            },
        )

    def _missing(self, collector: str) -> str:
        """Why a collector has nothing, and the mend, as the manifest states it."""
        one = self.store.manifest.collectors.get(collector)
        if one is None or one.status == "on":
            return "not recorded: the run has no such table"
        return f"not recorded: {one.reason or one.status}" + (f"; {one.mend}" if one.mend else "")

    def _seconds(self, t_ns: Int64s | Floats) -> Floats:
        return (t_ns - self.origin_ns) / NS_PER_S

    def _of_windows(self) -> Iterator[Plot]:
        is_open, bin_s = self.requests.is_open, self.bin_ns / NS_PER_S
        sent = Plot(
            "Arrivals: scheduled and sent" if is_open else "Requests sent by the users",
            TIME,
            f"requests per {bin_s:g} s",
            "step",
            note="The two lines lie on one another while the client keeps up."
            if is_open
            else "The users wait for their replies: the load follows the server.",
            section="stimulus" if is_open else "",
        )
        depth = Plot(
            "In flight and in the queue",
            TIME,
            "requests",
            "line",
            note=f"At the end of each 100 ms, largest of each {bin_s:g} s. In the queue: its batch not begun.",
        )
        if not self.store.has("windows"):
            yield from (replace(one, absent="not derived yet: run `squall analyze`") for one in (sent, depth))
            return
        windows = self.store.read("windows", ["t_ns", *_BINNED])
        binned = bin_windows(windows, self.origin_ns, self.bin_ns)
        t_s = binned["t_s"].tolist()
        traces = [curve(label, t_s, _floats(binned[name])) for name, (_, label) in _BINNED.items()]
        yield replace(sent, traces=traces[0 if is_open else 1 : 2])
        yield replace(depth, traces=traces[2:])

    def _dispersion(self) -> Plot:
        spans = measure_spans(self.store.manifest)
        traces: list[Trace] = []
        for sends in sends_of(self.requests, spans):
            planned, sent = sends.all_planned_ns, sends.all_sent_ns
            compared = [
                compare_dispersion(planned, sent, sends.span, width_ns, LIMITS) for width_ns in CURVE_NS
            ]
            known = [(float(place), one) for place, one in enumerate(compared) if one is not None]
            x = [place for place, _ in known]
            traces.append(curve(sends.span.name, x, [100.0 * one.change_ratio for _, one in known]))
            if len(spans) == 1:
                limit = [100.0 * one.limit_ratio for _, one in known]
                traces.append(curve("upper limit", x, limit))
                traces.append(curve("lower limit", x, [-one for one in limit]))
        n_carried = max((len(one["x"]) for one in traces), default=0)
        return Plot(
            "Dispersion: sent against planned",
            "window",
            "sent over planned, %",
            "line",
            traces if n_carried else (),
            "Index of dispersion: variance over mean of the counts per window. The limits hold at 0.1, 1, 10 and 100"
            " s.",
            "" if n_carried else "no measure phase holds ten windows with arrivals",
            x_ticks=[f"{width_ns / NS_PER_S:g} s" for width_ns in CURVE_NS[:n_carried]],
            section="stimulus",
        )

    def _latency(self) -> Plot:
        begun = self.requests.take(together(self.requests.has_begun))
        is_failed, percents, bin_ns = ~begun.is_ok, (50, 95), max(NS_PER_S, self.bin_ns)
        t_s, values_ms = quantile_by_bin(
            begun.begin_ns, begun.latency_ns, is_failed, self.origin_ns, bin_ns, percents
        )
        traces = [
            curve(f"p{percent}", t_s.tolist(), own) for percent, own in zip(percents, values_ms, strict=True)
        ]
        failed_s = self._seconds(begun.begin_ns[is_failed][:MOST_POINTS]).tolist()
        cross = {"symbol": "x-thin", "size": 8, "line": {"width": 2, "color": "#000000"}}
        traces.append({**points("failed", failed_s, [0.0] * len(failed_s)), "marker": cross})
        what = "arrivals scheduled" if begun.is_open else "requests sent"
        note = f"Of the {what} in each {bin_ns / NS_PER_S:g} s. A gap: the quantile fell on failures."
        name = begun.latency_name
        return Plot(f"{name.capitalize()} time", TIME, f"{name}, ms", "line", traces, note)

    def _slower(self) -> Plot:
        ended, sent = together(self.measured.is_ok), together(self.measured.is_sent)
        traces = [
            self._slower_than(
                label,
                getattr(self.measured, f"{kind}_ns")[sent if kind == "lag" else ended],
                len(self.measured),
            )
            for kind, label in LATENCY_LABELS["open" if self.measured.is_open else "closed"].items()
        ]
        note = (
            "Every measured request counts; a curve that ends above the floor ends at the share that failed."
        )
        return Plot("Share of requests slower than", "time, ms", "share of requests", "ccdf", traces, note)

    def _slower_than(self, name: str, values_ns: Int64s, n: int) -> Trace:
        x_ns, share = ccdf(values_ns, n)
        return curve(name, (x_ns / NS_PER_MS).tolist(), share.tolist())

    def _users(self, locust: LocustFacts) -> Plot:
        """Users of Locust over time."""
        plot = Plot("Users of Locust", TIME, "users", "line", section="locust")
        if not self.store.has("locust_samples"):
            return replace(plot, absent="not recorded: the run has no such table")
        samples = self.store.read("locust_samples")
        t_ns, present = per_second(samples, "n_users")
        thinned = slice(None, None, max(1, len(t_ns) // MOST_POINTS))
        counts = {
            "asked for": asked_users(locust, t_ns),
            "present": present,
            "thinking": per_second(samples, "n_thinking")[1],
        }
        t_s = self._seconds(t_ns)[thinned].tolist()
        traces = [curve(name, t_s, _floats(values[thinned])) for name, values in counts.items()]
        note = "At each second, over all workers; present and not thinking: in a request, in code, or late to wake."
        return replace(plot, traces=traces, note=note)

    def _streams(self) -> Iterator[Plot]:
        """Of requests that are answered response by response."""
        measured, requests = self.measured, self.requests
        times = measured_times(self.store.read("responses", COLUMNS), measured, self.summary.measure.phases)
        traces = [
            self._slower_than("first response", times.waits_ns[times.has_any], len(times.waits_ns)),
            self._slower_than("gap", times.gaps_ns, len(times.gaps_ns)),
        ]
        since = "the scheduled instant" if measured.is_open else "the send"
        note = f"First responses since {since}; a gap is from a response to the next of its request."
        title = "Share of first responses and gaps longer than"
        yield Plot(title, "time, ms", "share", "ccdf", traces, note, section="streams")
        is_known = requests.is_sent & requests.is_done
        changes = steps(requests.sent_ns[is_known], requests.done_ns[is_known])
        t_s, most = largest_by_bin(*changes, self.origin_ns, self.bin_ns)
        bin_s = self.bin_ns / NS_PER_S
        note = f"Requests whose responses have not all come, of all phases: most in each {bin_s:g} s."
        flying = [curve("in flight", t_s.tolist(), _floats(most))]
        yield Plot("Streams in flight", TIME, "streams", "step", flying, note, section="streams")

    def _parts(self) -> Plot:
        name, join = self.measured.latency_name, self.summary.measure.join
        plot = Plot(f"Where the {name} time goes", f"band of {name} time", "mean time, ms", "bar")
        account = join.accounting if join is not None else None
        if account is None:
            return replace(plot, absent=self._missing("batches"))
        x = [float(place) for place in range(len(BANDS))]
        traces = [
            bars(part, x, [None if mean is None else mean / NS_PER_MS for mean in means])
            for part, means in account.bands.items()
        ]
        note = f"{_PARTS_NOTES[account.level]} Ok requests joined by id."
        return replace(plot, traces=traces, note=note, x_ticks=BANDS)

    def _batches(self) -> Plot:
        plot = Plot("Batch sizes", "rows in the batch", "executions", "bar")
        batches, triton = self.summary.measure.batches, self.summary.measure.triton
        if batches is not None:
            counts, note = batches.rows_histogram, "From the models' own record."
        elif triton is not None:
            counts, note = triton.batch_size_histogram, "From Triton's statistics."
        else:
            return replace(plot, absent=self._missing("triton"))
        sizes, n = [float(size) for size in counts], [float(n) for n in counts.values()]
        return replace(plot, traces=[bars("executions", sizes, n)], note=note)

    def _sampled(
        self,
        table: str,
        collector: str,
        key: str,
        plot: Plot,
        values: Callable[[Callable[[str], Floats]], dict[str, Floats]],
    ) -> Plot:
        """Curves of each node or worker that was sampled, every k-th sample of more than `MOST_POINTS`; `values` makes
        those of all, by their label, of columns."""
        if not self.store.has(table):
            return replace(plot, absent=self._missing(collector))
        samples = self.store.read(table).sort_by("t_ns")
        words = np.array([str(word) for word in samples[key].to_pylist()])
        t_s, traces = self._seconds(samples["t_ns"].to_numpy()), []
        for label, column in values(lambda name: samples[name].to_numpy().astype(np.float64)).items():
            for word in np.unique(words):
                own = np.flatnonzero(words == word)
                own = own[:: max(1, len(own) // MOST_POINTS)]
                traces.append(curve(f"{label} {word}", t_s[own].tolist(), column[own].tolist()))
        return replace(plot, traces=traces)
