"""What is cold told apart from what is slow: leftovers of the phase before, and a first stretch unlike the rest.

Executions are compared at equal batch size. Of each size (by server, model, device) the base is the median time of the
executions in the last third of the phase; a size that is not among them lies on a line between those that are, beyond
the largest in proportion, and below that where its own later executions took less. An execution is slow where it takes
1.5 times the base, or more than nine tenths of the last third do. With F(t) the time that slow executions took beyond
their base up to t, the stretch is the one from the start that lies furthest above an even spread:

    T = argmax F(t) / F(end) - t / end

and it is cold where the rest has nothing like it: F grows in it at five times the rate of the rest, no window of the
rest as long as T holds half as much (a model that is slow now and then has such windows), and either most of it belongs
to the first executions of a size by an instance, which are slow far more often than others, or most of the time that
the stretch executes is slow, from its beginning on, and the phase before did not end at the speed of the rest. First
executions that are spread over the phase are cold too, each with what follows it. From there a stretch lasts until
requests take no longer than in the last third: the queue that it left is part of it.

What the executions are made of: table `batch_costs`; else Triton's statistics, a sample standing for its executions;
else the requests, 1 / 200 of the phase standing for one execution of as many rows as are in flight: a queue that
arrivals make takes as long for each request in it as any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from squall.analysis.arrays import Bools, Floats, Int64s
from squall.analysis.intervals import joined_up
from squall.analysis.requests.requests import Requests, together
from squall.analysis.statistics.latency import Quantile, quantiles
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.parquet import literal
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect, rows
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, phase_spans
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

if TYPE_CHECKING:
    import duckdb

COLD, LEFTOVERS, DRIFT, NOTHING = "cold", "leftovers", "drift", "none"
BATCHES, STATISTICS, RESPONSES = "batches", "statistics", "responses"

SLOW_RATIO = 1.5
"""Of the base, from which an execution counts as slow: what a first one costs is several times that, what noise does to
a warm one is mostly less."""
RATE_RATIO = 5.0
"""How much faster excess must grow in the stretch than after it."""
SHARES = (1.0, 0.9, 0.75, 0.5)
"""Of that excess, where the stretch may end: a size that is rare comes for the first time long after all others. Of
those that are cold the one that tells late requests apart best."""
WINDOW_RATIO, ROUGH_WINDOW_RATIO = 0.5, 0.25
"""Of the stretch's excess: with as much in a window of the rest, that rest is slow at times too. The second where no
batch is known, and a spell's excess is that of the queue it happens to meet."""
FIRST_RATIO = 0.3
"""Share of first executions that must be slow, and three times the share of others, before being first is the cause."""
DRIFT_RATIO = 1.3
"""How much longer executions of one size must take at the end than at the beginning: beyond what neighbours on a shared
host do to a median."""
LATE_RATIO = 0.1
"""Share of the late requests from which a stretch is worth a line: half of that moves no p95 by much."""
LATE_OF_ALL_RATIO = 0.001
"""Share of all requests that these must be: a tenth of what a p99 leaves. Seen on an H200: 9 late of 22,403 after a
good warm-up, p95 3.28 ms with and 3.23 ms without them."""
EXCESS_OF_SHARE = 1.5
"""How many times its share of the requests that must be."""
LEAST_LATE = 3
N_EARLY = 3
"""Executions of a size by an instance that may pay for its being new: just-in-time compilers profile two runs."""
_LEAST_REST, _LEAST_LATER = 5, 3
"""Executions that a median of the last third, or of later ones, is made of at least."""
_N_WINDOWS = 200
_N_CANDIDATES = 4_096
_N_SEGMENTS = 6
_MARGIN = 1.25
"""Of the time until the executions were warm: another start takes somewhat longer or shorter."""
_NICE_S = (1, 2, 3, 5, 8, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 900, 1_800, 3_600)


class Stretch(NamedTuple):
    """[begin, end) from the start of the phase, ns."""

    begin_ns: int
    end_ns: int


class Inherited(Frozen):
    """Requests of earlier phases in flight at the start of a phase. `oldest_ns`: age of the oldest, 0 of none;
    `until_ns`: when the last of them ended, from the start."""

    n: int
    oldest_ns: int
    until_ns: int


class WarmUpAdvice(Frozen):
    """A warm-up that ends before anything is measured cold. `phase`: the one to change, empty where there is none yet.
    `rate_hz`: what to raise or lower it to, None: its own is enough; `sizes_count`: batch sizes that were measured."""

    phase: str
    duration_ns: int
    rate_hz: float | None
    is_lower: bool
    sizes_count: int


