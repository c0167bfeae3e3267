"""The kernel library in a process of its own, with a CUPTI of known behaviour: begin, switch, faults, end."""

from __future__ import annotations

import re
import stat
import subprocess
import time
from pathlib import Path

import pytest

from squall.actors.inject.kernel_library import find_rings
from squall.actors.inject.kernel_ring import (
    FLAG_FAILED,
    FLAG_ON,
    KernelKinds,
    KernelRing,
    Names,
    RingStatus,
    activities,
)  # fmt: skip
from squall.actors.inject.ring_file import RingError
from tests.kernel_hosts import ALL_KINDS, PATIENCE_S, Built, KernelHost, built, drained, switched
from tests.sanitize import compiler

pytestmark = pytest.mark.skipif(not compiler(), reason="no C compiler is here")


UNUSABLE = {
    "no such file": ({"SQUALL_CUPTI": "/nowhere/libcupti.so"}, RingStatus.NO_CUPTI, "libcupti.so: cannot open"),
    "too old": ({"FAKE_CUPTI_VERSION": "13"}, RingStatus.TOO_OLD, "CUPTI 13 is older"),
    "too new": ({"FAKE_CUPTI_VERSION": "140000"}, RingStatus.TOO_NEW, "CUPTI 140000 is newer"),
    "no version": ({"FAKE_CUPTI_FAIL": "cuptiGetVersion=15"}, RingStatus.REFUSED, "tells no version"),
    "no buffers": ({"FAKE_CUPTI_FAIL": "cuptiActivityRegisterCallbacks=1"}, RingStatus.REFUSED, "takes no buffers"),
    "taken": ({"FAKE_CUPTI_FAIL": "cuptiSubscribe=39"}, RingStatus.TAKEN, "another profiler has CUPTI"),
    "not allowed": (
        {"FAKE_CUPTI_FAIL": "cuptiActivityEnable=35"}, RingStatus.REFUSED, "kernels: CUPTI_ERROR_INSUFF",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_cupti_that_cannot_be_used_is_told_and_the_model_runs_on(
    kernel_build: Built, kernel_rings: Path, case: str
) -> None:
    settings, status, text = UNUSABLE[case]
    with KernelHost(kernel_build, kernel_rings, settings) as host:
        ring = host.begin()
        switched(ring, True)
        assert ring.state.status == status
        assert text in str(ring.state)
        assert "\n" not in str(ring.state)
        host.ask("kernels 100")
        switched(ring, False)
        found = drained(ring)
        assert len(found.kernels) == 0
        assert found.switches["flags"].tolist() == [FLAG_ON | FLAG_FAILED, 0]
        assert host.end("exit 3") == (3, "")
        ring.close()


def test_a_profiler_that_goes_leaves_cupti_to_the_next_switch(
    kernel_build: Built, kernel_rings: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.touch()
    with KernelHost(kernel_build, kernel_rings, {"FAKE_CUPTI_TAKEN_BY": str(other)}) as host:
        ring = host.begin()
        switched(ring, True)
        assert ring.state.status.name == "TAKEN"
        switched(ring, False)
        other.unlink()
        switched(ring, True)
        assert ring.state.status.name == "RECORDING"
        host.ask("kernels 10")
        switched(ring, False)
        other.touch()
        switched(ring, True)
        assert ring.state.status.name == "TAKEN", "it was not given back when it was off"
        assert len(drained(ring).kernels) == 10
        ring.close()


def test_a_kind_that_cupti_refuses_is_told_and_the_others_are_recorded(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(
        kernel_build, kernel_rings, {**ALL_KINDS, "FAKE_CUPTI_FAIL": "cuptiActivityEnable:38=21"}
    ) as host:
        ring = host.begin()
        switched(ring, True)
        host.ask("kernels 5")
        host.ask("syncs 5")
        assert ring.state.status == RingStatus.RECORDING
        assert "it refuses sync: CUPTI_ERROR_OTHER" in ring.state.text
        assert KernelKinds.SYNC not in ring.state.kinds
        switched(ring, False)
        found = drained(ring)
        assert (len(found.kernels), len(found.syncs)) == (5, 0)
        ring.close()


def test_a_cupti_without_a_function_that_is_needed_is_told(tmp_path: Path, kernel_rings: Path) -> None:
    with KernelHost(built(tmp_path, without=["NEXT_RECORD"]), kernel_rings) as host:
        ring = host.begin()
        assert ring.state.status == RingStatus.NO_SYMBOL
        assert "cuptiActivityGetNextRecord" in ring.state.text
        assert host.end("exit 4") == (4, "")
        ring.close()


def test_without_a_clock_of_ours_in_cupti_instants_are_right_within_the_bound(
    tmp_path: Path, kernel_rings: Path
) -> None:
    with KernelHost(built(tmp_path, without=["TIMESTAMP_CALLBACK", "SUBSCRIBE"]), kernel_rings) as host:
        ring = host.begin()
        switched(ring, True)
        bound_ns = ring.state.clock_bound_ns
        before_ns = time.monotonic_ns()
        host.ask("kernels 100")
        after_ns = time.monotonic_ns()
        switched(ring, False)
        bound_ns = max(bound_ns, ring.state.clock_bound_ns)
        starts_ns = drained(ring).kernels["start_ns"]
        assert bound_ns > 0
        assert len(starts_ns) == 100
        assert before_ns - bound_ns <= starts_ns.min()
        assert starts_ns.max() <= after_ns + bound_ns
        ring.close()


def test_without_any_clock_nothing_is_recorded(tmp_path: Path, kernel_rings: Path) -> None:
    with KernelHost(built(tmp_path, without=["TIMESTAMP_CALLBACK", "CLOCK"]), kernel_rings) as host:
        ring = host.begin()
        assert ring.state.status == RingStatus.NO_SYMBOL
        assert "clock" in ring.state.text
        ring.close()


def test_a_process_without_cuda_leaves_nothing(kernel_build: Built, kernel_rings: Path) -> None:
    with KernelHost(kernel_build, kernel_rings) as host:
        host.ask("kernels 10")
        assert host.end("exit 0") == (0, "")
    assert list(kernel_rings.iterdir()) == []


def test_a_process_without_our_folder_is_left_alone(kernel_build: Built, kernel_rings: Path) -> None:
    with KernelHost(kernel_build, kernel_rings, {"SQUALL_KERNELS": ""}) as host:
        assert host.ask("init") == 1
        host.ask("kernels 10")
        assert host.end("exit 0") == (0, "")
    assert list(kernel_rings.iterdir()) == []


def test_a_folder_that_is_not_there_is_told_once_and_the_model_runs_on(
    kernel_build: Built, tmp_path: Path
) -> None:
    with KernelHost(kernel_build, tmp_path / "none") as host:
        assert host.ask("init") == 1
        assert host.ask("init") == 1
        host.ask("kernels 10")
        code, stderr = host.end("exit 5")
    assert code == 5
    assert re.fullmatch(
        r"squall kernels: \S+none: a file in it cannot be made: No such file or directory\n", stderr
    )


def test_a_ring_is_for_its_user_alone_and_nobody_can_guess_its_name(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(kernel_build, kernel_rings) as host:
        ring = host.begin()
        assert stat.S_IMODE(ring.path.stat().st_mode) == 0o600
        assert re.fullmatch(rf"kernels-{host.pid}-[0-9a-f]{{32}}\.ring", ring.path.name)
        assert ring.path.stat().st_blocks * 512 >= ring.path.stat().st_size, (
            "a full disk would end the server"
        )
        assert ring.pid == host.pid
        assert find_rings(kernel_rings) == [ring.path]
        assert find_rings(kernel_rings, {ring.path}) == []
        ring.close()


def test_a_second_load_and_an_unload_change_nothing(kernel_build: Built, kernel_rings: Path) -> None:
    with KernelHost(kernel_build, kernel_rings) as host:
        ring = host.begin()
        assert host.ask("init") == 1
        assert host.ask("unload") == 0
        assert host.ask("unload") == 0
        switched(ring, True)
        host.ask("kernels 10")
        switched(ring, False)
        assert len(drained(ring).kernels) == 10
        assert len(list(kernel_rings.iterdir())) == 1
        ring.close()


def test_a_forked_child_writes_nothing_and_its_parent_goes_on(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(kernel_build, kernel_rings, {"SQUALL_KERNEL_FLUSH_MS": "0"}) as host:
        ring = host.begin()
        switched(ring, True)
        host.ask("kernels 10")
        assert host.ask("fork 100000") == 7
        host.ask("kernels 10")
        assert not ring.state.is_ended
        switched(ring, False)
        assert drained(ring).kernels["correlation_id"].tolist() == list(range(20))
        assert len(list(kernel_rings.iterdir())) == 1
        ring.close()


def test_a_process_that_exits_leaves_all_its_records(kernel_build: Built, kernel_rings: Path) -> None:
    settings = {"SQUALL_KERNEL_FLUSH_MS": "0", "SQUALL_KERNEL_RECORD": "1"}
    with KernelHost(kernel_build, kernel_rings, settings) as host:
        ring = host.begin()  # no reader had to switch it on
        host.ask("kernels 777")
        assert host.end("exit 6") == (6, "")
        assert ring.state.is_ended
        assert len(drained(ring).kernels) == 777
        ring.switch(False)
        assert ring.switched() is None
        assert ring.lost().n_buffers_out == 0
        ring.close()


def test_a_process_that_is_killed_leaves_what_was_written_and_says_what_was_not(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(kernel_build, kernel_rings, {"SQUALL_KERNEL_FLUSH_MS": "0"}) as host:
        ring = host.begin()
        switched(ring, True)
        host.ask("kernels 1000")
        switched(ring, False)
        switched(ring, True)
        host.ask("kernels 3")
        ring.close()
        host.kill()
        ring = host.ring()  # by whoever comes later
        found = drained(ring)
        assert len(found.kernels) == 1000
        assert ring.lost().n_buffers_out == 1
        assert not ring.state.is_ended
        ring.switch(False)
        assert ring.switched(0.05) is None
        ring.close()


def test_a_tail_that_no_reader_wrote_costs_records_and_nothing_else(
    kernel_build: Built, kernel_rings: Path
) -> None:
    with KernelHost(kernel_build, kernel_rings) as host:
        ring = host.begin()
        switched(ring, True)
        ring._header["tail"][0] = 2**63 + 5
        host.ask("kernels 100")
        switched(ring, False)
        assert ring.lost().n_ring > 100
        with pytest.raises(RingError, match="cannot be in a ring"):
            ring.drain()
        ring._header["tail"][0] = ring._header["head"][0]
        switched(ring, True)
        host.ask("kernels 5")
        switched(ring, False)
        assert len(drained(ring).kernels) == 5
        ring.close()


def test_a_file_that_is_no_ring_is_refused(kernel_build: Built, kernel_rings: Path, tmp_path: Path) -> None:
    with KernelHost(kernel_build, kernel_rings) as host:
        ring = host.begin()
        whole = ring.path.read_bytes()
        ring.close()
    cases = {"short": whole[:100], "not ready": bytes(8) + whole[8:], "other size": whole[:12] + b"\x60" + whole[13:],
             "more than it holds": whole[:8192]}  # fmt: skip
    for name, data in cases.items():
        path = tmp_path / name
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(RingError):
            KernelRing(path)
    (tmp_path / "open").write_bytes(whole)
    (tmp_path / "open").chmod(0o644)
    with pytest.raises(RingError, match="others than its owner"):
        KernelRing(tmp_path / "open")
    (tmp_path / "link").symlink_to(ring.path)
    with pytest.raises(OSError, match="symbolic link"):
        KernelRing(tmp_path / "link")


SANITIZERS = {
    "addresses and undefined behaviour": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "threads": ("-fsanitize=thread",),
}


def can_sanitize(flags: tuple[str, ...], folder: Path) -> bool:
    """Whether the compiler is able to build and run a program with it."""
    (folder / "try.c").write_text("int main(void) { return 0; }\n")
    command = [compiler(), *flags, str(folder / "try.c"), "-o", str(folder / "try")]
    is_built = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return is_built and subprocess.run([folder / "try"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", SANITIZERS)
@pytest.mark.parametrize("has_clock", [True, False])
def test_no_sanitizer_finds_a_fault_while_all_happens_at_once(
    kernel_rings: Path, tmp_path: Path, name: str, has_clock: bool
) -> None:
    flags = SANITIZERS[name]
    if not can_sanitize(flags, tmp_path):
        pytest.skip(f"the compiler here has no sanitizer of {name}")
    build = built(tmp_path, ("-O1", "-g", *flags), () if has_clock else ("TIMESTAMP_CALLBACK",))
    small = {"SQUALL_KERNEL_BUFFER_BYTES": str(1 << 14), "SQUALL_KERNEL_RING_BYTES": str(1 << 20)}
    settings = {
        **ALL_KINDS,
        **small,
        "SQUALL_KERNEL_FLUSH_MS": "1",
        "FAKE_CUPTI_HOLD": "3",
        "TSAN_OPTIONS": "exitcode=66:halt_on_error=1",
    }
    with KernelHost(build, kernel_rings, settings) as host:
        ring, names, n_read = host.begin(), Names(), 0
        for round_ in range(6):
            ring.switch(True)
            host.ask("threads 4 2000")
            for line in (
                "copies 50",
                "memsets 50",
                "syncs 50",
                "runtime 50",
                "driver 50",
                "events 50",
            ):
                host.ask(line)
            if round_ == 3:
                ring._header["tail"][0] += 200_000
                host.ask("kernels 100")
                ring._header["tail"][0] -= 200_000
            ring.switch(False)
            host.ask("threads 2 500")
            n_read += len(activities(ring.drain(), names).kernels)
        assert ring.switched(PATIENCE_S) is not None
        assert ring.lost().n_unknown == 0
        ring.switch(True)
        assert ring.switched(PATIENCE_S) is not None
        host.ask("threads 4 1000")
        code, stderr = host.end("exit 11")
        n_read += len(activities(ring.drain(), names).kernels)
        ring.close()
    assert "ERROR" not in stderr
    assert "WARNING" not in stderr
    assert "runtime error" not in stderr
    assert code == 11, stderr
    assert n_read > 0
