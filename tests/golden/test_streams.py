"""Requests that are answered response by response, by a server that does as its script says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from squall.actors.load.engine import Rules
from squall.actors.load.streams import StreamRule
from squall.actors.load.worker import ModelRequests
from squall.actors.messages.value_check import Tally, ValueRule
from squall.actors.net.http2 import CANCEL
from squall.analysis.storage.schema import HUNG_UP
from tests.fakes_grpc import GrpcBehaviour, GrpcKind, StubGrpc
from tests.golden.driving import (
    MS,
    REPLY_BYTES,
    S,
    assert_one_row_each,
    column,
    numbers,
    plan_of,
    run_worker,
    settings_of,
    spilled,
)

CLOSED = "the server closed the connection"
RESET = "the server reset the stream: INTERNAL_ERROR"
EXPECTED: dict[GrpcKind, tuple[str, str, int]] = {
    "answer": ("ok", "", 1),
    "two_messages": ("ok", "", 2),
    "bytewise": ("ok", "", 1),
    "padded": ("ok", "", 1),
    "no_message": ("bad_reply", "the stream ended without a response", 0),
    "half_message": ("bad_reply", "the stream ended within a response", 0),
    "wrong_id": ("bad_reply", "the reply does not carry the request's id", 1),
    "compressed": ("bad_reply", "malformed reply: a compressed message", 0),
    "error": ("server_error", "13 stub: broken 100 % on purpose ñ", 0),
    "trailers_only": ("server_error", "13 stub: broken 100 % on purpose ñ", 0),
    "rejected": ("rejected", "14 Exceeds maximum queue size", 0),
    "hang": ("timeout", "no whole reply within the timeout", 0),
    "cut": ("transport_error", RESET, 2),
    "cut_close": ("transport_error", CLOSED, 2),
}
"""Outcome, the first of the detail, and how many responses are kept."""
N = 20


def run_against(
    stub: StubGrpc, folder: Path, rule: StreamRule, rules: Rules | None = None
) -> tuple[pa.Table, pa.Table]:
    """`requests` and `responses` of N requests, each on a connection of its own or nearly so."""
    plan = plan_of([i * 10 * MS for i in range(N)], 10 * S)
    settings = replace(settings_of(folder, stub.port, rules, N, protocol="grpc"), streams=rule)
    rows = run_worker(settings, plan)
    assert_one_row_each(rows, plan)
    assert stub.seen.faults == []
    responses = [part for part in spilled(settings, "responses") if len(part)]
    by_request = [("request_id", "ascending"), ("index", "ascending")]
    return rows, pa.concat_tables(responses).sort_by(by_request) if responses else pa.table(
        {"request_id": []}
    )


@pytest.mark.parametrize("kind", EXPECTED)
def test_each_way_a_stream_ends_is_its_own_outcome_and_keeps_its_responses(
    kind: GrpcKind, tmp_path: Path
) -> None:
    rules = Rules(timeout_ns=1 * S if kind == "hang" else 30 * S)
    with StubGrpc(lambda _: GrpcBehaviour(kind), REPLY_BYTES, is_streamed=True) as stub:
        rows, responses = run_against(stub, tmp_path, StreamRule(), rules)
    outcome, detail, n_each = EXPECTED[kind]
    assert set(column(rows, "outcome")) == {outcome}
    assert all(str(one).startswith(detail) for one in column(rows, "detail")), column(rows, "detail")
    assert column(responses, "request_id") == [i for i in range(N) for _ in range(n_each)]
    assert (numbers(rows, "response_bytes") > 0).all() == bool(n_each)
    if n_each:
        is_last = [index == n_each - 1 for _ in range(N) for index in range(n_each)]
        assert column(responses, "is_final") == (is_last if outcome == "ok" else [False] * len(is_last))
        done = numbers(rows, "done_ns")
        for one in responses.to_pylist():
            assert stub.seen.replied_ns[one["request_id"]] < one["t_ns"] <= int(done[one["request_id"]])


def test_what_the_client_hangs_up_on_is_ended_at_the_server_too(tmp_path: Path) -> None:
    rule = StreamRule(cancel_share=0.5, cancel_after=1)
    with StubGrpc(lambda _: GrpcBehaviour("two_messages"), REPLY_BYTES, is_streamed=True) as stub:
        rows, responses = run_against(stub, tmp_path, rule)
    assert set(column(rows, "outcome")) == {"ok"}
    cut = [i for i, detail in enumerate(column(rows, "detail")) if str(detail).startswith(HUNG_UP)]
    assert cut == [i for i in range(N) if rule.is_cut_short(i)]
    assert 0 < len(cut) < N
    assert column(responses, "request_id") == [i for i in range(N) for _ in range(1 if i in cut else 2)]
    assert dict.fromkeys(cut, CANCEL) == stub.seen.resets


@pytest.mark.parametrize(
    ("n_expected", "outcome", "detail"),
    [
        (2, "ok", ""),
        (3, "bad_reply", "the stream had 2 responses, expected are 3"),
        (1, "bad_reply", "response 2 is one more than are expected"),
        (-2, "bad_reply", "response 1: output OUTPUT is"),
    ],
)
def test_every_fourth_request_is_held_to_its_responses(
    n_expected: int, outcome: str, detail: str, tmp_path: Path
) -> None:
    right = {"OUTPUT": np.full((1, 2), 0.0 if n_expected > 0 else 5.0)}
    tallies: list[Tally] = []
    with StubGrpc(lambda _: GrpcBehaviour("two_messages"), REPLY_BYTES, is_streamed=True) as stub:
        plan = plan_of([i * 10 * MS for i in range(N)], 10 * S)
        settings = replace(
            settings_of(tmp_path, stub.port, None, N, protocol="grpc"), streams=StreamRule(),
            models=(ModelRequests(check=ValueRule(4, 0, 0)),),
        )  # fmt: skip
        rows = run_worker(
            settings, plan, answers={(1, 0): [right] * abs(n_expected)},
            after=lambda worker: tallies.append(worker.tally()),
        )  # fmt: skip
    outcomes = column(rows, "outcome")
    assert set(outcomes[::4]) == {outcome}
    assert all(str(one).startswith(detail) for one in column(rows, "detail")[::4])
    assert set(outcomes) == {"ok", outcome}
    assert tallies == [Tally(N // 4, N // 4 if outcome != "ok" else 0)]


def test_what_is_hung_up_on_is_compared_as_far_as_it_came_and_a_failure_is_not(tmp_path: Path) -> None:
    right = [{"OUTPUT": np.zeros((1, 2))}] * 2
    tallies: list[Tally] = []
    with StubGrpc(
        lambda i: GrpcBehaviour("error" if i % 5 == 0 else "two_messages"), REPLY_BYTES, is_streamed=True
    ) as stub:
        plan = plan_of([i * 10 * MS for i in range(N)], 10 * S)
        made = settings_of(tmp_path, stub.port, None, N, protocol="grpc")
        settings = replace(
            made, streams=StreamRule(None, 1.0, 1), models=(ModelRequests(check=ValueRule(1, 0, 0)),)
        )
        rows = run_worker(
            settings, plan, answers={(1, 0): right}, after=lambda worker: tallies.append(worker.tally())
        )
    assert set(column(rows, "outcome")) == {"ok", "server_error"}
    assert tallies == [Tally(N - N // 5, 0)]
