"""`TritonGrpcUser`: a Locust user that calls Triton over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from time import monotonic_ns
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

import grpc
from grpc.experimental import gevent as grpc_gevent
from locust import User
from locust.exception import CatchResponseError, StopTest

from squall.actors.load.client import too_large
from squall.actors.messages.grpc_wire import (
    MESSAGE_HEAD,
    PATH,
    GrpcTemplate,
    grpc_template,
    read_outputs,
)
from squall.actors.messages.template import one_line
from squall.actors.triton_user.caller_inputs import Arrays
from squall.actors.triton_user.shared import Asking, Shared, seated
from squall.actors.triton_user.triton import NO_REPLY, Exchange, Triton
from squall.models.payload import RequestOptions
from squall.models.spec import ModelSpec
from squall.scenarios.errors import TargetError

_OPTIONS = {
    "grpc.max_send_message_length": -1,
    "grpc.enable_retries": 0,
    "grpc.enable_http_proxy": 0,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
}
"""A request is sent once, to the server itself; a server that is there again is seen within a second."""
_NOT_THE_SERVER = (
    "failed to connect", "connection re", "connection attempt", "connection aborted", "connection closed",
    "broken pipe", "socket closed", "stream removed", "end of tcp stream", "goaway", "endpoint", "transport",
    "dns resolution", "ping timeout", "keepalive", "empty address list", "network is unreachable", "no route to host",
)  # fmt: skip
"""Words of gRPC's library (1.85) about a call that no server answered: its status is that of one that refuses."""
_LARGEST_INT = (1 << 31) - 1
"""Of the library's options."""
_TOO_LARGE = ("CLIENT: Received message larger than max", "Decompressed message larger than max")
"""Words of that library about a reply beyond our limit; a server says SERVER where a request is beyond its own."""


class TritonGrpcUser(User):
    """Calls Triton over gRPC: `self.triton.infer(model, rows=…)`, see `Triton.infer`.

    As `TritonUser`, but for what is HTTP's. Under `locust -f`, without squall, `host` (or `--host`) is the URL of the
    server's HTTP port all the same, where it is asked for its models, and `grpc_port` the other one. TLS is not spoken.

    The users of a process share one connection to each server: one for each user cost a fifth to two fifths more CPU
    (1,500 users, two noisy cores, 2026-11-26). The first requests wait until it is there.
    """

    abstract = True
    host: str | None = None
    grpc_port: int = 8001
    """Beside `host`, without squall."""
    shapes: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    """As of `TritonUser`."""
    timeout_s: float = 5.0
    """As of `TritonUser`."""

    triton: GrpcTriton

    def __init__(self, environment: Any) -> None:
        process, target = seated(self, environment)
        super().__init__(environment)
        if self.host is None:
            raise StopTest("You must specify the host: the URL of the server's HTTP port, or --host.")
        asking = Asking(self.host, self.grpc_port, self.timeout_s, self.shapes, {})
        try:
            shared = process.shared("grpc", asking, lambda _: _encoded)
        except TargetError as error:
            raise StopTest(str(error)) from error
        if any(one.url.startswith("https:") for one in shared.servers.targets):
            raise StopTest("TritonGrpcUser does not speak TLS, as the server's URL asks for")
        self.triton = GrpcTriton(self, shared, target, CatchResponseError)


class GrpcReply(NamedTuple):
    """As `squall.actors.messages.grpc_wire` judges it."""

    http_status: int
    grpc_status: int
    grpc_message: str
    body: bytes


class GrpcTriton(Triton[GrpcTemplate]):
    """`self.triton` of a `TritonGrpcUser`. Its time begins with the call: that of the first ones, and after a lost
    connection, holds the connecting too."""

    request_type = "grpc"

    def __init__(
        self, user: TritonGrpcUser, shared: Shared[GrpcTemplate], target: int, failure: type[Exception]
    ) -> None:
        super().__init__(user, shared, target, failure)
        headers = {name.lower(): value for name, value in shared.headers.items()}
        self._named = headers.pop("host", "")
        self._metadata = tuple(headers.items())
        self._timeout_s = shared.timeout_s

    def _exchange(self, target: int, template: GrpcTemplate, wire_id: bytes, largest_bytes: int) -> Exchange:
        call = _call(self._servers.targets[target].grpc, self._named, largest_bytes)
        message = template.head[MESSAGE_HEAD.size :] + wire_id + template.tail
        sent_ns = monotonic_ns()
        try:
            answer = call(message, timeout=self._timeout_s, metadata=self._metadata)
            done_ns = monotonic_ns()
        except grpc.RpcError as error:
            return _failed(sent_ns, monotonic_ns(), error, largest_bytes)
        if answer is None:  # a call that ended well without a whole message
            return Exchange(sent_ns, done_ns, "", "", GrpcReply(200, 0, "", b""), 0)
        reply = GrpcReply(200, 0, "", MESSAGE_HEAD.pack(0, len(answer)) + answer)
        return Exchange(sent_ns, done_ns, "", "", reply, len(answer))

    @staticmethod
    def _read(reply: GrpcReply) -> Arrays:
        return read_outputs(reply.body)


def _failed(sent_ns: int, done_ns: int, error: Any, largest_bytes: int) -> Exchange:
    """A call without an answer: the judge is told what the server said, if it did."""
    code, said = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Exchange(sent_ns, done_ns, "timeout", NO_REPLY, None, 0)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and any(one in said for one in _TOO_LARGE):
        return Exchange(sent_ns, done_ns, "bad_reply", too_large(largest_bytes), None, 0)
    if said.startswith("Received http2 header with status"):
        return Exchange(sent_ns, done_ns, "server_error", one_line(said), None, 0)
    is_refused = code is grpc.StatusCode.UNAVAILABLE
    if said.startswith("Stream removed") or (
        is_refused and any(one in said.lower() for one in _NOT_THE_SERVER)
    ):
        return Exchange(sent_ns, done_ns, "transport_error", one_line(said), None, 0)
    return Exchange(sent_ns, done_ns, "", "", GrpcReply(200, code.value[0], quote(said), b""), 0)


@cache
def _call(address: str, named: str, largest_bytes: int) -> Callable[..., bytes | None]:
    """ModelInfer of that server, bytes in and out; `named`: how its authority is told where another than its address;
    `largest_bytes`: of a reply, the same for all models of a run.

    gRPC waits for gevent from the first on.
    """
    _under_gevent()
    options = {
        **_OPTIONS,
        "grpc.max_receive_message_length": min(largest_bytes, _LARGEST_INT),
        **({"grpc.default_authority": named} if named else {}),
    }
    channel = grpc.insecure_channel(address, tuple(options.items()))
    call: Callable[..., bytes | None] = channel.unary_unary(PATH)
    return call


@cache
def _under_gevent() -> None:
    grpc_gevent.init_gevent()


def _encoded(_: str, spec: ModelSpec, inputs: Arrays, rows: int, options: RequestOptions) -> GrpcTemplate:
    return grpc_template(spec, inputs, rows, parameters=options.parameters)
