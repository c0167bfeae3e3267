"""Figures are frozen dataclasses inside and plain JSON at the border: `squall.analysis.tables.document.to_json` turns
them to it, `from_json` back, and nothing else does.

A record is a frozen dataclass whose fields are the keys of its JSON object, in that order. What follows from its fields
and stands in the JSON too is a property that the class names in `STATED`: written behind the fields, not read.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from squall.scenarios.errors import AnalysisError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Record = TypeVar("Record")
Number = int | float
"""A figure of any unit: what is whole stays whole in the JSON."""


def from_json(kind: type[Record], found: object) -> Record:
    """The record of that kind that `to_json` turned into `found`; keys that it does not know are passed over.

    Raises AnalysisError, in one line, where a key is missing or has a value of another type.
    """
    from pydantic import ValidationError

    hashable: Any = kind
    try:
        record: Record = _adapter(hashable).validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or kind.__name__
        what = "is not there" if first["type"] == "missing" else first["msg"]
        raise AnalysisError(f"{where}: {what}") from error
    return record


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
