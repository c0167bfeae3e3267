"""Checks of kernel, CPU, memory, limits and clocks of a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from squall.actors.doctor.checkup import Checkup, Finding, Host
from squall.scenarios.units import digits_text

GIB = 2**30
_LEAST_FILES, _ENOUGH_FILES = 256, 4_096
"""A worker opens `clients.connections` (16) connections and more at need; a Triton and a Ray some hundred files."""
_WANTED_FILES = 65_536
_LEAST_SHM_BYTES, _ENOUGH_SHM_BYTES = 2**26, GIB
"""64 MiB is what containers get by default; Ray's object store of squall alone asks for 256 MiB."""
_PROBE_BYTES, _ENOUGH_DISK_BYTES = 2**20, 4 * GIB
_MOST_USED_RATIO = 0.95
"""Ray creates no objects on disk above it (RAY_local_fs_capacity_threshold)."""
_ENOUGH_MEMORY_BYTES = 2 * GIB
_MOST_PARANOID = 2
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
_NS_PER_S = 1_000_000_000


def cores(host: Host) -> Finding:
    """Logical CPUs, those this process may use, and the quota of its cgroup."""
    n, n_usable = host.n_cores()
    quota = _cpu_quota(host)
    what = f"{n} logical CPUs" + (f", {n_usable} of them for squall" if n_usable < n else "")
    if quota is not None and quota < n_usable:
        return Finding(
            "cores", "limited", f"{what}; the cgroup's quota is {quota:g} CPUs: bursts are throttled to it",
            "raise the quota: docker run --cpus N, Kubernetes limits.cpu, systemctl set-property UNIT CPUQuota=",
        )  # fmt: skip
    if n_usable < 2:
        mend = "use a node with 2 CPUs or more, or widen the set: taskset, docker run --cpuset-cpus"
        return Finding("cores", "limited", f"{what}: clients and server share one", mend)
    return Finding("cores", "ok", what)


