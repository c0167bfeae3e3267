"""Records and figures are frozen dataclasses inside and plain JSON at the border: `to_json` turns them to it,
`from_json` back, and nothing else does.

The fields are the keys of the JSON object, in that order; `squall.scenarios.records.Record` may leave some out. What
follows from its fields and stands in the JSON too is a property that the class names in `STATED`: written behind the
fields, not read. Records in the fields that a class names in `WHOLE` are written with what they leave out elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Predicate

from squall.scenarios.errors import AnalysisError, SquallError
from squall.scenarios.foreign_text import escaped, is_beneath, is_component
from squall.scenarios.records import LED, LEFT_OUT, Record, default_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pydantic import TypeAdapter

Kind = TypeVar("Kind")
Number = int | float
"""A figure of any unit: what is whole stays whole in the JSON."""

_MOST_FAULTS = 1_000
"""Of which the first is looked for: each takes a kilobyte then."""
_SHOWN = 100
"""Characters of a name in a place."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character, as a server may send it: no UTF-8 has it, so it is read as its escape."""


def is_file_name(text: str) -> bool:
    """Whether a text can be the name of a file or folder, or is empty."""
    return not text or is_component(text)


Name = Annotated[str, Predicate(is_file_name)]
"""Type of a text that becomes the name of a file or folder; it may be empty."""
SubPath = Annotated[str, Predicate(is_beneath)]
"""Type of a text that becomes a path below a folder."""


def from_json(
    kind: type[Kind], found: object, where: str = "", error: type[SquallError] = AnalysisError
) -> Kind:
    """The record of that kind that `to_json` turned into `found`; keys that it does not know are passed over.

    Raises `error`, in one line that begins with the place below `where`, for a key that is missing or of another type.
    """
    from pydantic import ValidationError

    hashable: Any = kind
    whole = where or kind.__name__
    try:
        text = _SURROGATE.sub(_escape, json.dumps(found, ensure_ascii=False))
        record: Kind = _adapter(hashable).validate_json(text)
    except RecursionError:
        raise error(f"{whole}: it is nested too deeply") from None
    except ValidationError as wrong:
        if wrong.error_count() > _MOST_FAULTS:
            raise error(f"{whole}: {wrong.error_count()} values are of another type") from None
        first = wrong.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(one)[:_SHOWN] for one in (*filter(None, [where]), *first["loc"])) or whole
        what = "is not there" if first["type"] == "missing" else first["msg"].removeprefix("Value error, ")
        raise error(escaped(f"{place}: {what}")) from wrong
    return record


def _escape(surrogate: re.Match[str]) -> str:
    return "\\" + escaped(surrogate[0])


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def to_json(value: Any, is_whole: bool = False) -> Any:
    """`value` as JSON has it, new at every depth: dataclasses and named tuples as dicts, other sequences as lists.

    `is_whole`: with the fields that records leave out.
    """
    if is_dataclass(value) and not isinstance(value, type):
        absent = _absent(value) if isinstance(value, Record) and not is_whole else set()
        whole = getattr(value, "WHOLE", ())
        written = {
            name: to_json(getattr(value, name), is_whole or name in whole)
            for name in (*(one.name for one in fields(value)), *getattr(value, "STATED", ()))
            if name not in absent
        }
        further: dict[str, Any] = written.pop(getattr(value, "REST", ""), {})
        return {**written, **further}
    if isinstance(value, Mapping):
        return {str(key): to_json(one, is_whole) for key, one in value.items()}
    if isinstance(value, list | tuple):
        named = getattr(value, "_asdict", None)
        return [to_json(one, is_whole) for one in value] if named is None else to_json(named(), is_whole)
    return value


def parquet_schema(kind: type) -> pa.Schema:
    """The columns of a table of such records, as `to_json` has them: a column a field, of anything its JSON."""
    import pyarrow as pa

    return pa.schema(list(_parquet_type(kind)))


def _parquet_type(hint: Any) -> pa.DataType:
    import pyarrow as pa

    (kind,) = (
        [one for one in get_args(hint) if one is not NoneType] if isinstance(hint, UnionType) else [hint]
    )
    plain = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), Any: pa.string()}
    if kind in plain:
        return plain[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return pa.struct([(one.name, _parquet_type(hints[one.name])) for one in fields(kind)])
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        return pa.list_(_parquet_type(arguments[0]))
    return pa.string() if arguments[1] is Any else pa.map_(pa.string(), _parquet_type(arguments[1]))


def _absent(record: Record) -> set[str]:
    """The fields of a record that are not written."""
    kind: Any = type(record)
    absent = {name for name, default in _may_be_absent(kind) if getattr(record, name) == default}
    return absent if not record.LEAD or record.LEAD in absent else set()


@cache
def _may_be_absent(kind: Any) -> list[tuple[str, Any]]:
    """Fields of a kind of record that may be left out, with their defaults."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        (one.name, default_of(one))
        for one in fields(kind)
        if {LED, LEFT_OUT}.intersection(getattr(hints[one.name], "__metadata__", ()))
    ]
