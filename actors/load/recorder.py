"""Records of one worker: packed into preallocated buffers in the hot path, spilled to a local file beside it."""

from __future__ import annotations

import queue
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from squall.actors.spill import SpillFile, used_words
from squall.analysis.storage.schema import OUTCOMES, TEXT, arrow_schema
from squall.scenarios.foreign_text import without_secrets

NEVER = -1
"""An instant that was not reached."""

_RECORD = np.dtype(
    [
        ("request_id", "<i8"), ("scheduled_ns", "<i8"), ("sent_ns", "<i8"), ("first_byte_ns", "<i8"),
        ("done_ns", "<i8"), ("response_bytes", "<i8"), ("rows", "<i4"), ("request_bytes", "<i4"), ("phase", "<u1"),
        ("outcome", "<u1"), ("detail", "<u2"), ("target", "<u1"), ("kind", "<u1"),
    ]
)  # fmt: skip
_PACK = struct.Struct("<qqqqqqiiBBHBB")
ROW_BYTES = _PACK.size
assert _RECORD.itemsize == ROW_BYTES
RECORD_FIELDS = tuple((name, field[0].str, field[1]) for name, field in (_RECORD.fields or {}).items())
"""Name, numpy's type and offset of each field; the C lane compares them with its own."""
BUFFER_ROWS = 16_384
_LARGEST_DETAIL_COUNT = 65_535
_MANY_DETAILS = "further details were not kept: more than 65,535 different ones"


class Recorder:
    """Takes one record a request, O(1) and without allocation, and spills full buffers from its own thread.

    Memory is bounded: buffers of 16,384 rows, one filling and the rest on their way to the file. `flush` hands over
    what is there (once a second from the engine), so that a killed worker loses a second at most. Where the file
    cannot be written (full disk), rows stay in memory, `error` says why, and `close` returns them: nothing received
    is thrown away.
    """

    def __init__(
        self,
        path: Path,
        labels: dict[str, str],
        worker: int,
        phases: Sequence[str],
        targets: Sequence[str],
        request_kinds: Sequence[str],
        listener: Callable[[np.ndarray[Any, np.dtype[np.void]]], None] | None = None,
        secrets: Sequence[str] = (),
    ) -> None:
        """`labels`: run and node of every row; `request_kinds`: names of the models by number. `listener` hears of
        all rows, in the thread that writes them. `secrets`: what no detail repeats.

        Raises OSError where `path` cannot be opened.
        """
        self.n_recorded = 0
        self._labels = labels
        self._worker = worker
        self._listener = listener
        self._phases = list(phases)
        self.unchosen = len(targets)
        self._targets = [*targets, ""]
        self._request_kinds = list(request_kinds)
        self._secrets = secrets
        self._details = [""]
        self._detail_code = {"": 0}
        self._buffer = bytearray(BUFFER_ROWS * ROW_BYTES)
        self._n_rows = 0
        self._spill_file = SpillFile(path, "requests")
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self._kept: list[pa.Table] = []
        self._spill_file.rehearse(self._to_table(np.zeros(1, _RECORD)))
        self._writer = threading.Thread(target=self._work, name="squall-spill", daemon=True)
        self._writer.start()

    @property
    def error(self) -> str:
        """Why the spill file could not be written; empty while it can."""
        return self._spill_file.error

    def record(
        self, request_id: int, scheduled_ns: int, sent_ns: int, first_ns: int, done_ns: int, response_bytes: int,
        rows: int, request_bytes: int, phase: int, outcome: int, detail: str = "", target: int = 0,
        kind: int = 0,
    ) -> None:  # fmt: skip
        """One arrival's end. Instants in ns of the node's clock, NEVER where not reached; `outcome` an OUTCOME_CODE;
        `target` the number of its server, `unchosen` where it has none; `kind` that of its model."""
        code = self._detail_code.get(detail)
        if code is None:
            code = self.code_of(detail)
        _PACK.pack_into(
            self._buffer, self._n_rows * ROW_BYTES, request_id, scheduled_ns, sent_ns, first_ns, done_ns,
            response_bytes, rows, request_bytes, phase, outcome, code, target, kind,
        )  # fmt: skip
        self._n_rows += 1
        self.n_recorded += 1
        if self._n_rows == BUFFER_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hands the rows so far to the writer; does not wait for it."""
        if self._n_rows:
            self._buffer = self._exchange(self._buffer, self._n_rows)
            self._n_rows = 0

    def take_filled(self, buffer: bytearray, n_rows: int) -> bytearray:
        """Takes the rows that someone else has packed into `buffer`; returns a buffer for the next ones."""
        self.n_recorded += n_rows
        return self._exchange(buffer, n_rows)

    def _exchange(self, buffer: bytearray, n_rows: int) -> bytearray:
        self._jobs.put(partial(self._write, buffer, n_rows))
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return bytearray(BUFFER_ROWS * ROW_BYTES)

    def later(self, job: Callable[[], None]) -> None:
        """Calls `job` in the thread that writes the spill file, so that it delays no send."""
        self._jobs.put(job)

    def close(self) -> list[pa.Table]:
        """Writes what is left and closes the file; returns the rows that it could not take, in `requests` schema."""
        self.flush()
        self._jobs.put(None)
        self._writer.join()
        self._spill_file.close()
        return self._kept

    def code_of(self, detail: str) -> int:
        """What stands for it in a record."""
        detail = without_secrets(detail, self._secrets)
        if detail in self._detail_code:
            return self._detail_code[detail]
        if len(self._details) >= _LARGEST_DETAIL_COUNT:
            detail = _MANY_DETAILS
            if detail in self._detail_code:
                return self._detail_code[detail]
        code = len(self._details)
        self._details.append(detail)
        self._detail_code[detail] = code
        return code

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _write(self, buffer: bytearray, n_rows: int) -> None:
        records = np.frombuffer(buffer, _RECORD, n_rows)
        if self._listener is not None:
            self._listener(records)
        table = self._to_table(records)
        if not self._spill_file.write(table):
            self._kept.append(table)
        self._free.put(buffer)

    def _to_table(self, records: np.ndarray[Any, np.dtype[np.void]]) -> pa.Table:
        n = len(records)
        zeros = pa.array(np.zeros(n, np.int32))

        def constant(text: str) -> pa.Array:
            return pa.DictionaryArray.from_arrays(zeros, pa.array([text]))

        def coded(name: str, texts: Sequence[str]) -> pa.Array:
            return pa.DictionaryArray.from_arrays(pa.array(records[name].astype(np.int32)), pa.array(texts))

        def instant(name: str) -> pa.Array:
            values = records[name]
            return pa.array(values.copy(), mask=values == NEVER)

        # readers list the words of a column: none that no row has
        n_targets = self.unchosen + bool((records["target"] == self.unchosen).any())
        columns = {
            **{name: constant(text) for name, text in self._labels.items()},
            "target": coded("target", self._targets[:n_targets]),
            "request_kind": used_words(records["kind"], self._request_kinds),
            "phase": coded("phase", self._phases),
            "outcome": coded("outcome", OUTCOMES),
            "detail": used_words(records["detail"], self._details),
            "worker": pa.array(np.full(n, self._worker, np.int64)),
            **{name: pa.nulls(n, TEXT) for name in ("method", "name")},
            **{name: instant(name) for name in ("scheduled_ns", "sent_ns", "first_byte_ns", "done_ns")},
            **{
                name: pa.array(records[name].astype(np.int64))
                for name in ("request_id", "rows", "request_bytes", "response_bytes")
            },
        }
        schema = arrow_schema("requests")
        return pa.table([columns[name] for name in schema.names], schema=schema)
