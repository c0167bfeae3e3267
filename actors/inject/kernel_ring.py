"""The ring of the kernel library (kernels/kernels.h): its header, its records as arrays, its switch.

One process writes a ring, the one that uses CUDA; one reads it. What a process that was killed had written stays
readable. Instants are CLOCK_MONOTONIC ns of the host. The layouts here are those of kernels/kernels.h.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from squall.actors.inject.ring_file import RingError, RingFile
from squall.scenarios.foreign_file import plain_opener

Array = np.ndarray[Any, np.dtype[Any]]

MAGIC = b"sqkern1\0"
HEADER_BYTES = 4096
RECORD_BYTES = 80
_TEXT_BYTES = 512
_MOST_BYTES = 2**31
_MOST_NAME_BYTES = 4096
"""As names.c has it."""
_MANGLED = re.compile(r"_Z[\w.$]+", re.ASCII)
_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAKE = 1

HEADER = np.dtype(
    {
        "names": [
            "magic", "header_bytes", "record_bytes", "n_slots", "pid", "status", "started_ns", "cupti_version", "kinds",
            "clock_bound_ns", "is_ended", "buffer_bytes", "head", "n_lost", "n_dropped", "n_untimed", "n_unknown",
            "n_buffers_out", "n_buffers_refused", "flushed_ns", "tail", "wanted", "done", "begun_ns", "done_ns", "text",
        ],
        "formats": [
            "S8", "u4", "u4", "u8", "u4", "u4", "i8", "u4", "u4", "i8", "u4", "u4", "u8", "u8", "u8", "u8", "u8", "u4",
            "u4", "i8", "u8", "u4", "u4", "i8", "i8", f"S{_TEXT_BYTES}",
        ],
        "offsets": [
            0, 8, 12, 16, 24, 28, 32, 40, 44, 48, 56, 60, 64, 72, 80, 88, 96, 104, 108, 112, 128, 192, 196, 200, 208,
            256,
        ],
        "itemsize": HEADER_BYTES,
    }
)  # fmt: skip


class RecordKind(IntEnum):
    """What a record tells of."""

    NAME = 1
    SWITCH = 2
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6
    RUNTIME_CALL = 7
    DRIVER_CALL = 8
    EVENT = 10


class KernelKinds(IntFlag):
    """What is recorded, as bits of `Header.kinds`; the names in lower case are those of `SQUALL_KERNEL_KINDS`."""

    KERNELS = 1
    COPIES = 2
    SYNC = 4
    RUNTIME = 8
    DRIVER = 16
    EVENTS = 64


class RingStatus(IntEnum):
    """How the library does in its process. From NO_CUPTI on nothing is recorded, and the model runs on."""

    READY = 0
    RECORDING = 1
    NO_CUPTI = 2
    TOO_OLD = 3
    TOO_NEW = 4
    NO_SYMBOL = 5
    TAKEN = 6
    REFUSED = 7


def _dtype(*fields: tuple[str, str, int]) -> np.dtype[Any]:
    """A view of a record: its common fields, and those of its kind at their offsets."""
    common = (
        ("kind", "u2", 0), ("flags", "u2", 2), ("correlation_id", "u4", 4), ("start_ns", "i8", 8), ("end_ns", "i8", 16),
        ("device", "u4", 24), ("context", "u4", 28), ("stream", "u4", 32), ("graph", "u4", 36),
        ("graph_node", "u8", 40),
    )  # fmt: skip
    names, formats, offsets = zip(*common, *fields, strict=True)
    return np.dtype(
        {
            "names": list(names),
            "formats": list(formats),
            "offsets": list(offsets),
            "itemsize": RECORD_BYTES,
        }
    )


RECORD = _dtype()
KERNEL = _dtype(
    ("name", "u4", 48), ("grid", "(3,)u4", 52), ("block", "(3,)u2", 64), ("registers", "u2", 70),
    ("static_shared_bytes", "i4", 72), ("dynamic_shared_bytes", "i4", 76),
)  # fmt: skip
MEMORY = _dtype(
    ("bytes", "u8", 48), ("value", "u4", 56), ("copy_kind", "u1", 60), ("source", "u1", 61), ("destination", "u1", 62),
    ("memory_flags", "u1", 63),
)  # fmt: skip
SYNC = _dtype(("type", "u4", 48), ("event", "u4", 52))
CALL = _dtype(("name", "u4", 48), ("call", "u4", 52), ("thread", "u4", 56), ("result", "u4", 60))
_NAME = np.dtype(
    {"names": ["kind", "id", "offset", "n_bytes", "text"], "formats": ["u2", "u4", "u4", "u4", "V64"],
     "offsets": [0, 4, 8, 12, 16], "itemsize": RECORD_BYTES}
)  # fmt: skip

FLAG_ON, FLAG_FAILED, FLAG_PEER = 1, 2, 4


@dataclass(frozen=True)
class State:
    """How the library in a process does: one line for people is `str(state)`."""

    pid: int
    status: RingStatus
    text: str
    cupti_version: int
    kinds: KernelKinds
    """Those recorded when it was last switched on."""
    clock_bound_ns: int
    """How far stamps of the host may be from CLOCK_MONOTONIC; 0 where CUPTI stamps by that clock."""
    is_ended: bool
    """The process ended by itself; all its records are in the ring."""

    def __str__(self) -> str:
        return f"process {self.pid}: kernels {self.status.name.lower().replace('_', ' ')} ({self.text})"


@dataclass(frozen=True)
class Losses:
    """What was not recorded though it was on; counts of records since the process began, but for the buffers."""

    n_ring: int
    """For want of room in the ring: it was not drained in time."""
    n_cupti: int
    """Dropped by CUPTI itself."""
    n_untimed: int
    """CUPTI had no instants of them."""
    n_unknown: int
    n_buffers_out: int
    """Which CUPTI holds now. Where the process was killed, what was in them is lost, uncounted."""
    n_buffers_refused: int
    """CUPTI asked for one when all were out: it drops records then."""


@dataclass(frozen=True)
class Switched:
    """The library's answer to a switch: asked for work between `begun_ns` and `done_ns`, holds since."""

    is_on: bool
    begun_ns: int
    done_ns: int


