"""Columns of a trace as texts, vectorised: what the writers put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.part import session_text

_AZURE_DATE_LENGTH = 27  # 2023-11-16 18:15:46.6805900


def whole_texts(numbers: NDArray[np.int64], empty: str = "") -> Any:
    """Arrow strings of whole numbers, `empty` for -1."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pa.array(numbers)
    return pc.if_else(pc.equal(values, -1), empty, values.cast(pa.string()))


def decimal_texts(ns: NDArray[np.int64], digits: int) -> Any:
    """Arrow strings of ns / 10^digits, exact and without trailing zeros: `12`, `0.000000005`, `-1.5`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole, below = np.divmod(np.abs(ns), 10**digits)
    texts = pa.array(whole).cast(pa.string())
    fraction = pc.utf8_rtrim(pc.utf8_lpad(pa.array(below).cast(pa.string()), digits, "0"), "0")
    texts = pc.if_else(pa.array(below == 0), texts, pc.binary_join_element_wise(texts, fraction, "."))
    return pc.if_else(pa.array(ns < 0), pc.binary_join_element_wise("-", texts, ""), texts)


def azure_dates(ns: NDArray[np.int64]) -> Any:
    """Arrow strings `2023-11-16 18:15:46.6805900` in UTC, digits below 100 ns cut."""
    import pyarrow as pa
    import pyarrow.compute as pc

    dates = pa.array(ns).cast(pa.timestamp("ns")).cast(pa.string())
    return pc.utf8_slice_codeunits(dates, 0, _AZURE_DATE_LENGTH)


def log_dates(ns: NDArray[np.int64]) -> Any:
    """Arrow strings `10/Oct/2000:13:55:36 +0000`, whole seconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    seconds = pa.array(ns // 10**9).cast(pa.timestamp("s"))
    return pc.strftime(seconds, format="%d/%b/%Y:%H:%M:%S +0000", locale="C")


def session_texts(numbers: NDArray[np.int64]) -> Any:
    """Arrow strings of sessions, which `session_number` reads back; empty for -1."""
    import pyarrow as pa

    known, places = np.unique(numbers, return_inverse=True)
    names = pa.array([session_text(int(number)) for number in known.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), names).dictionary_decode()


def joined(pieces: Sequence[Any]) -> bytes:
    """The bytes of one text a row after the other: each row is its `pieces` (strings or Arrow strings) in turn."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pc.binary_join_element_wise(*pieces, "")
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    offsets = np.frombuffer(rows.buffers()[1], dtype=np.int32)[rows.offset : rows.offset + len(rows) + 1]
    return rows.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0])).to_pybytes()  # type: ignore[no-any-return]


def separated(columns: Sequence[Any], separator: str) -> list[Any]:
    """The pieces of rows of a delimited text with a line end."""
    pieces: list[Any] = []
    for column in columns:
        pieces += [column, separator]
    return [*pieces[:-1], "\n"]
