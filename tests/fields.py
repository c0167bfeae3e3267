"""Fields of what was found, by path, as files of cases beside the tests name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def field(value: Any, path: str) -> Any:
    """What lies at `path`, names with dots: fields of objects and mappings, places of sequences; `*`: of each.

    None where something on the way is None.
    """
    head, _, rest = path.partition(".")
    if not head or value is None:
        return value
    if head == "*":
        return [field(one, rest) for one in value]
    if isinstance(value, Mapping):
        return field(value[head], rest)
    return field(value[int(head)] if isinstance(value, Sequence) else getattr(value, head), rest)
