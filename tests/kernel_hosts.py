"""The kernel library, a CUPTI of known behaviour and a process that uses both, built by the C compiler that is here."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from squall.actors.inject.kernel_ring import Activities, KernelRing, Names, activities
from tests.sanitize import compiler

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "actors" / "inject" / "kernels"
NATIVE = ROOT / "tests" / "native"
_FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE=1")
_SHARED = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,nodelete")
NAMES = (
    "add(float*, float*, int)",
    "matmul(float const*, float const*, float*)",
    "gemm_kernel",
    "softmax",
    "copy(void*)",
)
"""Of the host's kernels: the one of number n has the name n % 5."""
ALL_KINDS = {"SQUALL_KERNEL_KINDS": "kernels,copies,sync,runtime,driver,events"}
PATIENCE_S = 60.0
"""For what the library does within a millisecond, on a host that may be busy with anything."""


@dataclass(frozen=True)
class Built:
    """Files of one build: plain, or with a sanitizer."""

    library: Path
    fake: Path
    host: Path


def built(folder: Path, flags: Sequence[str] = ("-O2",), without: Sequence[str] = ()) -> Built:
    """Builds all three into `folder`; `without`: functions that the fake lacks. Raises CalledProcessError."""
    found = Built(folder / "kernels.so", folder / "fake_cupti.so", folder / "kernel_host")
    folder.mkdir(parents=True, exist_ok=True)
    cc, sources = [compiler(), *_FLAGS, *flags], sorted(map(str, SOURCES.glob("*.c")))
    lacking = [f"-DWITHOUT_{name}" for name in without]
    _run([*cc, *_SHARED, *sources, "-o", str(found.library), "-ldl", "-lpthread"])
    _run(
        [*cc, "-shared", "-fPIC", *lacking, str(NATIVE / "fake_cupti.c"), "-o", str(found.fake), "-lpthread"]
    )
    _run([*cc, str(NATIVE / "kernel_host.c"), "-o", str(found.host), "-ldl", "-lpthread"])
    return found


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class KernelHost:
    """A process of `kernel_host.c`; ended with the `with` block. Its rings are in `rings`."""

    def __init__(self, build: Built, rings: Path, settings: Mapping[str, str] | None = None) -> None:
        environment = {"SQUALL_KERNELS": str(rings), "SQUALL_CUPTI": str(build.fake), **(settings or {})}
        self.rings = rings
        self._process = subprocess.Popen(
            [str(build.host), str(build.library), str(build.fake)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PATH": os.environ["PATH"], **environment},
        )  # fmt: skip
        self.pid = self._process.pid

    def __enter__(self) -> KernelHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, line: str) -> int:
        """One line, and the number of its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        assert answer, f"the host died of {line!r}: {self._process.communicate()[1]}"
        assert answer[0] == line.split()[0]
        return int(answer[1])

    def begin(self) -> KernelRing:
        """CUDA's first call; the ring that it makes."""
        assert self.ask("init") == 1
        return self.ring()

    def ring(self) -> KernelRing:
        (path,) = self.rings.iterdir()
        return KernelRing(path)

    def end(self, line: str = "") -> tuple[int, str]:
        """The end of its input, or after a last line that ends it: exit code and standard error."""
        _, stderr = self._process.communicate(line + "\n", timeout=PATIENCE_S)
        return self._process.returncode, stderr

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)


def switched(ring: KernelRing, is_on: bool) -> None:
    """Switches, and waits until that holds."""
    ring.switch(is_on)
    done = ring.switched(PATIENCE_S)
    assert done is not None, "the library did not answer"
    assert done.is_on == is_on
    assert done.begun_ns <= done.done_ns <= time.monotonic_ns()


def drained(ring: KernelRing) -> Activities:
    """What the ring holds, with the names that it tells."""
    return activities(ring.drain(), Names())
