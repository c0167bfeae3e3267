"""The exact answer of a queue, and what it leaves to a server, a client and the host between them."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heapreplace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.arrays import Int64s
from squall.analysis.proof.exact_queue import (
    LATE_LIMIT_NS,
    MEDIAN_LIMIT_NS,
    WAY_LIMIT_NS,
    Stamps,
    Waits,
    compare,
    drawn_services,
    exact_times,
)

MS = 1_000_000
QUIET = Waits(0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 100)), min_size=1, max_size=60), st.integers(1, 5)
)
def test_exact_times_are_those_of_lanes_taken_as_they_get_free(
    pairs: list[tuple[int, int]], n_lanes: int
) -> None:
    arrivals = np.cumsum([gap for gap, _ in pairs]).astype(np.int64) + 10**18
    services = np.array([service for _, service in pairs], np.int64)
    free = [0] * n_lanes
    heapify(free)
    starts = []
    for arrival, service in zip(arrivals.tolist(), services.tolist(), strict=True):
        starts.append(max(arrival, free[0]))
        heapreplace(free, starts[-1] + service)
    found = exact_times(arrivals, services, n_lanes)
    assert found[0].tolist() == starts
    assert found[1].tolist() == (np.array(starts) + services).tolist()


def test_without_lanes_nobody_waits() -> None:
    arrivals, services = np.array([5, 5, 9]), np.array([3, 2, 1])
    start, departure = exact_times(arrivals, services, 0)
    assert start.tolist() == [5, 5, 9]
    assert departure.tolist() == [8, 7, 10]


def test_drawn_services_are_one_stream_of_the_seed() -> None:
    whole = drawn_services("exponential", MS, 3, 10_000)
    assert whole[:100].tolist() == drawn_services("exponential", MS, 3, 100).tolist()
    assert whole.tolist() != drawn_services("exponential", MS, 4, 10_000).tolist()
    assert abs(whole.mean() - MS) < 4 * MS / 100  # standard deviation of a mean of 10,000: MS / 100
    assert drawn_services("constant", MS, 3, 2).tolist() == [MS, MS]


def honest(n: int = 500) -> tuple[Stamps, Int64s]:
    """A run of M/M/1 with lag 20 us, ways of 60 us, and a server 5 us late; ids are not in order of arrival."""
    rng = np.random.default_rng(1)
    scheduled = np.cumsum(rng.exponential(2.5 * MS, n)).astype(np.int64) + 10**15
    services = drawn_services("exponential", 2 * MS, 7, n)
    arrival = scheduled + 80_000
    start, departure = exact_times(arrival, services, 1)
    replied = departure + 5_000
    ids = rng.permutation(n)  # place in the order of acceptance of each id
    columns = [scheduled, scheduled + 20_000, arrival, start, departure, replied, replied + 60_000]
    return Stamps(np.argsort(ids), *(column[ids] for column in columns)), services


def test_an_honest_run_has_neither_faults_nor_doubts_and_its_figures() -> None:
    stamps, services = honest()
    found = compare(stamps, services, 1, QUIET)
    assert (found.faults, found.doubts) == ([], [])
    assert found.figures["over_server_ns"] == dict.fromkeys(("min", "p10", "p50", "max"), 145_000)
    assert found.figures["server_late_ns"]["p50"] == 5_000
    assert {name: way["p10"] for name, way in found.figures["way_ns"].items()} == {
        "in": 60_000,
        "out": 60_000,
    }


def moved(stamps: Stamps, by_ns: int, *names: str) -> Stamps:
    return replace(stamps, **{name: getattr(stamps, name) + by_ns for name in names})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: moved(s, 1, "departure_ns"), "500 of 500 departures are not those of the recursion, from arrival 0"),
        (lambda s: moved(s, -1, "start_ns"), "500 of 500 departures are not those of the recursion"),
        (lambda s: moved(s, -5_001, "replied_ns"), "replied lies before departure in 500 of 500"),
        (lambda s: moved(s, -60_001, "done_ns"), "done lies before replied in 500 of 500"),
        (lambda s: moved(s, -60_001, "arrival_ns"), "arrival lies before sent"),
        (lambda s: moved(s, -20_001, "sent_ns"), "sent lies before scheduled"),
        (lambda s: moved(s, 60_001, "sent_ns"), "arrival lies before sent"),
    ],
)  # fmt: skip
def test_a_ns_too_much_is_a_fault_whatever_the_host_did(change: Any, said: str) -> None:
    stamps, services = honest()
    found = compare(change(stamps), services, 1, Waits(10**12, 10**12))
    assert any(said in fault for fault in found.faults), found.faults


@pytest.mark.parametrize("spoil", [lambda s: np.delete(s, 20), lambda s: np.insert(s, 20, s[20])])
def test_a_dropped_or_doubled_service_time_is_found_where_it_is(spoil: Any) -> None:
    stamps, services = honest()
    found = compare(stamps, spoil(np.append(services, 1))[: len(services)], 1, QUIET)
    assert len(found.faults) == 1
    assert "departures are not those of the recursion, from arrival 2" in found.faults[0]


def slow_timer(stamps: Stamps) -> Stamps:
    extra = (stamps.departure_ns - stamps.arrival_ns) // 10
    return replace(stamps, replied_ns=stamps.replied_ns + extra, done_ns=stamps.done_ns + extra)


LATE: list[tuple[Any, str, int]] = [
    (slow_timer, "the server answers late", LATE_LIMIT_NS),
    (lambda s: moved(s, MS, "done_ns"), "the client stamps replies late", WAY_LIMIT_NS),
    (lambda s: moved(s, -MS, "sent_ns", "scheduled_ns"), "the way to the server takes long", WAY_LIMIT_NS),
    (
        lambda s: moved(s, -MS, "scheduled_ns"),
        "the median over the server's own time is over",
        MEDIAN_LIMIT_NS,
    ),
]


@pytest.mark.parametrize(("change", "said"), [one[:2] for one in LATE])
def test_a_lateness_is_a_fault_where_nobody_waited_for_a_core(change: Any, said: str) -> None:
    stamps, services = honest()
    found = compare(change(stamps), services, 1, QUIET)
    assert any(fault.startswith(said) for fault in found.faults), found.faults
    assert found.doubts == []


@pytest.mark.parametrize(("change", "said", "limit_ns"), LATE)
def test_a_lateness_is_a_doubt_where_server_and_client_waited_long(
    change: Any, said: str, limit_ns: int
) -> None:
    stamps, services = honest()
    found = compare(change(stamps), services, 1, Waits(500 * limit_ns, 0))
    assert any(doubt.startswith(said) and "waited" in doubt for doubt in found.doubts), found
    little = compare(change(stamps), services, 1, Waits(500 * limit_ns // 8, 0))
    assert any(fault.startswith(said) for fault in little.faults), "an eighth of the limit explains nothing"


def test_where_the_kernel_counts_no_waits_a_lateness_is_a_doubt() -> None:
    stamps, services = honest()
    found = compare(slow_timer(stamps), services, 1, Waits(None, 0))
    assert found.faults == []
    assert "the kernel does not count here" in found.doubts[0]


def test_a_stall_of_the_host_in_some_requests_is_neither_fault_nor_doubt() -> None:
    """A stall of 100 ms: arrivals in it are read after it. The recursion goes by the arrivals that there were."""
    stamps, services = honest()
    order = stamps.accepted
    arrival = stamps.arrival_ns[order].copy()
    first = int(arrival[200])
    arrival[(arrival >= first) & (arrival < first + 100 * MS)] = first + 100 * MS
    start, departure = exact_times(arrival, services, 1)
    back = np.argsort(order)
    held = replace(
        stamps, arrival_ns=arrival[back], start_ns=start[back], departure_ns=departure[back],
        replied_ns=departure[back] + 5_000, done_ns=departure[back] + 65_000,
    )  # fmt: skip
    assert compare(held, services, 1, QUIET).faults == []
    assert compare(held, services, 1, QUIET).doubts == []


def test_requests_that_were_never_answered_are_a_fault() -> None:
    stamps, services = honest()
    found = compare(replace(stamps, replied_ns=np.full(500, -1)), services, 1, QUIET)
    assert found.faults == ["replied lies before departure in 500 of 500 requests"]
