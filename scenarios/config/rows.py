"""How many rows each request carries: configuration. `squall.scenarios.plan.mix` draws them."""

from __future__ import annotations

from typing import Annotated, Literal, assert_never

from pydantic import Field

from squall.scenarios.errors import Sentences, holding
from squall.scenarios.fields import BY_KIND, Count, Cv, NonNegative, PositiveNumber, Section, Text

LARGEST_ZIPF = 1_000_000  # each number of rows has a weight
LARGEST_EMPIRICAL = 100_000  # values of an empirical law in the scenario file itself; a trace holds more


class ConstantRows(Section):
    """Every request has the same number of rows."""

    kind: Literal["constant"] = "constant"
    value: Count = 1


class UniformRows(Section):
    """Whole numbers from low to high, both included, equally often."""

    kind: Literal["uniform"]
    low: Count
    high: Count

    def misfits(self) -> Sentences:
        if self.low > self.high:
            yield f"low {self.low} is above high {self.high}"


class LognormalRows(Section):
    """Lognormal of this mean and cv before rounding, then held within 1 and max."""

    kind: Literal["lognormal"]
    mean: PositiveNumber
    cv: Cv
    max: Count


class ParetoRows(Section):
    """Bounded Pareto with tail index alpha, from min to max."""

    kind: Literal["pareto"]
    alpha: PositiveNumber
    min: Count = 1
    max: Count

    def misfits(self) -> Sentences:
        if self.min > self.max:
            yield f"min {self.min} is above max {self.max}"


class ZipfRows(Section):
    """k rows with a probability proportional to k^-exponent, k from 1 to max."""

    kind: Literal["zipf"]
    exponent: NonNegative
    max: Annotated[Count, Field(le=LARGEST_ZIPF)]


class EmpiricalRows(Section):
    """Drawn with replacement: from `values`, or from a size column of a trace file, each request on its own.

    Of a size column, rows = ceil(size / per_row), held within 1 and max.
    """

    kind: Literal["empirical"]
    values: Annotated[tuple[Count, ...], Field(min_length=1, max_length=LARGEST_EMPIRICAL)] | None = None
    weights: tuple[NonNegative, ...] | None = None
    file: Text | None = None
    size: Text | None = None
    per_row: PositiveNumber = 1.0
    max: Count | None = None

    def misfits(self) -> Sentences:
        is_of_file, weights = self.file is not None, self.weights
        yield from holding({
            "needs exactly one of values and file": (self.values is None) != is_of_file,
            "rows from a file need size, the column, and max, the most rows of a request": (
                is_of_file and None in (self.size, self.max)
            ),
            "size, per_row and max are of rows from a file, not of values": (
                not is_of_file and (self.size, self.max, self.per_row) != (None, None, 1)
            ),
            "weights need as many values": weights is not None and len(weights) != len(self.values or ()),
            "weights need one above 0": weights is not None and not any(weights),
        })  # fmt: skip


class TraceRows(Section):
    """The size of the trace's own request: rows = ceil(size / per_row), held within 1 and max.

    Only for phases whose arrivals are a trace; the order, and so the correlation with time, is that of the trace.
    """

    kind: Literal["trace"]
    size: Text
    per_row: PositiveNumber = 1.0
    max: Count


Drawn = ConstantRows | UniformRows | LognormalRows | ParetoRows | ZipfRows | EmpiricalRows
"""The laws that a number can be drawn by without a trace."""
Law = Annotated[Drawn, BY_KIND]
RowsConfig = Annotated[Drawn | TraceRows, BY_KIND]


def possible_rows(config: RowsConfig) -> range:
    """Every number of rows that one request can carry."""
    match config:
        case ConstantRows():
            return range(config.value, config.value + 1)
        case UniformRows():
            return range(config.low, config.high + 1)
        case ParetoRows():
            return range(config.min, config.max + 1)
        case EmpiricalRows(values=(_, *_) as values):
            return range(min(values), max(values) + 1)
        case LognormalRows() | ZipfRows() | TraceRows() | EmpiricalRows():
            return range(1, (config.max or 0) + 1)
        case _:
            assert_never(config)


def max_rows(config: RowsConfig) -> int:
    """Most rows that one request can carry."""
    return possible_rows(config)[-1]