class KernelRing:
    """A ring and the switch of its library.

    `drain` and `switch` are for one thread of one process. Raises RingError where `path` is no ring that this user's
    library made, OSError where it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = RingFile(path, HEADER_BYTES)
        self._map = self._file.map
        try:
            _check_trusted(self._file.facts, path)
            head = self._map[:HEADER_BYTES]  # a copy, with which the map can be closed
            _check(np.frombuffer(head, HEADER), len(self._map), path)
        except RingError:
            self._file.close()
            raise
        self._header = np.frombuffer(self._map, HEADER, 1)
        self._n_slots = int(self._header["n_slots"][0])
        self.pid = int(self._header["pid"][0])

    def _word(self, name: str) -> int:
        return int(self._header[name][0])

    @property
    def state(self) -> State:
        """As it is now."""
        text = bytes(self._header["text"][0]).decode(errors="replace")
        status, is_ended = (
            RingStatus(min(self._word("status"), max(RingStatus))),
            bool(self._word("is_ended")),
        )
        version, bound_ns = self._word("cupti_version"), self._word("clock_bound_ns")
        return State(self.pid, status, text, version, KernelKinds(self._word("kinds")), bound_ns, is_ended)

    @property
    def started_ns(self) -> int:
        """When the process made its first CUDA call: nothing of it was before that."""
        return self._word("started_ns")

    @property
    def flushed_ns(self) -> int:
        """When CUPTI was last asked for its records: where the process was killed, those that ended before are here."""
        return self._word("flushed_ns")

    def lost(self) -> Losses:
        """As it is now."""
        names = ("n_lost", "n_dropped", "n_untimed", "n_unknown", "n_buffers_out", "n_buffers_refused")
        return Losses(*map(self._word, names))

    def drain(self) -> bytes:
        """Records written since the last call, whole ones, and their room is free again; empty where there are none.

        Raises RingError where the positions cannot be, or the file was cut.
        """
        self._file.check_whole()
        tail, head = self._word("tail"), self._word("head")
        n = head - tail
        if not 0 <= n <= self._n_slots:
            raise RingError(f"{self.path}: {n} records cannot be in a ring of {self._n_slots}")
        first = tail % self._n_slots
        n_before_end = min(n, self._n_slots - first)
        found = self._slots(first, n_before_end) + self._slots(0, n - n_before_end)
        self._header["tail"][0] = head
        return found

    def _slots(self, first: int, n: int) -> bytes:
        start = HEADER_BYTES + first * RECORD_BYTES
        return self._map[start : start + n * RECORD_BYTES]

    def switch(self, is_on: bool) -> None:
        """Wishes recording on or off, and wakes the library; does not wait. Names are told anew after each on."""
        wanted = self._word("wanted") + 1
        self._header["wanted"][0] = (wanted + (wanted % 2 != is_on)) % 2**32
        _wake(self._map, int(HEADER.fields["wanted"][1]))  # type: ignore[index]

    def switched(self, timeout_s: float = 10.0) -> Switched | None:
        """The library's answer to the last `switch`; None where none came in time, or the process has ended."""
        deadline = time.monotonic() + timeout_s
        while self._word("done") != self._word("wanted"):
            if self._word("is_ended") or time.monotonic() > deadline:
                return None
            time.sleep(0.0001)
        return Switched(bool(self._word("done") % 2), self._word("begun_ns"), self._word("done_ns"))

    def close(self) -> None:
        """Ends reading; the file stays."""
        del self._header
        self._file.close()


