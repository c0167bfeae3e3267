"""Field types of scenario files: what a value may be, and how it is written back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from squall.scenarios.errors import Sentences, refuse
from squall.scenarios.units import format_duration, format_rate, parse_duration, parse_rate

Keys = dict[str, Any]
"""A section as a file has it: values in plain types, by their keys."""


def _without_unit(name: str) -> str:
    return re.sub("_(ns|hz|bytes)$", "", name)


class Section(BaseModel):
    """Part of a scenario file: immutable, and an unknown key is an error.

    Built with the keys and texts of the file (`duration="30s"`); attributes carry the unit (`duration_ns`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=_without_unit, defer_build=True)

    @classmethod
    def file_keys(cls) -> dict[str, str]:
        """The key in the file of each attribute."""
        return {name: field.alias or name for name, field in cls.model_fields.items()}

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        for why in self.misfits():
            raise ValueError(why)
        return self

    def misfits(self) -> Sentences:
        """What is wrong with keys that are right by themselves: sentences, of which the first counts alone, for what
        follows may rest on what it refuses."""
        return iter(())


def repeated(values: Sequence[Any]) -> Any:
    """The first value that was there before; None where each is there once."""
    return next((one for index, one in enumerate(values) if one in values[:index]), None)


def each_once(values: Sequence[Any]) -> Sequence[Any]:
    """`values`, in which nothing stands twice. Raises ValueError for what does."""
    twice = repeated(values)
    refuse({f"{twice!r} is named twice": twice is not None})
    return values


EACH_ONCE = AfterValidator(each_once)
"""Of a list in which nothing stands twice."""


def worded(sentence: str) -> WrapValidator:
    """Of a value that may have several forms: what is said where it has none of them, in place of a fault of each."""

    def checked(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            return check(value)
        except ValidationError:
            raise ValueError(sentence) from None

    return WrapValidator(checked)


def stated_keys(section: Section) -> set[str]:
    """Keys of the file that are given there."""
    keys = section.file_keys()
    return {keys[name] for name in section.model_fields_set}


class OneForm(Section):
    """A section that is given by just one of several groups of keys, and by all of that group."""

    forms: ClassVar[tuple[tuple[str, ...], ...]]  # names of fields whose default is None

    def misfits(self) -> Sentences:
        given = [[getattr(self, name) is not None for name in form] for form in self.forms]
        if sum(map(any, given)) != 1 or not any(map(all, given)):
            keys = self.file_keys()
            texts = [_listed([keys[name] for name in form]) for form in self.forms]
            is_plain = all(len(form) == 1 for form in self.forms)
            choice = f" {_listed(texts)}" if is_plain else f": {'; '.join(texts)}"
            yield f"needs exactly one of{choice}"


def _listed(names: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1])] * (len(names) > 1) + names[-1:])


Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
]
"""Length in ns, 0 or more; `30s` in the file."""

PositiveDuration = Annotated[Duration, Field(gt=0)]

Rate = Annotated[
    float,
    BeforeValidator(parse_rate),
    PlainSerializer(format_rate, return_type=str),
    Field(gt=0),
]
"""Rate in Hz, above 0; `200/s` in the file."""

_T = TypeVar("_T")
NonEmpty = Annotated[tuple[_T, ...], Field(min_length=1)]
BY_KIND = Field(discriminator="kind")
"""Of sections that a `kind` tells apart."""
Whole = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[int, Field(strict=True, ge=1)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
PositiveNumber = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Probability = Annotated[NonNegative, Field(le=1)]
LARGEST_CV = 1e6  # its square is a number; a law may have a limit of its own below it
Cv = Annotated[PositiveNumber, Field(le=LARGEST_CV)]
"""Coefficient of variation: standard deviation over mean."""
Text = Annotated[str, Field(strict=True, min_length=1)]
Slug = Annotated[str, Field(strict=True, pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=64)]
Version = Annotated[str, Field(coerce_numbers_to_str=True, pattern=r"^[1-9][0-9]*$")]
"""A version of a model in Triton: its folders are names, and YAML reads `version: 1` as a number."""
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]


def slug(text: str) -> str:
    """A text as a name may be that is a `Slug`, however long: small letters, digits, hyphens; "model" of nothing."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "model"
