"""What the servers may still have of a run once it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.requests.requests import Requests
from squall.scenarios.units import NS_PER_S

_ANSWERED = ("ok", "rejected", "server_error", "bad_reply", "unsent")
"""Outcomes after which the server has nothing more of the request."""


@dataclass(frozen=True)
class Unanswered:
    """`n` requests of the measured phases; `throughput_hz`: what was answered ok of them over their length."""

    n: int
    throughput_hz: float


def unanswered(requests: Requests, spans: Sequence[RunPhase]) -> Unanswered:
    """Of a run with requests; `spans` are its measured phases."""
    own = requests.in_phases([span.name for span in spans])
    length_ns = sum(span.end_ns - span.start_ns for span in spans)
    n_ok = int(own.is_ok.sum())
    return Unanswered(int((~own.outcome.is_any_of(_ANSWERED)).sum()), n_ok * NS_PER_S / max(length_ns, 1))
