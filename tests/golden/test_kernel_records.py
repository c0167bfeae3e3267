"""Records of the kernel library: every field of every kind, names, losses, files of drained pieces."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from squall.actors.inject.kernel_library import find_cupti, kernel_environment
from squall.actors.inject.kernel_ring import (
    FLAG_ON,
    FLAG_PEER,
    HEADER,
    RECORD_BYTES,
    KernelKinds,
    Names,
    activities,
    demangled,
    recorded_activities,
)  # fmt: skip
from tests.kernel_hosts import ALL_KINDS, NAMES, PATIENCE_S, SOURCES, Built, KernelHost, drained, switched
from tests.sanitize import compiler

pytestmark = pytest.mark.skipif(not compiler(), reason="no C compiler is here")
VERSIONS = (14, 18, 28, 130001, 130500)
"""CUDA 11.1, 11.8, 12.9, 13.0 and 13.5: each has records of other sizes."""


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_of_a_kernel_is_read_from_every_layout(
    kernel_build: Built, kernel_rings: Path, version: int
) -> None:
    with KernelHost(kernel_build, kernel_rings, {"FAKE_CUPTI_VERSION": str(version)}) as host:
        ring = host.begin()
        switched(ring, True)
        before_ns = time.monotonic_ns()
        host.ask("kernels 3000")
        after_ns = time.monotonic_ns()
        switched(ring, False)
        found = drained(ring)
        kernels, number = found.kernels, np.arange(3000)
        assert ring.state.cupti_version == version
        assert kernels["correlation_id"].tolist() == number.tolist()
        assert ((before_ns <= kernels["start_ns"]) & (kernels["start_ns"] <= after_ns)).all()
        assert (kernels["end_ns"] - kernels["start_ns"] == 1000 + number).all()
        assert (kernels["device"] == number % 8).all()
        assert (kernels["context"] == number % 3 + 1).all()
        assert (kernels["stream"] == number % 5 + 7).all()
        assert (kernels["graph"] == number % 11).all()
        assert (kernels["graph_node"] == number << 20).all()
        assert (kernels["registers"] == number % 200).all()
        assert (
            np.hstack([kernels["grid"], kernels["block"]]) == (number % 100)[:, None] + np.arange(1, 7)
        ).all()
        assert (kernels["static_shared_bytes"] == number % 1000).all()
        assert (kernels["dynamic_shared_bytes"] == number % 2000).all()
        assert [found.names[name] for name in kernels["name"]] == [NAMES[one % 5] for one in number]
        lost = ring.lost()
        assert (lost.n_ring, lost.n_cupti, lost.n_untimed) == (0, 0, 0)
        ring.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_of_the_other_kinds_is_read_from_every_layout(
    kernel_build: Built, kernel_rings: Path, version: int
) -> None:
    with KernelHost(kernel_build, kernel_rings, {**ALL_KINDS, "FAKE_CUPTI_VERSION": str(version)}) as host:
        ring = host.begin()
        switched(ring, True)
        for line in (
            "copies 9",
            "peers 9",
            "memsets 9",
            "syncs 9",
            "runtime 9",
            "driver 9",
            "events 9",
        ):
            host.ask(line)
        switched(ring, False)
        found, number = drained(ring), np.arange(9)
        ring.close()
    copies, peers = (
        found.memcpys[found.memcpys["flags"] == 0],
        found.memcpys[found.memcpys["flags"] == FLAG_PEER],
    )
    for records, lasted_ns in ((copies, 500), (peers, 500), (found.memsets, 300), (found.syncs, 200),
                               (found.runtime_calls, 100), (found.driver_calls, 100)):  # fmt: skip
        assert records["correlation_id"].tolist() == number.tolist()
        assert set(records["end_ns"] - records["start_ns"]) == {lasted_ns}
    for records in (copies, peers, found.memsets):
        assert (records["device"] == number % 8).all()
        assert (records["context"] == number % 8 + 1).all()
        assert (records["stream"] == number % 8 + 2).all()
    for records in (copies, peers):
        assert (records["bytes"] == number * 4096).all()
        assert (records["copy_kind"] == number % 10 + 1).all()
        assert {*zip(records["source"], records["destination"], records["memory_flags"], strict=True)} == {
            (3, 4, 1)
        }
        assert {*zip(records["graph_node"], records["graph"], strict=True)} == {(77, 78)}
    assert (peers["value"] == number % 6).all()
    assert (found.memsets["bytes"] == number * 64).all()
    assert set(found.memsets["value"]) == {0xAB}
    assert {
        *zip(found.memsets["source"], found.memsets["graph_node"], found.memsets["graph"], strict=True)
    } == {(4, 79, 80)}
    assert (found.syncs["type"] == number % 5).all()
    assert {*zip(found.syncs["context"], found.syncs["stream"], strict=True)} == {(5, 6)}
    assert (found.syncs["event"] == number + 9).all()
    for calls, names in ((found.runtime_calls, ("cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020")),
                         (found.driver_calls, ("cuLaunchKernel", "cuMemcpyAsync"))):  # fmt: skip
        assert (calls["call"] == number).all()
        assert (calls["thread"] == number + 1000).all()
        assert (calls["result"] == number % 3).all()
        assert [found.names[name] for name in calls["name"]] == [names[one % 2] for one in number]
    events = found.events
    assert events["correlation_id"].tolist() == number.tolist()
    assert (events["stream"] == number % 5 + 7).all()
    assert (events["event"] == number + 9).all()
    assert {*zip(events["context"], events["start_ns"], events["end_ns"], strict=True)} == {(1, 0, 0)}


def test_only_the_kinds_that_are_asked_for_are_recorded(kernel_build: Built, kernel_rings: Path) -> None:
    with KernelHost(kernel_build, kernel_rings, {"SQUALL_KERNEL_KINDS": "sync,runtime"}) as host:
        ring = host.begin()
        switched(ring, True)
        for line in (
            "kernels 9",
            "copies 9",
            "memsets 9",
            "syncs 9",
            "runtime 9",
            "driver 9",
            "events 9",
        ):
            host.ask(line)
        assert ring.state.kinds == KernelKinds.SYNC | KernelKinds.RUNTIME
        switched(ring, False)
        found = drained(ring)
        ring.close()
    others = (found.kernels, found.memcpys, found.memsets, found.driver_calls, found.events)
    assert (len(found.syncs), len(found.runtime_calls), *map(len, others)) == (9, 9, 0, 0, 0, 0, 0)


def test_a_word_that_is_no_kind_is_passed_over(kernel_build: Built, kernel_rings: Path) -> None:
    """Among them graphs: CUPTI's kind 51 ends processes whose graphs were there before (docs/kernels.md)."""
    settings = {
        "SQUALL_KERNEL_KINDS": "graphs,kernels,copy,events",
        "FAKE_CUPTI_FAIL": "cuptiActivityEnable:51=21",
    }
    with KernelHost(kernel_build, kernel_rings, settings) as host:
        ring = host.begin()
        switched(ring, True)
        state = ring.state
        ring.close()
    assert state.kinds == KernelKinds.KERNELS | KernelKinds.EVENTS
    assert "refuses" not in state.text