class ColdFigures(Frozen):
    """How a measured phase began. `kind`: cold, leftovers (of the phase before, at normal speed), drift (executions
    grow longer towards the end), none. `source`: batches, statistics or responses, what it is told by; empty where the
    phase has too little.

    `stretches` hold `n` of the `n_of_phase` requests, and `n_late` of the `n_late_of_phase` late ones: those from
    `late_from_ns`, the limit of the promise `late_of`, else the p95 of the rest. `executed_ns`: until when executions
    were slow; `is_of_first`: most of it for being the first of their size; `slow_ratio`: time of a slow one over its
    base, the median; `excess_ns`: time beyond the base of all slow ones in the first stretch. `n_first` first
    executions of a batch size by an instance lie in the phase, `n_first_slow` of them slow, by `first_excess_ns` in
    all. `without`: quantiles of the latency of all other requests of the phase. `drift_ratio`: time of an execution in
    the last sixth over that in the first, at equal size.
    """

    phase: str
    kind: str
    source: str
    inherited: Inherited
    stretches: tuple[Stretch, ...]
    is_stated: bool
    n: int
    n_late: int
    n_of_phase: int
    n_late_of_phase: int
    late_from_ns: int | None
    late_of: str
    executed_ns: int
    is_of_first: bool
    slow_ratio: float | None
    excess_ns: int
    n_first: int
    n_first_slow: int
    first_excess_ns: int
    without: tuple[Quantile, ...]
    drift_ratio: float | None
    advice: WarmUpAdvice | None

    STATED: ClassVar = ("late_ratio", "length_ns")

    @property
    def late_ratio(self) -> float:
        """Share of the late requests that the stretches hold."""
        return self.n_late / self.n_late_of_phase if self.n_late_of_phase else 0.0

    @property
    def length_ns(self) -> int:
        """Of all stretches together."""
        return sum(one.end_ns - one.begin_ns for one in self.stretches)


class LateFrom(NamedTuple):
    """What makes a request late: a latency of `ns` or more, by the promise `text`."""

    ns: int
    text: str


def cold_figures(
    store: RunStore,
    requests: Requests,
    spans: Sequence[RunPhase],
    qs: Sequence[float],
    limits: Mapping[str, LateFrom],
    models: frozenset[tuple[str, str]] = frozenset(),
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
) -> dict[str, ColdFigures]:
    """How each of the measured phases `spans` began. `requests`: all of the run. `limits`: by phase what is late.
    `models`: server and model of each that the load is for, and their steps; empty: all."""
    tables = [name for name in ("batch_costs", "triton_samples") if store.has(name)]
    found = {}
    names = ("target", "request_kind", "phase", "sent_ns", "is_sent", "done_ns", "is_done")
    with connect(store, tables, memory_limit_bytes) as connection:
        every = requests.table(*names, "begin_ns", "has_begun")
        connection.register("requests", every)
        if "batch_costs" in tables:
            connection.execute(_FIRSTS.format(n_early=N_EARLY))
        for span in spans:
            looked = _Phase.of(connection, requests, span)
            if looked is not None:
                executions = _executions(connection, tables, looked, models)
                found[span.name] = _of_phase(store.manifest, looked, executions, qs, limits.get(span.name))
    return found


def is_within(stretches: Sequence[Stretch], at_ns: Int64s) -> Bools:
    """Whether each instant, from the start of the phase, lies in one of the stretches."""
    found: Bools = np.zeros(len(at_ns), dtype=np.bool_)
    for begin_ns, end_ns in stretches:
        found |= (at_ns >= begin_ns) & (at_ns < end_ns)
    return found


def is_much(n: int, n_late: int, n_of_all: int, n_late_of_all: int) -> bool:
    """Whether `n_late` late of `n` requests are worth a line, of `n_late_of_all` among `n_of_all`."""
    least = max(LEAST_LATE, LATE_RATIO * n_late_of_all, LATE_OF_ALL_RATIO * n_of_all)
    return n_late >= least and (n_late * n_of_all >= EXCESS_OF_SHARE * n * n_late_of_all)


