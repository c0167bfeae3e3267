"""A report's clock on the node's monotonic clock, from events whose instant is known by clock readings beside them.

    a = clock(); nanosleep(); b = clock()         event [s, e] of the report:   a <= s   and   e <= b
    c = clock(); push our range                   event [s, e]:                 c <= s;   e <= the thread's next c

Each is a hard bound of the offset (monotonic - report) at one instant; `squall.analysis.storage.clock_fit` makes the
track of them. Sleeps come from the mark process (a file of readings) and pair with OS-runtime events of its thread in
order of time. A report counts from the start of its collection; nsys states that start in UTC. Without a mark that is
believed, with the offset of CLOCK_REALTIME to CLOCK_MONOTONIC, and the clock says `is_assumed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Int64s
from squall.analysis.nsys.marks import pair_sleeps
from squall.analysis.nsys.queries import ID_MASK, PID_SHIFT, STAMPED_RANGES
from squall.analysis.nsys.report import NsysReport
from squall.analysis.storage.clock_brackets import NO_HIGH, NO_LOW, Brackets
from squall.analysis.storage.clock_fit import fit_track
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.collected import ReportClockFacts
from squall.scenarios.errors import AnalysisError
from squall.scenarios.records import Frozen

STAMP_NS = 100
"""What a stamp of nsys may be off by, made of a counter of the processor: brackets are widened by it."""
ASSUMED_ERROR_NS = 100_000
"""Error stated for an assumed clock. No bound: the largest seen was 55 us in 2,100 calls (nsys 2022.4 and 2023.4)."""

_SLEEPS = """
SELECT globalTid AS gt, start AS s, "end" AS e FROM OSRT_API o JOIN StringIds n ON n.id = o.nameId
WHERE n.value IN ('nanosleep', 'clock_nanosleep', 'usleep') AND "end" - start <= $longest_ns
    AND {}
ORDER BY s
"""
_BY_IDS = "list_contains($threads, globalTid & $mask)"
_BY_NAME = """globalTid IN (SELECT globalTid FROM ThreadNames JOIN StringIds i ON i.id = nameId
    WHERE i.value = 'squall-clock')"""
"""In a container nsys may number processes otherwise than they do themselves."""
_MOST_SPANS = 10
"""Sleeps longer than so many usual ones are not marks: the mark process sleeps between its marks too."""
_THREAD_MASK = (1 << 2 * PID_SHIFT) - 1


class Marks(Frozen, eq=False):
    """Stamped events, a row each, in order of `start_ns`: readings of the node's clock, start and end by the report."""

    is_sleep: NDArray[np.bool_]
    thread: Int64s
    """nsys's globalTid."""
    read_before_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s
    read_after_ns: Int64s
    """Of a sleep; for a range 0, which stands for nothing."""

    def __len__(self) -> int:
        return len(self.start_ns)


class ReportClock(Frozen, eq=False):
    """The report's clock: `track` maps its ns to the node's monotonic ns."""

    track: ClockTrack
    marks: Marks
    facts: ReportClockFacts
    """`is_assumed`: no event was stamped: nsys's own UTC start is believed, and the error of `track` is no bound."""


def read_clock(report: NsysReport, lines: Int64s, utc_minus_monotonic_ns: int | None) -> ReportClock:
    """The clock of `report`. `lines` (n, 4): readings before and after a sleep, process and thread; n may be 0.

    `utc_minus_monotonic_ns` is CLOCK_REALTIME - CLOCK_MONOTONIC of the node at about the start of the collection. Lines
    of other phases and events without a line are passed over. Raises AnalysisError where there is neither a mark nor a
    UTC start, and where readings contradict each other.
    """
    start_utc_ns = report.start_utc_ns
    assumed_ns = (
        None
        if start_utc_ns is None or utc_minus_monotonic_ns is None
        else start_utc_ns - utc_minus_monotonic_ns
    )
    marks, brackets = _marks(report, lines, assumed_ns)
    n_sleeps = int(marks.is_sleep.sum())
    counts = {"n_sleeps": n_sleeps, "n_ranges": len(marks) - n_sleeps}
    if not brackets.has_both_sides:
        if assumed_ns is None:
            raise AnalysisError("the nsys report has no clock mark and does not say when it began in UTC")
        track = ClockTrack.constant(assumed_ns, ASSUMED_ERROR_NS)
        return ReportClock(track, marks, _facts(track, is_assumed=True, **counts))
    track = fit_track(brackets)
    behind = track.convert(marks.start_ns) - marks.read_before_ns
    off_ns = None if assumed_ns is None else int(np.abs(track.offsets_at(marks.start_ns) - assumed_ns).max())
    facts = _facts(
        track, is_assumed=False, **counts, behind_median_ns=int(np.median(behind)),
        behind_largest_ns=int(behind.max()), assumption_error_ns=off_ns,
    )  # fmt: skip
    return ReportClock(track, marks, facts)


