"""Columns of a plan: in memory up to `MOST_ROWS_IN_MEMORY`, above it mapped from temporary files without a name.

A mapped column is an ordinary read-only array whose file goes with the last reference to it. Its pages are the
kernel's to drop, so that a sweep in `pieces` over columns of any length takes no more memory than there is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from squall.scenarios.arrays import Array, Columns
from squall.scenarios.errors import ScenarioError

MOST_ROWS_IN_MEMORY = 2**24


def grown(types: Mapping[str, DTypeLike], parts: Iterable[Columns]) -> dict[str, Any]:
    """The columns of these types that the parts have together, (n,) each.

    Raises ScenarioError if a temporary file cannot be written.
    """
    chunks: dict[str, list[Array]] = {name: [np.empty(0, dtype)] for name, dtype in types.items()}
    files: dict[str, Any] = {}  # have all rows of a column, once they are too many for memory
    with ExitStack() as opened:
        for part in parts:
            for name, own in chunks.items():
                own.append(np.asarray(part[name], types[name]))
                if name not in files and sum(map(len, own)) <= MOST_ROWS_IN_MEMORY:
                    continue
                try:
                    if name not in files:
                        files[name] = opened.enter_context(tempfile.TemporaryFile(buffering=0))
                    while own:
                        left = np.ascontiguousarray(own.pop(0)).view(np.uint8).data
                        while left:
                            left = left[files[name].write(left) :]
                except OSError as error:
                    raise ScenarioError(
                        f"{tempfile.gettempdir()}: a temporary file of the plan cannot be written:"
                        f" {error.strerror or error}; free space there or set TMPDIR"
                    ) from error
        return {
            name: np.asarray(np.memmap(files[name], types[name], mode="r"))
            if name in files
            else np.concatenate(own)
            for name, own in chunks.items()
        }
