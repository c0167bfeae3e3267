"""How a trace file is read: format, unit, column, repairs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from squall.scenarios.fields import Section, Text

TraceUnit = Literal["s", "ms", "us", "ns"]
Repair = Literal["sort", "skip-bad", "drop-duplicates", "clip-negative"]

NS_PER_UNIT: dict[TraceUnit, int] = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def _known_format(name: str) -> str:
    from squall.scenarios.traces.formats import FORMATS  # a scenario without one starts without the readers

    if name not in FORMATS:
        raise ValueError(f"{name!r} must be one of {', '.join(FORMATS)}")
    return name


class TraceOptions(Section):
    """How a trace file is to be read, as arrivals from one state it. Nothing is mended that `repair` does not name.

    `format` None: recognised from the first bytes (`intervals` never is: its lines look like stamps).
    `column` the timestamp column, where it is not found by its name.
    `unit` of a number; None: the ending of the column's name (`_ns`, `_us`, `_ms`, `_s`), else the format's own.
    `stamp_at` which end of a request a stamp is, where neither its name nor the format says it; `duration_columns`
    whose sum is taken off stamps of ends, where they are not found by their names; `duration_unit` of their numbers.
    `repair`: `sort` puts rows in order; `skip-bad` leaves out rows that cannot be read; `drop-duplicates` keeps
    the first row of each stamp; `clip-negative` sets a number below 0 to 0.
    """

    format: Annotated[Text, AfterValidator(_known_format)] | None = None
    column: Text | None = None
    unit: TraceUnit | None = None
    stamp_at: Literal["begin", "end"] | None = None
    duration_columns: tuple[Text, ...] = ()
    duration_unit: TraceUnit | None = None
    repair: tuple[Repair, ...] = ()