def _check_trusted(file: os.stat_result, path: Path) -> None:
    """Raises RingError where somebody else could write it."""
    if file.st_uid not in (os.geteuid(), 0) or file.st_mode & 0o077:
        raise RingError(f"{path}: others than its owner may write it, or it is another user's")


def _check(header: Array, n_bytes: int, path: Path) -> None:
    """Raises RingError where the header does not fit this reader, or the file."""
    if bytes(header["magic"][0]).ljust(8, b"\0") != MAGIC:
        raise RingError(f"{path}: not a ring of kernels")
    sizes = int(header["header_bytes"][0]), int(header["record_bytes"][0])
    if sizes != (HEADER_BYTES, RECORD_BYTES):
        raise RingError(f"{path}: a ring of another version of the kernel library")
    n_slots = int(header["n_slots"][0])
    if not 0 < n_slots <= min(n_bytes - HEADER_BYTES, _MOST_BYTES) // RECORD_BYTES:
        raise RingError(f"{path}: {n_slots} records do not fit {n_bytes} bytes")


def _wake(mapped: mmap.mmap, offset: int) -> None:
    """Wakes the library's thread, which waits for this word; elsewhere it looks every 100 ms."""
    number = _FUTEX.get(platform.machine())
    if number is None:
        return
    word = ctypes.c_uint32.from_buffer(mapped, offset)
    try:
        ctypes.CDLL(None).syscall(number, ctypes.byref(word), _FUTEX_WAKE, 1, None, None, 0)
    finally:
        del word  # else the map could not be closed


@dataclass
class Names:
    """Names by number, as far as records have told them; one for all drains of a ring."""

    texts: dict[int, str] = field(default_factory=dict)
    _parts: dict[int, bytearray] = field(default_factory=dict)

    def learn(self, rows: Array) -> None:
        """Takes in NAME records ((n,) of the layout _NAME), in their order."""
        whole: dict[int, str] = {}
        for row in rows:
            number, offset = int(row["id"]), int(row["offset"])
            n_bytes = min(int(row["n_bytes"]), _MOST_NAME_BYTES)
            part = self._parts.setdefault(number, bytearray())
            del part[offset:]
            part += row["text"].tobytes()[: max(n_bytes - offset, 0)]
            if len(part) >= n_bytes:
                whole[number] = self._parts.pop(number).decode(errors="replace")
        self.texts.update(zip(whole, demangled(tuple(whole.values())), strict=True))


