"""`probes.parquet`: a row for each run of a search, with what it was for, what came of it and where it lies."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import pyarrow as pa

from squall.analysis.compare.figures import BROKEN, INVALID, KEPT, UNDECIDED
from squall.analysis.compare.level import is_short
from squall.analysis.record import parquet_schema
from squall.analysis.storage.beneath import read_plain
from squall.analysis.studies.capacity_probe import Probe
from squall.scenarios.errors import StoreError
from squall.scenarios.foreign_text import is_component
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MOST_ROWS = 100_000
"""Of a search: a run takes a second at the least, so that these are a day and more."""


class Row(Frozen):
    """A run. `variant`: of the servers, `all` but for --gpus; `factor`: of the scenario's rate; `digest`: of what ran.

    `is_replaced`: it was INVALID, and run once more. `bottleneck`: what its diagnosis says, and what to try first.
    `queue_delay_ns`: the longest of its servers' batchers. Of the promise `binding` the `figure`, in ns of times, and
    its `limit`; infinite figures are None. The others as in `Level`, None without requests.
    """

    variant: str
    purpose: str
    seed: int
    rate_hz: float
    factor: str
    digest: str
    run: str
    status: str
    is_replaced: bool
    seconds: float
    verdict: str
    margin: float | None
    binding: str
    figure: float | None
    limit: float | None
    is_saturated: bool | None
    reason: str
    cause: str
    bottleneck: str
    n_servers: int | None
    n: int | None = None
    n_ok: int | None = None
    n_unanswered: int | None = None
    offered_hz: float | None = None
    throughput_hz: float | None = None
    good_hz: float | None = None
    response_mean_ns: float | None = None
    response_p50_ns: float | None = None
    response_p95_ns: float | None = None
    response_p99_ns: float | None = None
    in_flight_mean_count: float | None = None
    backlog_growth_ratio: float | None = None
    peak_1s_hz: float | None = None
    peak_100ms_hz: float | None = None
    n_bursts: int | None = None
    n_busy_periods: int | None = None
    queue_delay_ns: int | None = None

    @property
    def is_short(self) -> bool:
        """Whether its figures hang on few bursts or busy periods."""
        return self.n_bursts is not None and is_short(self.n_bursts, self.n_busy_periods or 0)

    @property
    def probe(self) -> Probe:
        """What the search makes of it."""
        return Probe(**{name: getattr(self, name) for name in Probe.__dataclass_fields__})


def schema() -> pa.Schema:
    """Of `probes.parquet`."""
    return parquet_schema(Row)


def rows_bytes(rows: Sequence[Row]) -> bytes:
    """The file."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dataclasses.asdict(one) for one in rows], schema=schema()), sink)
    return sink.getvalue()


def read_rows(path: str) -> list[Row]:
    """The rows of a file. Raises StoreError where it is none that `rows_bytes` made."""
    import pyarrow.parquet as pq

    texts = [field.name for field in schema() if field.type == pa.string()]
    try:
        content = pa.BufferReader(read_plain(Path(path), _MOST_BYTES))
        _refuse_other(pq.read_metadata(content))
        content.seek(0)
        with pq.ParquetFile(content, read_dictionary=texts) as file:
            return [_checked(Row(*values)) for values in zip(*_columns(file), strict=True)]
    except (OSError, pa.ArrowException, ValueError) as error:
        told = str(error).partition("\n")[0] or type(error).__name__
        raise StoreError(f"{path} is not the probes of a search: {told}") from error


def _refuse_other(metadata: pq.FileMetaData) -> None:
    """Raises ValueError for a footer of other columns, or of more than its file can hold: `rows_bytes` packs as Snappy,
    whose bytes are at most 21 times as many, and each column once."""
    if not 0 <= metadata.num_rows <= MOST_ROWS:
        raise ValueError(f"it states {metadata.num_rows} rows")
    own = schema()
    found = metadata.schema.to_arrow_schema()
    if found not in (own, own.remove(own.get_field_index(_LATER))):
        raise ValueError("its columns are others")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(len(found))]
    if len(groups) > 1 or any(
        (chunk.num_values, chunk.compression) != (metadata.num_rows, "SNAPPY") for chunk in chunks
    ):
        raise ValueError("it is packed otherwise")


def _columns(file: pq.ParquetFile) -> Iterator[list[Any]]:
    """The values of each column. Raises ValueError where texts, each as often as a row has it, are too many bytes."""
    import pyarrow.compute as pc

    n_bytes = 0
    for name in file.schema_arrow.names:
        column = file.read([name]).column(0)
        if pa.types.is_dictionary(column.type):
            for chunk in column.chunks:
                n_bytes += pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0
            if n_bytes > _MOST_BYTES:
                raise ValueError(f"its texts have {n_bytes:,} bytes")
        yield column.to_pylist()


_MOST_BYTES = 128 * 1024**2
"""Of the file, and of the texts of its rows: of each of `MOST_ROWS` rows 1,300."""
_MOST_MARGIN = 100.0
"""ln of a figure over its limit: of 64 bits each, 44."""
_LATER = "queue_delay_ns"
"""A column that files of before have not."""


def _checked(row: Row) -> Row:
    """Raises ValueError for a row that no search makes."""
    kinds = get_type_hints(Row)
    for name, value in vars(row).items():
        kind = kinds[name]
        if value is None and kind in (str, int, float, bool):
            raise ValueError(f"{name} is not there")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is no number")
    is_verdict = row.verdict in (KEPT, BROKEN, UNDECIDED, INVALID)
    if not (
        is_component(row.run) and is_verdict and row.rate_hz > 0 and abs(row.margin or 0.0) < _MOST_MARGIN
    ):
        raise ValueError("a row of it is of no run")
    return row
