"""Opens a trace file in any of its formats and reads it in parts of bounded size.

    for part in open_trace(path, TraceOptions(unit="ms")):
        send(part.stamp_ns)

Errors are one line: the file, the row (the first line of the file is row 1) and what to do about it. The readers are
imported when the first file is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from squall.scenarios.traces.faults import RowFault, faults_of
from squall.scenarios.traces.options import TraceOptions, TraceUnit
from squall.scenarios.traces.part import TracePart, join_parts

if TYPE_CHECKING:
    from squall.scenarios.traces.rows import Source
    from squall.scenarios.traces.stamps import Reading

__all__ = ["TraceOptions", "TraceReader", "open_trace", "read_trace"]

_AS_THEY_ARE = TraceOptions()


class TraceReader:
    """A trace file, ready to be read. Each iteration reads it from the start.

    `unit` is that of the file's numbers, None where its stamps are dates. `reading`: which columns the stamps come
    from, None where the format leaves no choice.
    """

    def __init__(self, path: Path, format: str, source: Source) -> None:
        self.path = path
        self.format = format
        self.source = source
        self.unit: TraceUnit | None = source.unit
        self.size_names: tuple[str, ...] = source.size_names
        self.reading: Reading | None = source.reading

    def __iter__(self) -> Iterator[TracePart]:
        """Rows in the order of time, at least one, in parts of up to `part.PART_ROWS`. Raises ScenarioError."""
        from squall.scenarios.traces.checks import checked_parts

        with faults_of(self.path, "trace file"):
            yield from checked_parts(self.source)


def open_trace(path: Path, options: TraceOptions = _AS_THEY_ARE) -> TraceReader:
    """A reader of `path`. Its header is read and its columns are found now, the rows on iteration.

    Raises ScenarioError for a file that is not there, cannot be opened, is empty, or has no column of stamps.
    """
    from squall.scenarios.traces.formats import FORMATS, recognised
    from squall.scenarios.traces.text import refuse_streams

    with faults_of(path, "trace file"):
        refuse_streams(path)
        name = options.format or recognised(path, options.column)
        source = FORMATS[name].read(path, options)
        if options.session is not None and source.fields.session is None:
            raise RowFault(None, f"no column {options.session!r}: format {name} has none of that kind")
        return TraceReader(path, name, replace(source, repairs=options.repairs))


def read_trace(path: Path, options: TraceOptions = _AS_THEY_ARE) -> TracePart:
    """The whole trace in numpy arrays. Raises ScenarioError as `open_trace` and its iteration do."""
    return join_parts(list(open_trace(path, options)))
