"""Opens a trace file in any of its formats and reads it in parts of bounded size.

    for part in open_trace(path, TraceOptions(unit="ms")):
        send(part.stamp_ns)

Errors are one line: the file, the row (the first line of the file is row 1) and what to do about it. The readers are
imported when the first file is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from squall.scenarios.traces.faults import faults_of
from squall.scenarios.traces.options import TraceOptions
from squall.scenarios.traces.part import TracePart, join_parts

if TYPE_CHECKING:
    from squall.scenarios.traces.rows import Source

__all__ = ["TraceOptions", "open_trace", "read_trace"]

_AS_THEY_ARE = TraceOptions()


def open_trace(path: Path, options: TraceOptions = _AS_THEY_ARE, session: str | None = None) -> Source:
    """The trace `path`. Its header is read and its columns are found now, the rows on iteration. `session`: the column
    whose values are sessions, where it is not to be found by its name.

    Raises ScenarioError for a file that is not there, cannot be opened, is empty, or has no column of stamps.
    """
    from squall.scenarios.traces.formats import FORMATS, recognised
    from squall.scenarios.traces.text import refuse_streams

    with faults_of(path, "trace file"):
        refuse_streams(path)
        name = options.format or recognised(path, options.column)
        return FORMATS[name].source(path, name, options, session)


def read_trace(path: Path, options: TraceOptions = _AS_THEY_ARE) -> TracePart:
    """The whole trace in numpy arrays. Raises ScenarioError as `open_trace` and its iteration do."""
    return join_parts(list(open_trace(path, options)))
