"""Windows in which a server's kernels were recorded, and the small file that keeps them and whose records are where.

asked      holds             asked      holds          the library's own instants, on the node's clock
  ├──────────┤─────────────────├──────────┤
begun_ns   start_ns           end_ns     done_ns       all that starts and ends in [start_ns, end_ns) is recorded
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from squall.analysis.record import from_json
from squall.analysis.storage.beneath import read_plain
from squall.analysis.storage.schema import arrow_schema
from squall.cluster.node.batches import is_int64
from squall.cluster.node.injected.kernel_process import TakenProcess
from squall.cluster.node.injected.taken_file import TakenFile
from squall.scenarios.errors import AnalysisError
from squall.scenarios.foreign_text import is_component, json_of
from squall.scenarios.records import Frozen, Int, Record

_FILE = "windows.jsonl"


class Window(Record):
    """A stretch on the node's clock. Empty (`start_ns` is `end_ns`) where recording cost something and lost records."""

    begun_ns: Int
    start_ns: Int
    end_ns: Int
    done_ns: Int
    n_processes: Int
    kinds: str
    """What every one of them recorded, with commas between."""

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


class Recorded(Frozen):
    """What the file says. `open_since`: of a window that nobody ended, with an empty stretch."""

    processes: tuple[TakenProcess, ...] = ()
    windows: tuple[Window, ...] = ()
    open_since: Window | None = None


class WindowFile:
    """Written as windows end, so that whoever comes after this process finds them. What the disk does not take is in
    `trouble`."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of the records."""
        self._file = TakenFile(folder / _FILE)
        self.trouble: str | None = None

    def note_process(self, process: TakenProcess) -> None:
        """One line more takes the place of the one before."""
        self._append("process", {**asdict(process), "path": process.path.name})

    def note_open(self, window: Window) -> None:
        """Recording is on."""
        self._append("open", asdict(window))

    def note_windows(self, windows: Sequence[Window]) -> None:
        """Recording is off: these are what was open."""
        self._append("windows", [asdict(window) for window in windows])

    def _append(self, what: str, value: object) -> None:
        try:
            self._file.append(f"\n{json.dumps({what: value})}\n".encode())  # a line cut off before ends here
        except OSError as error:
            self.trouble = f"kernels: windows of recording were not kept: {error.strerror}"

    def close(self) -> None:
        self._file.close()


def read_windows(folder: Path) -> Recorded:
    """What `WindowFile` wrote in `folder`; nothing where there is no such file. A line that was cut off, or is none of
    its, is left out."""
    processes: dict[str, TakenProcess] = {}
    windows: list[Window] = []
    open_since: Window | None = None
    for what, value in _lines(folder / _FILE):
        with suppress(AnalysisError):
            match what:
                case "process":
                    process = from_json(TakenProcess, value)
                    if is_component(str(process.path)) and is_int64(process.pid):
                        processes[process.path.name] = replace(process, path=folder / process.path)
                case "open":
                    opened = from_json(Window, value)
                    open_since = opened if _is_sound(opened) else open_since
                case "windows":
                    windows += filter(_is_sound, from_json(tuple[Window, ...], value))
                    open_since = None
    return Recorded(tuple(processes.values()), tuple(windows), open_since)


def _is_sound(one: Window) -> bool:
    """Whether a table takes its numbers."""
    return all(map(is_int64, (one.begun_ns, one.start_ns, one.end_ns, one.done_ns, one.n_processes)))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        lines = read_plain(path).decode(errors="replace").splitlines()
    except OSError:
        return
    for line in filter(None, lines):
        with suppress(ValueError):
            entry = json_of(line)
            if isinstance(entry, dict):
                yield from entry.items()


def window_table(windows: Sequence[Window], labels: Mapping[str, str]) -> pa.Table:
    """`windows` as rows of table `recordings`; `labels`: run, node and server."""
    common = {name: labels[name] for name in ("run", "node", "server")}
    rows = [{**common, "phase": "", **asdict(one)} for one in windows]
    return pa.Table.from_pylist(rows, schema=arrow_schema("recordings"))
