"""One request to a server before the load, sent as the load sends it: is it taken, and is its reply as it should be?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.actors.clock import SystemClock
from squall.actors.load.client import Client, Exchange
from squall.actors.load.grpc_client import GrpcClient
from squall.actors.load.http_client import HttpClient
from squall.actors.load.shared_memory import Places
from squall.actors.load.targets import TargetSettings, Wire, route_of
from squall.actors.messages.grpc_stream import GrpcStreamTemplate
from squall.actors.messages.gzip_wire import SettlingBytes, settling_of
from squall.actors.messages.http_stream import HttpStreamTemplate
from squall.actors.messages.sequence_wire import SequenceBytes
from squall.actors.messages.template import Template
from squall.actors.net.loop import Loop
from squall.actors.net.stream import words
from squall.models.payload import LEAST_TRIAL_ID, encode_id
from squall.models.spec import ModelSpec
from squall.scenarios.foreign_text import secrets_of, without_secrets
from squall.scenarios.sequences import LEAST_ID, Place

_CONNECT_NS = 10_000_000_000
_NO_PLACES = Places({}, {})


@dataclass(frozen=True)
class TrialRequest:
    """What is sent to whom: one model's inputs of `rows` rows, in messages also where the load has them in shared
    memory. `is_of_sequence`: it is a whole sequence by itself. `timeout_ns`: for the whole reply."""

    target: TargetSettings
    wire: Wire
    spec: ModelSpec
    inputs: Mapping[str, NDArray[np.generic]]
    rows: int
    is_of_sequence: bool
    timeout_ns: int


@dataclass(frozen=True)
class Trial:
    """How it ended, as in the table `requests`, and how long it took from its send."""

    outcome: str
    detail: str
    took_ns: int


def try_request(request: TrialRequest, number: int = 0) -> Trial:
    """Sends it, on a connection of its own. `number`: of the try, below 1,000: each has an id of its own.

    Raises ScenarioError for a payload that does not travel.
    """
    template = request.wire.template(
        request.target.authority, request.spec, request.inputs, request.rows, _NO_PLACES
    )
    token, clock = LEAST_TRIAL_ID + number, SystemClock()
    streams = request.wire.streams
    is_cut_short = streams is not None and streams.cancel_share > 0
    ends, loop = _Ends(template, encode_id(token), is_cut_short), Loop(clock)
    try:
        client = _client(request, loop, clock, ends)
    except OSError as error:
        loop.close()
        return Trial("transport_error", words(error), 0)
    try:
        begun_ns = clock.monotonic_ns()
        try:
            client.open(1, begun_ns + _CONNECT_NS)
        except OSError as error:
            return Trial("transport_error", f"connect: {words(error)}", 0)
        begun_ns = clock.monotonic_ns()
        client.send(token, template.head + encode_id(token) + _between(request, token), template.tail)
        client.flush()
        if not loop.run_until(lambda: ends.outcome != "", begun_ns + request.timeout_ns):
            client.abandon(token)
            ends.outcome, ends.detail = "timeout", f"no whole reply within {request.timeout_ns / 1e9:g} s"
        detail = without_secrets(ends.detail, secrets_of(request.wire.headers))
        return Trial(ends.outcome, detail, clock.monotonic_ns() - begun_ns)
    finally:
        client.close()
        loop.close()


class _Ends:
    """Of one request, as a client tells it. `is_cut_short`: its responses may have no end, the first is enough."""

    def __init__(self, template: Template, wire_id: bytes, is_cut_short: bool) -> None:
        self.outcome = self.detail = ""
        self._template, self._wire_id = template, wire_id
        self._n_responses, self._fault = 0, ("", "")
        self._is_cut_short = is_cut_short

    def on_reply(self, exchange: Exchange) -> None:
        is_hung_up = self._is_cut_short and self._n_responses > 0
        outcome, detail = ("ok", "") if is_hung_up else self._template.judge(exchange, self._wire_id)
        if self._fault[0]:
            outcome, detail = self._fault
        self.outcome, self.detail = outcome, detail

    def on_failure(self, token: int, sent_ns: int, first_ns: int, why: str) -> None:
        del token, sent_ns, first_ns
        self.outcome, self.detail = "transport_error", why

    def on_response(self, token: int, t_ns: int, message: bytes) -> bool:
        """Each is judged; all are waited for, or the first."""
        del token, t_ns
        assert isinstance(self._template, GrpcStreamTemplate | HttpStreamTemplate)
        judged = self._template.judge_response(message, self._wire_id, self._n_responses)
        self._n_responses += 1
        if judged.outcome != "ok" and not self._fault[0]:
            self._fault = judged.outcome, judged.detail
        return self._is_cut_short


def _client(request: TrialRequest, loop: Loop, clock: SystemClock, ends: _Ends) -> Client:
    """Raises OSError where the host has no address or the files of TLS cannot be used."""
    wire, target = request.wire, request.target
    route = route_of(target, wire.protocol)
    on_response: Any = ends.on_response if wire.streams is not None else None
    largest_bytes = wire.largest_reply_of(target)
    if wire.protocol == "grpc":
        return GrpcClient(
            loop, clock, route, target.authority, wire.metadata, ends.on_reply, ends.on_failure,
            on_response=on_response, largest_reply_bytes=largest_bytes,
        )  # fmt: skip
    return HttpClient(
        loop,
        clock,
        route,
        ends.on_reply,
        ends.on_failure,
        on_response=on_response,
        largest_reply_bytes=largest_bytes,
    )


class _Alone:
    """Sequences of one request each."""

    def place(self, request_id: int) -> Place:
        return Place(LEAST_ID + request_id, 0, True, True)


def _between(request: TrialRequest, token: int) -> bytes:
    """What stands behind its id."""
    wire = request.wire
    if request.is_of_sequence:
        return SequenceBytes(_Alone(), wire.protocol, wire.options.parameters)(token)
    if wire.options.is_gzip:
        return SettlingBytes(settling_of(wire.protocol))(token)
    return b""
