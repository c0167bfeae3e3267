"""What every source of samples gives to its sampler: of this host, of a real server, of scripted GPUs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from squall.actors.clock import SystemClock
from squall.actors.sampling.observer_settings import ServerTarget
from squall.actors.sampling.sampled import (
    FILLED,
    OF_GPUS,
    OF_NODE,
    OF_SERVER,
)
from squall.actors.sampling.sampler import Telling
from squall.actors.sampling.source import OwnGpus, OwnNode, OwnServer, Pids, Row, Source
from squall.actors.sampling.threads import Family
from squall.analysis.storage.schema import arrow_schema
from tests.null_process import NullProcess
from tests.unit.actors.fake_nvml import FakeGpu, FakeNvml
from tests.unit.actors.sampling.gpu.test_gpu import GPM, process, used, values

NOW = SystemClock().monotonic_ns
LABELS = {"run": "r", "phase": "", "node": "node-0", "server": "server-0"}
AT_ITS_OWN_PACE = {"gpu_samples"}
"""Whose slower values are left out of most rows."""
PATIENCE_NS = 20 * 10**9
ANSWERS = values(
    processes=[process(os.getpid())],
    utilisation_of=[used(os.getpid(), 9, 50, 20)],
    energy=list(range(10**6, 10**7, 10**5)),
)
"""Of the scripted GPU."""


def own_pids() -> list[int]:
    return [os.getpid()]


def makers(url: str) -> dict[str, Callable[[], Source | None]]:
    """Every source as an observer makes it: of this node, of a server at `url`, of the GPUs that NVML has."""
    clock = SystemClock()
    node = OwnNode(own_pids, Pids((os.getppid(),)), Pids((os.getpid(),)))
    server = OwnServer(
        ServerTarget("server-0", url=url, metrics_url=None, models=None), Family(own_pids(), clock).pids
    )
    gpus = OwnGpus(True, own_pids, clock)
    return {
        **{one.table: partial(one.source, node) for one in OF_NODE},
        **{one.table: partial(one.source, server) for one in OF_SERVER},
        **{one.table: partial(one.source, gpus) for one in OF_GPUS},
    }


@pytest.fixture(scope="module")
def null_url() -> Iterator[str]:
    with NullProcess() as null:
        yield f"http://127.0.0.1:{null.ports['http']}"


@pytest.fixture(params=FILLED)
def source(
    request: pytest.FixtureRequest, null_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Source]:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeGpu(values=ANSWERS, gpm=GPM)))
    made = makers(null_url)[request.param]()
    assert made is not None
    assert made.table == request.param
    yield made
    close = getattr(made, "close", None)
    if close is not None:
        close()


def next_rows(source: Source, work_ns: int = 2_000_000) -> list[Row]:
    """Of the next tick that has any, after some work of this process; a kernel counts it in steps of 10 ms."""
    until_ns = NOW() + PATIENCE_NS
    while NOW() < until_ns:
        busy_until_ns = time.thread_time_ns() + work_ns
        while time.thread_time_ns() < busy_until_ns:
            pass
        if rows := source.sample(NOW()):
            return rows
    raise AssertionError(f"{source.table} has no rows")


def test_the_first_sample_is_the_baseline_and_rows_follow_with_the_columns_of_their_table(
    source: Source,
) -> None:
    begun_ns = NOW()
    assert source.sample(begun_ns) == []
    schema = arrow_schema(source.table)
    columns = set(schema.names) - LABELS.keys()
    for row in next_rows(source):
        left_out = columns - row.keys()
        assert row.keys() <= columns
        assert not left_out or source.table in AT_ITS_OWN_PACE
        assert all(schema.field(name).nullable for name in left_out)
        table = pa.Table.from_pylist([{**LABELS, **row}], schema=schema)
        table.validate(full=True)
        assert all(table[name].null_count == 0 for name in schema.names if not schema.field(name).nullable)
        assert begun_ns <= row["t_ns"] - row["interval_ns"] < row["t_ns"] <= NOW()


def test_what_is_counted_never_falls_and_each_interval_begins_where_the_last_one_ended(
    source: Source,
) -> None:
    source.sample(NOW())
    ends: dict[tuple[Any, ...], int] = {}
    for _ in range(2):
        for row in next_rows(source, work_ns=15_000_000):
            key = tuple(row.get(name) for name in ("core", "process", "thread", "gpu_uuid", "model"))
            assert row["t_ns"] - row["interval_ns"] >= ends.get(key, 0)
            ends[key] = row["t_ns"]
            numbers = {name: one for name, one in row.items() if isinstance(one, int | float)}
            assert min(numbers.values()) >= 0, row


def test_a_source_tells_what_it_lacks_in_sentences_and_plain_values(source: Source) -> None:
    if not isinstance(source, Telling):
        pytest.skip("it has nothing to tell")
    for _ in range(2):
        losses, facts = source.losses(), source.facts()
        assert losses == []
        assert json.loads(json.dumps(facts)) == facts
        source.sample(NOW())
