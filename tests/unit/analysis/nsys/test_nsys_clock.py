from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.clocks.track import ClockTrack
from squall.analysis.nsys.clock import ReportClock, parse_lines, read_clock
from squall.analysis.nsys.marks import pair_sleeps
from squall.analysis.nsys.tables import EventLabels, event_tables
from squall.analysis.record import to_json
from squall.scenarios.errors import AnalysisError
from tests.many_examples import examples
from tests.nsys_exports import GLOBAL_TID, PID, TID, UTC_START_NS, MadeExport, nvtx

MS = 1_000_000
S = 1_000_000_000
OFFSET_NS = 45_000 * S + 123_456_789  # node's clock - report's
PERIOD_NS = 250 * MS


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

    def lines(self, kept: slice | np.ndarray = slice(None)) -> np.ndarray:
        n = len(self.before_ns)
        rows = np.column_stack((self.before_ns, self.after_ns, np.full(n, PID), np.full(n, TID)))
        return rows[kept]

    def export(self, kept: slice | np.ndarray = slice(None), **more: Any) -> MadeExport:
        export = MadeExport().strings(s1="nanosleep", s2="clock_nanosleep", s3="poll")
        rows = np.column_stack((self.start_ns, self.end_ns))[kept].tolist()
        events = [event(start, end) | more for start, end in rows]
        between = [event(end + 1000, end + PERIOD_NS - MS, name=2) for _, end in rows]
        return export.add("OSRT_API", *events, *between, event(5, 9, name=3))


def event(start: int, end: int, name: int = 1, tid: int = GLOBAL_TID) -> dict[str, Any]:
    return {"start": start, "end": end, "eventClass": 27, "globalTid": tid, "nameId": name}


def assert_holds_the_truth(clock: ReportClock, sleeps: Sleeps) -> None:
    at = np.linspace(-2 * S, sleeps.start_ns[-1] + 2 * S, 200).astype(np.int64)
    off = np.abs(clock.track.convert(at) - sleeps.true(at))
    assert (off <= clock.track.error_at(at)).all()


@pytest.mark.parametrize("utc_off_ns", [0, 40 * MS, -3 * S, 12 * PERIOD_NS, None])
def test_sleeps_give_the_clock_with_a_bound_that_holds_however_wrong_the_utc_start_is(
    tmp_path: Path, utc_off_ns: int | None
) -> None:
    sleeps = Sleeps(1)
    real_minus_monotonic = None if utc_off_ns is None else UTC_START_NS - OFFSET_NS + utc_off_ns
    clock = read_clock(sleeps.export().report(tmp_path), sleeps.lines(), real_minus_monotonic)
    assert not clock.facts.is_assumed
    assert clock.marks.is_sleep.sum() == 40
    assert_holds_the_truth(clock, sleeps)
    errors = clock.track.error_at(sleeps.start_ns)
    assert np.median(errors) < 25_000  # the tightest of leads and tails of up to 60 us, not their mean of 30
    if utc_off_ns is None:
        assert clock.facts.assumption_error_ns is None
    else:
        assert clock.facts.assumption_error_ns is not None
        assert abs(clock.facts.assumption_error_ns - abs(utc_off_ns)) < 40_000


def test_lines_and_events_that_lack_each_other_are_passed_over(tmp_path: Path) -> None:
    sleeps = Sleeps(2, n=60)
    in_report = np.setdiff1d(np.arange(10, 50), [12, 30, 31])  # the collection, with three events lost
    in_file = np.setdiff1d(np.arange(60), [20, 45])
    clock = read_clock(sleeps.export(in_report).report(tmp_path), sleeps.lines(in_file), None)
    both = np.intersect1d(in_report, in_file)
    assert clock.marks.read_before_ns.tolist() == sleeps.before_ns[both].tolist()
    assert clock.marks.start_ns.tolist() == sleeps.start_ns[both].tolist()
    assert_holds_the_truth(clock, sleeps)


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


def test_one_mark_that_took_long_spoils_no_other(tmp_path: Path) -> None:
    sleeps = Sleeps(7)
    lines = sleeps.lines()
    lines[5, 1] += 260 * MS  # longer than the mark process sleeps between marks
    clock = read_clock(sleeps.export().report(tmp_path), lines, UTC_START_NS - OFFSET_NS)
    assert clock.marks.is_sleep.sum() >= 39
    assert_holds_the_truth(clock, sleeps)


def test_sleeps_of_other_threads_are_not_marks(tmp_path: Path) -> None:
    sleeps = Sleeps(3)
    report = sleeps.export(globalTid=GLOBAL_TID + 1).report(tmp_path)
    clock = read_clock(report, sleeps.lines(), UTC_START_NS - OFFSET_NS)
    assert (clock.facts.is_assumed, len(clock.marks)) == (True, 0)