@dataclass(frozen=True)
class Activities:
    """Records of one piece of a ring, by kind, each in the order in which they were written.

    Arrays of the layouts above: (n,) KERNEL, MEMORY, SYNC, CALL, RECORD; of events SYNC.
    """

    kernels: Array
    memcpys: Array
    memsets: Array
    syncs: Array
    runtime_calls: Array
    driver_calls: Array
    events: Array
    """Calls that recorded a CUDA event on a stream. They have no instants, and `type` is 0."""
    switches: Array
    """start_ns: begun, end_ns: from when on it holds; flags: FLAG_ON, FLAG_FAILED."""
    names: dict[int, str]
    """Of `name` of kernels and calls, as known by now; 0, and what was lost, is not in it."""


def activities(data: bytes, names: Names) -> Activities:
    """The records of a piece that `KernelRing.drain` returned; `names` learns those that it tells."""
    kinds = np.frombuffer(data, RECORD)["kind"]
    records = np.frombuffer(data, f"V{RECORD_BYTES}")  # whole: numpy copies no bytes between named fields

    def of(kind: RecordKind, layout: np.dtype[Any]) -> Array:
        found: Array = records[kinds == kind].view(layout)
        return found

    names.learn(of(RecordKind.NAME, _NAME))
    return Activities(
        of(RecordKind.KERNEL, KERNEL), of(RecordKind.MEMCPY, MEMORY), of(RecordKind.MEMSET, MEMORY),
        of(RecordKind.SYNC, SYNC), of(RecordKind.RUNTIME_CALL, CALL), of(RecordKind.DRIVER_CALL, CALL),
        of(RecordKind.EVENT, SYNC), of(RecordKind.SWITCH, RECORD), dict(names.texts),
    )  # fmt: skip


def recorded_activities(path: Path, n_records: int = 1 << 18) -> Iterator[Activities]:
    """The records of a file of drained pieces one after another, `n_records` at a time. A cut last record is left."""
    names = Names()
    with open(path, "rb", opener=plain_opener) as file:
        while data := file.read(n_records * RECORD_BYTES):
            whole = len(data) - len(data) % RECORD_BYTES
            if whole:
                yield activities(data[:whole], names)


_DEMANGLE = """
import ctypes, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))
resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
demangle.restype, libc, status = ctypes.c_void_p, ctypes.CDLL(None), ctypes.c_int()
for name in sys.stdin.buffer.read().split():
    found = ctypes.c_void_p(demangle(name, None, None, ctypes.byref(status)))
    text = name if status.value else ctypes.string_at(found, libc.strnlen(found, MOST))
    sys.stdout.buffer.write(text + b"\\n")
    sys.stdout.buffer.flush()
    libc.free(found)
"""


@lru_cache(maxsize=64)
def demangled(names: tuple[str, ...]) -> tuple[str, ...]:
    """C++ names as their author wrote them, where libstdc++ is there to tell; any other as it is.

    In a process apart, with limits: a short name may stand for a text without end, and names are a server's. Where one
    ends that process, those behind it stay as they are.
    """
    mangled = [name for name in names if _MANGLED.fullmatch(name)]
    if not mangled:
        return names
    command = [sys.executable, "-I", "-S", "-c", _DEMANGLE.replace("MOST", str(16 * _MOST_NAME_BYTES))]
    done = subprocess.run(command, input="\n".join(mangled).encode(), capture_output=True, check=False)
    lines = done.stdout.decode(errors="replace").split("\n")[:-1]
    texts = dict(zip(mangled, lines, strict=False))
    return tuple(texts.get(name, name) for name in names)
