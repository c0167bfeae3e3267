"""The plots of a run's report, reduced from the tables to a few thousand points.

Times are seconds from the agreed start, latencies ms, shares per cent: the units of the axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from squall.analysis.arrays import Floats, Int64s
from squall.analysis.limits import LIMITS
from squall.analysis.metrics.windows import WINDOW_NS
from squall.analysis.report.accounting import BANDS
from squall.analysis.report.plots import Plot, Trace, bars, curve, points
from squall.analysis.report.summary_file import Summary
from squall.analysis.requests.asked import asked_users
from squall.analysis.requests.requests import Requests, together
from squall.analysis.requests.stimulus import compare_dispersion, sends_of
from squall.analysis.requests.streams import COLUMNS, measured_times
from squall.analysis.requests.user_watch import per_second
from squall.analysis.storage.locust import LocustFacts
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans, phase_spans
from squall.analysis.wording import LATENCY_LABELS
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    import duckdb

MOST_POINTS = 2_000
"""Points of a curve: more than a screen has pixels across."""
CURVE_NS = tuple(tenths * (NS_PER_S // 10) for tenths in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000))
"""Windows of the curve of dispersion, from 0.1 to 100 s."""

TIME = "time from start, s"

# Queries of curves: x, then a column for each curve. $origin: where the axis of time begins; $bin: length of a bin, ns.
WINDOWS = f"""
-- of the windows of each bin counts in all and depths at most; the bin at an end whose windows do not fill it has no
-- counts, which would read as a rate that fell
SELECT bin * $bin / 1e9 AS t_s, CASE WHEN is_whole THEN n_arrivals END AS scheduled,
    CASE WHEN is_whole THEN n_sent END AS sent, in_flight AS "in flight", queue_depth AS "in the queue"
FROM (
    SELECT bin, sum(n_arrivals) AS n_arrivals, sum(n_sent) AS n_sent, max(in_flight) AS in_flight,
        max(queue_depth) AS queue_depth,
        count(*) >= $bin // {WINDOW_NS} OR bin NOT IN (min(bin) OVER (), max(bin) OVER ()) AS is_whole
    FROM (SELECT *, floor((t_ns - $origin) / $bin) AS bin FROM windows) GROUP BY bin)
ORDER BY bin
"""
LATENCY = """
-- nearest-rank quantiles of the requests that begin in each bin, null where they fall on failures
SELECT bin * $bin / 1e9 AS t_s, nullif(ms[1], 'infinity') AS p50, nullif(ms[2], 'infinity') AS p95
FROM (
    SELECT floor(({begin} - $origin) / $bin) AS bin,
        quantile_disc(CASE WHEN outcome = 'ok' THEN (done_ns - {begin}) / 1e6 ELSE 'infinity' END, [0.5, 0.95]) AS ms
    FROM requests WHERE {begin} IS NOT NULL GROUP BY bin)
ORDER BY bin
"""
_FAILED = f"""
SELECT ({{begin}} - $origin) / 1e9 AS t_s, 0::DOUBLE AS failed FROM requests
WHERE outcome <> 'ok' AND {{begin}} IS NOT NULL ORDER BY {{begin}}, request_id LIMIT {MOST_POINTS}
"""
IN_FLIGHT = """
-- the most requests in flight at once in each bin: at its begin, where nothing changes, or from a change on
WITH known AS (SELECT sent_ns, done_ns FROM requests WHERE sent_ns IS NOT NULL AND done_ns IS NOT NULL),
changes AS (
    SELECT sent_ns AS t_ns, 1 AS step FROM known UNION ALL SELECT done_ns, -1 FROM known
    UNION ALL SELECT $origin + $bin * unnest(range(first, last + 1)), 0 FROM (
        SELECT floor((min(sent_ns) - $origin) / $bin)::BIGINT AS first,
            floor((max(done_ns) - $origin) / $bin)::BIGINT AS last FROM known))
SELECT floor((t_ns - $origin) / $bin) * $bin / 1e9 AS t_s, max(n) AS "in flight"
FROM (SELECT t_ns, sum(sum(step)) OVER (ORDER BY t_ns) AS n FROM changes GROUP BY t_ns) GROUP BY t_s ORDER BY t_s
"""
_SAMPLED = f"""
-- by node or worker; of more than so many every k-th
SELECT {{source}}, list((t_ns - $origin) / 1e9 ORDER BY t_ns), list({{value}} ORDER BY t_ns)
FROM (SELECT *, row_number() OVER (PARTITION BY {{source}} ORDER BY t_ns) - 1 AS place,
    count(*) OVER (PARTITION BY {{source}}) AS n FROM {{table}})
