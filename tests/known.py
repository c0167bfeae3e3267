"""What a test knows to be there, of what may be absent."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def known(value: Value | None) -> Value:
    """`value`, which fails the test where it is None."""
    assert value is not None
    return value
