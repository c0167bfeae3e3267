"""JSON lines: Mooncake, Bailian, fixed schedules of aiperf, and any with a timestamp field.

Only the fields that are used are turned into columns; `hash_ids` and the like are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.faults import shown
from squall.scenarios.traces.parts.options import TraceUnit
from squall.scenarios.traces.parts.part import NO_SESSION, session_number
from squall.scenarios.traces.readers.blocks import Block, text_blocks
from squall.scenarios.traces.readers.chunk import Chunk, Mending, chunk_of, session_numbers
from squall.scenarios.traces.readers.instants import Clock, decimal_ns, is_safe_as_json, parse_whole
from squall.scenarios.traces.readers.stamps import Durations, Reading


@dataclass(frozen=True)
class JsonSource:
    """Rows of JSON lines. A `Source`.

    `parent` is the field that names the request before in the same conversation (Bailian); a session is then
    the first request of its chain, and every request's id is kept: about 200 bytes a row.
    """

    path: Path
    stamp: str
    size_names: tuple[str, ...]
    session: str | None
    parent: str | None
    number_unit: TraceUnit
    unit: TraceUnit | None
    unit_is_assumed: bool
    tick_ns: int | None = None
    reading: Reading | None = None
    duration_types: tuple[str, ...] = ()

    @property
    def has_sessions(self) -> bool:
        return self.session is not None

    @property
    def _durations(self) -> Durations | None:
        return None if self.reading is None else self.reading.durations

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        clock = Clock(self.number_unit, "date" if self.unit is None else "number")
        chains = _Chains()
        for block in text_blocks(self.path):
            yield self._chunk(block, clock, chains, mending)

    def _chunk(self, block: Block, clock: Clock, chains: _Chains, mending: Mending) -> Chunk:
        table = self._table(block.data, clock)
        if table is None or not block.has_rows(len(table[self.stamp])):
            return self._chunk_by_rows(block, clock, chains, mending)
        stamp_ns = decimal_ns(table[self.stamp]) if clock.kind == "number" else None
        faults: list[tuple[int, str]] = []
        if clock.kind == "date":
            stamp_ns, faults = clock.read(table[self.stamp])
        if stamp_ns is None:
            return self._chunk_by_rows(block, clock, chains, mending)
        if self._durations is not None:
            taken = [table[name] for name in self._durations.names]
            stamp_ns, faults = self._durations.before(stamp_ns, taken, faults)
        sizes = {name: table[name].fill_null(-1).to_numpy() for name in self.size_names}
        session = None
        if self.session is not None and self.parent is not None:
            session = chains.sessions(table[self.session].to_pylist(), table[self.parent].to_pylist())
        elif self.session is not None:
            session = session_numbers(table[self.session])
        return chunk_of(stamp_ns, sizes, session, block.row_of, faults, mending)

    def _table(self, data: bytes, clock: Clock) -> dict[str, Any] | None:
        """Arrow arrays of the used fields by name; None for what Arrow refuses."""
        import pyarrow as pa
        from pyarrow import json as arrow_json

        names = (
            self.stamp,
            *self.size_names,
            *(self._durations.names if self._durations is not None else ()),
        )
        if (clock.kind != "date" and not is_safe_as_json(data)) or any("." in name for name in names):
            return None
        stamp_type = pa.string() if clock.kind == "date" else pa.decimal128(38, clock.digits)
        fields = {self.stamp: stamp_type, **{name: pa.int64() for name in self.size_names}}
        if self._durations is not None:
            types = {"text": pa.string(), "number": pa.float64()}
            fields |= {
                name: types[kind]
                for name, kind in zip(self._durations.names, self.duration_types, strict=True)
            }
        ids = [name for name in (self.session, self.parent) if name is not None]
        for id_type in (pa.int64(), pa.string()) if ids else (None,):
            schema = pa.schema({**fields, **dict.fromkeys(ids, id_type)})
            try:
                table = arrow_json.read_json(
                    pa.BufferReader(data),
                    read_options=arrow_json.ReadOptions(block_size=max(len(data), 2**16)),
                    parse_options=arrow_json.ParseOptions(
                        explicit_schema=schema, unexpected_field_behavior="ignore"
                    ),
                )
            except pa.ArrowInvalid:
                continue
            return {name: table[name].combine_chunks() for name in schema.names}
        return None

    def _chunk_by_rows(self, block: Block, clock: Clock, chains: _Chains, mending: Mending) -> Chunk:
        """The same, row by row: names the faulty ones, and reads what Arrow is too strict for."""
        rows: list[int] = []
        faults: list[tuple[int, str]] = []
        stamps: list[int] = []
        sizes: dict[str, list[int]] = {name: [] for name in self.size_names}
        ids: list[Any] = []
        parents: list[Any] = []
        taken: list[list[Any]] = [[] for _ in (self._durations.names if self._durations is not None else ())]
        for row, line in block.lines():
            rows.append(row)
            entry: dict[str, Any] = {}
            stamp_ns = 0
            try:
                entry = parse_entry(line)
                stamp_ns = clock.read_one(_stamp_text(entry, self.stamp))
                values = {name: _whole(entry, name) for name in self.size_names}
            except ValueError as error:
                faults.append((len(rows) - 1, str(error)))
                values = dict.fromkeys(self.size_names, 0)
            stamps.append(stamp_ns)
            for place, column in enumerate(taken):
                column.append(
                    value_of(entry, self._durations.names[place] if self._durations is not None else "")
                )
            for name, value in values.items():
                sizes[name].append(value)
            ids.append(entry.get(self.session or ""))
            parents.append(entry.get(self.parent or ""))
        session = None
        if self.session is not None and self.parent is not None:
            session = chains.sessions(ids, parents)
        elif self.session is not None:
            session = np.array([_id_number(value) for value in ids], dtype=np.int64)
        stamps_ns = np.array(stamps, dtype=np.int64)
        if self._durations is not None:
            stamps_ns, faults = self._durations.before(stamps_ns, taken, faults)
        return chunk_of(
            stamps_ns,
            {name: np.array(values, dtype=np.int64) for name, values in sizes.items()},
            session,
            lambda index: rows[index],
            faults,
            mending,
        )


class _Chains:
    """The first request of each request's conversation, by the ids of the requests so far."""

    def __init__(self) -> None:
        self._root: dict[Any, int] = {}

    def sessions(self, ids: list[Any], parents: list[Any]) -> NDArray[np.int64]:
        """Session number of each row; a parent that never came begins a conversation of its own."""
        numbers = np.empty(len(ids), dtype=np.int64)
        for index, (own, parent) in enumerate(zip(ids, parents, strict=True)):
            root = self._root.get(str(parent)) if parent is not None else None
            number = _id_number(own) if root is None else root
            if own is not None:
                self._root[str(own)] = number
            numbers[index] = number
        return numbers


