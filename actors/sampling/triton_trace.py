"""Triton's trace API: on which servers it holds, how it is switched on and off, and what it wrote.

One traced request as Triton writes it, and a request of an ensemble's model inside it (`server/src/tracer.cc`):

    {"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":1}]},…,
    {"id":1,"model_name":"m","model_version":1,"request_id":"000000000042"},
    {"id":1,"timestamps":[{"name":"REQUEST_START","ns":3}]},…,{"id":1,"timestamps":[{"name":"HTTP_SEND_END","ns":9}]},
    {"id":2,"model_name":"part","model_version":1,"request_id":"000000000042","parent_id":1},…

What has one id stands together, and all of a request is in one file: `FILE.0`, `FILE.1`, … of a `[…]` each while the
server runs, or `FILE` alone at its end. Names and request ids are written as they came, without JSON's escapes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from squall.actors.net.access import PLAIN, Access
from squall.actors.net.triton_control import Control, ControlError
from squall.actors.spill import bounded
from squall.analysis.storage.schema import arrow_schema
from squall.models.payload import ID_DIGITS
from squall.scenarios.foreign_file import plain_opener
from squall.scenarios.foreign_text import json_of

TABLE = "triton_traces"
TRACE = "trace"
"""Name of the file that a server's first launch is given; `TRACE-1`, `TRACE-2`, … those of the launches after it."""
LOG_FREQUENCY = 1_000
"""Requests a file. As many are lost with a server that is killed; a million requests make a thousand files."""

_FIRST_SOUND = (2, 57)
_VERSION = re.compile(r"(\d+)\.(\d+)\.\d+([-.+a-z].*)?")
_SETTING = "/v2/trace/setting"
_ON, _OFF = "TIMESTAMPS", "OFF"

_FOUND_CHARACTERS = 100
_PIECE_BYTES = 1 << 20
_MOST_RECORD_BYTES = 16 << 20
_ROWS_A_TABLE = 20_000
_RECORD_START = b',{"id":'
_BETWEEN = re.compile(r'(?<=\}),(?=\{"id":)')
_DECODER = json.JSONDecoder(strict=False)  # a request id may hold control characters

_FIRST = {
    "HTTP_RECV_START": ("recv_start_ns",),
    "HTTP_RECV_END": ("recv_end_ns",),
    "GRPC_WAITREAD_END": ("recv_start_ns", "recv_end_ns"),
    "REQUEST_START": ("request_start_ns",),
    "QUEUE_START": ("queue_start_ns",),
    "COMPUTE_START": ("compute_start_ns",),
    "COMPUTE_INPUT_END": ("compute_input_end_ns",),
    "COMPUTE_OUTPUT_START": ("compute_output_start_ns",),
    "COMPUTE_END": ("compute_end_ns",),
    "REQUEST_END": ("request_end_ns",),
    "HTTP_SEND_START": ("send_start_ns",),
    "GRPC_SEND_START": ("send_start_ns",),
}
"""Columns of the names that count when they come first. GRPC_WAITREAD_START is not among them: there the server began
to wait for any request, which may be seconds before this one arrived."""
_LAST = {"HTTP_SEND_END": "send_end_ns", "GRPC_SEND_END": "send_end_ns"}
"""A decoupled model sends several replies: the last one ends the request."""


def trace_holds(version: str) -> bool:
    """Whether a server of `version` (2.51.0, …) can trace every request without crashing: 2.57 and later.

    Until 2.56 the release of a trace deletes a mutex that is locked, which ends the server after some thousand
    requests (issues 7795 and 8144 of triton-inference-server/server). False for what is no version, as an image's tag.
    """
    found = _VERSION.fullmatch(version.strip())
    return found is not None and (int(found[1]), int(found[2])) >= _FIRST_SOUND


def trace_reason(version: str | None) -> str | None:
    """Why a server of `version` (None: not known before it starts) is not traced; None where it can be."""
    least = ".".join(map(str, _FIRST_SOUND))
    if version is None:
        return f"the server's version is not known before it starts, and below {least} Triton's trace API crashes it"
    if not trace_holds(version):
        return f"Triton {version} crashes while its trace API records every request; {least} and later hold"
    return None