def _facts(track: ClockTrack, **known: Any) -> ReportClockFacts:
    return ReportClockFacts(error_ns=track.largest_error_ns, drift_ppm=round(track.drift_ppm, 3), **known)


def parse_lines(text: str) -> Int64s:
    """The mark process's file as (n, 4): `a b pid tid` a line. A line cut short, as the last may be, is left out."""
    rows = [fields for line in text.splitlines() if len(fields := line.split()) == 4]
    whole = [row for row in rows if all(field.isdecimal() for field in row)]
    return np.array(whole, dtype=np.int64).reshape(-1, 4)


def _marks(report: NsysReport, lines: Int64s, near_ns: int | None) -> tuple[Marks, Brackets]:
    sleeps, ranges = _sleeps(report, lines, near_ns), _ranges(report)
    probes = Brackets.of_probes(sleeps.read_before_ns, sleeps.start_ns, sleeps.end_ns, sleeps.read_after_ns)
    at_ns, low, high = _joined(probes, _range_brackets(ranges))
    low, high = np.where(low > NO_LOW, low - STAMP_NS, low), np.where(high < NO_HIGH, high + STAMP_NS, high)
    marks = Marks(*_joined(sleeps, ranges))
    order = np.argsort(marks.start_ns, kind="stable")
    return Marks(*(column[order] for column in vars(marks).values())), Brackets(at_ns, low, high)


def _joined(first: object, second: object) -> Iterator[NDArray[Any]]:
    """Each column of the first with that of the second behind it."""
    return map(np.concatenate, zip(vars(first).values(), vars(second).values(), strict=True))


def _sleeps(report: NsysReport, lines: Int64s, near_ns: int | None) -> Marks:
    """Lines and the events that they stamp."""
    none = np.zeros(0, np.int64)
    threads = np.unique((lines[:, 2] << PID_SHIFT) | (lines[:, 3] & ID_MASK)) if len(lines) else none
    thread, start_ns, end_ns = none, none, none
    if len(lines):
        longest_ns = _MOST_SPANS * int(np.median(lines[:, 1] - lines[:, 0]))
        by_ids: dict[str, Any] = {"threads": threads.tolist(), "mask": _THREAD_MASK}
        with report.connect() as connection:
            for which, parameters in ((_BY_IDS, by_ids), (_BY_NAME, {})):
                query = _SLEEPS.format(which)
                found = connection.execute(query, {"longest_ns": longest_ns, **parameters}).fetchnumpy()
                thread, start_ns, end_ns = found.values()
                if len(thread):
                    break
    line, event = pair_sleeps(lines[:, 0], lines[:, 1], start_ns, end_ns, near_ns)
    is_sleep = np.ones(len(line), bool)
    return Marks(is_sleep, thread[event], lines[line, 0], start_ns[event], end_ns[event], lines[line, 1])


def _ranges(report: NsysReport) -> Marks:
    """Closed ranges that carry a clock reading, in order of (thread, start)."""
    with report.connect() as connection:
        thread, clock_ns, start_ns, end_ns = connection.execute(STAMPED_RANGES).fetchnumpy().values()
    n = len(thread)
    return Marks(np.zeros(n, bool), thread, clock_ns, start_ns, end_ns, np.zeros(n, np.int64))


def _range_brackets(ranges: Marks) -> Brackets:
    """The reading came before the range; where a thread's ranges follow each other, the next reading after it."""
    n = len(ranges)
    follows = (ranges.thread[1:] == ranges.thread[:-1]) & (ranges.start_ns[1:] >= ranges.end_ns[:-1])
    before = np.flatnonzero(follows)
    return Brackets(
        np.concatenate([ranges.start_ns, ranges.end_ns[before]]),
        np.concatenate([ranges.read_before_ns - ranges.start_ns, np.full(len(before), NO_LOW)]),
        np.concatenate([np.full(n, NO_HIGH), ranges.read_before_ns[before + 1] - ranges.end_ns[before]]),
    )
