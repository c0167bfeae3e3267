"""Opens a trace file in any of its formats and reads it in parts of bounded size.

    for part in open_trace(path, TraceOptions(unit="ms")):
        send(part.stamp_ns)

Errors are one line: the file, the row (the first line of the file is row 1) and what to do about it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.checks import checked_parts
from squall.scenarios.traces.formats import TraceFormat, recognised, record_of
from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import Repair, TraceOptions, TraceUnit
from squall.scenarios.traces.parts.part import TracePart, join_parts
from squall.scenarios.traces.rows import Mending, Source
from squall.scenarios.traces.text import refuse_streams

__all__ = ["Repair", "TraceFormat", "TraceOptions", "TraceReader", "TraceUnit", "open_trace", "read_trace"]

_AS_THEY_ARE = TraceOptions()


class TraceReader:
    """A trace file, ready to be read. Each iteration reads it from the start.

    `unit` is that of the file's numbers, None where its stamps are dates; `tick_ns` the width of a bin in a
    trace of counts. `reading`: which columns the stamps come from, None where the format leaves no choice.
    `repaired` counts the rows that each repair touched in the last iteration so far.
    """

    def __init__(self, path: Path, format: TraceFormat, source: Source, options: TraceOptions) -> None:
        self.path = path
        self.format: TraceFormat = format
        self.unit: TraceUnit | None = source.unit
        self.size_names: tuple[str, ...] = source.size_names
        self.has_sessions: bool = source.fields.session is not None
        self.tick_ns: int | None = source.tick_ns
        self.reading = source.reading
        self.repaired: dict[Repair, int] = {}
        self._source = source
        self._options = options

    def __iter__(self) -> Iterator[TracePart]:
        """Rows in the order of time, at least one, in parts of up to `part.PART_ROWS`. Raises ScenarioError."""
        mending = Mending(self._options.repairs)
        self.repaired = mending.repaired
        if self._source.durations is not None:
            self._source.durations.n_absent = 0
        parts = checked_parts(self._source, mending)
        while True:
            with _faults_of(self.path):
                part = next(parts, None)
            if part is None:
                return
            yield part


def open_trace(path: Path, options: TraceOptions = _AS_THEY_ARE) -> TraceReader:
    """A reader of `path`. Its header is read and its columns are found now, the rows on iteration.

    Raises ScenarioError for a file that is not there, cannot be opened, is empty, or has no column of stamps.
    """
    with _faults_of(path):
        refuse_streams(path)
        record = record_of(options.format) if options.format else recognised(path, options.column)
        source = record.read(path, options)
        if options.session is not None and source.fields.session is None:
            raise RowFault(None, f"no column {options.session!r}: format {record.name} has none of that kind")
        return TraceReader(path, record.name, source, options)


def read_trace(path: Path, options: TraceOptions = _AS_THEY_ARE) -> TracePart:
    """The whole trace in numpy arrays. Raises ScenarioError as `open_trace` and its iteration do."""
    return join_parts(list(open_trace(path, options)))


@contextmanager
def _faults_of(path: Path) -> Iterator[None]:
    """Maps what readers and the libraries below them raise to ScenarioError with the file's name."""
    import pyarrow as pa

    try:
        yield
    except RowFault as error:
        raise ScenarioError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise ScenarioError(f"{path}: no such trace file") from error
    except IsADirectoryError as error:
        raise ScenarioError(f"{path}: is a directory; name one trace file in it") from error
    except PermissionError as error:
        raise ScenarioError(f"{path}: no permission to read it") from error
    except (EOFError, zlib.error) as error:
        raise ScenarioError(f"{path}: the compressed file is cut short or damaged; fetch it again") from error
    except (OSError, pa.ArrowException) as error:
        said = " ".join(str(error).split())[:200]
        raise ScenarioError(
            f"{path}: cannot be read as a trace: {said}; fetch it again or name its format"
        ) from error
