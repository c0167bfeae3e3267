"""The listener of Locust's request event: each request that Locust counts becomes a record.

    user:  send ──── response_time ────▶ reply, event
                                         done_ns, stamped here; sent_ns = done_ns - response_time

Never Locust's wall clock. Under gevent, in the process of a Locust worker.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from squall.actors.locust.outcomes import outcome_of
from squall.actors.locust.row_ring import NEVER, NONE, RowWriter
from squall.actors.triton_user.handed import SENT_KEY, Sent
from squall.analysis.storage.schema import OUTCOME_CODE
from squall.scenarios.units import NS_PER_MS

_LONGEST_DETAIL = 500
_SCHEME_END = 8
"""Where the host of `http://…` or `https://…` has begun."""


def _sent_ns(done_ns: int, response_time: float | None) -> int:
    """Of a response time in ms that user code may have made up: NEVER where no clock could have shown it."""
    if response_time is None or not 0 <= response_time * NS_PER_MS <= done_ns:
        return NEVER
    return done_ns - round(response_time * NS_PER_MS)


class RequestRows:
    """Records what `on_request` hears, from `begin` to `end`; ids are `worker`, `worker` + `n_workers`, and so on."""

    def __init__(
        self,
        writer: RowWriter,
        worker: int,
        n_workers: int,
        phase_ends_ns: Sequence[int],
        targets: Mapping[str, int],
        words_of: Callable[[Any], str],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`phase_ends_ns`: from the start instant, sorted; `targets`: numbers of the servers by the front of their
        URLs, scheme to port; `words_of`: Locust's own words for an exception; `now_ns`: the node's clock."""
        self._now_ns = now_ns
        self._writer = writer
        self._next_id = worker
        self._n_workers = n_workers
        self._phase_ends_ns = phase_ends_ns
        self._targets = targets
        self._words_of = words_of
        self._ends_ns: list[int] = []
        self._is_on = False
        self._ok = OUTCOME_CODE["ok"]
        self.n_failures = 0

    def place_phases(self, start_ns: int) -> None:
        """The start instant, on this node's clock."""
        self._ends_ns = [start_ns + one for one in self._phase_ends_ns]

    def begin(self) -> None:
        """From now on: Locust's statistics are empty."""
        self._is_on = True

    def end(self) -> None:
        """From now on nothing is recorded: Locust's last report is made."""
        self._is_on = False

    def next_id(self) -> int:
        """One that no other request of the run has."""
        found = self._next_id
        self._next_id += self._n_workers
        return found

    def on_request(
        self,
        request_type: object,
        name: object,
        response_time: float | None,
        response_length: float | None,
        exception: object = None,
        context: Mapping[str, Any] | None = None,
        url: object = None,
        **_: object,
    ) -> None:
        """See `locust.event.Events.request`: `response_time` in ms, None where it was not measured."""
        now_ns = self._now_ns()
        if not self._is_on:
            return
        sent: Sent | None = context.get(SENT_KEY) if context else None
        writer = self._writer
        if sent is None:
            done_ns, request_id, rows, n_bytes, model = now_ns, self.next_id(), 0, 0, NONE
            target = self._target_of(url) if isinstance(url, str) else NONE
            outcome, detail = self._ok, ""
            if exception:
                outcome, detail = OUTCOME_CODE[outcome_of(exception)], self._detail_of(exception)
        else:
            done_ns, request_id, rows, n_bytes = sent.done_ns, sent.request_id, sent.rows, sent.request_bytes
            target, model, outcome, detail = sent.target, sent.model, OUTCOME_CODE[sent.outcome], sent.detail
        if exception:
            self.n_failures += 1
        sent_ns = _sent_ns(done_ns, response_time)
        writer.record(
            request_id, sent_ns, done_ns, int(response_length or 0), rows, n_bytes,
            writer.code_of(str(request_type)), writer.code_of(str(name)), writer.code_of(detail),
            self._phase_of(done_ns if sent_ns == NEVER else sent_ns), outcome, target, model,
        )  # fmt: skip

    def _phase_of(self, at_ns: int) -> int:
        return min(bisect_right(self._ends_ns, at_ns), len(self._ends_ns) - 1)

    def _target_of(self, url: str) -> int:
        end = url.find("/", _SCHEME_END)
        return self._targets.get(url if end < 0 else url[:end], NONE)

    def _detail_of(self, exception: object) -> str:
        is_own = type(exception).__name__ == "CatchResponseError"
        words = str(exception) if is_own else self._words_of(exception)
        return " ".join(words.split())[:_LONGEST_DETAIL]
