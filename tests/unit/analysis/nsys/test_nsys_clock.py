"""The clock of a report: the truth lies within its bound whatever is lost, and where nothing marks it, that is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.nsys.clock import ReportClock, parse_lines, read_clock
from squall.analysis.nsys.marks import pair_sleeps
from squall.analysis.record import to_json
from squall.scenarios.errors import AnalysisError
from tests.many_examples import examples
from tests.nsys_exports import GLOBAL_TID, PID, TID, UTC_START_NS, MadeExport, nvtx, tables_of

MS = 1_000_000
S = 1_000_000_000
OFFSET_NS = 45_000 * S + 123_456_789  # node's clock - report's
REAL_MINUS_MONOTONIC_NS = UTC_START_NS - OFFSET_NS
PERIOD_NS = 250 * MS
NO_LINES = parse_lines("")


class Sleeps:
    """Marks every 250 ms and some, as the mark process leaves them: readings of the node, events of the report."""

    def __init__(self, seed: int, n: int = 40, drift_ppm: float = 0.0, jitter_ns: int = 2 * MS) -> None:
        rng = np.random.default_rng(seed)
        period = PERIOD_NS + rng.integers(0, jitter_ns, n)
        lead, tail = rng.integers(
            300, 60_000, (2, n)
        )  # asymmetric: what lies between a reading and the event
        self.start_ns = np.cumsum(period) - 3 * PERIOD_NS
        self.end_ns = self.start_ns + 200_000 + rng.integers(0, 90_000, n)
        self.drift_ppm = drift_ppm
        self.before_ns = self.true(self.start_ns) - lead
        self.after_ns = self.true(self.end_ns) + tail

    def true(self, report_ns: np.ndarray) -> np.ndarray:
        return report_ns + OFFSET_NS + np.rint(report_ns * self.drift_ppm * 1e-6).astype(np.int64)

    def lines(self) -> np.ndarray:
        n = len(self.before_ns)
        return np.column_stack((self.before_ns, self.after_ns, np.full(n, PID), np.full(n, TID)))

    def export(self, kept: slice | np.ndarray = slice(None), tid: int = GLOBAL_TID) -> MadeExport:
        rows = np.column_stack((self.start_ns, self.end_ns))[kept].tolist()
        events = [(start, end, 1) for start, end in rows]
        events += [(end + 1000, end + PERIOD_NS - MS, 2) for _, end in rows] + [(5, 9, 3)]
        export = MadeExport().strings(s1="nanosleep", s2="clock_nanosleep", s3="poll", s9="squall-clock")
        return export.add("OSRT_API", *(
            {"start": start, "end": end, "eventClass": 27, "globalTid": tid, "nameId": name}
            for start, end, name in events
        ))  # fmt: skip


def assert_holds_the_truth(clock: ReportClock, sleeps: Sleeps) -> None:
    at = np.linspace(-2 * S, sleeps.start_ns[-1] + 2 * S, 200).astype(np.int64)
    off = np.abs(clock.track.convert(at) - sleeps.true(at))
    assert (off <= clock.track.error_at(at)).all()


ALL = np.arange(60)
CASES: dict[str, dict[str, Any]] = {
    "whole": {"utc_off_ns": 0},
    "the UTC start is 40 ms off": {"utc_off_ns": 40 * MS},
    "the UTC start is 3 s off": {"utc_off_ns": -3 * S},
    "the UTC start is 12 periods off": {"utc_off_ns": 12 * PERIOD_NS},
    "there is no UTC start": {},
    "a collection of a part, lines and events lost": {
        "in_report": np.setdiff1d(ALL[10:50], [12, 30, 31]), "in_file": np.setdiff1d(ALL, [20, 45]),
    },
    "a mark took longer than the pause to the next": {"slow": 5, "utc_off_ns": 0},
    # in a container nsys and the process may number processes differently
    "the thread has other ids in the report, and a name": {
        "tid": GLOBAL_TID + 1, "thread_names": [{"nameId": 9, "globalTid": GLOBAL_TID + 1}], "utc_off_ns": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sleeps_give_the_clock_with_a_bound_that_holds(case: dict[str, Any], tmp_path: Path) -> None:
    sleeps = Sleeps(1, n=60)
    in_report, in_file = case.get("in_report", ALL), case.get("in_file", ALL)
    export = sleeps.export(in_report, case.get("tid", GLOBAL_TID))
    if "thread_names" in case:
        export.add("ThreadNames", *case["thread_names"])
    lines, utc_off_ns = sleeps.lines(), case.get("utc_off_ns")
    if "slow" in case:
        lines[case["slow"], 1] += PERIOD_NS + 10 * MS
    offset_ns = None if utc_off_ns is None else REAL_MINUS_MONOTONIC_NS + utc_off_ns
    clock = read_clock(export.report(tmp_path), lines[in_file], offset_ns)
    paired = np.intersect1d(in_report, in_file)
    found = np.isin(sleeps.before_ns, clock.marks.read_before_ns)
    assert set(paired) - {case.get("slow")} <= set(np.flatnonzero(found)) <= set(paired)
    assert clock.marks.start_ns.tolist() == sleeps.start_ns[found].tolist()
    assert (clock.facts.is_assumed, clock.facts.n_sleeps, clock.facts.n_ranges) == (False, found.sum(), 0)
    assert_holds_the_truth(clock, sleeps)
    errors = clock.track.error_at(clock.marks.start_ns)
    assert np.median(errors) < 25_000  # the tightest of leads and tails of up to 60 us, not their mean of 30
    error_ns = clock.facts.assumption_error_ns
    assert error_ns is utc_off_ns is None or abs((error_ns or 0) - abs(utc_off_ns or 0)) < 40_000


@examples(25)
@given(
    st.integers(0, 2**32), st.floats(-60, 60), st.sets(st.integers(0, 39), max_size=12),
    st.sets(st.integers(0, 39), max_size=12), st.one_of(st.none(), st.integers(-50 * MS, 50 * MS)),
)  # fmt: skip
def test_sleeps_pair_with_their_own_lines_whatever_is_lost(
    seed: int, drift_ppm: float, lost_lines: set[int], lost_events: set[int], near_off_ns: int | None
) -> None:
    sleeps = Sleeps(seed, drift_ppm=drift_ppm, jitter_ns=120 * MS)
    in_file = np.setdiff1d(np.arange(40), list(lost_lines))
    in_report = np.setdiff1d(np.arange(40), list(lost_events))
    line, found = pair_sleeps(
        sleeps.before_ns[in_file], sleeps.after_ns[in_file], sleeps.start_ns[in_report], sleeps.end_ns[in_report],
        None if near_off_ns is None else OFFSET_NS + near_off_ns,
    )  # fmt: skip
    assert in_file[line].tolist() == in_report[found].tolist() == np.intersect1d(in_file, in_report).tolist()


def test_marks_at_an_exact_period_without_a_hint_are_no_answer() -> None:
    start = np.arange(20) * PERIOD_NS
    inner = start[5:15]
    ends = (inner + 200_000, inner + 200_000)
    lines = (start + OFFSET_NS - 500, start + OFFSET_NS + 200_500)
    assert len(pair_sleeps(*lines, inner, ends[0], None)[0]) == 0
    line, _ = pair_sleeps(*lines, inner, ends[0], OFFSET_NS + 30 * MS)
    assert line.tolist() == list(range(5, 15))


def test_ranges_that_carry_a_reading_give_the_clock_too(tmp_path: Path) -> None:
    """Batches of two threads that follow each other, each stamped 1-40 us before it begins; the first holds another."""
    rng, export, starts = np.random.default_rng(4), MadeExport(), []
    for thread in range(2):
        begin = np.cumsum(rng.integers(2 * MS, 6 * MS, 200))
        end = begin + rng.integers(MS, 2 * MS - 50_000, 200)
        begin, end = np.append(begin, begin[0] + 1_000), np.append(end, begin[0] + 2_000)
        stamp = begin + OFFSET_NS - rng.integers(1_000, 40_000, 201)
        for start, last, clock_ns in zip(begin.tolist(), end.tolist(), stamp.tolist(), strict=True):
            export.add("NVTX_EVENTS", nvtx(f"squall|a|7|{clock_ns}", start, last, GLOBAL_TID + thread))
        starts.append(begin)
    clock = read_clock(export.report(tmp_path), NO_LINES, None)
    assert (clock.facts.is_assumed, len(clock.marks), clock.facts.n_ranges) == (False, 402, 402)
    assert clock.track.steps == ()
    at_ns = np.concatenate(starts)
    off = np.abs(clock.track.convert(at_ns) - (at_ns + OFFSET_NS))
    assert (off <= clock.track.error_at(at_ns)).all()
    assert clock.facts.behind_median_ns is not None


@pytest.mark.parametrize("marks", ["none", "sleeps of another thread", "ranges of older models"])
def test_without_a_mark_nsys_is_believed_and_it_is_said(marks: str, tmp_path: Path) -> None:
    export = Sleeps(3).export(tid=GLOBAL_TID + 1) if marks == "sleeps of another thread" else MadeExport()
    if marks == "ranges of older models":
        export.add("NVTX_EVENTS", nvtx("squall|a|1", 10, 20), nvtx("squall|a|2", 30, 40))
    lines = NO_LINES if marks == "none" else Sleeps(3).lines()
    report = export.report(tmp_path)
    clock = read_clock(report, lines, REAL_MINUS_MONOTONIC_NS)
    assert (clock.track.target_ns(7), len(clock.marks)) == (OFFSET_NS + 7, 0)
    assert to_json(clock.facts) == {
        "is_assumed": True, "n_sleeps": 0, "n_ranges": 0, "error_ns": 100_000, "drift_ppm": 0.0,
        "behind_median_ns": None, "behind_largest_ns": None, "assumption_error_ns": None,
    }  # fmt: skip
    with pytest.raises(AnalysisError, match="no clock mark and does not say when it began"):
        read_clock(report, lines, None)


def test_a_torn_last_line_is_left_out() -> None:
    whole = "10 20 3 4\n30 40 3 4\n"
    for torn in ("50 60 3", "x y 3 4\n"):
        assert parse_lines(whole + torn).tolist() == [[10, 20, 3, 4], [30, 40, 3, 4]]
    assert NO_LINES.shape == (0, 4)


def test_marks_are_a_table_on_the_nodes_clock(tmp_path: Path) -> None:
    sleeps = Sleeps(5, n=20)
    stamp = int(sleeps.true(np.array([777 * MS]))[0]) - 900
    mark = nvtx(f"squall-clock|{stamp}", 777 * MS, 778 * MS)
    report = sleeps.export().add("NVTX_EVENTS", mark).report(tmp_path)
    clock = read_clock(report, sleeps.lines(), None)
    rows = tables_of(report, clock.track, marks=clock.marks)["clock_marks"].to_pylist()
    assert [row["start_ns"] for row in rows] == sorted(row["start_ns"] for row in rows)
    ranges = [(row["read_before_ns"], row["read_after_ns"]) for row in rows if row["source"] == "range"]
    assert (len(rows), ranges) == (21, [(stamp, None)])
    bound = clock.track.largest_error_ns
    for row in rows:
        assert row["start_ns"] - row["read_before_ns"] >= -bound
        assert row["read_after_ns"] is None or row["read_after_ns"] - row["end_ns"] >= -bound


def test_readings_that_contradict_each_other_are_a_step(tmp_path: Path) -> None:
    sleeps = Sleeps(6)
    lines = sleeps.lines()
    lines[20:, :2] += 5 * MS  # the node's clock stepped: within what pairs, beyond what any drift explains
    clock = read_clock(sleeps.export().report(tmp_path), lines, REAL_MINUS_MONOTONIC_NS)
    assert len(clock.track.steps) == 1
