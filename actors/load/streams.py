"""Requests that are answered response by response: what came of each, judged as it comes, and its rows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.actors.load.recorder import Recorder
from squall.actors.messages.grpc_stream import GrpcStreamTemplate
from squall.actors.messages.http_stream import HttpStreamTemplate
from squall.actors.messages.template import Template
from squall.actors.messages.value_check import StreamCheck
from squall.actors.spill import SpillFile
from squall.analysis.storage.schema import HUNG_UP, arrow_schema
from squall.models.spec import ModelSpec
from squall.scenarios.exact.hashing import mix64

_FIELDS = ("request_id", "index", "t_ns", "response_bytes", "tokens", "is_final", "phase", "target")
_NONE = -1
_MOST_RESPONSES = 1 << 18
"""To one request: a row of each is kept until it ends."""
_SALT = 0x57  # of what is drawn here, so that it is no draw of the plan's


@dataclass(frozen=True)
class StreamRule:
    """`tokens`: the output whose elements are tokens, of the models that have it; None: none. The client hangs up on
    `cancel_share` of requests, which their ids say, once `cancel_after` responses have come."""

    tokens: str | None = None
    cancel_share: float = 0.0
    cancel_after: int = 0

    def tokens_of(self, spec: ModelSpec) -> str | None:
        """The output of that model whose elements are tokens."""
        return self.tokens if any(one.name == self.tokens for one in spec.outputs) else None

    def is_cut_short(self, request_id: int) -> bool:
        """Whether the client hangs up on it: the same for any number of workers."""
        if not self.cancel_share:
            return False
        return int(mix64(np.array([request_id]), _SALT)[0]) < self.cancel_share * 2.0**64


@dataclass
class _Stream:
    """What has come of a request: (t_ns, bytes, tokens) of each response, and what was wrong first; `is_wrong`: a
    value."""

    is_cut_short: bool
    responses: list[tuple[int, int, int]] = field(default_factory=list)
    outcome: str = "ok"
    detail: str = ""
    is_hung_up: bool = False
    is_wrong: bool = False


class Streams:
    """`take` and `end` in the thread that sends; rows go to a file of their own, in that of the `recorder`.

    Rows that the file does not take (full disk) stay in memory, for `close` to return.
    """

    def __init__(
        self,
        path: Path,
        labels: dict[str, str],
        worker: int,
        phases: Sequence[str],
        targets: Sequence[str],
        rule: StreamRule,
        recorder: Recorder,
    ) -> None:
        """`labels`: run and node of every row. Raises OSError where `path` cannot be opened."""
        self._labels = labels
        self._worker = worker
        self._words = {"phase": list(phases), "target": list(targets)}
        self._rule = rule
        self._recorder = recorder
        self._streams: dict[int, _Stream] = {}
        self._rows = array("q")
        self._kept: list[pa.Table] = []
        self._file = SpillFile(path, "responses")
        self._file.rehearse(self._to_table(np.zeros((1, len(_FIELDS)), np.int64)))

    @property
    def error(self) -> str:
        """Why the file could not be written; empty while it can."""
        return self._file.error

    def take(self, token: int, t_ns: int, message: bytes, template: Template, wire_id: bytes) -> bool:
        """A response has come; whether the client is to hang up. What follows a wrong one counts, and is not judged."""
        assert isinstance(template, GrpcStreamTemplate | HttpStreamTemplate)
        stream = self._streams.get(token)
        if stream is None:
            stream = self._streams[token] = _Stream(self._rule.is_cut_short(token))
        n_tokens = _NONE
        if stream.outcome == "ok":
            judged = template.judge_response(message, wire_id, len(stream.responses))
            stream.outcome, stream.detail, n_tokens, stream.is_wrong = judged
        if stream.outcome in ("server_error", "rejected"):  # what Triton says of a failure is no response
            return False
        if len(stream.responses) >= _MOST_RESPONSES:
            stream.outcome, stream.detail = "bad_reply", f"it has more than {_MOST_RESPONSES} responses"
            return True
        stream.responses.append((t_ns, len(message), n_tokens))
        stream.is_hung_up = stream.is_cut_short and len(stream.responses) >= self._rule.cancel_after
        return stream.is_hung_up

    def end(self, token: int, phase: int, template: Template, outcome: str, why: str) -> tuple[str, str, int]:
        """The request has ended with that outcome as its call tells it. (outcome, detail, bytes of all responses)."""
        stream = self._streams.pop(token, None) or _Stream(False)
        n = len(stream.responses)
        if stream.is_hung_up:
            outcome, why = "ok", f"{HUNG_UP} {n} responses, as clients.stream.cancel asks"
        elif outcome == "ok" and not n and stream.outcome == "ok" and not template.spec.is_decoupled:
            outcome, why = "bad_reply", "the stream ended without a response"
        if stream.outcome != "ok":
            outcome, why = stream.outcome, stream.detail
        if template.compares(token):
            outcome, why = self._compared(stream, template, outcome, why)
        is_whole = outcome == "ok" and not stream.is_hung_up
        for index, (t_ns, n_bytes, n_tokens) in enumerate(stream.responses):
            is_final = is_whole and index == n - 1
            self._rows.extend((token, index, t_ns, n_bytes, n_tokens, is_final, phase, template.target))
        return outcome, why, sum(n_bytes for _, n_bytes, _ in stream.responses)

    def _compared(self, stream: _Stream, template: Template, outcome: str, why: str) -> tuple[str, str]:
        """(outcome, detail) of a request whose responses' values were compared, once their number is too; of one that
        failed otherwise nothing is said of its values."""
        check = template.check
        assert isinstance(check, StreamCheck)
        if outcome == "ok" and not stream.is_hung_up:
            fault = check.fault_of_count(len(stream.responses))
            if fault:
                outcome, why, stream.is_wrong = "bad_reply", fault, True
        if outcome == "ok" or stream.is_wrong:
            check.count(stream.is_wrong)
        return outcome, why

    def flush(self) -> None:
        """Hands the rows so far to the thread that writes."""
        if self._rows:
            rows, self._rows = self._rows, array("q")
            self._recorder.later(partial(self._write, rows))

    def close(self) -> list[pa.Table]:
        """Closes the file, once the recorder is closed; the rows that it could not take."""
        if self._rows:
            self._write(self._rows)
        self._file.close()
        return self._kept

    def _write(self, rows: array[int]) -> None:
        table = self._to_table(np.frombuffer(rows, np.int64).reshape(-1, len(_FIELDS)))
        if not self._file.write(table):
            self._kept.append(table)

    def _to_table(self, rows: NDArray[np.int64]) -> pa.Table:
        n, of = len(rows), dict(zip(_FIELDS, rows.T.copy(), strict=True))

        def coded(codes: NDArray[np.int64], words: Sequence[str]) -> pa.Array:
            return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(words))

        constant = {name: coded(np.zeros(n, np.int64), [text]) for name, text in self._labels.items()}
        columns = {
            **constant,
            **{name: coded(of[name], words) for name, words in self._words.items()},
            **{name: pa.array(of[name]) for name in ("request_id", "index", "t_ns", "response_bytes")},
            "worker": pa.array(np.full(n, self._worker, np.int64)),
            "tokens": pa.array(of["tokens"], mask=of["tokens"] == _NONE),
            "is_final": pa.array(of["is_final"] != 0),
        }
        schema = arrow_schema("responses")
        return pa.table([columns[name] for name in schema.names], schema=schema)
