"""Inputs of the model: how `squall.models.made` makes them, or the user's data, read by `squall.scenarios.data`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from squall.scenarios.config.rows import LARGEST_EMPIRICAL, ConstantRows, EmpiricalRows, Law
from squall.scenarios.errors import Sentences, holding
from squall.scenarios.fields import BY_KIND, Count, Number, PositiveNumber, Probability, Section, Text

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
OrderConfig = Annotated[Annotated[DrawnOrder | TraceOrder, BY_KIND], BeforeValidator(_kind_named)]
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


def _law_named(value: object) -> object:
    """A whole number stands for itself, every time."""
    if type(value) is int and value < 1:
        raise ValueError(f"{value} must be at least 1")
    return {"kind": "constant", "value": value} if type(value) is int else value


def _law_written(law: ConstantRows | Any) -> Any:
    return law.value if isinstance(law, ConstantRows) else law


WholeLaw = Annotated[Law, BeforeValidator(_law_named), PlainSerializer(_law_written)]
"""A whole number from 1 on, or the law that it is drawn by."""


def _laws_listed(value: object) -> object:
    """One law stands for a list of one."""
    return (value,) if isinstance(value, dict) or type(value) is int else value


class InputConfig(Section):
    """How an input of the model is made where squall makes it, for each payload variant anew.

    `sizes`: of the dimensions that the model leaves open, in their order; `like`: the input whose sizes these are, too.
    `length`: bytes of each element of a BYTES input, or `words`: what they are drawn from, equally often. `low` and
    `high`: of numbers, both included for integers, or `values`: the law of each. `present`: share of the variants
    that carry it, where the model calls it optional.
    """

    sizes: Annotated[tuple[WholeLaw, ...] | None, BeforeValidator(_laws_listed), Field(min_length=1)] = None
    like: Text | None = None
    length: WholeLaw | None = None
    low: Number | None = None
    high: Number | None = None
    values: WholeLaw | None = None
    words: Annotated[tuple[Text, ...], Field(min_length=1, max_length=LARGEST_EMPIRICAL)] | None = None
    present: Probability | None = None

    def misfits(self) -> Sentences:
        low, high = self.low, self.high
        said = [name for name in ("length", "words", "values", "low") if getattr(self, name) is not None]
        laws = [*(self.sizes or ()), *filter(None, (self.length, self.values))]
        yield from holding({
            "low and high go together": (low is None) != (high is None),
            f"low {low} is above high {high}": low is not None and high is not None and low > high,
            "has sizes of its own, or those of another input that it is like": self.sizes and self.like,
            "says its elements once: length or words of a BYTES input, low and high or values of numbers": (
                len(said) > 1
            ),
            "a law from a file is for rows; use values and weights": any(
                isinstance(law, EmpiricalRows) and law.file is not None for law in laws
            ),
        })  # fmt: skip