class _Phase(Frozen, eq=False):
    """The requests of a phase in order of their begin, which is from its start: (n,) each; `latency_ns` is infinite of
    those that did not end ok."""

    span: RunPhase
    is_open: bool
    at_ns: Int64s
    latency_ns: Floats
    inherited: Inherited
    n_usual: float
    """In flight in its last third: as many, or fewer, are in 95 % of it."""

    @classmethod
    def of(cls, connection: duckdb.DuckDBPyConnection, requests: Requests, span: RunPhase) -> _Phase | None:
        """None of a phase without requests, or without length. `connection`: with view `requests` of all of the run."""
        own = requests.in_phases([span.name])
        own = own.take(together(own.has_begun))
        if not len(own) or span.end_ns <= span.start_ns:
            return None
        if bool((np.diff(own.begin_ns) < 0).any()):
            own = own.take(np.argsort(own.begin_ns, kind="stable"))
        given = {"phase": span.name, "start": span.start_ns, "end": span.end_ns}
        connection.execute(_BEFORE_IT, given)
        ((n_usual, *inherited),) = connection.execute(_IN_FLIGHT, given).fetchall()
        latency_ns = np.where(own.is_ok, own.latency_ns, np.inf)
        at_ns = own.begin_ns - span.start_ns
        return cls(span, own.is_open, at_ns, latency_ns, Inherited(*inherited), n_usual)

    @property
    def length_ns(self) -> int:
        return self.span.end_ns - self.span.start_ns

    @property
    def rest_ns(self) -> int:
        """Where its last third begins, from its start."""
        return 2 * self.length_ns // 3

    def rest_quantile(self, q: float) -> float:
        """Of the latency of the requests that began in the last third; infinite without any."""
        return _quantile(self.latency_ns[np.searchsorted(self.at_ns, self.rest_ns) :], q)

    def settled_ns(self, from_ns: int) -> int:
        """From `from_ns` on the first begin of a request from which half of some that follow take no longer than nine
        tenths of the last third do; the end where there is none."""
        first = int(np.searchsorted(self.at_ns, from_ns))
        is_high = self.latency_ns[first:] > self.rest_quantile(0.9)
        width = min(200, max(10, len(self.at_ns) // 200))
        if len(is_high) < width:
            return self.length_ns if is_high.any() else from_ns
        n_high = np.concatenate([[0], np.cumsum(is_high)])
        is_settled = 2 * (n_high[width:] - n_high[:-width]) <= width
        is_settled &= ~is_high[: len(is_settled)]
        return (
            max(from_ns, int(self.at_ns[first + int(is_settled.argmax())]))
            if is_settled.any()
            else self.length_ns
        )


class _Slow(Frozen, eq=False):
    """Executions of a phase that are slow, in order of start, (n,) each; instants from its start, the part before it
    cut off. `excess_ns`: beyond the base, of the part within the phase."""

    begin_ns: Floats
    end_ns: Floats
    excess_ns: Floats
    ratio: Floats
    is_early: Bools

    def until(self, at_ns: Floats, is_of: Bools | bool = True) -> Floats:
        """F: excess up to each instant, that of an execution being spread evenly over it; of those that `is_of`."""
        knots, place = np.unique(np.concatenate([self.begin_ns, self.end_ns]), return_inverse=True)
        slope = is_of * self.excess_ns / np.maximum(1.0, self.end_ns - self.begin_ns)
        slopes = np.bincount(place, np.concatenate([slope, -slope])).cumsum()
        grown = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(knots))])
        return np.asarray(np.interp(at_ns, knots, grown))


_NONE = np.zeros(0)
_NOTHING_SLOW = _Slow(_NONE, _NONE, _NONE, _NONE, np.zeros(0, np.bool_))


class _Executions(Frozen, eq=False):
    """What the executions of a phase say. `drift_ratio`: None where not known."""

    source: str
    connection: duckdb.DuckDBPyConnection
    """Which has views `compared` and `executed` of the phase."""
    span: RunPhase
    slow: _Slow
    of_phase: dict[str, Any]
    """What `_COUNTS` says of all of them."""
    sizes_count: int
    drift_ratio: float | None

    def until(self, at_ns: int) -> dict[str, Any]:
        """The same of those that began before `at_ns` of the phase and ended in it."""
        given = {"start": self.span.start_ns, "end": self.span.start_ns + at_ns}
        return rows(self.connection, _COUNTS, given)[0]

    def is_warm_before(self, length_ns: int) -> bool:
        """Whether those of the last `length_ns` before the phase, a second at least, that were no early ones of their
        size were as fast as the rest."""
        start_ns = self.span.start_ns
        given = {"from": start_ns - max(length_ns, NS_PER_S), "start": start_ns}
        ((n, n_slow),) = self.connection.execute(_BEFORE, given).fetchall()
        return bool(n >= _LEAST_REST and n_slow < n / 4)