def _id_number(value: Any) -> int:
    return NO_SESSION if value is None else session_number(str(value))


def parse_entry(line: bytes) -> dict[str, Any]:
    """The JSON object of a line, numbers with a point as Decimal. Raises ValueError with what is wrong."""
    try:
        entry = json.loads(line, parse_float=Decimal)
    except UnicodeDecodeError as error:
        raise ValueError("the line is not UTF-8") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {getattr(error, 'msg', 'nested too deep')}") from error
    except ValueError as error:
        raise ValueError("holds a whole number of thousands of digits") from error
    if not isinstance(entry, dict):
        raise ValueError("is no JSON object")
    return entry


def value_of(entry: dict[str, Any], name: str) -> Any:
    """The value under `name`, or under the keys of it between its points: `httpRequest.latency`. None for none."""
    if name in entry or "." not in name:
        return entry.get(name)
    value: Any = entry
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def flat_names(entry: dict[str, Any], depth: int = 3) -> list[str]:
    """Names of the values of an object and, between points, of those in it, `depth` deep."""
    names: list[str] = []
    for name, value in entry.items():
        names += (
            [f"{name}.{one}" for one in flat_names(value, depth - 1)]
            if isinstance(value, dict) and depth > 1
            else [name]
        )
    return names


def _stamp_text(entry: dict[str, Any], name: str) -> str:
    value = value_of(entry, name)
    if value is None:
        raise ValueError(f"has no timestamp {name!r}")
    if isinstance(value, bool | list | dict):
        raise ValueError(f"the timestamp {name!r} is neither a number nor a text")
    return str(value)


def _whole(entry: dict[str, Any], name: str) -> int:
    value = value_of(entry, name)
    if isinstance(value, bool | list | dict | str):
        raise ValueError(f"field {name!r}: {shown(str(value))} is not a whole number within 64 bits")
    try:
        return parse_whole("" if value is None else str(value))
    except ValueError as error:
        raise ValueError(f"field {name!r}: {error}") from error
