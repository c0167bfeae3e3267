"""Each check of a node, on hosts on which it finds each of its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.actors.doctor import host
from squall.actors.doctor.checkup import Answer, Finding, Host, Space, check_up
from squall.actors.doctor.tools import GpuAnswers, NsysAnswers, containers, gpu, nsys
from squall.actors.nsys.tools import NsysTools, Problem
from squall.scenarios.errors import ClusterError
from tests.checkup_hosts import GIB, FakeProbes

CGROUP = "/proc/self/cgroup"
SHM, TMP = "/dev/shm", "/tmp"


def memory_of(available_kib: int, swap_kib: int = 0, free_kib: int = 0) -> FakeProbes:
    text = f"MemAvailable: {available_kib} kB\nSwapTotal: {swap_kib} kB\nSwapFree: {free_kib} kB"
    return FakeProbes(files={"/proc/meminfo": text})


TIMENS = "monotonic         100         5\nboottime            0         0"
GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
CHRONY = "A9FE,host,3,1700000000.0,-0.000002,0.000001,0.00001,1.0,0.0,0.1,0.0004,0.0003,64.0,Normal"
CASES: list[tuple[Any, FakeProbes, str, str]] = [
    (host.cores, FakeProbes(), "ok", "8 logical CPUs"),
    (host.cores, FakeProbes(cores=(8, 1)), "limited", "1 of them for squall: clients and server share one"),
    (host.cores, FakeProbes(files={"/sys/fs/cgroup/cpu.max": "150000 100000"}), "limited", "quota is 1.5 CPUs"),
    (host.cores, FakeProbes(files={"/sys/fs/cgroup/user.slice/cpu.max": "max 100000"}), "ok", "8 logical CPUs"),
    (
        host.cores,
        FakeProbes(files={CGROUP: "2:cpu,cpuacct:/a/b", "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000",
                          "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
                          "/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "-1"}),
        "limited", "quota is 2 CPUs",
    ),
    (host.governor, FakeProbes(), "ok", "performance"),
    (host.governor, FakeProbes(files={GOVERNOR: None}), "ok", "hypervisor"),
    (host.governor, FakeProbes(files={GOVERNOR: "powersave"}), "limited", "powersave"),
    (host.memory, FakeProbes(), "ok", "16.0 GiB"),
    (host.memory, memory_of(1_048_576), "limited", "1.0 GiB available"),
    (host.memory, FakeProbes(files={"/proc/meminfo": None}), "limited", "does not say"),
    (host.swap, FakeProbes(), "ok", "none"),
    (host.swap, memory_of(1, 2_097_152, 2_097_152), "ok", "none in use"),
    (host.swap, memory_of(1, 2_097_152, 1_048_576), "limited", "1.00 of 2.0 GiB in use"),
    (host.open_files, FakeProbes(), "ok", "65536"),
    (host.open_files, FakeProbes(limits=(1_024, 4_096)), "limited", "1024 (hard limit 4096)"),
    (host.open_files, FakeProbes(limits=(128, 1_024)), "missing", "need more"),
    (host.shared_memory, FakeProbes(), "ok", "8 of 8 GiB"),
    (host.shared_memory, FakeProbes(spaces={SHM: Space(GIB, GIB // 2)}), "limited", "0.5 of 1 GiB"),
    (host.shared_memory, FakeProbes(spaces={SHM: Space(2**26, 2**25)}), "missing", "needs it"),
    (host.shared_memory, FakeProbes(spaces={SHM: None}), "missing", "not there"),
    (host.scratch, FakeProbes(), "ok", "50 GiB"),
    (host.scratch, FakeProbes(spaces={TMP: Space(100 * GIB, GIB)}), "limited", "1 GiB free"),
    (host.scratch, FakeProbes(spaces={TMP: Space(1_000 * GIB, 40 * GIB)}), "limited", "95% full"),
    (host.scratch, FakeProbes(write_error="No space left on device"), "missing", "No space left on device"),
    (host.pressure, FakeProbes(), "ok", "/proc/pressure"),
    (host.pressure, FakeProbes(files={"/proc/pressure/cpu": None}), "limited", "stay null"),
    (host.perf_events, FakeProbes(), "ok", "is 2"),
    (host.perf_events, FakeProbes(files={"/proc/sys/kernel/perf_event_paranoid": "4"}), "limited", "is 4"),
    (host.perf_events, FakeProbes(files={"/proc/sys/kernel/perf_event_paranoid": None}), "limited", "not there"),
    (host.clock_source, FakeProbes(), "ok", "tsc"),
    (host.clock_source, FakeProbes(files={CLOCKSOURCE: "hpet"}), "limited", "hpet"),
    (host.time_namespace, FakeProbes(), "ok", "node's own"),
    (host.time_namespace, FakeProbes(files={"/proc/self/timens_offsets": None}), "ok", "node's own"),
    (host.time_namespace, FakeProbes(files={"/proc/self/timens_offsets": TIMENS}), "limited", "by 100 s"),
    (host.ntp, FakeProbes(), "limited", "nothing here tells"),
    (host.ntp, FakeProbes(answers={"chronyc": Answer(0, CHRONY)}), "ok", "within 0.502 ms"),
    (
        host.ntp, FakeProbes(answers={"chronyc": Answer(0, CHRONY.replace("Normal", "Not synchronised"))}),
        "limited", "not synchronised",
    ),
    (host.ntp, FakeProbes(answers={"timedatectl": Answer(0, "yes")}), "ok", "timedatectl"),
    (host.ntp, FakeProbes(answers={"timedatectl": Answer(0, "no")}), "limited", "not synchronised"),
    (
        host.ntp, FakeProbes(answers={"chronyc": Answer(1, "506 Cannot talk"), "timedatectl": Answer(1, "")}),
        "limited", "nothing here tells",
    ),
    (containers, FakeProbes(), "limited", "neither docker nor podman"),
    (containers, FakeProbes(answers={"docker": Answer(0, "27.1")}), "ok", "docker 27.1"),
    (containers, FakeProbes(answers={"podman": Answer(0, "{}")}), "ok", "podman"),
    (
        containers, FakeProbes(answers={"docker": Answer(1, "x\nno daemon"), "podman": Answer(0, "{}")}),
        "ok", "podman",
    ),
    (containers, FakeProbes(answers={"docker": Answer(1, "x\nno daemon")}), "limited", "does not work: no daemon"),
    (containers, FakeProbes(answers={"docker": Answer(None, "")}), "limited", "in time"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "host", "status", "what"), CASES)
def test_a_check_says_what_the_host_has(check: Any, host: FakeProbes, status: str, what: str) -> None:
    found = check(host)
    assert (found.status, what in found.what) == (status, True), found
    assert "\n" not in found.what


def test_every_check_of_the_host_is_seen_ok_and_broken() -> None:
    seen = {check: {status for other, _, status, _ in CASES if other is check} for _, check in host.CHECKS}
    assert all("ok" in statuses and len(statuses) > 1 for statuses in seen.values()), seen


def test_the_limit_of_open_files_is_mended_where_it_can_be() -> None:
    assert host.open_files(FakeProbes(limits=(1_024, 20_000))).mend.startswith("ulimit -n 20000")
    assert "limits.conf" in host.open_files(FakeProbes(limits=(1_024, 1_024))).mend


def part(mig: str = "", has_gpm: bool = True, reason: str = "") -> dict[str, Any]:
    return {"mig_instance": mig, "has_gpm": has_gpm, "gpm_reason": reason, "unsupported": {}}


def facts(**changes: Any) -> dict[str, Any]:
    one = {"name": "a GPU", "uuid": "GPU-1", "is_mig": False, "parts": [part()], **changes}
    return {"driver": "580.1", "gpus": [one]}


@pytest.mark.parametrize(
    ("reason", "driver", "content", "expected"),
    [
        (None, "NVRM", facts(), [("GPU", "ok", "a GPU, driver 580.1"), ("GPM", "ok", "a GPU")]),
        (
            None, "NVRM", facts(parts=[part(has_gpm=False, reason="it is older than Hopper")]),
            [("GPU", "ok", "a GPU"), ("GPM", "limited", "it is older than Hopper")],
        ),
        (
            None, "NVRM", facts(is_mig=True, parts=[part(), part("1/0"), part("2/0")]),
            [("GPU", "ok", "MIG with 2 instances"), ("GPM", "ok", "")],
        ),
        (None, "NVRM", facts(is_mig=True), [("GPU", "limited", "there is no instance")]),
        (None, "NVRM", {"driver": "580.1", "gpus": []}, [("GPU", "limited", "no GPU that can be read")]),
        ("NVML Shared Library Not Found", None, {}, [("GPU", "limited", "no NVIDIA driver")]),
        ("Driver/library version mismatch", "NVRM", {}, [("GPU", "limited", "NVML does not work: Driver/library")]),
    ],
)  # fmt: skip
def test_gpus_are_told_with_mig_and_gpm(
    reason: str | None, driver: str | None, content: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    host = FakeProbes(files={"/proc/driver/nvidia/version": driver})
    found = gpu(host, GpuAnswers(lambda: reason, lambda: content))
    assert [(one.topic, one.status) for one in found] == [(topic, status) for topic, status, _ in expected]
    for one, (_, _, what) in zip(found, expected, strict=True):
        assert what in one.what


TOOLS = NsysTools(Path("/x/nsys"), (2022, 4, 2), "PATH", None)
BROKEN = NsysTools(
    Path("/x/nsys"), (2025, 3), "Nsight Compute", None, problems=(Problem("no importer", "mend it"),)
)


def raising(text: str) -> Any:
    def fail(*_: Any) -> Any:
        raise ClusterError(text)

    return fail


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (
            NsysAnswers(lambda: TOOLS, lambda _: (49, 2)),
            [
                ("ok", "0.6 s recorded, 49 OS-runtime calls exported"),
                ("ok", "nvidia-nvtx 13.0: 2 ranges recorded"),
            ],
        ),
        (
            NsysAnswers(lambda: TOOLS, lambda _: (49, 0)),
            [("ok", "49 OS-runtime calls"), ("limited", "no range came into the recording")],
        ),
        (NsysAnswers(lambda: None, lambda _: (0, 0)), [("limited", "there is none")]),
        (NsysAnswers(lambda: TOOLS, lambda _: (0, 2)), [("limited", "holds no OS-runtime call")]),
        (
            NsysAnswers(lambda: TOOLS, raising("nsys stop did not\nend")),
            [("limited", "nsys stop did not end")],
        ),
        (
            NsysAnswers(raising("SQUALL_NSYS: no such"), lambda _: (0, 0)),
            [("limited", "SQUALL_NSYS: no such")],
        ),
        (
            NsysAnswers(lambda: BROKEN, raising("left no report")),
            [("limited", "no importer"), ("limited", "left no report")],
        ),
    ],
)
def test_nsys_is_proven_and_not_only_found(host: NsysAnswers, expected: list[tuple[str, str]]) -> None:
    found = nsys(FakeProbes(packages={"nvidia-nvtx": "13.0"}), host)
    assert [one.status for one in found] == [status for status, _ in expected]
    assert all(what in one.what for one, (_, what) in zip(found, expected, strict=True))


def test_a_check_that_raises_is_a_finding_and_costs_no_other() -> None:
    def broken(_: Host) -> Finding:
        raise ValueError("two\nlines")

    found = check_up([("first", broken), ("cores", host.cores)], FakeProbes())
    assert found[0].status == "limited"
    assert found[0].what == "the check failed: ValueError: two lines"
    assert found[1] == host.cores(FakeProbes())


@pytest.mark.parametrize(("status", "mend"), [("ok", "nothing to do"), ("limited", ""), ("missing", "")])
def test_what_does_not_work_has_a_mend_and_what_works_none(status: Any, mend: str) -> None:
    with pytest.raises(ValueError, match="needs no mend"):
        Finding("topic", status, "what", mend)
