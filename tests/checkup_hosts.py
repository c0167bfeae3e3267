"""A host that is whatever a test says: `squall.actors.doctor.checkup.Host` from plain values, a sound host by
default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from squall.actors.doctor.checkup import Answer, Space

GIB = 2**30
MEMINFO = "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB"
FILES = {
    "/proc/meminfo": MEMINFO,
    "/proc/self/cgroup": "0::/user.slice",
    "/proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
    "/proc/sys/kernel/perf_event_paranoid": "2",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "/proc/self/timens_offsets": "monotonic           0         0\nboottime            0         0",
}


@dataclass
class FakeProbes:
    """`files` and `answers` replace or add to those of a sound host; None takes one away. `answers` is by the command's
    first words."""

    files: Mapping[str, str | None] = field(default_factory=dict)
    answers: Mapping[str, Answer | None] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, int] = (8, 8)
    limits: tuple[int, int] = (65_536, 65_536)
    spaces: Mapping[str, Space | None] = field(default_factory=dict)
    write_error: str = ""

    def read(self, path: str) -> str | None:
        return {**FILES, **self.files}.get(path)

    def ask(self, *command: str) -> Answer | None:
        line = " ".join(command)
        return next((answer for start, answer in self.answers.items() if line.startswith(start)), None)

    def environ(self, name: str) -> str | None:
        return self.variables.get(name)

    def package(self, name: str) -> str | None:
        return self.packages.get(name)

    def n_cores(self) -> tuple[int, int]:
        return self.cores

    def open_files(self) -> tuple[int, int]:
        return self.limits

    def space(self, path: str) -> Space | None:
        return {"/dev/shm": Space(8 * GIB, 8 * GIB), "/tmp": Space(100 * GIB, 50 * GIB), **self.spaces}.get(
            path
        )

    def temporary_folder(self) -> str:
        return "/tmp"

    def write(self, folder: str, n_bytes: int) -> str:
        del folder, n_bytes
        return self.write_error
