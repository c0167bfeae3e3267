"""`probes.parquet`: a row for each run of a search, with what it was for, what came of it and where it lies."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import pyarrow as pa

from squall.analysis.capacity.level import Level, is_short
from squall.analysis.capacity.probe import Probe
from squall.scenarios.errors import StoreError

_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


@dataclass(frozen=True)
class Row:
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
    n: int | None
    n_ok: int | None
    n_unanswered: int | None
    offered_hz: float | None
    throughput_hz: float | None
    good_hz: float | None
    response_mean_ns: float | None
    response_p50_ns: float | None
    response_p95_ns: float | None
    response_p99_ns: float | None
    in_flight_mean_count: float | None
    backlog_growth_ratio: float | None
    peak_1s_hz: float | None
    peak_100ms_hz: float | None
    n_bursts: int | None
    n_busy_periods: int | None
    queue_delay_ns: int | None = None

    @property
    def is_short(self) -> bool:
        """Whether its figures hang on few bursts or busy periods."""
        return self.n_bursts is not None and is_short(self.n_bursts, self.n_busy_periods or 0)

    @property
    def probe(self) -> Probe:
        """What the search makes of it."""
        return Probe(
            self.seed,
            self.rate_hz,
            self.verdict,
            self.margin,
            self.binding,
            self.is_saturated,
            self.reason,
            self.cause,
        )


def level_columns(level: Level | None) -> dict[str, Any]:
    """The columns of a row that are figures of its level; None each of no level."""
    names = [field.name for field in dataclasses.fields(Level)]
    return {name: None if level is None else getattr(level, name) for name in names}


def schema() -> pa.Schema:
    """Of `probes.parquet`."""
    return pa.schema([(name, _TYPES[_plain(kind)]) for name, kind in get_type_hints(Row).items()])


def rows_bytes(rows: Sequence[Row]) -> bytes:
    """The file."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dataclasses.asdict(one) for one in rows], schema=schema()), sink)
    return sink.getvalue()


def read_rows(path: str) -> list[Row]:
    """The rows of a file. Raises StoreError where it is none."""
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        names = [name for name in schema().names if name in table.column_names or name != "queue_delay_ns"]
        return [Row(**one) for one in table.select(names).to_pylist()]
    except (OSError, pa.ArrowInvalid, KeyError, TypeError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StoreError(f"{path} is not the probes of a search: {told}") from error


def _plain(kind: Any) -> Any:
    """The type of a field that may be None."""
    arguments = [one for one in getattr(kind, "__args__", ()) if one is not type(None)]
    return arguments[0] if arguments else kind
