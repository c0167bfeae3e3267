"""The benches of the engine run: each part once, briefly, against a real Triton. Their figures are nobody's here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

import squall
from squall.actors.load.lane import IS_BUILT
from squall.actors.load.worker import ModelRequests
from squall.cluster.commands.local_workers import NullTriton
from tests.bench import engine, h2load, locust_cost, priority, request_kinds, rivals, triton_user
from tests.bench.target import Target, real_triton

pytestmark = [pytest.mark.slow, pytest.mark.beside]
SECONDS = 0.5
LONG_S = 3.0
"""Has whole seconds, whose arrivals are counted."""


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with real_triton() as found:
        yield found


@pytest.mark.parametrize("has_lane", [True, False][not IS_BUILT :])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_closed_loop_sends_what_the_server_counts(target: Target, protocol: str, has_lane: bool) -> None:
    n_before = target.settled()[0]
    _, _, short = engine.run_once(target, protocol, engine.closed_plan(2, SECONDS), 2, has_lane=has_lane)
    assert short.num_rows >= 2  # one of each user at least, however slow the host is
    assert target.settled() == (n_before + short.num_rows, 0)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_open_loop_sends_what_was_planned(target: Target, protocol: str) -> None:
    n_before = target.settled()[0]
    told = engine.opened(target, protocol, 100.0, LONG_S, 100_000)
    assert target.settled() == (n_before + told["n_requests"], 0)
    assert told["n_requests"] == len(engine.gamma_plan(100.0, LONG_S))
    json.dumps(told)


@pytest.mark.parametrize("tool", ["wrk", "asyncio"])
def test_another_tool_is_measured_by_what_the_server_counts(target: Target, tool: str) -> None:
    if tool in rivals.missing():
        pytest.skip(f"{tool} is not there: {rivals.missing()[tool]}")
    n_before = target.settled()[0]
    if tool == "wrk":
        told = rivals.wrk(target, 2, LONG_S)
    else:
        told = rivals.call_later_pacer(target, engine.gamma_plan(100.0, LONG_S).offset_ns, loop="asyncio")
    assert told.n_requests > 10
    assert target.settled()[0] - n_before >= told.n_requests
    json.dumps(asdict(told))


@pytest.mark.long
def test_h2load_sends_what_ours_sends(target: Target) -> None:
    if shutil.which("h2load") is None:
        pytest.skip("h2load is not there: apt-get install nghttp2-client")
    n_before = target.settled()[0]
    assert h2load.h2load(target, 2_000, LONG_S, []) > 0
    assert target.settled() == (n_before + 800 + 2_000, 0)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_each_kind_of_input_is_answered(protocol: str) -> None:
    with h2load.null_triton() as null:
        for kind in request_kinds.INPUTS[:-1]:
            told = engine.closed(
                kind.of(null),
                protocol,
                2,
                SECONDS,
                kind.has_lane,
                n_variants=kind.n_variants,
                models=(ModelRequests(made=kind.made),),
                sequences=kind.sequences(2),
            )
            assert told["n_requests"] > 10


@pytest.mark.serial
@pytest.mark.parametrize("arrangement", priority.ARRANGEMENTS)
def test_every_arrangement_of_a_sender_sends_all(arrangement: str) -> None:
    with NullTriton() as server:
        told = priority.send_lags(server, arrangement, SECONDS, 1)
    assert told["n_sent"] == told["n_planned"] > 10


def test_users_of_ours_are_measured_beside_a_plain_one_of_locusts() -> None:
    plain, http, grpc = triton_user.figures(4, SECONDS, 1, 64)
    assert [one["user"] for one in (plain, http, grpc)] == ["plain", "http", "grpc"]
    assert plain["ratio_to_plain"] == 1
    assert min(one["n_requests"] for one in (plain, http, grpc)) > 10
    json.dumps([plain, http, grpc])


@pytest.mark.long
def test_users_of_locust_and_of_squall_are_measured_by_one_rule(target: Target, tmp_path: Path) -> None:
    n_before = target.settled()[0]
    found = []
    for tool in ("squall", "locust"):
        folder = tmp_path / tool
        folder.mkdir()
        wanted = locust_cost.scenario(target, tool, 1, 3, LONG_S, folder)
        found.append(locust_cost.figure_of(squall.run(wanted, folder), tool, 1, 3))
    assert target.settled()[0] - n_before >= sum(one.n_requests for one in found)
    for one in found:
        assert one.n_requests > 10
        assert one.cpu_us > 0
        assert 0 < one.p50_ms <= one.p95_ms
    assert [one.own_p50_ms is None for one in found] == [True, False]
    assert len(locust_cost.table(found)) == 4
    json.dumps([asdict(one) for one in found])
