"""Arrivals replayed from a file.

Text, also as .gz, in one of three forms told apart by its first line:
- JSONL with a number `timestamp` (ms unless a unit is given), as Mooncake publishes;
- CSV with a header holding `timestamp`, `Timestamp` or `TIMESTAMP`: a number (s unless a unit is given)
  or an ISO date and time with up to 9 decimals, as Azure publishes;
- one number a line (s unless a unit is given).

Times go from text to int64 ns without a float; digits below 1 ns are cut. Offsets count from the first row.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from scenarios.errors import ScenarioError
from scenarios.units import NS_PER_S

TraceUnit = Literal["s", "ms", "us", "ns"]

_NS_PER_UNIT: dict[TraceUnit, int] = {"s": NS_PER_S, "ms": 1_000_000, "us": 1_000, "ns": 1}
_COLUMN = "timestamp"
_DATE_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded arrivals as they were: cut at the horizon, and simply over where the trace is shorter.

    With `quantum_width_ns`, the tick on which the trace was logged, each arrival is placed uniformly
    inside [its stamp, its stamp + tick): replaying stamps of a coarse grid as they are sends batches
    that the service never saw. Without it nothing is changed and the generator is not used.
    """

    recorded_ns: NDArray[np.int64]  # (n,), sorted, from 0
    quantum_width_ns: int | None = None

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> NDArray[np.int64]:
        """Arrivals in [0, horizon_ns), (n,) int64, sorted."""
        offsets = self.recorded_ns
        if self.quantum_width_ns is not None:
            offsets = np.sort(offsets + rng.integers(0, self.quantum_width_ns, offsets.size, dtype=np.int64))
        return offsets[: np.searchsorted(offsets, horizon_ns)].copy()

    def rate_hz(self, t_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Recorded arrivals in the whole second that holds `t_ns`, per second."""
        second_ns = np.asarray(t_ns) // NS_PER_S * NS_PER_S
        counts = np.searchsorted(self.recorded_ns, second_ns + NS_PER_S) - np.searchsorted(
            self.recorded_ns, second_ns
        )
        return counts.astype(np.float64)

    def expected_count(self, t_ns: int) -> float:
        """Arrivals recorded in [0, t_ns); with a quantum, the mean number placed there."""
        if self.quantum_width_ns is None:
            return float(np.searchsorted(self.recorded_ns, t_ns))
        inside = (t_ns - self.recorded_ns) / self.quantum_width_ns
        return float(np.clip(inside, 0.0, 1.0).sum())


def read_trace(path: Path, unit: TraceUnit | None = None) -> NDArray[np.int64]:
    """Offsets from the first arrival, (n,) int64 ns, sorted, n >= 1.

    Raises ScenarioError, with the row (the first line of the file is row 1), for a file that is missing,
    unreadable or empty, a stamp that is no time, and a time that goes back.
    """
    stamps: list[int] = []
    for row, stamp_ns in _stamps(path, unit):
        if stamps and stamp_ns < stamps[-1]:
            raise ScenarioError(
                f"{path}: row {row}: time goes back by {stamps[-1] - stamp_ns} ns, sort the trace first"
            )
        stamps.append(stamp_ns)
    if not stamps:
        raise ScenarioError(f"{path}: the trace has no arrivals")
    if stamps[-1] - stamps[0] >= 2**63:
        raise ScenarioError(f"{path}: the trace spans more than 2^63 ns, is its unit right?")
    return np.array([stamp_ns - stamps[0] for stamp_ns in stamps], dtype=np.int64)


def _stamps(path: Path, unit: TraceUnit | None) -> Iterator[tuple[int, int]]:
    """Row number and stamp in ns of each arrival, errors of the file mapped."""
    try:
        with _open_text(path) as file:
            for row, convert in _rows(path, file, unit):
                try:
                    yield row, convert()
                except ValueError as error:
                    raise ScenarioError(f"{path}: row {row}: {error}") from error
    except FileNotFoundError as error:
        raise ScenarioError(f"{path}: no such trace file") from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise ScenarioError(f"{path}: cannot be read as a trace: {' '.join(str(error).split())}") from error


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _rows(path: Path, file: TextIO, unit: TraceUnit | None) -> Iterator[tuple[int, Callable[[], int]]]:
    """Row number and a function that gives the stamp in ns, for each row that is not blank."""
    first = file.readline()
    file.seek(0)
    if first.lstrip().startswith("{"):
        for row, line in enumerate(file, 1):
            if line.strip():
                yield row, lambda line=line: _json_ns(line, unit or "ms")  # type: ignore[misc]
    elif first and not _is_stamp(first.strip()):
        reader = csv.reader(file)
        column = _column(path, next(reader))
        for cells in reader:
            if cells:
                yield reader.line_num, lambda cells=cells: _cell_ns(cells, column, unit)  # type: ignore[misc]
    else:
        for row, line in enumerate(file, 1):
            if line.strip():
                yield row, lambda line=line: _text_ns(line, unit or "s")  # type: ignore[misc]


def _is_stamp(text: str) -> bool:
    try:
        _text_ns(text, "s")
    except ValueError:
        return False
    return True


def _column(path: Path, header: list[str]) -> int:
    for index, name in enumerate(header):
        if name.strip().lower() == _COLUMN:
            return index
    raise ScenarioError(f"{path}: row 1: neither a time nor a header with a column 'timestamp'")


def _json_ns(line: str, unit: TraceUnit) -> int:
    try:
        entry = json.loads(line, parse_float=Decimal)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}") from error
    stamp = entry.get(_COLUMN) if isinstance(entry, dict) else None
    if isinstance(stamp, bool) or not isinstance(stamp, int | Decimal):
        raise ValueError("has no number 'timestamp'")
    return _number_ns(Decimal(stamp), unit)


def _cell_ns(cells: list[str], column: int, unit: TraceUnit | None) -> int:
    if column >= len(cells):
        raise ValueError(f"has {len(cells)} columns, timestamp is column {column + 1}")
    return _text_ns(cells[column], unit or "s")


def _text_ns(text: str, unit: TraceUnit) -> int:
    """ns of a number in `unit`, or since 1970 of an ISO date and time (UTC where it names no zone)."""
    text = text.strip()
    moment = _DATE_TIME.fullmatch(text)
    if moment is None:
        try:
            number = Decimal(text)
        except InvalidOperation:
            number = Decimal("NaN")
        if not number.is_finite():
            raise ValueError(f"{text[:60]!r} is not a time")
        return _number_ns(number, unit)
    zone = (moment[3] or "+00:00").replace("Z", "+00:00")
    whole = datetime.fromisoformat(moment[1] + zone) - _EPOCH
    return (whole.days * 86_400 + whole.seconds) * NS_PER_S + int((moment[2] or "0").ljust(9, "0"))


def _number_ns(number: Decimal, unit: TraceUnit) -> int:
    """Whole ns of a finite `number`, towards 0."""
    if number.adjusted() > 30:  # beyond any clock, and beyond the digits that Decimal keeps
        raise ValueError(f"{number:.3g} is too large for a time")
    return int(number * _NS_PER_UNIT[unit])
