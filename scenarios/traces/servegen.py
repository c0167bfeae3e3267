"""ServeGen's client windows: parameters of each client's arrivals in windows of 600 s, from which arrivals are drawn.

Two layouts (Alibaba ServeGen, arXiv 2505.09999, `data/*/*/chunk-N-trace.csv`): the chunk files of one client each,
without a header, `start_s,rate_hz,cv,family,shape,scale_s`, where a window without arrivals has no family; and a
table of many clients with a header, `model,client,window_start_s,rate,cv,iat_family,shape,scale`. A folder of chunk
files is read as one trace if the format is named.

Drawn is, for each client and window, a stationary renewal process of the window's rate with gaps of its family and
shape: the first gap from the equilibrium law, so that the mean count is exactly rate times length and clients do
not all begin at once (ServeGen itself stretches the gaps of a window to end exactly with it). The published
scale is not used: rate and shape fix it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from squall.scenarios.exact import renewals
from squall.scenarios.records import Frozen
from squall.scenarios.traces.faults import RowFault, no_column, shown
from squall.scenarios.traces.instants import Clock
from squall.scenarios.traces.options import NS_PER_UNIT, TraceOptions
from squall.scenarios.traces.part import session_number
from squall.scenarios.traces.rows import Fields, Rows
from squall.scenarios.traces.stamps import Stamps
from squall.scenarios.traces.tables import Table, delimited

WINDOW_S = 600
FAMILIES = ("Gamma", "Weibull", "Exponential")
_CHUNK_HEADER = ("window_start_s", "rate", "cv", "iat_family", "shape", "scale")
_CHUNK_NAME = re.compile(r"chunk-(\w+)-trace", re.ASCII)
_SEED = 0
_MOST_IN_WINDOW = 10**8
_LARGEST_SHAPE = 1e9  # gaps are then equal to 1 part in 30,000
_LAST_START_S = 9e9  # of int64 ns


class ClientWindow(Frozen):
    """What one client does from `start_s` on, for a window's length. `row` of the file that says so."""

    client: str
    start_s: float
    rate_hz: float
    law: renewals.Law  # of its gaps over their mean
    row: int


def servegen(path: Path, _: TraceOptions) -> Table:
    """Arrivals drawn from the windows of a table, a chunk file, or a folder of these, merged; a session is a client.

    The same windows give the same arrivals, whatever the order of the rows: each client and window has a generator of
    its own. Raises RowFault.
    """
    files = sorted(path.glob("chunk-*-trace.csv*")) if path.is_dir() else [path]
    if not files:
        raise RowFault(None, "a folder without chunk-N-trace.csv files; name one trace file")
    by_start: dict[float, list[ClientWindow]] = {}
    for file in files:
        for window in _windows(file):
            by_start.setdefault(window.start_s, []).append(window)
    if not by_start:
        raise RowFault(None, "no window with a rate above 0")
    starts = sorted(by_start)
    window_s = min([WINDOW_S, *np.diff(starts).tolist()])

    def read(_: Fields, __: Clock) -> Iterator[Rows]:
        for start_s in starts:
            yield _drawn(by_start[start_s], window_s)

    names = ("start", "client")
    stamps = Stamps("start", is_only=True)
    return Table(names, dict.fromkeys(names, ()), (), read, names, stamps=stamps)


def _drawn(windows: list[ClientWindow], length_s: float) -> Rows:
    """Arrivals of all clients in one window, in the order of time."""
    import pyarrow as pa

    stamps = []
    for window in windows:
        number = session_number(window.client)
        start_ns = round(window.start_s * NS_PER_UNIT["s"])
        rng = np.random.default_rng((_SEED, number % 2**63, start_ns))  # -1: rows without a client
        times_s = window.law.points(rng, window.rate_hz * length_s) / window.rate_hz
        stamps.append(start_ns + (times_s * NS_PER_UNIT["s"]).astype(np.int64))
    stamp_ns = np.concatenate(stamps)
    order = np.argsort(stamp_ns, kind="stable")
    places = np.repeat(np.arange(len(windows)), [part.size for part in stamps])[order]
    clients = pa.array([window.client for window in windows], pa.string()).take(pa.array(places))
    columns = {"start": pa.array(stamp_ns[order], pa.timestamp("ns")), "client": clients}
    return Rows(columns, np.array([window.row for window in windows])[places])


def law_of(family: str, shape: float) -> renewals.Law:
    """The gaps of a family. Raises ValueError for those that no process is drawn of."""
    if family == "Weibull":
        return renewals.weibull_law(shape)
    cv = 1 / math.sqrt(shape)
    return renewals.gamma_law(cv * cv)


def _windows(path: Path) -> Iterator[ClientWindow]:
    """The windows of `path` that have arrivals. Raises RowFault for a missing column and a row that is wrong."""
    table = delimited(path)
    table = table if "rate" in table.names else delimited(path, bare_header=_CHUNK_HEADER)
    for name in ("window_start_s", "rate", "iat_family", "shape"):
        if name not in table.names:
            raise no_column(table.names, name)
    names = [name for name in (*_CHUNK_HEADER, "client", "model") if name in table.names]
    named_chunk = _CHUNK_NAME.search(path.name)
    client = named_chunk[1] if named_chunk else path.name
    for rows in table.read(Fields("window_start_s", durations=tuple(names)), Clock("s")):
        texts = [rows.columns[name].cast("string").to_pylist() for name in names]
        for index, (row, *cells) in enumerate(zip(rows.row.tolist(), *texts, strict=True)):
            of_row = dict(zip(names, cells, strict=True))
            try:
                if index in rows.faults:
                    raise ValueError(rows.faults[index])
                window = _window(of_row, client, row)
            except ValueError as error:
                raise RowFault(row, f"{error}; mend it") from error
            if window is not None:
                yield window


def _window(cells: dict[str, str], client: str, row: int) -> ClientWindow | None:
    """The window of a row, None for one without arrivals. Raises ValueError."""
    family = cells["iat_family"].strip()
    rate_hz = _number(cells["rate"] or "0", "rate")
    if not family or rate_hz == 0:
        return None
    if family not in FAMILIES:
        raise ValueError(f"the family {shown(family)} is not one of {', '.join(FAMILIES)}")
    shape = 1.0 if family == "Exponential" else _number(cells["shape"], "shape")
    start_s = _number(cells["window_start_s"], "start")
    is_in_range = 0 < shape <= _LARGEST_SHAPE and rate_hz * WINDOW_S <= _MOST_IN_WINDOW
    if not is_in_range or start_s > _LAST_START_S:
        raise ValueError(f"shape {shape:g}, rate {rate_hz:g} or start {start_s:g} is out of range")
    law = law_of(family, shape)
    names = [cells.get("model", "").strip(), cells["client"].strip()] if "client" in cells else [client]
    return ClientWindow("/".join(filter(None, names)), start_s, rate_hz, law, row)


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"the {what} {shown(text)} is not a number of 0 or more")
    return value
