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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.exact import renewals
from squall.scenarios.traces.parts.faults import RowFault, no_column, shown
from squall.scenarios.traces.parts.options import NS_PER_UNIT, TraceOptions, TraceUnit
from squall.scenarios.traces.parts.part import TracePart, session_number
from squall.scenarios.traces.readers.blocks import read_head, text_blocks
from squall.scenarios.traces.readers.chunk import Chunk, Mending
from squall.scenarios.traces.readers.delimited import sniff_delimiter, split_line

WINDOW_S = 600
FAMILIES = ("Gamma", "Weibull", "Exponential")
_CHUNK_HEADER = ("window_start_s", "rate", "cv", "iat_family", "shape", "scale")
_START_NAMES = ("window_start_s", "start", "start_s", "window_start")
_FAMILY_NAMES = ("iat_family", "family")
_CHUNK_NAME = re.compile(r"chunk-(\w+)-trace", re.ASCII)
_MOST_IN_WINDOW = 10**8
_LARGEST_SHAPE = 1e9  # gaps are then equal to 1 part in 30,000
_LAST_START_S = 9e9  # of int64 ns


@dataclass(frozen=True)
class ClientWindow:
    """What one client does from `start_s` on, for a window's length. `row` of the file that says so."""

    client: str
    start_s: float
    rate_hz: float
    family: str
    shape: float
    row: int


@dataclass(frozen=True)
class ServeGenSource:
    """Arrivals drawn from client windows, merged; a session is a client. A `Source`.

    The same seed gives the same arrivals, whatever the order of the rows: each client and window has a
    generator of its own.
    """

    windows: tuple[ClientWindow, ...]
    window_s: float
    seed: int
    unit: TraceUnit | None = "s"
    unit_is_assumed: bool = False
    size_names: tuple[str, ...] = ()
    has_sessions: bool = True
    tick_ns: int | None = None
    reading: None = None

    def chunks(self, mending: Mending) -> Iterator[Chunk]:
        """One chunk a window."""
        del mending
        by_start: dict[float, list[ClientWindow]] = {}
        for window in self.windows:
            by_start.setdefault(window.start_s, []).append(window)
        for start_s in sorted(by_start):
            yield self._window(by_start[start_s])

    def _window(self, clients: list[ClientWindow]) -> Chunk:
        stamps, sessions, rows = [], [], []
        for window in clients:
            number = session_number(window.client)
            start_ns = round(window.start_s * NS_PER_UNIT["s"])
            rng = np.random.default_rng((self.seed, number % 2**63, start_ns))  # -1: rows without a client
            times_s = renewal_times(rng, window, self.window_s)
            stamps.append(start_ns + (times_s * NS_PER_UNIT["s"]).astype(np.int64))
            sessions.append(np.full(times_s.size, number))
            rows.append(np.full(times_s.size, window.row))
        stamp_ns = np.concatenate(stamps)
        order = np.argsort(stamp_ns, kind="stable")
        row_of = np.concatenate(rows)[order]
        return Chunk(
            TracePart(stamp_ns[order], {}, np.concatenate(sessions)[order]), lambda i: int(row_of[i])
        )


def renewal_times(rng: np.random.Generator, window: ClientWindow, length_s: float) -> NDArray[np.float64]:
    """Times in [0, length_s) of a stationary renewal process of the window's rate, (n,) float64, sorted."""
    shape, length = window.shape, window.rate_hz * length_s
    if window.family == "Weibull":
        first, c2 = renewals.first_weibull_gap(rng, shape), renewals.weibull_c2(shape)
        times_s = renewals.renewal_points(
            rng, lambda rng, n: renewals.weibull_gaps(rng, shape, n), first, c2, length
        )
    else:
        c2 = _gamma_c2(shape)
        first = renewals.first_gamma_gap(rng, c2)
        times_s = renewals.renewal_points(
            rng, lambda rng, n: renewals.gamma_gaps(rng, c2, n), first, c2, length
        )
    times_s /= window.rate_hz
    return times_s


