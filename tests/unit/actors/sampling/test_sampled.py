"""What an observer samples is all that the schema has of it."""

from __future__ import annotations

import pytest

from squall.actors.sampling.observer_settings import ObserverSettings, ServerTarget
from squall.actors.sampling.sampled import (
    OF_NODE,
    OF_SERVER,
    sources_of,
)
from squall.actors.sampling.source import OwnNode, OwnServer, Pids, Sampled
from squall.actors.sampling.threads import Family
from tests.fakes import FakeClock

SETTINGS = ObserverSettings(
    "run", "node-0", "", host_interval_ns=1, thread_interval_ns=2, triton_interval_ns=3, gpu_interval_ns=4
)


def test_sources_fill_the_table_they_stand_at_as_often_as_it_says() -> None:
    node = OwnNode(lambda: [], Pids(), Pids((1,)))
    own = sources_of(OF_NODE, node, SETTINGS)
    assert [(source.table, ns) for source, ns in own] == [(one.table, 1) for one in OF_NODE]
    wrong = (Sampled[OwnNode]("core_samples", lambda _: 1, OF_NODE[0].source),)
    with pytest.raises(AssertionError, match="what is to fill core_samples fills another table"):
        sources_of(wrong, node, SETTINGS)


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:1"])
def test_a_server_without_an_address_is_not_asked(url: str | None) -> None:
    server = OwnServer(ServerTarget("server-0", url), Family((), FakeClock()).pids)
    tables = {source.table for source, _ in sources_of(OF_SERVER, server, SETTINGS)}
    assert tables == {one.table for one in OF_SERVER} - ({"triton_samples"} if url is None else set())
