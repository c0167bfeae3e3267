"""What a reader of traces may be told: format, unit, column, repairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TraceUnit = Literal["s", "ms", "us", "ns"]
Repair = Literal["sort", "skip-bad", "drop-duplicates", "clip-negative"]

NS_PER_UNIT: dict[TraceUnit, int] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True)
class TraceOptions:
    """How a trace file is to be read. Nothing is mended that `repairs` does not name.

    `format` None: recognised from the first bytes (`intervals` never is: its lines look like stamps).
    `unit` of a number; None: the ending of the column's name (`_ns`, `_us`, `_ms`, `_s`), else the format's own.
    `column` the timestamp column, where it is not found by its name.
    `repairs`: `sort` puts rows in order; `skip-bad` leaves out rows that cannot be read; `drop-duplicates` keeps
    the first row of each stamp; `clip-negative` sets a number below 0 to 0.
    `stamp_at` which end of a request a stamp is, where neither its name nor the format says it; `duration_columns`
    whose sum is taken off stamps of ends, where they are not found by their names; `duration_unit` of their numbers.
    `session` the column whose values are sessions, where it is not to be found by its name.
    `seed` and `model` are for `servegen` only: of what is drawn, and which model's clients (None: all).
    """

    format: str | None = None
    unit: TraceUnit | None = None
    column: str | None = None
    repairs: tuple[Repair, ...] = ()
    seed: int = 0
    model: str | None = None
    session: str | None = None
    stamp_at: Literal["begin", "end"] | None = None
    duration_columns: tuple[str, ...] = ()
    duration_unit: TraceUnit | None = None
