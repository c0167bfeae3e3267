from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from squall.actors.sampling.cpu_source import CoreSource
from squall.actors.sampling.host import HostSource
from squall.analysis.storage.schema import arrow_schema

SHARES = ("cpu_user", "cpu_system", "cpu_iowait", "cpu_steal", "cpu_idle")
FILES = (
    "meminfo",
    "net/dev",
    "net/softnet_stat",
    "net/snmp",
    "net/netstat",
    "pressure/cpu",
    "pressure/memory",
)


class Proc:
    """A folder in the place of /proc, rewritten between samples in place, as the kernel's files are."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write(stat=stat(), meminfo="MemTotal: 100 kB\nMemAvailable: 40 kB\nHugePages_Total: 0\n")

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.root / name.replace("__", "/")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def full(self, factor: int) -> None:
        """Every counter at `factor` times its first value."""
        f = factor
        self.write(
            net__dev=interfaces(lo=(9 * f, 2 * f, 9 * f, 0), eth0=(10 * f, 0, 20 * f, f)),
            net__softnet_stat=f"{255 * f:08x} {f:08x} {2 * f:08x} 0 0\n" * 2,
            net__snmp=f"Ip: A\nIp: 1\nTcp: InSegs RetransSegs OutRsts\nTcp: 5 {3 * f} 7\n",
            net__netstat=f"TcpExt: X ListenOverflows ListenDrops\nTcpExt: 1 2 {4 * f}\nIpExt: Y\nIpExt: 1\n",
            pressure__cpu=pressure("some", 5 * f) + pressure("full", 0),
            pressure__memory=pressure("some", 6 * f) + pressure("full", 7 * f),
            pressure__io=pressure("some", 8 * f) + pressure("full", 9 * f),
        )  # fmt: skip


def stat(*cores: tuple[int, ...], switches: int = 100, running: int = 2) -> str:
    """/proc/stat with these times (user nice system idle iowait irq softirq steal) of each core."""
    cores = cores or ((0,) * 8, (0,) * 8)
    total = [sum(core[index] for core in cores) for index in range(8)]
    lines = [("cpu ", total)] + [(f"cpu{index}", core) for index, core in enumerate(cores)]
    text = "".join(f"{name} {' '.join(map(str, times))} 0 0\n" for name, times in lines)
    return (
        text
        + f"intr {' '.join(['1'] * 9_000)}\nctxt {switches}\nbtime 1\nprocs_running {running}\nsoftirq 1 2\n"
    )


def interfaces(**counts: tuple[int, int, int, int]) -> str:
    """/proc/net/dev with (bytes received, drops, bytes sent, drops) of each."""
    lines = ["Inter-| Receive", " face |bytes"]
    for name, (received, dropped, sent, not_sent) in counts.items():
        lines.append(f"{name:>6}: {received} 1 7 {dropped} 0 0 0 0 {sent} 1 8 {not_sent} 0 0 0 0")
    return "\n".join(lines) + "\n"


def pressure(who: str, total_us: int) -> str:
    return f"{who} avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\n"


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_row_of_the_node_has_every_column_from_the_kernels_counters(proc: Proc) -> None:
    proc.full(1)
    host = HostSource(lambda: [os.getpid()], str(proc.root))
    assert host.sample(5) == []
    proc.full(3)
    proc.write(stat=stat((30, 10, 5, 20, 10, 1, 4, 20), (40, 0, 0, 40, 0, 0, 0, 20), switches=175, running=9))
    (row,) = host.sample(1_005)
    assert row.pop("server_cpu_ns") > 0
    assert row == {
        "t_ns": 1_005, "interval_ns": 1_000, "n_cores": 2, "run_queue": 9, "context_switches": 75,
        "cpu_user": 0.4, "cpu_system": 0.05, "cpu_iowait": 0.05, "cpu_steal": 0.2, "cpu_idle": 0.3,
        "memory_available_bytes": 40 * 1_024, "network_drops": 6, "network_rx_bytes": 20, "network_tx_bytes": 40,
        "psi_cpu_some_ns": 10_000, "psi_memory_some_ns": 12_000, "psi_memory_full_ns": 14_000,
        "psi_io_some_ns": 16_000, "psi_io_full_ns": 18_000, "softirq_drops": 4, "softirq_squeezes": 8,
        "tcp_retransmits": 6, "tcp_listen_drops": 8,
    }  # fmt: skip
    assert {*row, "server_cpu_ns", "run", "phase", "node"} == set(arrow_schema("host_samples").names)
    assert host.facts() == {"missing_files": [], "has_cpu_clock": True}


def test_what_the_node_does_not_offer_is_null_and_named(proc: Proc) -> None:
    (proc.root / "meminfo").unlink()
    host = HostSource(lambda: [], str(proc.root))
    host.sample(0)
    proc.write(stat=stat((1,) * 8))
    (row,) = host.sample(1)
    required = {field.name for field in arrow_schema("host_samples") if not field.nullable}
    assert {name for name in row if row[name] is not None} == required - {"run", "phase", "node"}
    missing = {Path(name).relative_to(proc.root).as_posix() for name in host.facts()["missing_files"]}
    assert missing == {*FILES, "pressure/io"}


def test_an_interface_that_comes_counts_from_zero_and_one_that_goes_takes_nothing_back(proc: Proc) -> None:
    proc.write(net__dev=interfaces(eth0=(100, 0, 100, 0), eth1=(50, 0, 50, 0)))
    host = HostSource(lambda: [], str(proc.root))
    host.sample(0)
    after = interfaces(eth0=(110, 0, 100, 0), veth=(7, 0, 8, 0))
    proc.write(stat=stat((1,) * 8), net__dev=after)
    (row,) = host.sample(1)
    assert (row["network_rx_bytes"], row["network_tx_bytes"]) == (17, 8)


def test_a_sample_within_one_tick_of_the_kernels_count_is_part_of_the_next_row(proc: Proc) -> None:
    host = HostSource(lambda: [], str(proc.root))
    host.sample(0)
    assert host.sample(10) == []
    proc.write(stat=stat((1, 0, 0, 1, 0, 0, 0, 0), switches=130))
    (row,) = host.sample(20)
    assert (row["interval_ns"], row["context_switches"], row["cpu_user"]) == (20, 30, 0.5)


def test_idle_time_that_went_back_is_no_negative_share(proc: Proc) -> None:
    proc.write(stat=stat((10, 0, 0, 10, 10, 0, 0, 0)))
    host, cores = HostSource(lambda: [], str(proc.root)), CoreSource(str(proc.root), str(proc.root))
    host.sample(0)
    cores.sample(0)
    proc.write(stat=stat((20, 0, 0, 20, 8, 0, 0, 0)))
    (row,), (core,) = host.sample(1), cores.sample(1)
    assert (row["cpu_iowait"], row["cpu_user"], row["cpu_idle"]) == (0, 0.5, 0.5)
    assert (core["cpu_user"], core["cpu_idle"]) == (0.5, 0.5)


def test_each_core_has_its_own_shares_and_clock(proc: Proc) -> None:
    folder = proc.root / "cpu1" / "cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_cur_freq").write_text("2400000\n")
    cores = CoreSource(str(proc.root), str(proc.root))
    assert cores.sample(0) == []
    proc.write(stat=stat((80, 0, 10, 0, 0, 4, 6, 0), (0, 0, 0, 60, 30, 0, 0, 10)))
    first, second = cores.sample(1_000)
    assert first == {
        "core": 0, "t_ns": 1_000, "interval_ns": 1_000, "cpu_user": 0.8, "cpu_system": 0.1, "cpu_irq": 0.1,
        "cpu_steal": 0.0, "cpu_idle": 0.0, "frequency_hz": None,
    }  # fmt: skip
    assert (second["core"], second["cpu_steal"], second["cpu_idle"]) == (1, 0.1, 0.9)
    assert second["frequency_hz"] == 2.4e9
    assert {*first, "run", "phase", "node"} == set(arrow_schema("core_samples").names)
    assert cores.facts() == {"has_frequency": True}


def test_without_proc_stat_there_is_no_row_but_an_error_that_names_it(tmp_path: Path) -> None:
    for source in (HostSource(lambda: [], str(tmp_path)), CoreSource(str(tmp_path), str(tmp_path))):
        with pytest.raises(OSError, match="stat cannot be read"):
            source.sample(0)


def burn(until: Callable[[], bool]) -> None:
    while not until():
        sum(range(20_000))  # in user mode: to ask for the time is the kernel's work


def after_cpu_s(seconds: float) -> Callable[[], bool]:
    end = time.process_time() + seconds
    return lambda: time.process_time() >= end


def test_shares_of_this_machine_add_up_to_one_and_own_work_is_in_the_servers_cpu_time() -> None:
    host = HostSource(lambda: [os.getpid()])
    assert host.sample(0) == []
    burn(after_cpu_s(0.05))
    (row,) = host.sample(10**9)
    assert sum(row[name] for name in SHARES) == pytest.approx(1)
    assert row["cpu_user"] > 0
    assert row["server_cpu_ns"] >= 50_000_000
    assert row["memory_available_bytes"] > 2**20
    if os.path.exists("/proc/pressure/cpu"):
        assert row["psi_cpu_some_ns"] is not None


def test_the_core_that_a_process_is_bound_to_is_the_busy_one() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    cores = CoreSource()
    os.sched_setaffinity(0, {core})
    try:
        cores.sample(0)
        burn(after_cpu_s(0.1))
        busy = {row["core"]: row["cpu_user"] + row["cpu_system"] for row in cores.sample(10**9)}
    finally:
        os.sched_setaffinity(0, before)
    assert busy[core] > 0.3


@pytest.mark.parametrize("change", ["came", "ended"])
def test_the_servers_cpu_time_is_unknown_where_one_of_its_processes_came_or_ended(change: str) -> None:
    pids: list[Any] = [os.getpid()]
    host = HostSource(lambda: tuple(pids))
    host.sample(0)
    burn(after_cpu_s(0.02))
    pids += [2**22 + 1] if change == "ended" else [os.getppid()]  # the former is above the largest pid
    (row,) = host.sample(1)
    assert row["server_cpu_ns"] is None