def _gamma_c2(shape: float) -> float:
    cv = 1 / math.sqrt(shape)
    return cv * cv


def servegen_source(path: Path, options: TraceOptions) -> ServeGenSource:
    """The windows of a table, a chunk file, or a folder of chunk files. Raises RowFault."""
    files = sorted(path.glob("chunk-*-trace.csv*")) if path.is_dir() else [path]
    if not files:
        raise RowFault(None, "a folder without chunk-N-trace.csv files; name one trace file")
    windows = [window for file in files for window in _windows(file, options.model)]
    if not windows:
        which = f" of the model {options.model!r}" if options.model else ""
        raise RowFault(None, f"no window{which} with a rate above 0")
    starts = np.unique([window.start_s for window in windows])
    step_s = float(np.diff(starts).min()) if starts.size > 1 else WINDOW_S
    return ServeGenSource(tuple(windows), min(step_s, WINDOW_S), options.seed)


def _windows(path: Path, model: str | None) -> Iterator[ClientWindow]:
    """The windows of `path` that have arrivals."""
    head = read_head(path)
    first = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    delimiter = sniff_delimiter(first)
    header = tuple(cell.strip() for cell in first.split(delimiter))
    named = "rate" in header
    named_chunk = _CHUNK_NAME.search(path.name)
    client = named_chunk[1] if named_chunk else path.name
    places = _places(header if named else _CHUNK_HEADER)
    for block in text_blocks(path):
        for row, line in block.lines():
            if named and row == 1:
                continue
            try:
                cells = split_line(line, delimiter)
                window = _window(cells, places, client, row)
            except (ValueError, IndexError) as error:
                what = str(error) if isinstance(error, ValueError) else f"has {len(cells)} columns, too few"
                raise RowFault(row, f"{what}; mend it") from error
            is_model = model is None or "model" not in places or cells[places["model"]] == model
            if window is not None and is_model:
                yield window


def _places(header: tuple[str, ...]) -> dict[str, int]:
    """Index of each column by what it means. Raises RowFault for one that is missing."""
    wanted: dict[str, tuple[str, ...]] = {
        "start": _START_NAMES,
        "rate": ("rate",),
        "family": _FAMILY_NAMES,
        "shape": ("shape",),
        "client": ("client",),
        "model": ("model",),
    }
    found: dict[str, int] = {}
    for meaning, names in wanted.items():
        place = next((header.index(name) for name in names if name in header), None)
        if place is not None:
            found[meaning] = place
        elif meaning not in ("client", "model"):
            raise no_column(header, names[0])
    return found


def _window(cells: list[str], places: dict[str, int], client: str, row: int) -> ClientWindow | None:
    """The window of a row, None for one without arrivals. Raises ValueError."""
    family = cells[places["family"]].strip()
    rate_hz = _number(cells[places["rate"]] or "0", "rate")
    if not family or rate_hz == 0:
        return None
    if family not in FAMILIES:
        raise ValueError(f"the family {shown(family)} is not one of {', '.join(FAMILIES)}")
    shape = 1.0 if family == "Exponential" else _number(cells[places["shape"]], "shape")
    if shape <= 0 or rate_hz * WINDOW_S > _MOST_IN_WINDOW:
        raise ValueError(f"shape {shape:g} or rate {rate_hz:g} is out of range")
    if shape > _LARGEST_SHAPE or (start_s := _number(cells[places["start"]], "start")) > _LAST_START_S:
        raise ValueError(f"shape {shape:g} or the start is too large")
    if family == "Weibull":
        renewals.refuse_weibull_shape(shape)
    else:
        renewals.refuse_c2(_gamma_c2(shape))
    names = [cells[places[name]].strip() for name in ("model", "client") if name in places]
    who = "/".join(name for name in names if name) if "client" in places else client
    return ClientWindow(who, start_s, rate_hz, family, shape, row)


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"the {what} {shown(text)} is not a number of 0 or more")
    return value
