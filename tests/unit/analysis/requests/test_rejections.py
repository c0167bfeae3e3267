from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from squall.actors.messages.template import REJECTIONS
from squall.analysis.requests.rejections import FULL_QUEUE, QUEUE_TIMEOUT, Refused, rejection_figures
from squall.analysis.requests.requests import Requests
from tests.request_columns import COLUMNS

HTTP_FULL = f"503 {FULL_QUEUE}"
GRPC_FULL = f"14 {FULL_QUEUE}"
WAITED = f"503 {QUEUE_TIMEOUT}"


def requests(*rows: tuple[str, str, str, int]) -> Requests:
    """Requests of (phase, outcome, detail, how many)."""
    flat = [row[:3] for row in rows for _ in range(row[3])]
    n = len(flat)
    texts = {name: [row[k] for row in flat] for k, name in enumerate(("phase", "outcome", "detail"))}
    columns = {name: pa.array(values, pa.string()) for name, values in {**texts, "node": ["n"] * n}.items()}
    numbers = {name: pa.array(range(n), pa.int64()) for name in COLUMNS if name not in columns}
    return Requests.from_table(pa.table(columns | numbers))


def samples(*rows: tuple[str, int | None]) -> pa.Table:
    """Samples of (phase, failures that the metrics count as REJECTED)."""
    return pa.table(
        {
            "phase": pa.array([row[0] for row in rows], pa.string()).dictionary_encode(),
            "failure_rejected_count": pa.array([row[1] for row in rows], pa.int64()),
        }
    )


def figures(own: Requests, table: pa.Table | None, phases: Sequence[str] = ("a", "b")) -> Any:
    return rejection_figures(own, table, phases)


def test_the_words_are_those_that_the_client_knows() -> None:
    assert tuple(words.decode() for words in REJECTIONS) == (FULL_QUEUE, QUEUE_TIMEOUT)


def test_rejections_are_counted_by_their_words_in_each_phase_and_in_all() -> None:
    own = requests(
        ("a", "ok", "", 9), ("a", "rejected", HTTP_FULL, 3), ("a", "rejected", WAITED, 2),
        ("b", "rejected", GRPC_FULL, 4),
        ("b", "rejected", "503 overloaded", 1), ("b", "server_error", "500 oops", 5),
        ("warm", "rejected", HTTP_FULL, 7),
    )  # fmt: skip
    found = figures(own, samples(("warm", 9), ("a", 1), ("a", 1), ("b", 0)))
    assert found.by_phase["a"] == Refused(5, 3, 2, 0, 2)
    assert found.by_phase["b"] == Refused(5, 4, 0, 1, 0)
    total = found.total
    assert [
        getattr(total, name) for name in ("n", "full_queue_count", "queue_timeout_count", "other_count")
    ] == [
        10,
        7,
        2,
        1,
    ]
    assert total.server_rejected_count == 2
    assert "has the 2 queue timeouts and nothing else: no metric counts the 7" in total.explanation


def test_without_a_rejection_there_is_nothing_to_say() -> None:
    own = requests(
        ("a", "ok", "", 3), ("a", "server_error", "500 oops", 1), ("warm", "rejected", HTTP_FULL, 1)
    )
    assert figures(own, samples(("a", 0))) is None
    assert figures(own, samples(("a", None))) is None
    assert figures(own, None) is None
    assert figures(requests(), samples()) is None


def test_the_servers_own_count_is_unknown_without_metrics() -> None:
    own = requests(("a", "rejected", WAITED, 2))
    old = samples(("a", 1)).drop_columns(["failure_rejected_count"])
    for table in (None, samples(("a", None)), samples(("b", 5)), old):
        found = rejection_figures(own, table, ["a"])
        assert found is not None
        assert found.total.server_rejected_count is None
        assert "not sampled" in found.total.explanation


def test_rejections_that_only_the_server_knows_are_told() -> None:
    found = figures(requests(("a", "timeout", "", 4)), samples(("a", 3)))
    assert (found.total.n, found.total.server_rejected_count) == (0, 3)
    assert "3 queue timeouts more than the clients, which had given up 4 requests" in found.total.explanation


@pytest.mark.parametrize(
    ("server", "gave_up", "words"),
    [
        (2, 0, "has the 2 queue timeouts and nothing else: none met a full queue"),
        (1, 0, "lacks 1 queue timeouts: samples are missing"),
        (5, 3, "3 queue timeouts more than the clients, which had given up 3"),
        (5, 2, "3 queue timeouts more than our clients: of other clients"),
    ],
)
def test_the_difference_to_the_server_is_explained(server: int, gave_up: int, words: str) -> None:
    own = requests(("a", "rejected", WAITED, 2), ("b", "cancelled", "", gave_up))
    assert words in figures(own, samples(("a", server))).total.explanation
