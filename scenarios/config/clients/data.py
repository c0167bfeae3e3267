"""Inputs of the user's, from a file or folder: configuration. `squall.scenarios.data` reads them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from squall.scenarios.fields import Count, PositiveNumber, Section, Text

DataFormat = Literal["parquet", "arrow", "json", "folder", "npy", "npz", "text", "images"]


class SequenceOrder(Section):
    """One entry after the other, and the first again after the last; each phase begins with the first."""

    kind: Literal["sequence"] = "sequence"


class RandomOrder(Section):
    """Each entry equally often, drawn independently."""

    kind: Literal["random"]


class ZipfOrder(Section):
    """Entry k of the file, from 1 on, with a probability proportional to k^-exponent."""

    kind: Literal["zipf"]
    exponent: PositiveNumber


class TraceOrder(Section):
    """The entry that the trace's own request names in `column`: its number from 0 on, or with `key` what stands in that
    column of the data."""

    kind: Literal["trace"]
    column: Text
    key: Text | None = None


def _kind_named(value: object) -> object:
    """A kind without settings stands for itself."""
    return {"kind": value} if isinstance(value, str) else value


DrawnOrder = SequenceOrder | RandomOrder | ZipfOrder
"""The orders that need no trace."""
OrderConfig = Annotated[
    Annotated[DrawnOrder | TraceOrder, Field(discriminator="kind")], BeforeValidator(_kind_named)
]
IN_SEQUENCE: Final = SequenceOrder()


class DataConfig(Section):
    """Entries of a file or folder in place of inputs that squall makes.

    `columns`: the column of an input that is not called as the input is; `limit`: only so many entries, the first.
    """

    path: Text
    format: DataFormat | None = None  # else what name and first bytes say
    columns: dict[str, Text] = Field(default_factory=dict)
    order: OrderConfig = IN_SEQUENCE
    limit: Count | None = None
