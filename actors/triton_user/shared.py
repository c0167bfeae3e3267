"""What the users of a process share: servers, encoded requests, ids, and whose turn it is to have which server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic
from weakref import WeakKeyDictionary

from squall.actors.net.triton_control import authority
from squall.actors.triton_user.alone import OneServer
from squall.actors.triton_user.handed import Handed, UserTarget
from squall.actors.triton_user.payloads import AnyTemplate, Encode, Payloads
from squall.actors.triton_user.servers import Servers, Shapes
from squall.scenarios.units import NS_PER_S


@dataclass(frozen=True)
class Asking:
    """What a user class states of itself. `host`, `grpc_port` and `timeout_s` hold without squall only; `headers`:
    beside those of the scenario."""

    host: str | None
    grpc_port: int
    timeout_s: float
    shapes: Shapes
    headers: Mapping[str, str]

    @property
    def key(self) -> Hashable:
        """Users with the same share what is made."""
        shapes = tuple((name, tuple(dims)) for name, dims in self.shapes.items())
        return self.host, self.grpc_port, self.timeout_s, shapes, tuple(self.headers.items())


@dataclass(frozen=True)
class Shared(Generic[AnyTemplate]):
    """Of the users of one process that speak one protocol."""

    servers: Servers
    payloads: Payloads[AnyTemplate]
    next_id: Callable[[], int]
    headers: Mapping[str, str]
    timeout_s: float


class Process:
    """All users of one Locust environment, whatever their classes."""

    def __init__(self, handed: Handed | None) -> None:
        self._handed = handed
        self._seats = itertools.count(handed.first_target if handed is not None else 0)
        self._ids = itertools.count()
        self._shared: dict[Hashable, Shared[Any]] = {}

    def seat(self) -> int:
        """The target of the next user: each in turn."""
        n_targets = len(self._handed.targets) if self._handed is not None else 1
        return next(self._seats) % n_targets

    def url_of(self, target: int) -> str | None:
        """Of the HTTP port of that target; None without squall."""
        return self._handed.targets[target].url if self._handed is not None else None

    def shared(
        self, protocol: str, asking: Asking, encoding: Callable[[Mapping[str, str]], Encode[AnyTemplate]]
    ) -> Shared[AnyTemplate]:
        """What users of that protocol and class share; `encoding`: from the headers of each request.

        Raises TargetError where, without squall, the host is no URL.
        """
        if self._handed is not None:  # which says these, whatever the class says
            asking = replace(asking, host=None, grpc_port=0, timeout_s=0.0)
        key = (protocol, asking.key)
        if key not in self._shared:
            self._shared[key] = self._made(asking, encoding)
        return self._shared[key]

    def _made(
        self, asking: Asking, encoding: Callable[[Mapping[str, str]], Encode[AnyTemplate]]
    ) -> Shared[AnyTemplate]:
        handed = self._handed
        if handed is None:
            headers, next_id, seed, timeout_s = dict(asking.headers), self._ids.__next__, 0, asking.timeout_s
            url = (asking.host or "").rstrip("/")
            server = OneServer(url, asking.shapes, asking.headers)
            target = UserTarget("server", url, grpc_authority(url, asking.grpc_port), ())
            servers = Servers((target,), ask=server.ask)
        else:
            headers, next_id, seed = {**handed.headers, **asking.headers}, handed.next_id, handed.seed
            timeout_s = handed.timeout_ns / NS_PER_S
            servers = Servers.handed(handed, asking.shapes)
        return Shared(servers, Payloads(servers, encoding(headers), seed), next_id, headers, timeout_s)


_PROCESSES: WeakKeyDictionary[Any, Process] = WeakKeyDictionary()
"""By Locust's environment."""


def process_of(environment: Any) -> Process:
    """That of all users of a Locust environment; it is what squall handed to it, as `environment.squall`, if it did."""
    if environment not in _PROCESSES:
        _PROCESSES[environment] = Process(getattr(environment, "squall", None))
    return _PROCESSES[environment]


def seated(user: Any, environment: Any) -> tuple[Process, int]:
    """What a user that is being made shares with others, and its target: whose host is its own, where it has none."""
    process = process_of(environment)
    target = process.seat()
    if user.host is None:
        user.host = process.url_of(target)
    return process, target


def grpc_authority(url: str, port: int) -> str:
    """host:port of a server's gRPC port beside its URL; an IPv6 address in brackets. Empty for what is no URL."""
    try:
        host = authority(url)[0]
    except (AssertionError, ValueError):
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
