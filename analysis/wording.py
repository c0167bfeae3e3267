"""How a figure is written for people, with three digits and a unit, on the screen and in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LATENCY_LABELS = {
    "open": {"response": "response", "service": "service", "lag": "send lag"},
    "closed": {"service": "service time"},
}
"""Latencies of a run by its load: a closed loop has service time alone, and says so in full."""

_NS_STEPS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))


def duration_text(ns: float | None) -> str:
    """`ns` as `1.23 ms`; `-` for None."""
    if ns is None:
        return "-"
    size, unit = next((step for step in _NS_STEPS if abs(ns) >= step[0]), _NS_STEPS[-1])
    return f"{_digits(ns / size)} {unit}"


def share_text(ratio: float | None) -> str:
    """`ratio` as `4.2 %`; `-` for None."""
    if ratio is None:
        return "-"
    if 0.995 <= ratio < 1.0:  # never "100 %" for what is not all
        return f"{math.floor(ratio * 10_000) / 100:.2f} %"
    return f"{_digits(100.0 * ratio)} %"


def count_text(count: float | None) -> str:
    """`count` as `1,234`, or with up to three digits if it is not whole; `-` for None."""
    if count is None:
        return "-"
    return f"{int(count):,}" if count == int(count) else _digits(count)


def rate_text(hz: float | None) -> str:
    """`hz` as `200/s`; `-` for None."""
    return "-" if hz is None else f"{_digits(hz)}/s"


def figure_text(value: float | None, unit: str) -> str:
    """`value` in `unit` of the schema: ns, ratio, count, hz or bytes."""
    if unit == "ns":
        return duration_text(value)
    if unit == "ratio":
        return share_text(value)
    if unit == "hz":
        return rate_text(value)
    return count_text(value)


def quantile_text(quantile: Mapping[str, Any]) -> str:
    """The value; `failed` where the quantile falls on failures; `n too small` where it was refused."""
    if quantile["is_infinite"]:
        return "failed"
    return "n too small" if quantile["is_refused"] else duration_text(quantile["value_ns"])


def interval_text(quantile: Mapping[str, Any]) -> str:
    """The 95 % interval, `?` for an end that the rows do not carry or that falls on failures; `none` without one."""
    if quantile["interval_reason"]:
        return "none"
    low, high = (
        duration_text(quantile[end]) if quantile[end] is not None else "?" for end in ("low_ns", "high_ns")
    )
    return f"{low} … {high}"


def load_rows(load: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The series of a load with their labels: a closed loop has only what its users sent."""
    if load["intended"] is None:
        return [("sent by users", load["delivered"])]
    return [(name, load[name]) for name in ("intended", "delivered")]


def change_text(ratio: float | None) -> str:
    """`ratio` as a change with its sign: `+0.12 %`; `-` for None."""
    return f"+{share_text(ratio)}" if ratio is not None and ratio > 0 else share_text(ratio)


CLOSED_STIMULUS = (
    "none: users send when they have been answered, so that nothing was scheduled to hold the sends to"
)


def intended_lines(phase: str, figures: Mapping[str, Any]) -> list[str]:
    """What a phase is about to send, from `figures.series_figures`, before it is sent: a line, or two."""
    burstiness = {
        "dispersion": _at_scales(figures, "idc", ("1s", "10s", "100s")),
        "peak to mean": _at_scales(figures, "peak_to_mean", ("1s", "10s", "60s")),
    }
    local, c2 = count_text(figures["local_c2_ratio"]), count_text(figures["gap_c2_ratio"])
    parts = [
        f"{count_text(figures['n'])} arrivals, {rate_text(figures['rate_hz'])}",
        f"gap c² {c2}, local {local}",
    ]
    lines = [
        f"{phase}: {'; '.join([*parts, *(f'{name} {text}' for name, text in burstiness.items() if text)])}"
    ]
    if figures["safe_load_ratio"] is not None:
        window, load = duration_text(figures["safe_load_window_ns"]), share_text(figures["safe_load_ratio"])
        lines.append(f"{phase}: above {load} load its busiest {window} alone overloads the server")
    return lines


def _at_scales(figures: Mapping[str, Any], name: str, scales: tuple[str, ...]) -> str:
    """`5.1 at 1 s, 20 at 10 s`: the scales that the phase carries; empty without any."""
    found = {scale.removesuffix("s"): figures[f"{name}_{scale}_ratio"] for scale in scales}
    return ", ".join(
        f"{count_text(value)} at {scale} s" for scale, value in found.items() if value is not None
    )


def stimulus_lines(stimulus: Mapping[str, Any]) -> list[str]:
    """Planned against sent of one phase, in two lines, from `stimulus.Stimulus.figures`."""
    bursts = stimulus["bursts"]
    first = f"{count_text(stimulus['n_within'])} of {count_text(stimulus['n_planned'])} sent within it"
    if stimulus["n_unreached"]:
        first += f"; {count_text(stimulus['n_unreached'])} more found no server"
    if stimulus["second_ratio"] is not None:
        first += f"; worst second {share_text(stimulus['second_ratio'])} off"
    first += f", bursts {share_text(bursts['difference_ratio'])}" if bursts else ""
    changes = ", ".join(
        f"{one['window_ns'] / 10**9:g} s {change_text(one['change_ratio'])}" for one in stimulus["dispersion"]
    )
    distance = stimulus["gap_ks_ratio"]
    parts = {
        "dispersion": changes,
        "drift": duration_text(stimulus["end_drift_ns"]),
        "gap KS": "-" if distance is None else f"{distance:.3f}",
    }
    return [first, "; ".join(f"{name} {text}" for name, text in parts.items() if text)]


def users_text(users: Mapping[str, Any]) -> tuple[str, str]:
    """Little's law as it came out in a closed loop: what is accounted for, and the rest."""
    rate, inside = rate_text(users["throughput_hz"]), count_text(round(users["inside_client_mean_count"], 2))
    service, think = duration_text(users["service_mean_ns"]), duration_text(users["think_mean_ns"])
    return (
        f"{count_text(users['users_mean_count'])} = {rate} x ({service} service + {think} think)",
        f"+ {inside} inside the load generator ({share_text(users['gap_ratio'])} of them)",
    )


def _digits(value: float) -> str:
    """`value` with three significant digits, never in powers of ten, and thousands separated."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def rejections_text(rejections: Mapping[str, Any]) -> tuple[str]:
    """What the queue policy refused, as the clients counted it, and what of it Triton's own metric has."""
    total = rejections["total"]
    server = total["server_rejected_count"]
    other = f", other {count_text(total['other_count'])}" if total["other_count"] else ""
    known = "not sampled" if server is None else count_text(server)
    full, waited = count_text(total["full_queue_count"]), count_text(total["queue_timeout_count"])
    return (f"full queue {full}, queue timeout {waited}{other}; Triton's metric: {known}",)
