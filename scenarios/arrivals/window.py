"""A window of a trace file as offsets from its beginning, once or in a loop, in parts of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrivals.scaling import other_sessions, windows
from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.parts.options import TraceOptions
from squall.scenarios.traces.parts.part import PART_ROWS, TracePart
from squall.scenarios.traces.reading import open_trace
from squall.scenarios.units import format_duration

if TYPE_CHECKING:
    from squall.scenarios.traces.stamps import Reading

MOST_ROWS_KEPT = 2**21
"""A window of at most so many rows is read once however often it is looped; a longer one anew each time."""

FileState = tuple[int, int, int, int]
"""Device, inode, bytes and time of the last change of a file."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Arrivals in the order of time, and of each the sizes and the session of its request where it has them."""

    offset_ns: NDArray[np.int64]
    sizes: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    session: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.offset_ns.size)

    def take(self, rows: NDArray[Any] | slice, offset_ns: NDArray[np.int64] | None = None) -> Drawn:
        """The requests of an index, a mask or a slice, at their own instants or at `offset_ns`."""
        return Drawn(
            self.offset_ns[rows] if offset_ns is None else offset_ns,
            {name: column[rows] for name, column in self.sizes.items()},
            None if self.session is None else self.session[rows],
        )

    def pieces(self, most_rows: int) -> Iterator[Drawn]:
        """The same in parts of at most `most_rows`."""
        for start in range(0, len(self), most_rows):
            yield self.take(slice(start, start + most_rows))


def join(parts: Sequence[Drawn]) -> Drawn:
    """One or more parts of the same columns as one."""
    if len(parts) == 1:
        return parts[0]
    sessions = [part.session for part in parts if part.session is not None]
    return Drawn(
        np.concatenate([part.offset_ns for part in parts]),
        {name: np.concatenate([part.sizes[name] for part in parts]) for name in parts[0].sizes},
        np.concatenate(sessions) if sessions else None,
    )


def cut(parts: Iterable[Drawn], limit_ns: int) -> Iterator[Drawn]:
    """Parts up to `limit_ns`, and no further; empty ones are left out."""
    for part in parts:
        if len(part) and part.offset_ns[-1] >= limit_ns:
            part = part.take(slice(0, int(np.searchsorted(part.offset_ns, limit_ns))))
            if len(part):
                yield part
            return
        if len(part):
            yield part


