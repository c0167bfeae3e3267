"""Which process here it is that another pid namespace, as that of a container, knows by another number."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def pids_called(number: int, proc: Path = _PROC) -> list[int]:
    """Processes that know themselves as `number`: those of this pid namespace, and of all below it.

    By the last number of NSpid (proc_pid_status(5)); by their number here where the kernel does not tell that.
    """
    found = []
    for entry in filter(str.isdigit, os.listdir(proc)):
        try:
            status = (proc / entry / "status").read_bytes()
        except OSError:
            continue
        numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith(b"NSpid:")), [])
        if int(numbers[-1] if numbers else entry) == number:
            found.append(int(entry))
    return sorted(found)


def mapper_of(file: Path, number: int, proc: Path = _PROC) -> int | None:
    """The process that knows itself as `number` and has `file` mapped, whose name nobody else's has; by whatever path
    it sees the file. None where there is none, or its mappings may not be looked at."""
    return next((pid for pid in pids_called(number, proc) if _has_mapped(file, proc / str(pid))), None)


def _has_mapped(file: Path, process: Path) -> bool:
    try:
        maps = (process / "maps").read_bytes()
    except OSError:
        return False
    return b"/" + os.fsencode(file.name) in maps
