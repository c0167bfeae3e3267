"""Each protocol of the product has one suite here, over every class that keeps it, or says why it needs none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.processes import ARRIVALS, LAWS, PATHS, UNITS
from tests.contract.protocols import implementations, protocols

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Held:
    """The suite of a protocol and the classes of the product that it holds to it, by name.

    `by` None: all that the product's own list of them has. `elsewhere`: classes that another test holds, since they
    need a cluster. `unlike`: those that have all members of the protocol and are no such thing.
    """

    suite: str
    by: Collection[str] | None
    elsewhere: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()


def names_of(made: Mapping[str, object]) -> set[str]:
    return {type(one).__name__ for one in made.values()}


SUITES = {
    "actors.client_worker.ClientWorker": Held("test_client_worker.py", ("LoadWorker", "LocustWorker")),
    "actors.clock.Clock": Held("test_clock.py", ("SystemClock",)),
    "actors.doctor.checkup.Host": Held("test_host.py", ("ThisHost",)),
    "actors.load.client.Client": Held("test_client.py", ("GrpcClient", "HttpClient")),
    "actors.load.client.Exchange": Held("test_client.py", ("GrpcExchange", "HttpExchange")),
    "actors.load.grpc_connection.Calls": Held("test_calls.py", ("GrpcClient",)),
    "actors.load.lane.Owner": Held("test_connection.py", ("GrpcConnection", "HttpExchange")),
    "actors.load.pacing.Pacing": Held(
        "test_pacing.py", ("ClosedLoop", "LaneClosedLoop", "LaneOpenLoop", "OpenLoop")
    ),
    # those of a TritonUser, under gevent: tests/integration/test_triton_user.py
    "actors.messages.grpc_wire.Reply": Held("test_replies.py", ("GrpcExchange",), elsewhere=("GrpcReply",)),
    "actors.messages.http_wire.Reply": Held("test_replies.py", ("HttpExchange",), elsewhere=("HttpReply",)),
    "actors.net.stream.Owner": Held("test_connection.py", ("GrpcConnection", "HttpExchange")),
    "actors.null.model.Peer": Held("test_peer.py", ("GrpcPeer", "HttpPeer")),
    "actors.process.priority.System": Held("test_system.py", ("Linux",)),
    "actors.sampling.sampler.Source": Held("test_source.py", None),
    "actors.sampling.sampler.Telling": Held("test_source.py", None),
    "analysis.join.batch_ties.Ties": Held("test_ties.py", ("ByBatch", "ByTime")),
    "analysis.nsys.source.Export": Held("test_export.py", ("ParquetExport", "SqliteExport")),
    "analysis.nsys.tables.Clock": Held("test_report_clock.py", ("ClockTrack",)),
    "analysis.storage.places.place.Place": Held(
        "test_place.py", ("LocalFolder", "NodeFolder", "ObjectFolder")
    ),
    # over Ray: tests/integration/test_analyze.py
    "analysis.storage.query.Spread": Held(
        "test_spread.py", (), elsewhere=("TaskSpread",), unlike=("GcWatch", "_CpuBatch", "_GpuBatch")
    ),
    "cluster.driver.records.node_files.NodeFiles": Held("test_node_files.py", ("FilesHere", "FilesThere")),
    "cluster.node.injected.taken_file.Ring": Held("test_ring.py", ("BatchRing", "KernelRing")),
    "scenarios.arrivals.gaps.GapLaw": Held("test_gap_law.py", names_of(LAWS)),
    "scenarios.arrivals.process.Arrivals": Held("test_arrivals.py", {*names_of(ARRIVALS), "TraceReplay"}),
    "scenarios.arrivals.rate_paths.RatePath": Held("test_rate_path.py", names_of(PATHS)),
    "scenarios.arrivals.unit.UnitProcess": Held("test_unit_process.py", names_of(UNITS)),
    "scenarios.traces.readers.chunk.Source": Held("test_trace_formats.py", None),
    "scenarios.traces.writers.encoders.Encoder": Held("test_trace_formats.py", None),
}


def test_every_protocol_has_its_suite() -> None:
    assert set(SUITES) == set(protocols())
    assert {held.suite for held in SUITES.values()} | {Path(__file__).name} == {
        path.name for path in HERE.glob("test_*.py")
    }


@pytest.mark.parametrize("protocol", [name for name, held in SUITES.items() if held.by is not None])
def test_every_class_that_keeps_a_protocol_is_held_to_it(protocol: str) -> None:
    """A new one fails here until its suite makes one of it."""
    held = SUITES[protocol]
    assert held.by is not None
    assert set(implementations(protocol)) == {*held.by, *held.elsewhere, *held.unlike}
