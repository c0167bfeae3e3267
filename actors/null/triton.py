"""A null Triton: answers as Triton would, after service times that are known, so that a client can be proved.

    python -m squall.actors.null.triton --service exponential:2ms --servers 1 --record record.npz

Prints one line of JSON, {"http_port": …, "grpc_port": …, "pid": …}, when it is ready; ends when its stdin (a pipe or
a terminal) closes, on SIGTERM, on a terminal on SIGINT too, or after `--lifetime` seconds. Any model request must
name `--model`; tensors of the answers are zeros.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from squall.actors.clock import Alarm
from squall.actors.net.stream import allow_many_files
from squall.actors.null.faults import Fault
from squall.actors.null.grpc import GrpcService
from squall.actors.null.http import HttpPeer, HttpService
from squall.actors.null.http2 import GrpcPeer
from squall.actors.null.model import NullModel, Peer
from squall.actors.null.queue import Lanes, Record, Service
from squall.actors.null.server import NullServer, Stall
from squall.scenarios.units import NS_PER_S, parse_duration

_BACKLOG = 4_096
_MOST_ROWS = 10_000_000
_FAILED = 1
T = TypeVar("T")


def _as_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` with its ValueError's text shown by argparse."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(
        prog="python -m squall.actors.null.triton", description="A null Triton server."
    )
    add = out.add_argument
    duration, count = _as_type(parse_duration), _as_type(_count)
    add("--host", default="127.0.0.1", help="where to listen")
    add("--http-port", type=count, default=0, help="0: the kernel chooses")
    add("--grpc-port", type=count, default=0, help="0: the kernel chooses")
    add("--unix", metavar="PREFIX", help="also listen on Unix sockets PREFIX-http and PREFIX-grpc")
    service = _as_type(Service.parse)
    add("--service", type=service, default="constant:0", help="constant:0, constant:2ms or exponential:2ms")
    add("--servers", type=count, default=0, help="lanes of service; 0: any number")
    add("--seed", type=count, default=0, help="of the stream of service times")
    add("--max-queue", type=count, metavar="N", help="most requests that wait; more are rejected")
    add(
        "--stall",
        type=_as_type(Stall.parse),
        metavar="AT:FOR",
        help="silence, from AT after the first request",
    )
    add(
        "--fault",
        type=_as_type(Fault.parse),
        metavar="KIND:SHARE",
        help="that share of the requests fails: with a status (503:0.73), wrong:1, close:0.5 or hang:0.06",
    )
    add(
        "--spin",
        type=duration,
        default="100us",
        help="polls this long before a departure instead of sleeping",
    )
    add("--lifetime", type=float, metavar="SECONDS", help="ends then at the latest")
    add("--record", type=Path, metavar="FILE.npz", help="writes at the end what was served and when")
    add("--most-rows", type=count, default=_MOST_ROWS, help="limit of the record; 40 bytes each")
    add("--model", default="linear_head")
    add("--width", type=count, default=64, help="size of the model's input rows")
    add("--classes", type=count, default=2, help="size of its output rows")
    add("--max-batch-size", type=count, default=32)
    add("--tls-certificate", metavar="PEM", help="serve both protocols over TLS")
    add("--tls-key", metavar="PEM")
    add("--tls-client-ca", metavar="PEM", help="ask clients for a certificate of this authority")
    return out


def tls_context(certificate: str, key: str | None, client_ca: str | None, protocol: str) -> ssl.SSLContext:
    """A server's TLS that speaks `protocol` by ALPN. Raises OSError for unusable files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols([protocol])
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _listener(stack: ExitStack, address: tuple[str, int] | str) -> socket.socket:
    family = (
        socket.AF_UNIX
        if isinstance(address, str)
        else socket.AF_INET6
        if ":" in address[0]
        else socket.AF_INET
    )
    sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    if isinstance(address, str):
        sock.bind(address)
        stack.callback(os.unlink, address)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    sock.listen(_BACKLOG)
    return sock


def _watch_the_end(server: NullServer, stack: ExitStack, lifetime_s: float | None) -> None:
    """Ends `server` when stdin closes, on a signal, or at the end of its life."""

    def on_stdin() -> None:
        if not os.read(0, 4_096):
            server.end()

    server.watch(0, on_stdin)
    wake, waker = socket.socketpair()
    for sock in (stack.enter_context(wake), stack.enter_context(waker)):
        sock.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    stack.callback(signal.set_wakeup_fd, -1)
    signal.signal(signal.SIGTERM, lambda *_: None)
    # Ctrl-C goes to all processes of a terminal: who started us through a pipe decides when we end
    signal.signal(signal.SIGINT, (lambda *_: None) if os.isatty(0) else signal.SIG_IGN)
    server.watch(wake.fileno(), server.end)
    if lifetime_s is not None:
        alarm = Alarm()
        stack.callback(alarm.close)
        alarm.arm(time.monotonic_ns() + round(lifetime_s * NS_PER_S))
        server.watch(alarm.fd, server.end)


def serve(options: argparse.Namespace) -> None:
    """Serves as `options` say until an end comes. Raises OSError for unusable addresses and files, ValueError."""
    allow_many_files()
    model = NullModel(options.model, options.width, options.classes, options.max_batch_size)
    lanes = Lanes(options.service, options.seed, options.servers, options.max_queue)
    record = Record(options.most_rows) if options.record else None
    server = NullServer(model, lanes, record, options.stall, options.spin, options.fault)
    http, grpc = HttpService(model, server.submit), GrpcService(model, server.submit)
    ports = {}
    with ExitStack() as stack:
        kinds: list[tuple[str, str, int, Callable[[], Peer]]] = [
            ("http", "http/1.1", options.http_port, lambda: HttpPeer(http)),
            ("grpc", "h2", options.grpc_port, lambda: GrpcPeer(grpc)),
        ]
        for name, protocol, port, new_peer in kinds:
            tls = None
            if options.tls_certificate:
                tls = tls_context(options.tls_certificate, options.tls_key, options.tls_client_ca, protocol)
            listener = _listener(stack, (options.host, port))
            ports[f"{name}_port"] = listener.getsockname()[1]
            server.listen(listener, new_peer, tls)
            if options.unix:
                server.listen(_listener(stack, f"{options.unix}-{name}"), new_peer, tls)
        _watch_the_end(server, stack, options.lifetime)
        print(json.dumps({**ports, "pid": os.getpid()}), flush=True)
        gc.collect()
        gc.freeze()
        gc.disable()
        server.run()
    if record is not None:
        record.save(options.record, model.n_rejected)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 where the server cannot serve; 2 for a wrong command line."""
    options = parser().parse_args(arguments)
    try:
        serve(options)
    except (OSError, ValueError) as error:
        print(f"null_triton: {error}", file=sys.stderr)
        return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