WHERE place % greatest(1, n // {MOST_POINTS}) = 0 GROUP BY {{source}} ORDER BY {{source}}::VARCHAR
"""


def bin_ns_for(span_ns: int) -> int:
    """Bin of plots over time: the least of 0.1, 1, 10, 60 … s that keeps within `MOST_POINTS`."""
    for bin_ns in (NS_PER_S // 10, NS_PER_S, 10 * NS_PER_S, 60 * NS_PER_S, 600 * NS_PER_S):
        if span_ns // bin_ns <= MOST_POINTS:
            return bin_ns
    return 3_600 * NS_PER_S


def curves(connection: duckdb.DuckDBPyConnection, sql: str, **given: int) -> list[Trace]:
    """A curve for each column of a query but the first, which is their x, under its name."""
    found = connection.execute(sql, given)
    names = [name for name, *_ in found.description or ()]
    rows = found.fetchall()
    x, *columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return [curve(name, x, y) for name, y in zip(names[1:], columns, strict=True)]


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


def run_plots(store: RunStore, summary: Summary) -> list[Plot]:
    """The plots of a run, in the order of the report. What a run did not record says so in `absent`."""
    spans = phase_spans(store.manifest)
    origin_ns = store.manifest.start_ns or (spans[0].start_ns if spans else 0)
    requests = Requests.read(store)
    tables = ("requests", "windows", "host_samples", "worker_samples")
    with connect(store, [*filter(store.has, tables)]) as connection:
        drawn = _Drawn(
            store,
            summary,
            requests,
            requests.in_phases(summary.measure.phases),
            connection,
            origin_ns,
            bin_ns_for(spans[-1].end_ns - origin_ns if spans else 0),
        )
        plots = [*drawn.plots()]
    measured_s = [
        (span.name, (span.start_ns - origin_ns) / NS_PER_S, (span.end_ns - origin_ns) / NS_PER_S)
        for span in measure_spans(store.manifest)
    ]
    return [replace(one, measured=measured_s) if one.x_label == TIME else one for one in plots]


_PARTS_NOTES = {
    "batch": "Wait: network, server front end and queue. Reply: the way back.",
    "server": "Network and handover both ways; residual: what the other parts do not explain.",
    "device": "Head, tail: of the batch before its first and after its last operation on the GPU; launch idle: the GPU "
    "waits for the next launch; residual: what the other parts do not explain.",
}


class _Drawn(Frozen):
    """A run whose plots are made: all its requests, those of the measured phases, its tables, where the axes of time
    begin, and the bins on them."""

    store: RunStore
    summary: Summary
    requests: Requests
    measured: Requests
    connection: duckdb.DuckDBPyConnection
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
            Plot("CPU of the nodes", TIME, "share of all cores, %", "line"),
            ("host", "host_samples", "node"),
            {"busy": "100 * (1::DOUBLE - cpu_idle - cpu_iowait)", "steal": "100 * cpu_steal::DOUBLE"},
        )
        lag = "send lag" if self.requests.is_open else "delay after a think time"
        yield self._sampled(
            Plot("Lag of the load generators", TIME, "lag, ms", "line"),
            ("workers", "worker_samples", "worker"),
            {f"largest {lag}, worker": "lag_max_ns / 1e6", "event loop, worker": "loop_lag_ns / 1e6"},
        )

    def _missing(self, collector: str) -> str:
        """Why a collector has nothing, and the mend, as the manifest states it."""
        one = self.store.manifest.collectors.get(collector)
        if one is None or one.status == "on":
            return "not recorded: the run has no such table"
        return f"not recorded: {one.reason or one.status}" + (f"; {one.mend}" if one.mend else "")

    def _curves(self, sql: str, **given: int) -> list[Trace]:
        begin = "scheduled_ns" if self.requests.is_open else "sent_ns"
        return curves(self.connection, sql.format(begin=begin), origin=self.origin_ns, **given)

    def _of_windows(self) -> Iterator[Plot]:
        is_open, bin_s = self.requests.is_open, self.bin_ns / NS_PER_S
        is_there = self.store.has("windows")
        traces = self._curves(WINDOWS, bin=self.bin_ns) if is_there else []
        absent = "" if is_there else "not derived yet: run `squall analyze`"
        yield Plot(
            "Arrivals: scheduled and sent" if is_open else "Requests sent by the users",
            TIME,
            f"requests per {bin_s:g} s",
            "step",
            traces[0 if is_open else 1 : 2],
            "The two lines lie on one another while the client keeps up."
            if is_open
            else "The users wait for their replies: the load follows the server.",
            absent,
            section="stimulus" if is_open else "",
        )
        note = f"At the end of each 100 ms, largest of each {bin_s:g} s. In the queue: its batch not begun."
        yield Plot("In flight and in the queue", TIME, "requests", "line", traces[2:], note, absent)

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
        bin_ns, name = max(NS_PER_S, self.bin_ns), self.requests.latency_name
        (failed,) = self._curves(_FAILED)
        cross = {"symbol": "x-thin", "size": 8, "line": {"width": 2, "color": "#000000"}}
        traces = [
            *self._curves(LATENCY, bin=bin_ns),
            {**points("failed", failed["x"], failed["y"]), "marker": cross},
        ]
        what = "arrivals scheduled" if self.requests.is_open else "requests sent"
        note = f"Of the {what} in each {bin_ns / NS_PER_S:g} s. A gap: the quantile fell on failures."
        return Plot(f"{name.capitalize()} time", TIME, f"{name}, ms", "line", traces, note)

    def _slower(self) -> Plot:
        own = self.measured
        ended, sent = together(own.is_ok), together(own.is_sent)
        traces = [
            _slower_than(label, getattr(own, f"{kind}_ns")[sent if kind == "lag" else ended], len(own))
            for kind, label in LATENCY_LABELS["open" if own.is_open else "closed"].items()
        ]
        note = (
            "Every measured request counts; a curve that ends above the floor ends at the share that failed."
        )
        return Plot("Share of requests slower than", "time, ms", "share of requests", "ccdf", traces, note)

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
        t_s = ((t_ns - self.origin_ns) / NS_PER_S)[thinned].tolist()
        traces = [curve(name, t_s, values[thinned].tolist()) for name, values in counts.items()]
        note = "At each second, over all workers; present and not thinking: in a request, in code, or late to wake."
        return replace(plot, traces=traces, note=note)

    def _streams(self) -> Iterator[Plot]:
        """Of requests that are answered response by response."""
        responses = self.store.read("responses", COLUMNS)
        times = measured_times(responses, self.measured, self.summary.measure.phases)
        traces = [
            _slower_than("first response", times.waits_ns[times.has_any], len(times.waits_ns)),
            _slower_than("gap", times.gaps_ns, len(times.gaps_ns)),
        ]
        since = "the scheduled instant" if self.measured.is_open else "the send"
        note = f"First responses since {since}; a gap is from a response to the next of its request."
        title = "Share of first responses and gaps longer than"
        yield Plot(title, "time, ms", "share", "ccdf", traces, note, section="streams")
        note = f"Requests whose responses have not all come, of all phases: most in each {self.bin_ns / NS_PER_S:g} s."
        traces = self._curves(IN_FLIGHT, bin=self.bin_ns)
        yield Plot("Streams in flight", TIME, "streams", "step", traces, note, section="streams")

    def _parts(self) -> Plot:
        name, join = self.measured.latency_name, self.summary.measure.join
        plot = Plot(f"Where the {name} time goes", f"band of {name} time", "mean time, ms", "bar")
        account = join.accounting if join is not None else None
        if account is None:
            return replace(plot, absent=self._missing("batches"))
        traces = [
            bars(part, [*range(len(BANDS))], [None if mean is None else mean / NS_PER_MS for mean in means])
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
        return replace(plot, traces=[bars("executions", [*map(int, counts)], [*counts.values()])], note=note)

    def _sampled(self, plot: Plot, of: tuple[str, str, str], values: dict[str, str]) -> Plot:
        """Curves of each node or worker that was sampled. `of`: the collector, its table, and the column that names
        each; `values`: by the label of a curve what it shows, of columns."""
        collector, table, source = of
        if not self.store.has(table):
            return replace(plot, absent=self._missing(collector))
        traces = [
            curve(f"{label} {name}", t_s, y)
            for label, value in values.items()
            for name, t_s, y in self.connection.execute(
                _SAMPLED.format(source=source, value=value, table=table), {"origin": self.origin_ns}
            ).fetchall()
        ]
        return replace(plot, traces=traces)


def _slower_than(name: str, values_ns: Int64s, n: int) -> Trace:
    x_ns, share = ccdf(values_ns, n)
    return curve(name, (x_ns / NS_PER_MS).tolist(), share.tolist())
