"""Queues with known response times through a real engine and a real null server, over HTTP and gRPC.

Each departure is the exact one of this very run (`squall.analysis.statistics.exact_queue`), and the client's instants
enclose the server's. How long the host takes between the two is an absolute time: the selftest and the benchmarks
judge it. Theory's ranges stand beside it: `test_the_seeds_own_draws_…` shows that the fixed seed is no chance of one
in twenty.
"""

from __future__ import annotations

from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.actors.null.queue import Service, service_times
from squall.analysis.statistics.answers import QS, expect
from squall.analysis.statistics.latency import nearest_rank
from squall.analysis.statistics.queueing import departures_ns
from squall.cluster.commands.local_workers import NullTriton, poisson_plan
from squall.cluster.commands.selftest_runs import (
    CONSTANT_HZ,
    CONSTANT_NS,
    MISS_RATIO,
    PROTOCOLS,
    QUEUES,
    Options,
    queue_answers,
    serve,
)
from squall.scenarios.errors import ClusterError

S = 1_000_000_000
SHORT = Options(check_ns=2 * S, load_ratios=(0.5, 0.8))
LONG = Options(check_ns=30 * S, load_ratios=(0.5, 0.8, 0.95))
DEFAULT = Options()
_ONE = "exponential-4-0.95-30s"
"""Of the long ones that which is slow; the others are long."""


def cases(options: Options) -> list[Any]:
    """(options, law, lanes, load, number) of each known answer."""
    return [
        pytest.param(
            options, law, n_lanes, load, number, id=f"{law}-{n_lanes}-{load}-{options.check_ns // S}s"
        )
        for number, (load, (law, n_lanes)) in enumerate(product(options.load_ratios, QUEUES), 1)
    ]


def agrees(answer: dict[str, Any]) -> None:
    """Asserts that server and client did exactly what the queue asks; how late a busy host makes them is not asked."""
    late = ("late:", "takes long:", "over its limit:")
    assert [one for one in answer["reasons"] if not any(word in one for word in late)] == []
    assert answer["n_requests"] > 50
    assert answer["over_server_ns"]["min"] >= 0
    for one in answer["quantiles"]:
        assert one["exact_ns"] <= one["server_ns"] <= one["client_ns"], answer


@pytest.mark.parametrize(
    ("options", "law", "n_lanes", "load", "number"),
    [
        *(pytest.param(*case.values, id=case.id, marks=pytest.mark.slow) for case in cases(SHORT)[:5]),
        *cases(SHORT)[5:],
    ],
)
def test_response_times_are_those_of_the_queue(
    options: Options, law: str, n_lanes: int, load: float, number: int, tmp_path: Path
) -> None:
    answers = queue_answers(options, law, n_lanes, load, number, tmp_path, print)
    assert [one["protocol"] for one in answers] == list(PROTOCOLS)
    for answer in answers:
        agrees(answer)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "law", "n_lanes", "load", "number"),
    [
        case for case in cases(LONG) if case.values[3] == max(LONG.load_ratios)
    ],  # length is what full queues need
)
def test_response_times_are_those_of_the_queue_in_a_long_run(
    options: Options, law: str, n_lanes: int, load: float, number: int, tmp_path: Path
) -> None:
    for answer in queue_answers(options, law, n_lanes, load, number, tmp_path, print):
        agrees(answer)


def test_no_service_time_is_below_a_constant_one(tmp_path: Path) -> None:
    options = Options(check_ns=S)
    for served in serve(options, PROTOCOLS, f"constant:{CONSTANT_NS}ns", 0, CONSTANT_HZ, 0, tmp_path):
        rows = served.rows
        assert rows.is_ok.all()
        assert len(rows.request_id) > 100
        assert (rows.done_ns - rows.sent_ns >= CONSTANT_NS).all()
        assert np.array_equal(rows.scheduled_ns, served.planned_ns)
        by_id = np.argsort(served.record["request_id"])
        instants = [
            rows.scheduled_ns, rows.sent_ns, served.record["arrival_ns"][by_id],
            served.record["departure_ns"][by_id], served.record["replied_ns"][by_id], rows.done_ns,
        ]  # fmt: skip
        for before, after in pairwise(instants):
            assert (before <= after).all()


def _marks(of_long: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if of_long == _ONE else [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize(
    ("options", "law", "n_lanes", "load", "number"),
    [
        *cases(SHORT),
        *cases(DEFAULT),
        *(pytest.param(*case.values, id=case.id, marks=_marks(case.id)) for case in cases(LONG)),
    ],
)
def test_the_seeds_own_draws_lie_in_the_ranges(
    options: Options, law: str, n_lanes: int, load: float, number: int
) -> None:
    """What a client and a server without any delay would measure: a false alarm of the fixed seed would show here."""
    n_ranges = len(QUEUES) * len(options.load_ratios) * len(PROTOCOLS) * len(QS)
    seed = options.seed_of("ranges", number)
    expected = expect(law, n_lanes, load, options.check_ns, MISS_RATIO / n_ranges, seed)
    queue = expected.queue
    for place in ((number, 0), (number, 1)):
        plan = poisson_plan(queue.arrival_hz, options.check_ns, S, options.seed_of("plan", *place))
        stream = service_times(
            Service.parse(f"{law}:{queue.service_ns}ns"), options.seed_of("service", *place)
        )
        services = np.array(list(islice(stream, len(plan))), float)
        arrivals = plan.offset_ns.astype(float)
        responses = np.sort(departures_ns(arrivals[None], services[None], n_lanes)[0] - arrivals)
        for q, (low_ns, high_ns) in zip(expected.qs, expected.ranges_ns, strict=True):
            assert low_ns <= responses[nearest_rank(q, len(responses)) - 1] <= high_ns


def test_a_null_server_that_cannot_start_is_one_line() -> None:
    with NullTriton("--service=constant:soon") as server, pytest.raises(ClusterError) as caught:
        server.port("http")
    assert str(caught.value).startswith("squall.actors.null.triton ended early: ")
    assert "soon" in str(caught.value)
    assert "\n" not in str(caught.value)
