"""What the profiler of a run recorded, phase by phase, as its manifest states it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.wording import count_text, duration_text, share_text


def profile_figures(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """By measured phase that has a report: events, the share of them that is tied to a batch, and the report's clock.

    `missed_ns` (of the phase's beginning), `n_kernels`, `kernels_tied_ratio` (None without kernels), `n_api_calls`,
    `n_ranges` and `n_sleeps` (marks of the clock), `clock_error_ns` (bound of the report's clock on the node's),
    `is_clock_assumed`. None without a report.
    """
    reports = manifest.get("nsys", {}).get("reports", {})
    figures = {}
    for phase, report in reports.items():
        clock, tied = report.get("clock", {}), report.get("attribution", {})
        kernels = tied.get("kernels", {"n": 0, "n_tied": 0})
        late_ns = manifest.get("profiled_phases", {}).get(phase, {}).get("profiled_after_ns")
        figures[phase] = {
            "missed_ns": max(0, late_ns or 0),
            "n_kernels": kernels["n"],
            "kernels_tied_ratio": kernels["n_tied"] / kernels["n"] if kernels["n"] else None,
            "n_api_calls": tied.get("cuda_api", {}).get("n", 0),
            "n_ranges": clock.get("n_ranges", 0),
            "n_sleeps": clock.get("n_sleeps", 0),
            "clock_error_ns": clock.get("error_ns"),
            "is_clock_assumed": clock.get("is_assumed", True),
        }
    return figures or None


def latency_under(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """The profiler that the server ran under while its latencies were measured; None without one.

    `profiler`, and `unrecorded`: measured phases that it did not record, with the reason: the server was still
    launched under it, or attached to.
    """
    if manifest.get("collectors", {}).get("nsys", {}).get("status") != "on":
        return None
    phases = manifest.get("profiled_phases", {})
    unrecorded = {name: one.get("reason", "") for name, one in phases.items() if not one["is_profiled"]}
    return {"profiler": "nsys", "unrecorded": unrecorded}


def under_text(under: Mapping[str, Any] | None) -> str:
    """` under nsys`, to stand behind the word latency or a latency's name; empty without a profiler."""
    return f" under {under['profiler']}" if under else ""


def profile_lines(
    figures: Mapping[str, Mapping[str, Any]], under: Mapping[str, Any] | None = None
) -> list[str]:
    """A line a phase, for screen and report; first those that the profiler of `latency_under` did not record."""
    unrecorded = under["unrecorded"] if under else {}
    lines = [
        f"{phase}: NOT RECORDED: {reason or 'no reason is known'}" for phase, reason in unrecorded.items()
    ]
    return [*lines, *(f"{phase}: {', '.join(_parts(one))}" for phase, one in figures.items())]


def _parts(one: Mapping[str, Any]) -> list[str]:
    parts = []
    if one.get("missed_ns"):  # a summary of an older version has none
        parts.append(f"without its first {duration_text(one['missed_ns'])}")
    if one["n_kernels"]:
        tied = share_text(one["kernels_tied_ratio"])
        parts.append(f"{count_text(one['n_kernels'])} kernels, {tied} of them in batches")
        parts.append(f"{count_text(one['n_api_calls'])} CUDA calls")
    if one["is_clock_assumed"]:
        parts.append("its clock is taken on trust: no marks")
    else:
        n_marks = one["n_ranges"] + one["n_sleeps"]
        parts.append(f"its clock within {duration_text(one['clock_error_ns'])} ({count_text(n_marks)} marks)")
    return parts
