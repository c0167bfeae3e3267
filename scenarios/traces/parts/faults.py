"""A fault at a row of a trace, raised inside the readers and given its file by `squall.scenarios.traces.reading`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class RowFault(Exception):
    """What is wrong at `row` (the first line of the file is row 1; None: the file as a whole), and what to do."""

    def __init__(self, row: int | None, what: str) -> None:
        super().__init__(what if row is None else f"row {row}: {what}")


def shown(text: str) -> str:
    """`text` as it is quoted in an error: at most 40 characters, on one line."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def no_column(names: Sequence[str], wanted: str, row: int | None = 1) -> RowFault:
    """The file has no column `wanted`: the nearest names, or all of them where none is near."""
    lowered = {name.strip().lower(): name for name in names}
    near = difflib.get_close_matches(wanted.strip().lower(), lowered, n=3, cutoff=0.5)
    listed = ", ".join(map(shown, [lowered[key] for key in near] or list(names)[:8])) or "none"
    which = "the nearest are" if near else "there are"
    return RowFault(row, f"no column {wanted!r}: {which} {listed}; name the column")
