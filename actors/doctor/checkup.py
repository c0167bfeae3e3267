"""What one node can find out about itself: for each topic whether it works, works in part or not, and the mend.

Every check is a function of `Host` alone, so that a test can show it any host. A check that raises becomes a
finding; none costs the others.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from squall.scenarios.records import Frozen

Status = Literal["ok", "limited", "missing"]
_ASK_TIMEOUT_S = 10.0
_REPORT = "report it with this line, or look into it on the node"


class Finding(Frozen):
    """`what` in one line. `limited`: runs go on without it or with less; `missing`: no run can be made here.

    `mend`: the command or setting that mends it; never empty unless the status is ok.
    """

    topic: str
    status: Status
    what: str
    mend: str = ""

    def __post_init__(self) -> None:
        if (self.status == "ok") == bool(self.mend):
            raise ValueError(f"{self.topic}: what is ok needs no mend, and all else one: {self}")


class Answer(NamedTuple):
    """What a command said. `code` None: it did not end in time and was killed."""

    code: int | None
    text: str


class Space(NamedTuple):
    """Bytes of a file system."""

    total_bytes: int
    free_bytes: int


class Host(Protocol):
    """What checks may ask of a host."""

    def read(self, path: str) -> str | None:
        """Text of a file, stripped; None where it cannot be read."""

    def ask(self, *command: str) -> Answer | None:
        """Runs a command; None where there is no such program."""

    def environ(self, name: str) -> str | None:
        """An environment variable of this process."""

    def package(self, name: str) -> str | None:
        """Version of an installed Python package; None without it."""

    def n_cores(self) -> tuple[int, int]:
        """Logical CPUs of the node, and those that this process may use."""

    def open_files(self) -> tuple[int, int]:
        """Soft and hard limit of open files."""

    def space(self, path: str) -> Space | None:
        """The file system that holds `path`; None where there is none."""

    def temporary_folder(self) -> str:
        """Where scratch folders go."""

    def write(self, folder: str, n_bytes: int) -> str:
        """Writes and removes a file of that size; empty if it could, else why not."""


class ThisHost:
    """The host that this process runs on."""

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def ask(self, *command: str) -> Answer | None:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors="replace", timeout=_ASK_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Answer(None, "")
        except OSError:
            return None
        return Answer(done.returncode, done.stdout.strip())

    def environ(self, name: str) -> str | None:
        return os.environ.get(name)

    def package(self, name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    def n_cores(self) -> tuple[int, int]:
        return os.cpu_count() or 1, len(os.sched_getaffinity(0))

    def open_files(self) -> tuple[int, int]:
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    def space(self, path: str) -> Space | None:
        try:
            found = shutil.disk_usage(path)
        except OSError:
            return None
        return Space(found.total, found.free)

    def temporary_folder(self) -> str:
        try:
            return tempfile.gettempdir()
        except OSError:  # none of the usual ones can be written
            return os.environ.get("TMPDIR", "/tmp")

    def write(self, folder: str, n_bytes: int) -> str:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(n_bytes))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return error.strerror or type(error).__name__
        return ""


Checkup = Callable[[Host], Finding | list[Finding]]


def check_up(checks: Iterable[tuple[str, Checkup]], host: Host) -> list[Finding]:
    """The findings of (topic, check) in their order; one that raises is a finding of its own, `limited`."""
    found: list[Finding] = []
    for topic, check in checks:
        try:
            result = check(host)
        except Exception as error:  # the edge of a check: what it met is recorded
            words = " ".join(str(error).split())
            result = Finding(topic, "limited", f"the check failed: {type(error).__name__}: {words}", _REPORT)
        found += result if isinstance(result, list) else [result]
    return found
