"""Which replies are compared in their values, and with what: configuration."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from squall.scenarios.fields import Number, Section, Text

SMALLEST_SHARE = 1e-9  # less is a mistyped number: no run has a billion requests
_NAME = r"[^\W\d]\w*"
_FUNCTION = re.compile(rf"(?:{_NAME}(?:\.{_NAME})*|.+\.py):{_NAME}")


def _named_function(value: str) -> str:
    if _FUNCTION.fullmatch(value) is None:
        raise ValueError(f"{value!r} must be package.module:function or path/to/file.py:function")
    return value


def function_from(name: str, folder: Path) -> str:
    """`name` with the path of its file absolute, where it has one: a relative one is taken from `folder`."""
    place, colon, function = name.rpartition(":")
    return f"{(folder / place).resolve()}{colon}{function}" if place.endswith(".py") else name


class ValueCheckConfig(Section):
    """Comparison of the values of some replies with those that the head's weights give, or a function or file of the
    user's.

    A float is right where |value - expected| <= atol + rtol * |expected|, anything else where it is the same.
    """

    share: Annotated[Number, Field(ge=SMALLEST_SHARE, le=1)] = 0.01  # at least this share of the requests
    rtol: Annotated[Number, Field(ge=0)] = 1e-3
    atol: Annotated[Number, Field(ge=0)] = 1e-5
    function: Annotated[Text, AfterValidator(_named_function)] | None = (
        None  # called by the driver, of any model
    )
    reference: Text | None = None  # .npz on the driver's node, for a model that is no head of the zoo

    @model_validator(mode="after")
    def _one_source(self) -> ValueCheckConfig:
        if self.function is not None and self.reference is not None:
            raise ValueError("the right values come from function or from reference, not from both")
        return self

    @property
    def is_of_zoo(self) -> bool:
        """Whether the right values are those of a head of the zoo."""
        return self.function is None and self.reference is None

    def every(self, n_parties: int) -> int:
        """Requests whose id is a multiple of it are checked, by every one of `n_parties` in its turn.

        Parties (workers times servers; users of a closed loop) take ids in turn, so the two must have no common factor:
        the largest such number that still gives `share`.
        """
        every = max(1, int(1 / self.share + 1e-9))
        while math.gcd(every, n_parties) != 1:
            every -= 1
        return every