def _cpu_quota(host: Host) -> float | None:
    """Smallest quota over this process's cgroup and those above it, in CPUs; None without any (cgroups(7))."""
    quotas = []
    for line in (host.read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        for folder in _upwards(path):
            if not controllers:
                for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
                    limit, _, period = (host.read(f"{mount}{folder}/cpu.max") or "max").partition(" ")
                    if limit != "max":
                        quotas.append(int(limit) / int(period or 100_000))
            elif "cpu" in controllers.split(","):
                used = host.read(f"/sys/fs/cgroup/cpu{folder}/cpu.cfs_quota_us")
                period = host.read(f"/sys/fs/cgroup/cpu{folder}/cpu.cfs_period_us") or "100000"
                if used is not None and int(used) > 0:
                    quotas.append(int(used) / int(period))
    return min(quotas, default=None)


def _upwards(path: str) -> Iterator[str]:
    """`/a/b` gives `/a/b`, `/a` and the root as an empty text."""
    for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
        yield str(folder).rstrip("/")


def governor(host: Host) -> Finding:
    """Whether the CPUs keep their clock up."""
    found = host.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if found is None:
        return Finding("CPU governor", "ok", "none here: the hypervisor or the firmware sets the clock")
    if found == "performance":
        return Finding("CPU governor", "ok", found)
    what = f"{found}: the clock falls when the load does, and latency rises with it"
    return Finding("CPU governor", "limited", what, "cpupower frequency-set -g performance")


def memory(host: Host) -> Finding:
    available = _meminfo(host, "MemAvailable")
    if available is None:
        mend = "mount -t proc proc /proc"
        return Finding("memory", "limited", "/proc/meminfo does not say how much is available", mend)
    what = f"{available / GIB:.1f} GiB available"
    if available < _ENOUGH_MEMORY_BYTES:
        mend = f"free some, or use a node with {_ENOUGH_MEMORY_BYTES // GIB} GiB to spare"
        return Finding("memory", "limited", f"{what}: squall, Triton and the plan may not fit", mend)
    return Finding("memory", "ok", what)


def swap(host: Host) -> Finding:
    total, free = _meminfo(host, "SwapTotal"), _meminfo(host, "SwapFree")
    if not total or free is None:
        return Finding("swap", "ok", "none")
    used = total - free
    if used:
        what = f"{used / GIB:.2f} of {total / GIB:.1f} GiB in use: a page that comes back is a latency of ms"
        return Finding("swap", "limited", what, "swapoff -a (or sysctl vm.swappiness=1)")
    return Finding("swap", "ok", f"{total / GIB:.1f} GiB, none in use")


def _meminfo(host: Host, name: str) -> int | None:
    """A line of /proc/meminfo in bytes."""
    for line in (host.read("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1_024
    return None


def open_files(host: Host) -> Finding:
    soft, hard = host.open_files()
    what = f"{soft} (hard limit {hard})"
    if soft >= _ENOUGH_FILES:
        return Finding("open files", "ok", what)
    mend = f"ulimit -n {min(_WANTED_FILES, hard)}, before squall, or Ray, starts"
    if hard < _ENOUGH_FILES:
        mend = f"/etc/security/limits.conf: `* - nofile {_WANTED_FILES}` (docker run --ulimit nofile={_WANTED_FILES})"
    if soft < _LEAST_FILES:
        return Finding("open files", "missing", f"{what}: squall and Triton need more", mend)
    return Finding("open files", "limited", f"{what}: each connection takes one", mend)


def shared_memory(host: Host) -> Finding:
    found = host.space("/dev/shm")
    mend = "mount -o remount,size=2G /dev/shm (docker run --shm-size=2g, or --ipc=host)"
    if found is None:
        return Finding("/dev/shm", "missing", "is not there: Triton's Python backend needs it", mend)
    what = f"{digits_text(found.free_bytes / GIB)} of {digits_text(found.total_bytes / GIB)} GiB free"
    if found.free_bytes < _LEAST_SHM_BYTES:
        return Finding("/dev/shm", "missing", f"{what}: Triton's Python backend needs it", mend)
    if found.free_bytes < _ENOUGH_SHM_BYTES:
        return Finding("/dev/shm", "limited", f"{what}: Ray moves its objects to disk", mend)
    return Finding("/dev/shm", "ok", what)


def scratch(host: Host) -> Finding:
    """Whether the temporary folder takes files, and how many."""
    folder = host.temporary_folder()
    mend = "TMPDIR=FOLDER with room (and a short path), set before squall, or Ray, starts"
    reason = host.write(folder, _PROBE_BYTES)
    found = host.space(folder)
    if reason or found is None:
        what = f"the temporary folder takes no file: {reason or 'it is not there'}"
        return Finding("disk", "missing", what, mend)
    what = f"{digits_text(found.free_bytes / GIB)} GiB free in the temporary folder"
    if found.free_bytes < _ENOUGH_DISK_BYTES:
        return Finding("disk", "limited", f"{what}: a report of nsys alone takes hundreds of MB", mend)
    if found.free_bytes < (1.0 - _MOST_USED_RATIO) * found.total_bytes:
        what += f", which is over {_MOST_USED_RATIO:.0%} full: there Ray refuses to write"
        return Finding("disk", "limited", what, mend)
    return Finding("disk", "ok", what)


def pressure(host: Host) -> Finding:
    if host.read("/proc/pressure/cpu") is not None:
        return Finding("PSI", "ok", "/proc/pressure tells of waiting for CPU, memory and disk")
    what = "the kernel does not tell of waiting for CPU, memory and disk: those columns stay null"
    return Finding("PSI", "limited", what, "boot with psi=1 (Linux 4.20 and later, CONFIG_PSI)")


def perf_events(host: Host) -> Finding:
    """squall asks nsys for no CPU samples, which alone need it."""
    text = host.read("/proc/sys/kernel/perf_event_paranoid")
    if text is not None and int(text) <= _MOST_PARANOID:
        return Finding("perf events", "ok", f"perf_event_paranoid is {text}")
    what = (
        f"perf_event_paranoid is {text or 'not there'}: nsys cannot sample CPUs (squall does not ask it to)"
    )
    return Finding("perf events", "limited", what, f"sysctl kernel.perf_event_paranoid={_MOST_PARANOID}")


def clock_source(host: Host) -> Finding:
    folder = "/sys/devices/system/clocksource/clocksource0"
    found = host.read(f"{folder}/current_clocksource")
    if found in _SLOW_CLOCKS:
        what = f"{found}: every time stamp is a slow read of a device"
        return Finding("clock source", "limited", what, f"echo tsc > {folder}/current_clocksource")
    return Finding("clock source", "ok", found or "the kernel does not say")


def time_namespace(host: Host) -> Finding:
    """Whether CLOCK_MONOTONIC of this process is that of the node (time_namespaces(7))."""
    offset_ns = 0
    for line in (host.read("/proc/self/timens_offsets") or "").splitlines():
        name, seconds, ns = line.split()
        if name == "monotonic":
            offset_ns = int(seconds) * _NS_PER_S + int(ns)
    if not offset_ns:
        return Finding("time namespace", "ok", "the node's own")
    shift = f"the monotonic clock is shifted by {digits_text(offset_ns / _NS_PER_S)} s"
    what = f"{shift}: a server outside stamps on another"
    return Finding("time namespace", "limited", what, "start Ray outside the time namespace, as the server")


def ntp(host: Host) -> Finding:
    """Who keeps the wall clock. Runs measure offsets themselves; a step of it would shift what nsys stamps."""
    mend = "apt-get install chrony (or timedatectl set-ntp true)"
    chrony = host.ask("chronyc", "-c", "tracking")
    if chrony is not None and chrony.code == 0:
        fields = chrony.text.split(",")
        if len(fields) > 11 and fields[13:14] != ["Not synchronised"]:
            error_s = abs(float(fields[4])) + float(fields[11]) + float(fields[10]) / 2
            return Finding("wall clock", "ok", f"chrony, true within {digits_text(1e3 * error_s)} ms of UTC")
        return Finding(
            "wall clock", "limited", "chrony is not synchronised", "chronyc sources -v; chronyc online"
        )
    systemd = host.ask("timedatectl", "show", "--property=NTPSynchronized", "--value")
    if systemd is not None and systemd.code == 0:
        if systemd.text == "yes":
            return Finding("wall clock", "ok", "synchronised, says timedatectl")
        return Finding("wall clock", "limited", "not synchronised, says timedatectl", mend)
    what = "nothing here tells whether NTP keeps it; run times are the driver's, and a step shifts what nsys stamps"
    return Finding("wall clock", "limited", what, mend)


CHECKS: tuple[tuple[str, Checkup], ...] = (
    ("cores", cores), ("CPU governor", governor), ("memory", memory), ("swap", swap), ("open files", open_files),
    ("/dev/shm", shared_memory), ("disk", scratch), ("PSI", pressure), ("perf events", perf_events),
    ("clock source", clock_source), ("time namespace", time_namespace), ("wall clock", ntp),
)  # fmt: skip
