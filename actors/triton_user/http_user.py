"""`TritonUser`: a Locust user that calls Triton over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from socket import IPPROTO_TCP, TCP_NODELAY
from time import monotonic_ns
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from gevent import Timeout, get_hub
from geventhttpclient.connectionpool import ConnectionPool, SSLConnectionPool
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError, HTTPSocketPoolResponse
from locust import FastHttpUser
from locust.contrib.fasthttp import insecure_ssl_context_factory
from locust.exception import CatchResponseError, StopTest

from squall.actors.load.client import LARGEST_HEAD_BYTES, TOO_LARGE, too_large
from squall.actors.messages.http_wire import HttpTemplate, http_template, json_length, read_outputs
from squall.actors.net.stream import CLOSED, LARGEST_JOINED_BYTES, words
from squall.actors.net.triton_control import authority
from squall.actors.triton_user.caller_inputs import Arrays
from squall.actors.triton_user.shared import Asking, Shared, seated
from squall.actors.triton_user.triton import NO_REPLY, Exchange, Triton
from squall.models.payload import RequestOptions, encode_body
from squall.models.spec import ModelSpec
from squall.scenarios.errors import TargetError

_RECEIVED_BYTES = 16_384
"""At most at once: a small reply takes one call, a large one few."""

_CUT = ("connection closed", "Incomplete response")
"""How geventhttpclient begins to tell of a reply that ends before it is whole."""


class TritonUser(FastHttpUser):
    """Calls Triton over HTTP: `self.triton.infer(model, rows=…)`, see `Triton.infer`.

    Under `squall run` servers, models, their inputs, headers and timeout are the scenario's, and `host` need not be
    stated; each user keeps one of several servers. Under `locust -f`, without squall, `host` (or `--host`) is the URL
    of the server, which is asked for its models once, and ids are counted from 0 in each process.

    All that a `FastHttpUser` has is there too; `self.client` sends the user's other requests. `default_headers`,
    `insecure`, `ssl_context_factory` and `concurrency` hold for `self.triton` as well; a proxy and redirects do not.
    """

    abstract = True
    host: str | None = None
    shapes: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    """Sizes of inputs that the model leaves open, without rows: `{"TOKENS": (128,)}`. The scenario's come first."""
    timeout_s: float = 5.0
    """Until the whole reply, without squall; under squall `clients.timeout` holds."""

    triton: HttpTriton

    def __init__(self, environment: Any) -> None:
        process, target = seated(self, environment)
        super().__init__(environment)
        if self.proxy_host is not None:
            raise StopTest("TritonUser calls its server itself, without proxy_host")
        asking = Asking(self.host, 0, self.timeout_s, self.shapes, self.default_headers or {})
        try:
            shared = process.shared("http", asking, lambda headers: partial(_encoded, headers))
        except TargetError as error:
            raise StopTest(str(error)) from error
        self.triton = HttpTriton(self, shared, target, CatchResponseError)


class HttpReply(NamedTuple):
    """As `squall.actors.messages.http_wire` judges it."""

    status: int
    n_json_bytes: int
    body: bytes