def test_a_mark_thread_with_other_ids_inside_the_report_is_found_by_its_name(tmp_path: Path) -> None:
    """In a container nsys and the process may number processes differently."""
    sleeps = Sleeps(3)
    export = sleeps.export(globalTid=GLOBAL_TID + 1).strings(s9="squall-clock")
    export.add("ThreadNames", {"nameId": 9, "globalTid": GLOBAL_TID + 1})
    clock = read_clock(export.report(tmp_path), sleeps.lines(), UTC_START_NS - OFFSET_NS)
    assert clock.marks.is_sleep.sum() == 40
    assert_holds_the_truth(clock, sleeps)


def ranges_export(seed: int, n: int = 200) -> tuple[MadeExport, np.ndarray]:
    """Batches of two threads that follow each other, each stamped 1-40 us before it begins."""
    rng = np.random.default_rng(seed)
    export, starts = MadeExport(), []
    for thread in range(2):
        begin = np.cumsum(rng.integers(2 * MS, 6 * MS, n))
        end = begin + rng.integers(MS, 2 * MS - 50_000, n)
        stamp = begin + OFFSET_NS - rng.integers(1_000, 40_000, n)
        rows = zip(begin.tolist(), end.tolist(), stamp.tolist(), strict=True)
        export.add(
            "NVTX_EVENTS",
            *(
                nvtx(f"squall|a_{thread}|{i}|{c}", s, e, GLOBAL_TID + thread)
                for i, (s, e, c) in enumerate(rows)
            ),
        )
        starts.append(begin)
    return export, np.concatenate(starts)


def test_ranges_that_carry_a_reading_give_the_clock_too(tmp_path: Path) -> None:
    export, starts = ranges_export(4)
    clock = read_clock(export.report(tmp_path), parse_lines(""), None)
    assert (clock.facts.is_assumed, len(clock.marks)) == (False, 400)
    off = np.abs(clock.track.convert(starts) - (starts + OFFSET_NS))
    assert (off <= clock.track.error_at(starts)).all()
    assert clock.facts.n_ranges == 400
    assert clock.facts.behind_median_ns is not None


def test_older_ranges_without_a_reading_give_no_clock(tmp_path: Path) -> None:
    export = MadeExport().add("NVTX_EVENTS", nvtx("squall|a|1", 10, 20), nvtx("squall|a|2", 30, 40))
    clock = read_clock(export.report(tmp_path), parse_lines(""), UTC_START_NS - OFFSET_NS)
    assert clock.facts.is_assumed


def test_without_a_mark_nsys_is_believed_and_it_is_said(tmp_path: Path) -> None:
    clock = read_clock(MadeExport().report(tmp_path), parse_lines(""), UTC_START_NS - OFFSET_NS)
    assert clock.track.target_ns(7) == OFFSET_NS + 7
    assert to_json(clock.facts) == {
        "is_assumed": True, "n_sleeps": 0, "n_ranges": 0, "error_ns": 100_000, "drift_ppm": 0.0,
        "behind_median_ns": None, "behind_largest_ns": None, "assumption_error_ns": None,
    }  # fmt: skip


def test_without_a_mark_and_a_utc_start_there_is_no_clock(tmp_path: Path) -> None:
    report = MadeExport().report(tmp_path)
    with pytest.raises(AnalysisError, match="no clock mark and does not say when it began"):
        read_clock(report, parse_lines(""), None)


def test_a_torn_last_line_is_left_out() -> None:
    whole = "10 20 3 4\n30 40 3 4\n"
    assert parse_lines(whole + "50 60 3").tolist() == [[10, 20, 3, 4], [30, 40, 3, 4]]
    assert parse_lines(whole + "x y 3 4\n").shape == (2, 4)
    assert parse_lines("").shape == (0, 4)


def test_marks_are_a_table_on_the_nodes_clock(tmp_path: Path) -> None:
    sleeps = Sleeps(5, n=20)
    export = sleeps.export()
    stamp = int(sleeps.true(np.array([777 * MS]))[0]) - 900
    export.add("NVTX_EVENTS", nvtx(f"squall-clock|{stamp}", 777 * MS, 778 * MS))
    report = export.report(tmp_path)
    clock = read_clock(report, sleeps.lines(), None)
    labels = EventLabels("run-1", "node-1", "server-0")
    tables = dict(event_tables(report, labels, clock.track, clock.marks))
    rows = tables["clock_marks"].to_pylist()
    assert len(rows) == 21
    assert [row["start_ns"] for row in rows] == sorted(row["start_ns"] for row in rows)
    (mark,) = [row for row in rows if row["source"] == "range"]
    assert (mark["read_before_ns"], mark["read_after_ns"]) == (stamp, None)
    bound = clock.track.largest_error_ns
    for row in rows:
        assert row["start_ns"] - row["read_before_ns"] >= -bound
        assert row["read_after_ns"] is None or row["read_after_ns"] - row["end_ns"] >= -bound


def test_readings_that_contradict_each_other_are_an_error_or_a_step(tmp_path: Path) -> None:
    sleeps = Sleeps(6)
    lines = sleeps.lines()
    lines[20:, :2] += 5 * MS  # the node's clock stepped: within what pairs, beyond what any drift explains
    clock = read_clock(sleeps.export().report(tmp_path), lines, UTC_START_NS - OFFSET_NS)
    assert len(clock.track.steps) == 1
    assert isinstance(clock.track, ClockTrack)