_BEFORE_IT = """
CREATE OR REPLACE TEMP TABLE before_it AS
-- requests of other phases that were in flight at the start of this one, or began in its length before it
SELECT * FROM requests WHERE phase <> $phase AND has_begun AND is_done AND begin_ns < $start
    AND (begin_ns >= 2 * $start - $end OR done_ns > $start)
"""
_IN_FLIGHT = f"""
WITH inherited AS (
    SELECT count(*) AS n, $start - coalesce(min(begin_ns), $start) AS oldest_ns,
        coalesce(max(done_ns), $start) - $start AS until_ns
    FROM before_it WHERE done_ns > $start),
own AS (FROM requests WHERE phase = $phase AND has_begun),
changes AS ( -- by number of a window of the phase
    SELECT begin_ns AS t_ns, 1 AS begun FROM own UNION ALL SELECT done_ns, 0 FROM own WHERE is_done
    UNION ALL SELECT done_ns, 0 FROM before_it WHERE done_ns > $start),
windows AS (
    SELECT floor({_N_WINDOWS} * (t_ns - $start) / ($end - $start)) AS number, sum(begun) AS begun,
        sum(1 - begun) AS ended
    FROM changes GROUP BY number),
at_edges AS (
    SELECT edge, coalesce(sum(begun), 0) AS n_begun, coalesce(sum(ended), 0) AS n_ended
    FROM range({2 * _N_WINDOWS // 3}, {_N_WINDOWS + 1}) AS each (edge) LEFT JOIN windows ON number < edge GROUP BY edge)
-- those without an end would be in flight for ever: taken off as evenly as they begin
SELECT quantile_cont(inherited.n + n_begun - n_ended - n_begun * own_n.open // own_n.n, 0.95),
    any_value(inherited.n), any_value(oldest_ns), any_value(until_ns)
FROM at_edges, inherited, (SELECT count(*) FILTER (NOT is_done) AS open, count(*) AS n FROM own) AS own_n
"""
_OF_BATCHES = """
CREATE OR REPLACE TEMP VIEW executed AS
SELECT server, model, instance, instance_device, rows, start_ns, end_ns, (end_ns - start_ns)::DOUBLE AS took_ns, 1 AS n
FROM batch_costs WHERE end_ns > start_ns AND rows > 0 AND {}
"""
_OF_STATISTICS = """
CREATE OR REPLACE TEMP VIEW executed AS
SELECT server, model, '' AS instance, -1 AS instance_device, round(inference_count / execution_count)::BIGINT AS rows,
    -- an execution counts when it has ended: it may have begun long before its sample
    least(t_ns - interval_ns, t_ns - took_ns::BIGINT) AS start_ns, t_ns AS end_ns, took_ns, execution_count AS n
FROM (SELECT *, compute_infer_ns / request_count AS took_ns FROM triton_samples
    WHERE execution_count > 0 AND request_count > 0 AND compute_infer_ns > 0
        AND 2 * inference_count >= execution_count) WHERE {}
"""
_OF_REQUESTS = """
CREATE OR REPLACE TEMP TABLE windows_of_requests AS
WITH sent AS (
    FROM before_it UNION ALL FROM requests WHERE phase = $phase AND has_begun AND is_sent AND is_done)
SELECT server, model, '' AS instance, -1 AS instance_device,
    greatest(1, round_even(avg(n_in_flight), 0))::BIGINT AS rows, $start + number * $width AS start_ns,
    $start + (number + 1) * $width AS end_ns, quantile_disc(service_ns, 0.5)::DOUBLE AS took_ns, 1 AS n
FROM (
    SELECT target AS server, request_kind AS model, floor((t_ns - $start) / $width)::BIGINT AS number, service_ns,
        -- what ends at an instant is in flight no more, what is sent at it is
        sum(step) OVER (PARTITION BY target, request_kind ORDER BY t_ns) AS n_in_flight
    FROM (
        SELECT target, request_kind, sent_ns AS t_ns, 1 AS step, done_ns - sent_ns AS service_ns FROM sent
        UNION ALL SELECT target, request_kind, done_ns, -1, NULL FROM sent)
    QUALIFY step = 1)
GROUP BY server, model, number
"""
_FIRSTS = """
CREATE TEMP TABLE firsts_of_batches AS
SELECT server, model, instance, instance_device, rows, starts[1] AS first_ns, starts[-1] AS early_ns FROM (
    SELECT server, model, instance, instance_device, rows, min(start_ns, {n_early}) AS starts
    FROM batch_costs WHERE end_ns > start_ns AND rows > 0 GROUP BY ALL)
"""
_FIRSTS_KNOWN = "CREATE OR REPLACE TEMP TABLE firsts AS FROM firsts_of_batches"
_NO_FIRSTS = """
CREATE OR REPLACE TEMP TABLE firsts AS
SELECT DISTINCT server, model, instance, instance_device, rows, 0::BIGINT AS first_ns, 0::BIGINT AS early_ns
FROM executed
"""
_KEY = "server, model, instance, instance_device, rows"
_SIZES = f"""
CREATE OR REPLACE TEMP TABLE sizes AS
SELECT server, model, instance_device, rows, bool_or(is_in) AS is_measured,
    -- medians of the last third and of later executions, each of enough of them
    CASE WHEN count(*) FILTER (is_in_rest) >= {_LEAST_REST} THEN median(took_ns) FILTER (is_in_rest) END AS rest_ns,
    CASE WHEN count(*) FILTER (is_later) >= {_LEAST_LATER} THEN median(took_ns) FILTER (is_later) END AS later_ns
FROM (
    SELECT *, end_ns > $start AND start_ns < $end AS is_in, start_ns >= $rest AND start_ns < $end AS is_in_rest,
        is_in AND start_ns > early_ns AS is_later
    FROM executed JOIN firsts USING ({_KEY}))
GROUP BY server, model, instance_device, rows
"""
_BASES = """
CREATE OR REPLACE TEMP TABLE bases AS
WITH known AS (
    SELECT *, CASE WHEN bool_or(rest_ns > 0) OVER (PARTITION BY server, model, instance_device)
        THEN nullif(rest_ns, 0) ELSE nullif(later_ns, 0) END AS line_ns
    FROM sizes),
placed AS (
    SELECT size.server, size.model, size.instance_device, size.rows, size.rest_ns, size.later_ns,
        max(other.rows) FILTER (other.rows <= size.rows) AS low,
        arg_max(other.line_ns, other.rows) FILTER (other.rows <= size.rows) AS low_ns,
        min(other.rows) FILTER (other.rows >= size.rows) AS high,
        arg_min(other.line_ns, other.rows) FILTER (other.rows >= size.rows) AS high_ns
    FROM known size JOIN known other ON size.server = other.server AND size.model = other.model
        AND size.instance_device = other.instance_device AND other.line_ns IS NOT NULL
    GROUP BY size.server, size.model, size.instance_device, size.rows, size.rest_ns, size.later_ns),
on_line AS (
    SELECT *, CASE
        WHEN high IS NULL THEN low_ns * rows / low -- beyond the largest known, in proportion
        WHEN low IS NULL THEN high_ns
        WHEN low = high THEN low_ns
        ELSE low_ns + (high_ns - low_ns) * (rows - low) / (high - low) END AS line_ns
    FROM placed)
SELECT server, model, instance_device, rows, coalesce(rest_ns, 0) > 0 AS is_of_rest,
    coalesce(nullif(rest_ns, 0), least(line_ns, coalesce(nullif(later_ns, 0), line_ns))) AS base_ns
FROM on_line
"""
_NOISE = """
SELECT quantile_cont(took_ns / base_ns, 0.9) FROM executed JOIN bases USING (server, model, instance_device, rows)
WHERE start_ns >= $rest AND start_ns < $end
"""
_COMPARED = f"""
CREATE OR REPLACE TEMP VIEW compared AS
SELECT e.*, base_ns, is_of_rest, took_ns > {{slow}} * base_ns AS is_slow, start_ns = first_ns AS is_first,
    start_ns <= early_ns AS is_early
FROM executed e JOIN bases USING (server, model, instance_device, rows) JOIN firsts USING ({_KEY})
"""
_COUNTS = f"""
-- the first ones of a size by an instance, and those of them that are slow; by how much these exceed their base
SELECT n_first, n_first_slow, first_excess_ns,
    -- of the time of all executions that of slow ones
    slow_share,
    -- whether being the first of a size makes executions slow: those are far more often than others
    n_first_slow > 0 AND n_first_slow / n_first
        >= greatest({FIRST_RATIO}, 3 * (n_slow - n_first_slow) / greatest(1, n_in_all - n_first)) AS is_first_effect
FROM (
    SELECT count(*) AS n_in_all, count(*) FILTER (is_slow) AS n_slow, count(*) FILTER (is_first) AS n_first,
        count(*) FILTER (is_first AND is_slow) AS n_first_slow,
        coalesce(sum(took_ns - base_ns) FILTER (is_first AND is_slow), 0) AS first_excess_ns,
        coalesce(sum(n * took_ns) FILTER (is_slow) / sum(n * took_ns), 0) AS slow_share
    FROM compared WHERE end_ns > $start AND start_ns < $end)
"""
_SLOW_ROWS = """
-- the part within the phase, from its start, and its share of what is beyond the base
SELECT greatest(start_ns - $start, 0)::DOUBLE AS begin_ns, (least(end_ns, $end) - $start)::DOUBLE AS end_ns,
    n * (took_ns - base_ns) * (least(end_ns, $end) - greatest(start_ns, $start)) / greatest(end_ns - start_ns, 1)
        AS excess_ns,
    took_ns / base_ns AS ratio, is_early
FROM compared WHERE is_slow AND end_ns > $start AND start_ns < $end ORDER BY start_ns
"""
_BEFORE = """
SELECT count(*), count(*) FILTER (is_slow) FROM compared WHERE end_ns <= $start AND start_ns >= $from AND NOT is_early
"""
_DRIFT = """
-- from the first sixth to the last, of the logarithms of the medians: the rise, the least step from one to the next;
-- how many executions one has at least, and how many sixths have any
SELECT arg_max(level, segment) - arg_min(level, segment) AS rise, min(step), min(n), count(*)
FROM (SELECT segment, count(*) AS n, median(ln(took_ns / base_ns)) AS level,
        level - lag(level) OVER (ORDER BY segment) AS step
    FROM (SELECT *, least(start_ns - $start, $end - $start - 1) * {n} // ($end - $start) AS segment FROM compared
        WHERE start_ns >= $start AND start_ns < $end AND is_of_rest AND NOT is_early)
    GROUP BY segment)
"""


