"""Batches of a backend in C, as TensorRT and ONNX Runtime are: in Triton's process, told of from threads of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from squall.actors.inject.batch_ring import RecordedBatch
from tests.integration.foreign_serving import ForeignTriton, foreign_triton
from tests.integration.live_runs import wait_until
from tests.reporting import NATIVE, SHARED, compiled

CONFIG = """
name: "minimal"
backend: "minimal"
max_batch_size: 8
input [ { name: "INPUT", data_type: TYPE_FP32, dims: [ 2 ] } ]
output [ { name: "OUTPUT", data_type: TYPE_FP32, dims: [ 2 ] } ]
dynamic_batching { max_queue_delay_microseconds: 1000 }
instance_group [ { kind: KIND_CPU, count: 2 } ]
"""


@pytest.fixture
def triton(tmp_path: Path) -> Iterator[ForeignTriton]:
    folder = tmp_path / "models" / "minimal"
    folder.mkdir(parents=True)
    compiled([NATIVE / "minimal_backend.c"], folder / "libtriton_minimal.so", *SHARED, "-O2")
    with foreign_triton(tmp_path, {"minimal": CONFIG}) as running:
        yield running


@pytest.mark.beside
def test_every_batch_of_a_c_backend_is_recorded_once_as_triton_counts_it(triton: ForeignTriton) -> None:
    sent = [(f"r{i:04d}", 1 + i % 3) for i in range(600)]
    rows_of = dict(sent)
    assert set(triton.ask_all("minimal", sent)) == {200}
    batches = triton.recorded(600)
    triton.wait_for_counts("minimal", len(batches), sum(one.rows for one in batches), failed=0)
    ids = [request_id.decode() for one in batches for request_id in one.request_ids]
    assert sorted(ids) == sorted(rows_of)
    assert all(one.rows == sum(rows_of[name.decode()] for name in one.request_ids) for one in batches)
    assert {(one.model, one.version, one.device, one.n_failed) for one in batches} == {("minimal", 1, -1, 0)}
    assert_instances_overlap(batches)


def assert_instances_overlap(batches: list[RecordedBatch]) -> None:
    """Each has a thread of its own, tells in order, and begins batches while it runs others."""
    of_instances: dict[str, list[RecordedBatch]] = defaultdict(list)
    for one in batches:
        of_instances[one.instance].append(one)
        assert one.start_ns <= one.compute_start_ns <= one.compute_end_ns <= one.end_ns
    assert of_instances.keys() == {"minimal_0_0", "minimal_0_1"}
    for own in of_instances.values():
        assert len({one.thread for one in own}) == 1
        assert any(later.start_ns < one.end_ns for one, later in pairwise(own))
        assert all(one.start_ns <= later.start_ns for one, later in pairwise(own))


@pytest.mark.beside
def test_failed_members_of_a_c_backend_are_counted_and_so_are_batches_of_none_else(
    triton: ForeignTriton,
) -> None:
    for _ in range(3):  # alone: batches in which all fail, of which Triton counts no execution
        assert triton.ask_all("minimal", [("fail", 1)]) == [500]
    mixed = [(f"{'fail' if i % 4 == 0 else 'r'}{i:04d}", 1) for i in range(200)]
    assert triton.ask_all("minimal", mixed) == [500 if i % 4 == 0 else 200 for i in range(200)]
    before = triton.executions(
        "minimal"
    )  # all are answered: one batch of each instance may not be counted yet
    triton.end()  # the last batch of a thread in which all failed is told of when the thread ends
    batches = triton.recorded(203)
    assert sum(one.n_failed for one in batches) == 53
    assert sum(one.rows > 0 for one in batches) - before[0] in range(2 + 1)
    assert 53 - before[2] in range(2 * 8 + 1)
    assert all(one.n_failed == one.n_requests for one in batches if one.rows == 0)
    told = [request_id for one in batches for request_id in one.request_ids]
    assert sorted(told) == sorted([b"fail"] * 3 + [name.encode() for name, _ in mixed])


@pytest.mark.beside
def test_batches_go_on_through_unload_and_load(triton: ForeignTriton) -> None:
    for i in range(3):
        assert set(triton.ask_all("minimal", [(f"r{i}", 1)] * 20)) == {200}
        triton.control.ask("/v2/repository/models/minimal/unload", "POST", b"{}")
        triton.control.ask("/v2/repository/models/minimal/load", "POST", b"{}")
    told = [request_id for one in triton.recorded(60) for request_id in one.request_ids]
    assert sorted(told) == sorted(b"r%d" % i for i in range(3) for _ in range(20))


@pytest.mark.beside
def test_a_triton_that_is_killed_leaves_the_batches_it_told_of(triton: ForeignTriton) -> None:
    sent = [(f"r{i:05d}", 1) for i in range(5_000)]
    with ThreadPoolExecutor(1) as load:
        answering = load.submit(triton.ask_all, "minimal", sent)
        wait_until(lambda: triton.executions("minimal")[0] > 20, 60.0, "batches are executed")
        triton.process.kill()
        statuses = answering.result()
    answered = {name.encode() for (name, _), status in zip(sent, statuses, strict=True) if status == 200}
    batches = triton.recorded()
    told = [request_id for one in batches for request_id in one.request_ids]
    assert len(batches) > 20
    assert len(told) == len(set(told))
    assert all(one.rows == one.n_requests for one in batches)
    assert (
        len(answered - set(told)) <= 2 * 8
    )  # of one batch of each instance, whose answers had left just before
