"""Requests made for the tests of windows."""

from __future__ import annotations

import numpy as np

from squall.analysis.studies.perf_rows import EndedRequests
from squall.scenarios.units import NS_PER_S


def ended(
    sent_ns: list[int], service_ns: list[int], failed: tuple[int, ...] = (), lag_ns: int | None = None
) -> EndedRequests:
    """By their sends and service times; `failed`: which of them; `lag_ns`: since their instants in the schedule."""
    sent, service = np.array(sent_ns, np.int64), np.array(service_ns, np.int64)
    order = np.argsort(sent + service, kind="stable")
    is_ok = np.ones(len(sent), np.bool_)
    is_ok[list(failed)] = False
    done = (sent + service)[order]
    return EndedRequests(
        sent[order], done - 1_000, done, is_ok[order], None if lag_ns is None else sent[order] - lag_ns
    )


def evenly(n: int, hz: float, service_ns: int = 50_000_000) -> EndedRequests:
    """`n` requests at a steady rate from 0 on."""
    return ended([round(index * NS_PER_S / hz) for index in range(n)], [service_ns] * n)