def file_state(path: Path) -> FileState:
    """What tells a file from an earlier or later one of its name; zeros where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0, 0
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def changed(path: Path) -> ScenarioError:
    """The error of a trace that is not the same at two reads."""
    return ScenarioError(f"{path}: the trace changed while it was read; run again once it is complete")


class Window:
    """[start, start + length) after the first arrival of a file; with `copies` so many windows in a row at once.

    `origin_ns`, the stamp that offset 0 stands for, and `state`, of the file, are known once it was read; a file that
    changes between or while it is read is refused. `end_ns`, known once the window was read to its end, is the period
    of the loop: the length if one is given; else the last offset plus the tick on which the trace was logged, if that
    is known, or plus the mean gap.
    """

    def __init__(
        self,
        path: Path,
        options: TraceOptions,
        sizes: tuple[str, ...] | None = None,
        start_ns: int = 0,
        length_ns: int | None = None,
        tick_ns: int | None = None,
        copies: int = 1,
        is_looped: bool = False,
    ) -> None:
        """`sizes`: the size columns that the parts have; None: all that the file has."""
        self.path = path
        self.state: FileState | None = None
        self.end_ns: int | None = None
        self.origin_ns = 0
        self.reading: Reading | None = None
        self._options = options
        self._sizes = sizes
        self._start_ns = start_ns
        self._length_ns = length_ns
        self._tick_ns = tick_ns
        self._copies = copies
        self._is_looped = is_looped
        self._kept: Drawn | None = None
        self._is_cut = False

    def rows(self, limit_ns: int) -> Iterator[Drawn]:
        """Arrivals before `limit_ns`, sorted. Without a loop they just end with the window.

        Raises ScenarioError for a file that cannot be used or has changed, and a window that is empty.
        """
        yield from cut(self._lap(limit_ns), limit_ns)
        if self.end_ns is None or not self._is_looped:
            return
        lap = 1
        while lap * self.end_ns < limit_ns:
            n_laps = 1
            if self._kept is not None:
                n_left = -(-limit_ns // self.end_ns) - lap
                n_laps = max(1, min(n_left, PART_ROWS // max(len(self._kept), 1)))
            yield from cut(self._later_laps(lap, n_laps, limit_ns), limit_ns)
            lap += n_laps

    def _later_laps(self, lap: int, n_laps: int, limit_ns: int) -> Iterator[Drawn]:
        assert self.end_ns is not None
        shifts = np.arange(lap, lap + n_laps, dtype=np.int64)[:, None] * self.end_ns
        for part in self._lap(limit_ns - lap * self.end_ns):
            rows = np.tile(np.arange(len(part)), n_laps)
            yield part.take(rows, (shifts + part.offset_ns).ravel())

    def _lap(self, limit_ns: int) -> Iterator[Drawn]:
        """The window once, from 0, at least as far as `limit_ns`; `end_ns` is set if that was all of it."""
        if self._kept is not None:
            yield self._kept
            return
        if self._copies > 1:
            self._kept = self._overlaid()
            yield self._kept
            return
        held: list[Drawn] = []
        n_rows = first_ns = last_ns = 0
        for part in self._read(min(limit_ns, self._length_ns or limit_ns)):
            first_ns = int(part.offset_ns[0]) if not n_rows else first_ns
            last_ns = int(part.offset_ns[-1])
            n_rows += len(part)
            if n_rows <= MOST_ROWS_KEPT and self._is_looped:
                held.append(part)
            else:
                held.clear()
            yield part
        if self._is_cut and (self._length_ns is None or self._length_ns > limit_ns):
            return
        self._set_end(n_rows, first_ns, last_ns)
        self._kept = join(held) if held else None

    def _overlaid(self) -> Drawn:
        """All copies, the rows of a later window after those of an earlier one at the same instant."""
        wanted_ns = None if self._length_ns is None else self._copies * self._length_ns
        whole = join(list(self._read(wanted_ns)))
        stamps = whole.offset_ns
        last_ns = int(stamps[-1])
        span_ns = last_ns + (last_ns - int(stamps[0])) // max(len(whole) - 1, 1)
        length_ns = self._length_ns or span_ns // self._copies
        if length_ns < 1 or (self._copies * length_ns > span_ns and not self._is_cut):
            raise ScenarioError(
                f"{self.path}: {self._copies} windows of {format_duration(length_ns)} are longer than the"
                f" {format_duration(span_ns)} of the trace; use fewer copies or a shorter length"
            )
        parts = []
        for copy, (start_ns, rows) in enumerate(windows(stamps, self._copies, length_ns)):
            part = whole.take(rows, stamps[rows] - start_ns)
            session = None if part.session is None else other_sessions(part.session, copy)
            parts.append(replace(part, session=session))
        merged = join(parts)
        self.end_ns = length_ns
        return merged.take(np.argsort(merged.offset_ns, kind="stable"))

    def _read(self, most_ns: int | None) -> Iterator[Drawn]:
        """Rows of the file from the start of the window on, before `most_ns`; `_is_cut` says if more were there."""
        reader = open_trace(self.path, self._options)
        self.reading = reader.reading
        self._refuse_change(self.state)
        for name in self._sizes or ():
            if name not in reader.size_names:
                known = ", ".join(reader.size_names) or "none"
                raise ScenarioError(f"{self.path}: has no size column {name!r}, it has {known}")
        origin_ns: int | None = None
        last_ns, n_rows, self._is_cut = 0, 0, False
        end_ns = None if most_ns is None else self._start_ns + most_ns
        for part in reader:
            if origin_ns is None:
                origin_ns = int(part.stamp_ns[0])
                # a begin before the zero of a trace's own numbers would be no instant of a file that is written
                self.origin_ns = (
                    max(origin_ns, 0) if reader.unit is not None else origin_ns
                ) + self._start_ns
            since = part.stamp_ns - origin_ns
            low = int(np.searchsorted(since, self._start_ns))
            high = since.size if end_ns is None or since[-1] < end_ns else int(np.searchsorted(since, end_ns))
            if low < high:
                yield self._drawn(part, slice(low, high), since)
            n_rows += max(high - low, 0)
            last_ns, self._is_cut = int(since[-1]), high < since.size
            if self._is_cut:
                break
        self._refuse_change(self.state)
        if not n_rows and not self._is_cut:
            raise ScenarioError(
                f"{self.path}: no arrival from {format_duration(self._start_ns)} on, the last one comes"
                f" {format_duration(last_ns)} after the first; use an earlier start"
            )

    def _drawn(self, part: TracePart, rows: slice, since: NDArray[np.int64]) -> Drawn:
        return Drawn(
            since[rows] - self._start_ns,
            {name: part.sizes[name][rows] for name in (part.sizes if self._sizes is None else self._sizes)},
            None if part.session is None else part.session[rows],
        )

    def _set_end(self, n_rows: int, first_ns: int, last_ns: int) -> None:
        if not n_rows:
            assert self._length_ns is not None
            raise ScenarioError(
                f"{self.path}: no arrival in the {format_duration(self._length_ns)} from"
                f" {format_duration(self._start_ns)} on; use another start or a longer length"
            )
        gap_ns = self._tick_ns or (last_ns - first_ns) // max(n_rows - 1, 1)
        if self._length_ns is None and not gap_ns and self._is_looped:
            raise ScenarioError(
                f"{self.path}: all {n_rows} arrivals of the window come at one instant, so a loop has no period;"
                " give the length"
            )
        self.end_ns = self._length_ns or last_ns + max(gap_ns, 1)

    def _refuse_change(self, before: FileState | None) -> None:
        """Notes the state of the file. Raises ScenarioError where it is another than `before`."""
        self.state = file_state(self.path)
        if before is not None and self.state != before:
            raise changed(self.path)
