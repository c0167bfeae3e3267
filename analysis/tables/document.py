"""Frozen dataclasses to JSON, and sections of the manifest from it: a key is a field, and what is of the wrong kind is
named with its place.

A field without a default must be there. One that is absent has its default: what it is where nobody states it. Written
are all fields; those marked `LEFT_OUT` or `With` not while they have their default. So null stands for no `LEFT_OUT`.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from squall.scenarios.errors import StoreError
from squall.scenarios.foreign_text import escaped

MAPPING, LIST = "a mapping", "a list"
KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    bool: ("a truth value", (bool,)),
}
"""What a plain value is called, and what JSON has it as."""
_MOST_BITS = 64
"""Of a whole number: seeds alone may have more."""

Section = TypeVar("Section")


@dataclass(frozen=True)
class With:
    """Marks a field that stands, whatever its value, where another one has not its default."""

    other: str


@dataclass(frozen=True)
class Mark:
    """Marks a field; only its identity counts."""

    name: str


LEFT_OUT = Mark("left out while it has its default")
REST = Mark("all keys that no other field has")


@dataclass(frozen=True)
class Entry:
    """One field of a section as its annotation says it: type, marks, meaning."""

    name: str
    type: Any
    marks: tuple[Mark | With, ...]
    meaning: str
    is_needed: bool
    default: Any = None

    @property
    def is_rest(self) -> bool:
        """Whether it holds the keys that no other field has."""
        return REST in self.marks

    @property
    def stated(self) -> Any:
        """What it is where it stands: never null, if it can be left out."""
        others = [one for one in get_args(self.type) if one is not types.NoneType]
        return others[0] if LEFT_OUT in self.marks and len(others) < len(get_args(self.type)) else self.type


def entries(section: type) -> tuple[Entry, ...]:
    """The fields of a section, in order. Raises TypeError for one whose annotation does not say what it means."""
    if section not in _ENTRIES:
        hints = get_type_hints(section, include_extras=True)
        plain: Any = section
        known = _of_model(section) if issubclass(section, BaseModel) else fields(plain)
        _ENTRIES[section] = tuple(_entry(one, hints[one.name], section) for one in known)
    return _ENTRIES[section]


def _of_model(section: type[BaseModel]) -> Iterator[Field[Any]]:
    """The fields of a pydantic model as a dataclass has them."""
    for name, one in section.model_fields.items():
        found = field() if one.is_required() else field(default=one.default)
        found.name = name
        yield found


_ENTRIES: dict[type, tuple[Entry, ...]] = {}
"""Those looked at so far."""


def _entry(one: Field[Any], hint: Any, section: type) -> Entry:
    plain, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    meaning = "".join(extra for extra in extras if isinstance(extra, str))
    if not meaning:
        raise TypeError(f"{section.__name__}.{one.name} does not say what it means")
    marks = tuple(extra for extra in extras if not isinstance(extra, str))
    is_needed = one.default is MISSING and one.default_factory is MISSING
    default = one.default_factory() if one.default_factory is not MISSING else one.default
    return Entry(one.name, plain, marks, meaning, is_needed, None if is_needed else default)


def read_section(section: type[Section], value: Any, where: str = "") -> Section:
    """`value`, from JSON, as that section. Keys that it does not know are passed over. Raises StoreError."""
    if not isinstance(value, Mapping):
        raise StoreError(f"{where or 'the whole'} is not {MAPPING}")
    given: dict[str, Any] = {}
    known = entries(section)
    for one in known:
        if one.is_rest:
            own = {other.name for other in known}
            given[one.name] = {key: found for key, found in value.items() if key not in own}
        elif one.name in value:
            given[one.name] = _read(one.stated, value[one.name], f"{where}.{one.name}".lstrip("."))
        elif one.is_needed:
            raise StoreError(f"{where or 'it'} has no {one.name}")
    return section(**given)


def _read(type_: Any, value: Any, where: str) -> Any:
    if type_ is Any:
        return value
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        *_, type_ = (
            one for one in arguments if one is not types.NoneType
        )  # of int | float the latter takes both
        return _read(type_, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise StoreError(f"{where} is not {LIST}")
        return tuple(_read(arguments[0], one, f"{where}[{number}]") for number, one in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise StoreError(f"{where} is not {MAPPING}")
        return {
            str(key): _read(arguments[1], one, f"{where}[{escaped(str(key))}]") for key, one in value.items()
        }
    if isinstance(type_, type) and (is_dataclass(type_) or issubclass(type_, BaseModel)):
        return read_section(type_, value, where)
    name, kinds = KINDS[type_]
    if not isinstance(value, kinds) or (isinstance(value, bool) and type_ is not bool):
        raise StoreError(f"{where} is not {name}")
    if isinstance(value, float) and not math.isfinite(value):
        raise StoreError(f"{where} is not finite")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS and where != "seed":
        raise StoreError(f"{where} is not within 64 bits")
    return value


def to_json(value: Any) -> Any:
    """`value` as JSON has it, new at every depth: dataclasses and named tuples as dicts, other sequences as lists.

    A pydantic model is written whole, and in a section of the manifest what was set of it. A dataclass whose
    annotations do not say what its fields mean is a plain record: all of its fields are written, and behind them the
    properties that it names in `STATED`.
    """
    if isinstance(value, BaseModel):
        return {name: to_json(one) for name, one in value}
    if is_dataclass(value) and not isinstance(value, type):
        if _is_section(type(value)):
            return dict(_stated(value))
        names = [*(one.name for one in fields(value)), *getattr(value, "STATED", ())]
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        named = getattr(value, "_asdict", None)
        return [to_json(one) for one in value] if named is None else to_json(named())
    return value


@cache
def _is_section(kind: Any) -> bool:
    return any(str(one.type).startswith("Annotated[") for one in fields(kind))


def _stated(section: Any) -> Iterator[tuple[str, Any]]:
    """The keys of a section that are written."""
    defaults = {
        one.name
        for one in entries(type(section))
        if not one.is_needed and getattr(section, one.name) == one.default
    }
    for one in entries(type(section)):
        value = getattr(section, one.name)
        if one.is_rest:
            yield from to_json(value).items()
            continue
        others = {mark.other for mark in one.marks if isinstance(mark, With)}
        may_be_left_out = LEFT_OUT in one.marks or bool(others & defaults)
        if one.name not in defaults or not may_be_left_out:
            is_model = isinstance(value, BaseModel)
            yield one.name, to_json(value.model_dump(exclude_unset=True) if is_model else value)