def trace_options(file: Path) -> list[str]:
    """Options of tritonserver that let `TraceSwitch` record every request to `file`.0, .1, …; off until then.

    The file cannot be set later: Triton takes no path over the network.
    """
    settings = (
        "mode=triton", "rate=1", f"level={_OFF}", f"triton,file={file}", f"triton,log-frequency={LOG_FREQUENCY}"
    )  # fmt: skip
    return [f"--trace-config={setting}" for setting in settings]


def trace_files(file: Path) -> list[Path]:
    """What a server with `trace_options(file)` has written so far, oldest first."""
    numbered = [
        (int(number), path)
        for path in file.parent.glob(f"{file.name}.*")
        if (number := path.name.removeprefix(f"{file.name}.")).isdecimal()
    ]
    return [path for _, path in sorted(numbered)] + ([file] if file.exists() else [])


def traces_in(folder: Path) -> list[Path]:
    """Files of launches in a server's folder of which something was written, by whatever process."""
    names = (
        re.fullmatch(rf"({TRACE}(?:-[0-9]+)?)(?:\.[0-9]+)?", path.name) for path in folder.glob(f"{TRACE}*")
    )
    return sorted({folder / name[1] for name in names if name is not None})


class TraceSwitch:
    """Turns the recording of all models on and off while the server runs. Use it from one thread.

    Requests that are in the server when it is turned off are still recorded to their end; then the file that they are
    in is written, full or not.
    """

    def __init__(self, url: str, access: Access = PLAIN) -> None:
        """Raises OSError for files of TLS that cannot be used."""
        self._control = Control(url, access)

    def turn_on(self) -> None:
        """Records every request that arrives from now on. Raises ControlError where the server does not."""
        self._set(_ON)

    def turn_off(self) -> None:
        """Records no further request. Raises ControlError where the server does not say so."""
        self._set(_OFF)

    def close(self) -> None:
        """Closes its connection."""
        self._control.close()

    def _set(self, level: str) -> None:
        body = json.dumps({"trace_level": [level]}).encode()
        answer = self._control.ask(_SETTING, "POST", body)
        try:
            setting = json_of(answer)
            levels, rate = setting["trace_level"], setting["trace_rate"]
        except (ValueError, KeyError, TypeError) as error:
            raise ControlError(f"{_SETTING} gave no trace setting") from error
        if levels != [level] or (level == _ON and str(rate) != "1"):
            found = f"level {levels} at rate {rate}"[:_FOUND_CHARACTERS]
            raise ControlError(f"the server traces {found}, not {level} of every request")


def read_traces(files: Iterable[Path], labels: Mapping[str, str], losses: list[str]) -> Iterator[pa.Table]:
    """Tables of at most 20,000 requests, in the order of the files; instants on the node's CLOCK_MONOTONIC.

    `labels`: run, node and server of every row. What was not reached is null; a request that never came as far as a
    model has an empty `model`. What cannot be read is told in `losses` and left out, the rest is kept.
    """
    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            for trace in _traces(file, losses):
                rows.append({**labels, "phase": "", **trace})
                if len(rows) == _ROWS_A_TABLE:
                    yield _table(rows)
                    rows = []
        except OSError as error:
            losses.append(f"{TABLE}: {file.name} cannot be read: {error.strerror}")
    if rows:
        yield _table(rows)


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=arrow_schema(TABLE))


