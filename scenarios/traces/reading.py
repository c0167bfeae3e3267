"""Opens a trace file in any of its formats and reads it in parts of bounded size.

    for part in open_trace(path, TraceOptions(unit="ms")):
        send(part.stamp_ns)

Errors are one line: the file, the row (the first line of the file is row 1) and what to do about it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.parts.faults import RowFault
from squall.scenarios.traces.parts.options import Repair, TraceFormat, TraceOptions, TraceUnit
from squall.scenarios.traces.parts.part import TracePart, join_parts
from squall.scenarios.traces.readers import logs, recognise, sources
from squall.scenarios.traces.readers.blocks import refuse_streams
from squall.scenarios.traces.readers.checks import checked_parts
from squall.scenarios.traces.readers.chunk import Mending, Source
from squall.scenarios.traces.readers.recognise import Opening
from squall.scenarios.traces.readers.servegen import servegen_source
from squall.scenarios.traces.readers.stamps import Reading

__all__ = ["Repair", "TraceFormat", "TraceOptions", "TraceReader", "TraceUnit", "open_trace", "read_trace"]

_AS_THEY_ARE = TraceOptions()


@dataclass(frozen=True)
class Format:
    """A format of trace files: how it is recognised and read."""

    name: TraceFormat
    recognise: Callable[[Opening], bool] | None  # None: nothing in a file shows it, so that it must be named
    read: Callable[[Path, TraceOptions], Source]  # raises RowFault for a file that is not of this format


FORMATS = (
    Format("parquet", recognise.is_parquet, sources.columnar_source),
    Format("arrow", recognise.is_arrow, sources.columnar_source),
    Format("bailian", recognise.is_bailian, sources.bailian_source),
    Format("mooncake", recognise.is_mooncake, sources.mooncake_source),
    Format("fixed-schedule", recognise.is_fixed_schedule, sources.fixed_schedule_source),
    Format("jsonl", recognise.is_jsonl, sources.jsonl_source),
    Format("combined-log", recognise.is_combined_log, logs.log_source),
    Format("common-log", recognise.is_common_log, logs.log_source),
    Format("alb-log", recognise.is_alb_log, logs.alb_source),
    Format("elb-log", recognise.is_elb_log, logs.elb_source),
    Format("envoy-log", recognise.is_envoy_log, logs.envoy_source),
    Format("haproxy-log", recognise.is_haproxy_log, logs.haproxy_source),
    Format("w3c-log", recognise.is_w3c_log, logs.w3c_source),
    Format("azure-llm", recognise.is_azure, sources.azure_source),
    Format("burstgpt", recognise.is_burstgpt, sources.burstgpt_source),
    Format("servegen", recognise.is_servegen, servegen_source),
    Format("counts", recognise.is_counts, sources.counts_source),
    Format("lines", recognise.is_lines, sources.lines_source),
    Format("csv", recognise.is_csv, sources.csv_source),
    Format("intervals", None, sources.intervals_source),  # its lines look like stamps
)
"""Every format, in the order in which a file is tried: what is told from fewer bytes or says more comes first."""
_BY_NAME = {format.name: format for format in FORMATS}


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
        self.has_sessions: bool = source.has_sessions
        self.tick_ns: int | None = source.tick_ns
        self.reading: Reading | None = source.reading
        self.repaired: dict[Repair, int] = {}
        self._source = source
        self._options = options

    def __iter__(self) -> Iterator[TracePart]:
        """Rows in the order of time, at least one, in parts of up to `part.PART_ROWS`. Raises ScenarioError."""
        mending = Mending(self._options.repairs)
        self.repaired = mending.repaired
        if self.reading is not None and self.reading.durations is not None:
            self.reading.durations.n_absent = 0
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
        format = _BY_NAME[options.format] if options.format else _recognised(path, options.column)
        source = format.read(path, options)
        if options.session is not None and not source.has_sessions:
            raise RowFault(None, f"no column {options.session!r}: format {format.name} has none of that kind")
        return TraceReader(path, format.name, source, options)


def _recognised(path: Path, column: str | None) -> Format:
    """The first format that the first bytes of `path` show; `column`: that of the stamps, if it is named.

    Raises RowFault, with what was tried, for a file that is empty or of none.
    """
    opening = Opening(path, column)
    tried = [(format, format.recognise) for format in FORMATS if format.recognise is not None]
    for format, shows in tried:
        if shows(opening):
            return format
    raise recognise.unrecognised(opening, [format.name for format, _ in tried])


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