class HttpTriton(Triton[HttpTemplate]):
    """`self.triton` of a `TritonUser`: a request takes one of the user's own connections, or a new one, and is not
    sent again. Its time begins just before it is written; where no connection comes, before that was asked for."""

    request_type = "POST"

    def __init__(
        self, user: TritonUser, shared: Shared[HttpTemplate], target: int, failure: type[Exception]
    ) -> None:
        super().__init__(user, shared, target, failure)
        self._timeout_s = shared.timeout_s
        self._loop = get_hub().loop
        self._pools: dict[int, ConnectionPool] = {}

    def _exchange(self, target: int, template: HttpTemplate, wire_id: bytes, largest_bytes: int) -> Exchange:
        pool = self._pools.get(target)
        if pool is None:
            pool = self._pools[target] = self._pool_of(target)
        front, tail = template.head + wire_id, template.tail
        if len(tail) < LARGEST_JOINED_BYTES:
            front, tail = front + tail, b""
        sent_ns = monotonic_ns()
        try:
            socket = pool.get_socket()
        except OSError as error:
            is_late = (
                isinstance(error, TimeoutError) and error.errno is None
            )  # not the system's, which has a number
            outcome, detail = ("timeout", NO_REPLY) if is_late else ("transport_error", words(error))
            return Exchange(sent_ns, monotonic_ns(), outcome, detail, None, 0)
        outcome = "transport_error"
        self._loop.update_now()  # whose time is that of its last turn: a timer would end early by as much
        timer = Timeout.start_new(self._timeout_s)
        sent_ns = monotonic_ns()
        try:
            try:
                socket.sendall(front)
                if tail:
                    socket.sendall(tail)
            except BaseException:
                pool.release_socket(socket)
                raise
            response = _Response(socket, pool, largest_bytes)
            body = response.read()
            done_ns = monotonic_ns()
        except Timeout as error:
            done_ns = monotonic_ns()
            if error is not timer:
                raise  # it is the code's that called
            outcome, detail = "timeout", NO_REPLY
        except HTTPConnectionClosed:
            done_ns = monotonic_ns()
            detail = CLOSED
        except HTTPParseError as error:
            done_ns = monotonic_ns()
            if str(error).startswith(_CUT):
                detail = CLOSED
            else:
                why = str(error)
                outcome, detail = "bad_reply", why if why.startswith(TOO_LARGE) else f"malformed reply: {why}"
        except OSError as error:
            done_ns = monotonic_ns()
            detail = words(error)
        else:
            reply = HttpReply(response.get_code(), _n_json_bytes(response), body)
            return Exchange(sent_ns, done_ns, "", "", reply, len(body))
        finally:
            timer.close()
        return Exchange(sent_ns, done_ns, outcome, detail, None, 0)

    @staticmethod
    def _read(reply: HttpReply) -> Arrays:
        return read_outputs(reply.n_json_bytes, reply.body)

    def _pool_of(self, target: int) -> ConnectionPool:
        """Whose timeout is that of connecting; that of a request holds from its send to the whole reply."""
        user, url = self._user, self._servers.targets[target].url
        host, port = authority(url)
        limits = {"size": user.concurrency, "connection_timeout": self._timeout_s, "network_timeout": None}
        if urlsplit(url).scheme != "https":
            return _Pool(host, port, host, port, **limits)
        factory = user.ssl_context_factory or (insecure_ssl_context_factory if user.insecure else None)
        return _TlsPool(host, port, host, port, insecure=user.insecure, ssl_context_factory=factory, **limits)


class _Response(HTTPSocketPoolResponse):
    """A reply that is read no further than `largest_bytes` of its body; HTTPParseError is raised beyond, and for a head
    or trailers without end."""

    _n_head_bytes = 0

    def __init__(self, sock: Any, pool: ConnectionPool, largest_bytes: int) -> None:
        self._largest_bytes = largest_bytes  # first: the head is read when it is made
        super().__init__(sock, pool, block_size=_RECEIVED_BYTES, method="POST")

    def feed(self, data: str | bytes) -> None:
        n_before = len(self._body_buffer)
        super().feed(data)
        n_bytes = len(self._body_buffer)
        if n_bytes > self._largest_bytes:
            raise HTTPParseError(too_large(self._largest_bytes))
        self._n_head_bytes = 0 if n_bytes > n_before else self._n_head_bytes + len(data)
        if self._n_head_bytes > LARGEST_HEAD_BYTES:
            raise HTTPParseError(f"its head is longer than {LARGEST_HEAD_BYTES} bytes")


class _Pool(ConnectionPool):
    """Connections on which a request of two parts does not wait for the first to be acknowledged."""

    def after_connect(self, sock: Any) -> None:
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)


class _TlsPool(SSLConnectionPool):
    """As `_Pool`, over TLS."""

    def after_connect(self, sock: Any) -> None:
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)


def _encoded(
    headers: Mapping[str, str], url: str, spec: ModelSpec, inputs: Arrays, rows: int, options: RequestOptions
) -> HttpTemplate:
    named = urlsplit(url).netloc.rpartition("@")[2]
    return http_template(named, spec, encode_body(spec, inputs, options=options), rows, headers)


def _n_json_bytes(response: HTTPSocketPoolResponse) -> int:
    """0 of a reply without a binary part, -1 of one whose head makes no sense."""
    value = response.get("inference-header-content-length")
    if value is None:
        return 0
    return json_length(value) if isinstance(value, str) else -1