def _traces(file: Path, losses: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of one file, but for `labels`; consecutive records of one id are one row."""
    trace: dict[str, Any] = {}
    n_broken = 0
    for piece in _pieces(file):
        records, n_bad = _records(piece)
        n_broken += n_bad
        for record in records:
            if record["id"] != trace.get("trace_id"):
                if trace:
                    yield trace
                trace = _new_trace(record["id"])
            _take(trace, record)
    if trace:
        yield trace
    if not _is_whole(file):
        losses.append(
            f"{TABLE}: {file.name} has no end, the server died over it: its last row may be cut off"
        )
    if n_broken:
        losses.append(f"{TABLE}: {n_broken} records of {file.name} cannot be read")


def _is_whole(file: Path) -> bool:
    """Whether Triton has finished the file."""
    with open(file, "rb", opener=plain_opener) as data:
        data.seek(max(0, data.seek(0, os.SEEK_END) - len(b"}]}]")))
        return _has_end(data.read().removeprefix(b"["))


def _has_end(text: bytes) -> bool:
    """Whether the last record and the list that holds all are closed, or the list is empty. A record without instants
    is never the last one."""
    return text.endswith(b"}]}]") or text == b"]"


def _pieces(file: Path) -> Iterator[str]:
    """Whole records, separated by commas, about 1 MiB at a time; the last piece of a file that was cut off ends in a
    part of one, and so does one of 16 MiB in which none begins."""
    with open(file, "rb", opener=plain_opener) as data:
        left = data.read(1).replace(b"[", b"")
        while chunk := data.read(_PIECE_BYTES):
            left += chunk
            cut = left.rfind(_RECORD_START)
            if cut <= 0 and len(left) > _MOST_RECORD_BYTES:
                cut = len(left)
            if cut > 0:
                yield left[:cut].decode(errors="replace")
                left = left[cut + 1 :]
    yield (
        left.removesuffix(b"]").decode(errors="replace") if _has_end(left) else left.decode(errors="replace")
    )


def _records(piece: str) -> tuple[list[dict[str, Any]], int]:
    """The records of a piece, and how many of its parts are none. A piece without fault is read at once: that is
    quick."""
    try:
        found, n_bad = _DECODER.decode(f"[{piece}]"), 0
    except (ValueError, RecursionError):
        found, n_bad = [], 0
        for part in _BETWEEN.split(piece):
            try:
                record, end = _DECODER.raw_decode(part)
                found.append(record)
                n_bad += end < len(part.rstrip(","))  # behind it, the beginning of one that was cut off
            except (ValueError, RecursionError):
                n_bad += 1
    records = [record for record in found if _is_record(record)]
    return records, n_bad + len(found) - len(records)


def _is_record(found: Any) -> bool:
    """Whether it is an object with an id whose instants are instants."""
    if type(found) is not dict or not _is_int64(found.get("id")) or not _is_int64(found.get("parent_id", 0)):
        return False
    stamps = found.get("timestamps")
    if type(stamps) is not list:
        return stamps is None
    for stamp in stamps:
        if type(stamp) is not dict or type(stamp.get("name")) is not str or not _is_int64(stamp.get("ns")):
            return False
    return True


def _is_int64(found: Any) -> bool:
    return type(found) is int and 0 <= found < 1 << 63


def _new_trace(trace_id: int) -> dict[str, Any]:
    return {
        "trace_id": trace_id, "parent_trace_id": None, "model": "", "version": "", "request_id": None,
        "protocol": "",
    }  # fmt: skip


def _take(trace: dict[str, Any], record: Mapping[str, Any]) -> None:
    """Adds what one record says to its trace."""
    if "model_name" in record:
        text = str(record.get("request_id", ""))
        is_ours = len(text) == ID_DIGITS and text.isascii() and text.isdigit()
        trace["request_id"] = int(text) if is_ours else None
        trace["parent_trace_id"] = record.get("parent_id")
        trace["model"] = bounded(str(record["model_name"]))
        trace["version"] = bounded(str(record.get("model_version", "")))
    for stamp in record.get("timestamps") or ():
        name, t_ns = stamp["name"], stamp["ns"]
        for column in _FIRST.get(name, ()):
            trace.setdefault(column, t_ns)
        if name in _LAST:
            trace[_LAST[name]] = t_ns
        if name[:5] in ("HTTP_", "GRPC_"):
            trace["protocol"] = name[:4].lower()