def test_what_happens_between_two_windows_is_not_recorded_and_each_window_tells_its_names(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(kernel_build, kernel_rings) as host:
        ring = host.begin()
        host.ask("kernels 10")  # before the first
        for window in range(3):
            switched(ring, True)
            host.ask("kernels 100")
            switched(ring, False)
            host.ask("kernels 10")
            found = drained(ring)
            assert found.kernels["correlation_id"].tolist() == list(
                range(window * 110 + 10, window * 110 + 110)
            )
            assert sorted(set(found.names.values())) == sorted(NAMES)
            on, off = found.switches
            assert (on["flags"], off["flags"]) == (FLAG_ON, 0)
            assert on["start_ns"] <= on["end_ns"] <= found.kernels["start_ns"].min()
            assert found.kernels["start_ns"].max() <= off["start_ns"] <= off["end_ns"]
        ring.close()


def test_records_come_without_a_switch_while_it_is_on(kernel_build: Built, kernel_rings: Path) -> None:
    with KernelHost(kernel_build, kernel_rings, {"SQUALL_KERNEL_FLUSH_MS": "20"}) as host:
        ring = host.begin()
        switched(ring, True)
        host.ask("kernels 50")
        data, deadline = b"", time.monotonic() + PATIENCE_S
        while len(activities(data, Names()).kernels) < 50 and time.monotonic() < deadline:
            data += ring.drain()
            time.sleep(0.01)
        assert len(activities(data, Names()).kernels) == 50
        ring.close()


def test_a_name_is_whole_however_long_and_never_that_of_a_pointer_used_again(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(kernel_build, kernel_rings) as host:
        ring = host.begin()
        switched(ring, True)
        host.ask("named 40 5")
        host.ask("named 40 64")
        host.ask("named 40 200")
        host.ask("named 40 4000")
        switched(ring, False)
        found = drained(ring)
        ring.close()
    expected = [str(one).rjust(n_bytes, "n") for n_bytes in (5, 64, 200, 4000) for one in range(40)]
    assert [found.names[name] for name in found.kernels["name"]] == expected


def test_a_name_beyond_what_is_kept_is_cut_or_none_and_the_kernel_is_there(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(kernel_build, kernel_rings) as host:
        ring = host.begin()
        switched(ring, True)
        host.ask("named 17000 7")
        host.ask("named 1 8000")
        switched(ring, False)
        found = drained(ring)
        ring.close()
    assert len(found.kernels) == 17001
    assert len(found.names) == 16384
    assert found.kernels["name"][16384:].tolist() == [0] * 617


def test_a_full_ring_loses_and_counts_and_every_kernel_is_in_one_of_both(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(
        kernel_build, kernel_rings, {"SQUALL_KERNEL_RING_BYTES": str(100 * RECORD_BYTES)}
    ) as host:
        ring = host.begin()
        switched(ring, True)
        host.ask("kernels 1000")
        switched(ring, False)
        found, lost = drained(ring), ring.lost()
        assert len(found.kernels) == 94  # five names and the switch have the rest
        assert lost.n_ring == 1000 - 94 + 1  # and the second switch
        switched(ring, True)
        host.ask("kernels 50")
        switched(ring, False)
        again = drained(ring)
        assert again.kernels["correlation_id"].tolist() == list(range(1000, 1050))
        assert sorted(again.names.values()) == sorted(NAMES)
        assert ring.lost() == lost
        ring.close()


def test_a_name_that_found_no_room_is_told_when_there_is_some(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(kernel_build, kernel_rings, {"SQUALL_KERNEL_RING_BYTES": str(60 * RECORD_BYTES)}) as host:
        ring, names = host.begin(), Names()
        switched(ring, True)
        host.ask("kernels 50")
        host.ask("named 1 10")  # with the switch and the names, 58 are full
        host.ask("named 1 200")  # 4 parts
        found = activities(ring.drain(), names)
        assert len(found.kernels) == 52
        assert found.kernels["name"][51] not in found.names
        host.ask("named 1 200")
        found = activities(ring.drain(), names)
        assert found.names[found.kernels["name"][0]] == "0".rjust(200, "n")
        ring.close()


def test_what_cupti_drops_for_want_of_buffers_is_counted(kernel_build: Built, kernel_rings: Path) -> None:
    few = {
        "SQUALL_KERNEL_BUFFERS": "2",
        "SQUALL_KERNEL_BUFFER_BYTES": str(1 << 14),
        "SQUALL_KERNEL_FLUSH_MS": "0",
    }
    with KernelHost(kernel_build, kernel_rings, {**few, "FAKE_CUPTI_HOLD": "60"}) as host:
        ring = host.begin()
        switched(ring, True)
        host.ask("kernels 1000")
        assert ring.lost().n_buffers_out == 2
        switched(ring, False)
        found, lost = drained(ring), ring.lost()
        assert 0 < len(found.kernels) == 2 * ((1 << 14) // 216)
        assert lost.n_cupti == 1000 - len(found.kernels)
        assert lost.n_buffers_refused >= lost.n_cupti > 0
        assert lost.n_buffers_out == 0
        ring.close()


def test_kernels_without_instants_are_counted_and_left_out(kernel_build: Built, kernel_rings: Path) -> None:
    with KernelHost(kernel_build, kernel_rings) as host:
        ring = host.begin()
        switched(ring, True)
        host.ask("untimed 7")
        host.ask("kernels 1")
        switched(ring, False)
        assert len(drained(ring).kernels) == 1
        assert ring.lost().n_untimed == 7
        ring.close()


def test_a_file_of_drained_pieces_is_read_piece_by_piece_with_the_names_before(
    kernel_build: Built, kernel_rings: Path, tmp_path: Path
) -> None:
    file = tmp_path / "drained"
    with KernelHost(kernel_build, kernel_rings) as host, file.open("wb") as kept:
        ring = host.begin()
        switched(ring, True)
        for _ in range(4):
            host.ask("kernels 250")
            switched(ring, True)  # a wish for what holds already flushes nothing, and harms nothing
        switched(ring, False)
        kept.write(ring.drain() + b"cut")
        ring.close()
    pieces = list(recorded_activities(file, n_records=64))
    assert len(pieces) > 10
    kernels = [
        (int(row["correlation_id"]), piece.names[row["name"]]) for piece in pieces for row in piece.kernels
    ]
    assert kernels == [(one, NAMES[one % 5]) for one in range(1000)]


def header_of_cupti() -> Path | None:
    """CUPTI's own header: in the folder that SQUALL_CUPTI_INCLUDE names, or that of the wheel that is installed."""
    named = os.environ.get("SQUALL_CUPTI_INCLUDE")
    library = find_cupti()
    folders = [Path(named)] if named else [library.parents[1] / "include"] if library else []
    return next((path for folder in folders if (path := folder / "cupti_activity.h").exists()), None)


FIELDS = {
    ("CUpti_ActivityKernel", "CuptiKernel"): {
        "registersPerThread": "registers", "start": "start", "end": "end", "deviceId": "device", "contextId": "context",
        "streamId": "stream", "gridX": "grid[0]", "gridZ": "grid[2]", "blockX": "block[0]", "blockZ": "block[2]",
        "staticSharedMemory": "static_shared", "dynamicSharedMemory": "dynamic_shared", "correlationId": "correlation",
        "name": "name", "graphNodeId": "graph_node", "graphId": "graph",
    },
    ("CUpti_ActivityMemcpy", "CuptiMemcpy"): {
        "copyKind": "copy_kind", "srcKind": "source", "dstKind": "destination", "flags": "flags", "bytes": "bytes",
        "start": "start", "end": "end", "deviceId": "device", "contextId": "context", "streamId": "stream",
        "correlationId": "correlation", "graphNodeId": "graph_node", "graphId": "graph",
    },
    ("CUpti_ActivityMemcpyPtoP", "CuptiPeerCopy"): {
        "copyKind": "copy_kind", "bytes": "bytes", "start": "start", "deviceId": "device", "streamId": "stream",
        "dstDeviceId": "to_device", "correlationId": "correlation", "graphNodeId": "graph_node", "graphId": "graph",
    },
    ("CUpti_ActivityMemset", "CuptiMemset"): {
        "value": "value", "bytes": "bytes", "start": "start", "end": "end", "deviceId": "device", "streamId": "stream",
        "correlationId": "correlation", "flags": "flags", "memoryKind": "memory", "graphNodeId": "graph_node",
        "graphId": "graph",
    },
    ("CUpti_ActivitySynchronization", "CuptiSync"): {
        "type": "type", "start": "start", "end": "end", "correlationId": "correlation", "contextId": "context",
        "streamId": "stream", "cudaEventId": "event",
    },
    ("CUpti_ActivityCudaEvent", "CuptiEvent"): {
        "correlationId": "correlation", "contextId": "context", "streamId": "stream", "eventId": "event",
    },
    ("CUpti_ActivityAPI", "CuptiApi"): {
        "cbid": "call", "start": "start", "end": "end", "processId": "process", "threadId": "thread",
        "correlationId": "correlation", "returnValue": "result",
    },
}  # fmt: skip


def newest_struct(text: str, name: str) -> tuple[str, str]:
    """The struct's newest version in a header, as its own typedef with enums and foreign types made plain; its name."""
    versions = re.findall(rf"^}} ({name}(\d*));", text, re.M)
    newest = max(versions, key=lambda one: int(one[1] or 1))[0]
    end = text.index(f"}} {newest};")
    body = re.sub(r"/\*.*?\*/", "", text[text.rindex("typedef struct", 0, end) : end], flags=re.S)
    body = body.replace("CUaccessPolicyWindow *", "void *")
    return re.sub(r"\bCUpti_\w+ (\w+);", r"int \1;", body) + f"}} {newest};\n", newest


def test_our_structs_begin_as_those_of_cuptis_own_header(tmp_path: Path) -> None:
    header = header_of_cupti()
    if header is None:
        pytest.skip("no header of CUPTI is here (wheel nvidia-cuda-cupti; or SQUALL_CUPTI_INCLUDE=folder)")
    text = header.read_text()
    structs, checks = "", ""
    for (theirs, ours), fields in FIELDS.items():
        struct, name = newest_struct(text, theirs)
        structs += struct
        for their_field, our_field in fields.items():
            checks += f'_Static_assert(offsetof({name}, {their_field}) == offsetof({ours}, {our_field}), "{name}");\n'
    source = tmp_path / "offsets.c"
    preamble = "#define CUPTILP64 1\n#define PACKED_ALIGNMENT __attribute__((__packed__)) __attribute__((aligned(8)))\n"
    source.write_text(f'#include "{SOURCES / "cupti.h"}"\n{preamble}{structs}{checks}')
    command = [compiler(), "-std=c11", "-c", str(source), "-o", str(tmp_path / "offsets.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_environment_names_what_the_library_reads(tmp_path: Path) -> None:
    library = tmp_path / "_kernels.abi3.so"
    found = kernel_environment(
        library, tmp_path / "rings", KernelKinds.KERNELS | KernelKinds.SYNC, Path("/c.so")
    )
    assert found == {
        "CUDA_INJECTION64_PATH": str(library), "SQUALL_KERNELS": str(tmp_path / "rings"),
        "SQUALL_KERNEL_KINDS": "kernels,sync", "SQUALL_CUPTI": "/c.so",
    }  # fmt: skip
    source = "".join(path.read_text() for path in SOURCES.glob("*.c"))
    assert all(f'"{name}"' in source for name in found if name.startswith("SQUALL_"))
    assert [str(kind.name).lower() for kind in KernelKinds] == re.findall(
        r'{"(\w+)"', source.split("names[] = {")[1].split(";")[0]
    )


def test_a_name_that_is_not_of_cpp_stays_as_it_is() -> None:
    names = ("_Z3addPfS_", "gemm", "_Zbroken", "")
    assert demangled(names) == ("add(float*, float*)", "gemm", "_Zbroken", "")


def test_a_short_name_for_a_text_without_end_stays_as_it_is() -> None:
    doubled = "".join(f"PFv{2 * f'S{np.base_repr(number, 36)}_'}E" for number in range(0, 80, 2))
    names = ("_Z3addPfS_", f"_Z1fPFvvE{doubled}")
    assert demangled(names) == ("add(float*, float*)", names[1])


def test_the_header_of_a_ring_fits_its_page() -> None:
    assert HEADER.itemsize == 4096


def test_events_are_recorded_without_the_waits_that_cupti_needs_beside_them(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(kernel_build, kernel_rings, {"SQUALL_KERNEL_KINDS": "kernels,events"}) as host:
        ring = host.begin()
        switched(ring, True)
        for line in ("kernels 9", "syncs 9", "events 9"):
            host.ask(line)
        assert ring.state.kinds == KernelKinds.KERNELS | KernelKinds.EVENTS
        switched(ring, False)
        found = drained(ring)
        ring.close()
    assert [len(one) for one in (found.kernels, found.events, found.syncs)] == [9, 9, 0]
