"""A peer that knows addresses and no token, and tries every port: `python -m tests.integration.stranger`.

stdin:  {"doors": [["tcp", "10.77.0.1", 6379], …]}
stdout: a line "in" when every silent connection stands, then {"tcp 10.77.0.1:6379": {what was tried: what came of it}}

The silent connections stay open, and half a handshake hangs, until stdin ends.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import os
import pkgutil
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError

from squall.actors.sampling.clock_responder import MESSAGE_BYTES, probe_message
from squall.cluster.remote.channel import Channel

WRONG = "0" * 64
_TIMEOUT_S = 2.0
_N_AT_ONCE = 32
_GRPC_TIMEOUT_S = 10.0
_PATHS = (
    ("GET", "/"), ("GET", "/api/jobs/"), ("POST", "/api/jobs/"), ("GET", "/nodes?view=summary"),
    ("GET", "/metrics"), ("POST", "/get_or_create_runtime_env"), ("POST", "/delete_runtime_env_if_possible"),
)  # fmt: skip
_IN_NO_PYTHON = ("Push", "Pull", "FreeObjects")
"""Of `ray.rpc.ObjectManagerService`, whose description Ray's package does not hold."""


def grpc_methods() -> list[str]:
    """Every method of every service that the installed Ray describes."""
    import ray.core.generated as generated

    found = [f"/ray.rpc.ObjectManagerService/{name}" for name in _IN_NO_PYTHON]
    for module in pkgutil.iter_modules(generated.__path__):
        if not module.name.endswith("_pb2"):
            continue
        with contextlib.suppress(ImportError):  # of what only other languages use
            described = importlib.import_module(f"ray.core.generated.{module.name}").DESCRIPTOR
            for service in described.services_by_name.values():
                found += [f"/{service.full_name}/{method.name}" for method in service.methods]
    return found


def over_grpc(host: str, port: int, token: str | None, methods: list[str]) -> dict[str, int]:
    """How many calls came to which end; empty where the port speaks no HTTP/2."""
    import grpc

    metadata = [("authorization", f"Bearer {token}")] if token else []
    ends: Counter[str] = Counter()
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            return {}
        calls = [
            (method, channel.unary_unary(method).future(b"", timeout=_GRPC_TIMEOUT_S, metadata=metadata))
            for method in methods
        ]
        for method, call in calls:
            code = call.code()
            ends[f"OK {method}" if code is grpc.StatusCode.OK else code.name] += 1
    return dict(ends)


def over_http(host: str, port: int) -> dict[str, list[int]]:
    """The distinct status codes of `_PATHS`, without a token and with a wrong one; empty where it is no HTTP."""
    found: dict[str, list[int]] = {}
    for name, headers in (("http", {}), ("http, wrong token", {"Authorization": f"Bearer {WRONG}"})):
        codes = set()
        for method, path in _PATHS:
            connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
            with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
                connection.request(method, path, body="{}" if method == "POST" else None, headers=headers)
                codes.add(connection.getresponse().status)
        if codes:
            found[name] = sorted(codes)
    return found


def over_channel(host: str, port: int) -> str:
    """What a wrong token comes to."""
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as link:
            Channel(link, WRONG.encode(), is_server=False)
    except AuthenticationError:
        return "refused"
    except (OSError, EOFError) as error:
        return type(error).__name__
    return "let in"


def told_garbage(host: str, port: int) -> int:
    """Bytes that came back for 4 KiB of noise."""
    n_bytes = 0
    with contextlib.suppress(OSError), socket.create_connection((host, port), _TIMEOUT_S) as link:
        link.sendall(os.urandom(4096))
        link.shutdown(socket.SHUT_WR)
        while data := link.recv(4096):
            n_bytes += len(data)
    return n_bytes


def over_udp(host: str, port: int) -> int:
    """Answers to noise, and to clock probes without the token, with none and with a wrong one."""
    n_answers = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(0.5)
        link.connect((host, port))
        for message in (
            os.urandom(MESSAGE_BYTES),
            probe_message(bytes(16), 1),
            probe_message(os.urandom(16), 2),
            b"",
        ):
            with contextlib.suppress(OSError):
                link.send(message)
                link.recv(4096)
                n_answers += 1
    return n_answers


@contextlib.contextmanager
def silent(doors: list[tuple[str, int]]) -> Iterator[None]:
    """To each two connections: one says nothing, one the head of a message of 200 bytes that never comes."""
    with contextlib.ExitStack() as stack:
        for door in doors:
            for said in (b"", (200).to_bytes(4, "big") + b"{sha256}"):
                with contextlib.suppress(OSError):
                    link = stack.enter_context(socket.create_connection(door, _TIMEOUT_S))
                    link.sendall(said)
        yield


def _tried(door: tuple[str, str, int], methods: list[str]) -> dict[str, object]:
    kind, host, port = door
    if kind == "udp":
        return {"udp answers": over_udp(host, port)}
    return {
        "grpc": over_grpc(host, port, None, methods),
        "grpc, wrong token": over_grpc(host, port, WRONG, methods),
        **over_http(host, port),
        "channel": over_channel(host, port),
        "garbage": told_garbage(host, port),
    }


def main() -> None:
    """See the module."""
    doors = [(kind, host, port) for kind, host, port in json.loads(sys.stdin.readline())["doors"]]
    methods = grpc_methods()
    with silent([(host, port) for kind, host, port in doors if kind == "tcp"]):
        print("in", flush=True)
        with ThreadPoolExecutor(_N_AT_ONCE) as pool:
            found = [*pool.map(lambda door: _tried(door, methods), doors)]
        named = {f"{kind} {host}:{port}": one for (kind, host, port), one in zip(doors, found, strict=True)}
        print(json.dumps(named), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
