"""What screen and report say of a recording: also which part of its phase it lacks."""

from __future__ import annotations

from typing import Any

from squall.analysis.render.templates import sentences
from squall.analysis.summary.profile_figures import LatencyUnder, latency_under, profile_figures
from squall.analysis.tables.manifest import read_manifest


def _lines(late_ns: int | None) -> list[str]:
    clock = {"is_assumed": False, "n_ranges": 100, "n_sleeps": 9, "error_ns": 20_000}
    manifest: dict[str, Any] = {
        "nsys": {"reports": {"one": {"clock": clock}}},
        "profiled_phases": {"one": {"is_profiled": True, "profiled_after_ns": late_ns}},
    }
    figures = profile_figures(read_manifest(manifest))
    assert figures is not None
    return sentences("profile", figures, None)


def test_a_phase_whose_beginning_was_missed_says_how_much() -> None:
    assert _lines(673_249_994) == ["one: without its first 673 ms, its clock within 20.0 µs (109 marks)"]


def test_a_phase_that_was_recorded_from_before_its_start_says_nothing() -> None:
    assert _lines(-300_000_000) == ["one: its clock within 20.0 µs (109 marks)"]
    assert _lines(None) == ["one: its clock within 20.0 µs (109 marks)"]


def test_without_a_report_there_are_no_figures() -> None:
    assert profile_figures(read_manifest({})) is None


def test_latencies_are_under_the_profiler_that_the_server_ran_under_recorded_or_not() -> None:
    profiled = {
        "one": {"is_profiled": True, "reason": ""},
        "two": {"is_profiled": False, "reason": "it hung"},
    }
    under = latency_under(
        read_manifest({"collectors": {"nsys": {"status": "on"}}, "profiled_phases": profiled})
    )
    assert under == LatencyUnder("nsys", {"two": "it hung"})


def test_a_phase_that_was_not_recorded_is_a_line_of_its_own_before_the_others() -> None:
    clock = {"is_assumed": True}
    figures = profile_figures(read_manifest({"nsys": {"reports": {"one": {"clock": clock}}}}))
    under = LatencyUnder("nsys", {"two": "it hung", "three": ""})
    assert sentences("profile", figures, under) == [
        "two: NOT RECORDED: it hung",
        "three: NOT RECORDED: no reason is known",
        "one: its clock is taken on trust: no marks",
    ]


def test_without_a_profiler_latencies_are_under_nothing() -> None:
    for collectors in ({}, {"nsys": {"status": "off"}}, {"nsys": {"status": "missing"}}):
        assert latency_under(read_manifest({"collectors": collectors})) is None