def _executions(
    connection: duckdb.DuckDBPyConnection,
    tables: Sequence[str],
    phase: _Phase,
    models: frozenset[tuple[str, str]],
) -> _Executions:
    """By the first source that has any in the phase; without a source where none is of use."""
    told = ", ".join(f"({literal(server)}, {literal(model)})" for server, model in sorted(models))
    own = f"(server, model) IN ({told})" if models else "true"
    views = {
        BATCHES: ("batch_costs", _OF_BATCHES.format(own)),
        STATISTICS: ("triton_samples", _OF_STATISTICS.format(own)),
    }
    for source, (table, view) in views.items():
        if table in tables:
            connection.execute(view)
            connection.execute(_FIRSTS_KNOWN if source == BATCHES else _NO_FIRSTS)
            found = _compared(connection, source, phase)
            if found is not None:
                return found
    given = {"start": phase.span.start_ns, "width": max(1, phase.length_ns // _N_WINDOWS)}
    connection.execute(_OF_REQUESTS, {**given, "phase": phase.span.name})
    connection.execute("CREATE OR REPLACE TEMP VIEW executed AS FROM windows_of_requests")
    connection.execute(_NO_FIRSTS)
    found = _compared(connection, RESPONSES, phase)
    return found or _Executions("", connection, phase.span, _NOTHING_SLOW, {}, 0, None)


def _compared(connection: duckdb.DuckDBPyConnection, source: str, phase: _Phase) -> _Executions | None:
    span = phase.span
    edges = {"start": span.start_ns, "end": span.end_ns}
    rest_ns = span.start_ns + phase.rest_ns
    connection.execute(_SIZES, {**edges, "rest": rest_ns})
    connection.execute(_BASES)
    ((n_sizes, n_bases),) = connection.execute(
        "SELECT count(DISTINCT rows) FILTER (is_measured), (SELECT count(*) FROM bases) FROM sizes"
    ).fetchall()
    if not n_bases:
        return None
    ((noise,),) = connection.execute(_NOISE, {"rest": rest_ns, "end": span.end_ns}).fetchall()
    connection.execute(_COMPARED.format(slow=repr(max(SLOW_RATIO, noise or 0.0))))
    return _Executions(
        source=source,
        connection=connection,
        span=span,
        slow=_Slow(**connection.execute(_SLOW_ROWS, edges).fetchnumpy()),
        of_phase=rows(connection, _COUNTS, edges)[0],
        sizes_count=n_sizes,
        drift_ratio=_drift_ratio(connection, span, noise),
    )


def _drift_ratio(connection: duckdb.DuckDBPyConnection, span: RunPhase, noise: float | None) -> float | None:
    """Where the levels rise all the way (a tenth of it may be lost between two) and by more than half of what a tenth
    of the last executions strays; else no rise."""
    edges = {"start": span.start_ns, "end": span.end_ns}
    ((rise, step, least, n),) = connection.execute(_DRIFT.format(n=_N_SEGMENTS), edges).fetchall()
    if n < _N_SEGMENTS or least < _LEAST_REST:
        return None
    is_rising = step >= -0.1 * abs(rise) and 2 * rise >= math.log(max(1.0, noise or 1.0))
    return math.exp(rise if is_rising else min(rise, 0.0))


def _of_phase(
    manifest: Manifest,
    phase: _Phase,
    executions: _Executions,
    qs: Sequence[float],
    limit: LateFrom | None,
) -> ColdFigures:
    slow, counts = executions.slow, executions.of_phase
    stretches, executed_ns, is_of_first = _cold_stretches(phase, executions)
    kind = COLD if stretches else NOTHING
    if _is_leftover(phase) and not (stretches and stretches[0].begin_ns == 0):
        left = Stretch(0, phase.settled_ns(0))
        kind = kind if stretches else LEFTOVERS
        stretches = _merged([left, *stretches])
    is_in = is_within(stretches, phase.at_ns)
    rest_ns = phase.latency_ns[~is_in]
    late_from, late_of = limit if limit is not None else (_quantile(rest_ns, 0.95), "")
    is_late = (phase.latency_ns >= late_from) & (late_from < math.inf)
    n, n_late, n_late_all = int(is_in.sum()), int(is_late[is_in].sum()), int(is_late.sum())
    drift = executions.drift_ratio
    if kind == NOTHING and drift is not None and drift >= DRIFT_RATIO:
        kind = DRIFT
    is_stated = kind == DRIFT
    if stretches:
        is_stated = is_much(n, n_late, len(is_in), n_late_all)
    in_first = slow.begin_ns < executed_ns
    return ColdFigures(
        phase=phase.span.name,
        kind=kind,
        source=executions.source,
        inherited=phase.inherited,
        stretches=tuple(stretches),
        is_stated=is_stated,
        n=n,
        n_late=n_late,
        n_of_phase=len(is_in),
        n_late_of_phase=n_late_all,
        late_from_ns=None if math.isinf(late_from) else int(late_from),
        late_of=late_of,
        executed_ns=executed_ns,
        is_of_first=is_of_first,
        slow_ratio=float(np.median(slow.ratio[in_first])) if in_first.any() else None,
        excess_ns=round(float(slow.excess_ns[in_first].sum())),
        n_first=counts.get("n_first", 0),
        n_first_slow=counts.get("n_first_slow", 0),
        first_excess_ns=round(counts.get("first_excess_ns", 0.0)),
        without=_quantiles(rest_ns, qs) if stretches else (),
        drift_ratio=drift,
        advice=_advice(manifest, phase, stretches[-1].end_ns, is_of_first, kind, executions)
        if stretches
        else None,
    )


def _quantiles(latency_ns: Floats, qs: Sequence[float]) -> tuple[Quantile, ...]:
    is_failed = np.isinf(latency_ns)
    return tuple(quantiles(np.where(is_failed, 0, latency_ns).astype(np.int64), qs, is_failed))


def _quantile(latency_ns: Floats, q: float) -> float:
    """By nearest rank; infinite of none."""
    if not len(latency_ns):
        return math.inf
    place = math.ceil(q * len(latency_ns)) - 1
    return float(np.partition(latency_ns, place)[place])


def _is_leftover(phase: _Phase) -> bool:
    """Whether the phase begins with more in flight than its last third mostly has, and with one that is older than
    nearly all of its requests become."""
    inherited = phase.inherited
    return inherited.n > phase.n_usual + 1 and inherited.oldest_ns > phase.rest_quantile(0.95)


class _Found(NamedTuple):
    """Cold stretches in order of time, until when executions were slow, and whether for being the first of their
    size."""

    stretches: tuple[Stretch, ...] = ()
    executed_ns: int = 0
    is_of_first: bool = False


def _cold_stretches(phase: _Phase, executions: _Executions) -> _Found:
    """None of a phase that is not cold."""
    slow = executions.slow
    if not len(slow.begin_ns):
        return _Found()
    ends_ns = np.unique(slow.end_ns)
    if len(ends_ns) > _N_CANDIDATES:
        ends_ns = ends_ns[np.linspace(0, len(ends_ns) - 1, _N_CANDIDATES).astype(np.int64)]
    until = slow.until(ends_ns)
    whole = float(slow.excess_ns.sum())
    furthest = int(np.argmax(until / whole - ends_ns / phase.length_ns))
    is_late = phase.latency_ns > phase.rest_quantile(0.95)
    best: tuple[float, _Found] | None = None
    for place in sorted({int(np.argmax(until >= share * until[furthest])) for share in SHARES}):
        executed_ns, amount = math.ceil(ends_ns[place]), float(until[place])
        if executed_ns >= phase.length_ns or not _is_alone(
            executions, executed_ns, amount, whole, phase.length_ns
        ):
            continue
        counts = executions.until(executed_ns)
        of_early = float(slow.until(np.array([float(executed_ns)]), slow.is_early)[0])
        is_of_first = counts["is_first_effect"] and 2 * of_early >= amount
        if not is_of_first and (
            counts["slow_share"] < 0.5 or not _is_slow_start(phase, executions, executed_ns, amount)
        ):
            continue
        stretch = Stretch(0, phase.settled_ns(executed_ns))
        n = int(np.searchsorted(phase.at_ns, stretch.end_ns))
        apart = float(is_late[:n].sum()) / max(1, is_late.sum()) - n / len(is_late)
        if best is None or apart > best[0]:
            best = (apart, _Found((stretch,), executed_ns, is_of_first))
    if best is not None:
        return best[1]
    of_early = float(slow.excess_ns[slow.is_early].sum())
    if not executions.of_phase["is_first_effect"] or 2 * of_early < whole:
        return _Found()
    spread: list[Stretch] = []
    begins_ns, ends_ns = slow.begin_ns[slow.is_early], slow.end_ns[slow.is_early]
    for begin_ns, end_ns in zip(begins_ns.tolist(), ends_ns.tolist(), strict=True):
        if not spread or end_ns > spread[-1].end_ns:
            spread.append(Stretch(int(begin_ns), phase.settled_ns(math.ceil(end_ns))))
    return _Found(_merged(spread), math.ceil(float(ends_ns.max())), True)


def _is_alone(
    executions: _Executions, stretch_ns: float, amount: float, whole: float, length_ns: float
) -> bool:
    """Whether the rest of the phase has nothing like the stretch."""
    slow = executions.slow
    if (whole - amount) / (length_ns - stretch_ns) * RATE_RATIO > amount / stretch_ns:
        return False
    begins_ns = slow.begin_ns[slow.begin_ns >= stretch_ns]
    if not len(begins_ns):
        return True
    begins_ns = begins_ns[:: max(1, len(begins_ns) // _N_CANDIDATES)]
    in_window = slow.until(np.minimum(begins_ns + stretch_ns, length_ns)) - slow.until(begins_ns)
    ratio = WINDOW_RATIO if executions.source == BATCHES else ROUGH_WINDOW_RATIO
    return float(in_window.max()) <= ratio * amount


def _is_slow_start(phase: _Phase, executions: _Executions, stretch_ns: int, amount: float) -> bool:
    """Whether the stretch is slow from its beginning on; not where the phase before ended at the
    speed of the rest, nor where more load than the rest ever has explains it."""
    slow = executions.slow
    in_stretch = slow.begin_ns < stretch_ns
    is_much = int(in_stretch.sum()) >= _LEAST_LATER or bool(slow.is_early[in_stretch].any())
    half = float(slow.until(np.array([stretch_ns / 2]))[0])
    if not is_much or half < 0.2 * amount or executions.is_warm_before(stretch_ns):
        return False
    n_in = int(np.searchsorted(phase.at_ns, stretch_ns))
    usual = (len(phase.at_ns) - n_in) / (phase.length_ns - stretch_ns)
    is_busier = n_in / stretch_ns > SLOW_RATIO * usual and n_in > 20
    return not is_busier or float(np.median(slow.ratio[in_stretch])) >= 2 * SLOW_RATIO


def _merged(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    begin_ns, end_ns = (
        np.array([one for one in stretches if one.begin_ns < one.end_ns], np.int64).reshape(-1, 2).T
    )
    return tuple(map(Stretch, *(one.tolist() for one in joined_up(begin_ns, end_ns))))


def _advice(
    manifest: Manifest,
    phase: _Phase,
    end_ns: int,
    is_of_first: bool,
    kind: str,
    executions: _Executions,
) -> WarmUpAdvice:
    """As long as it took from the first request to the end of the last stretch, and a quarter; where sizes were new, at
    the rate of the phase's busiest second."""
    before = [one for one in phase_spans(manifest) if one.end_ns <= phase.span.start_ns]
    last = before[-1] if before and before[-1].kind == "warmup" else None
    so_far_ns = phase.span.start_ns - last.start_ns if last is not None else 0
    needed_s = _MARGIN * (so_far_ns + end_ns) / NS_PER_S
    seconds = next((one for one in _NICE_S if one >= needed_s), math.ceil(needed_s))
    plan = manifest.plan
    warm_hz = (
        plan.n_by_phase.get(last.name, 0) * NS_PER_S / so_far_ns if last is not None and so_far_ns else 0.0
    )
    own_hz = len(phase.at_ns) * NS_PER_S / phase.length_ns
    width_ns = min(NS_PER_S, phase.length_ns)
    # one of another node may lie before the phase by the error of the clocks
    peak_hz = int(np.bincount(np.maximum(phase.at_ns, 0) // width_ns).max()) * NS_PER_S / width_ns
    rate_hz = None
    if phase.is_open:
        if last is None:
            rate_hz = peak_hz
        elif kind == LEFTOVERS and warm_hz > 1.1 * own_hz:
            rate_hz = own_hz
        elif is_of_first and warm_hz < 0.9 * peak_hz:
            slow = executions.slow
            # what began before the phase needs time alone: the warm-up had met its size
            early_ns = slow.excess_ns * slow.is_early
            if 2 * float(early_ns[slow.begin_ns > 0].sum()) >= float(early_ns.sum()):
                rate_hz = peak_hz
    return WarmUpAdvice(
        phase=last.name if last is not None else "",
        duration_ns=seconds * NS_PER_S,
        rate_hz=rate_hz,
        is_lower=rate_hz is not None and last is not None and rate_hz < warm_hz,
        sizes_count=executions.sizes_count if executions.source == BATCHES else 0,
    )
