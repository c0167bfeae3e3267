"""A way to one node's clock responder: sends probes and reads answers, over UDP or TCP, without ever waiting."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import threading
from array import array
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from squall.actors.clock import Clock
from squall.actors.sampling.clock_responder import MESSAGE_BYTES, probe_message, read_answer

Protocol = Literal["udp", "tcp"]
_MOST_PENDING = 256


class ProbeLog:
    """The four stamps of each answered probe, in the order of the answers. Any thread may add and read."""

    def __init__(self) -> None:
        self._stamps = array("q")
        self._lock = threading.Lock()
        self.least_delay_ns: int | None = None
        """Least round trip so far, without the time that the responder took."""

    def __len__(self) -> int:
        return len(self._stamps) // 4

    def add(self, sent_ns: int, got_ns: int, answered_ns: int, back_ns: int) -> None:
        """`sent_ns` and `back_ns` on the prober's clock, the others on the responder's."""
        delay_ns = (back_ns - sent_ns) - (answered_ns - got_ns)
        with self._lock:
            self._stamps.extend((sent_ns, got_ns, answered_ns, back_ns))
            if self.least_delay_ns is None or delay_ns < self.least_delay_ns:
                self.least_delay_ns = delay_ns

    def stamps(self) -> NDArray[np.int64]:
        """(4, n_probes) int64: sent, got, answered, back."""
        with self._lock:
            return np.array(self._stamps, np.int64).reshape(-1, 4).T


class ClockLink:
    """Probes on their way to one responder. One thread at a time. `log` has what came back."""

    def __init__(self, address: tuple[str, int], token: bytes, clock: Clock) -> None:
        self.address = address
        self.protocol: Protocol = "udp"
        self.log = ProbeLog()
        self.last_back_ns: int | None = None
        """When the last answer came, on the prober's clock."""
        self._token = token
        self._clock = clock
        self._socket: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None
        self._received = b""
        self._number = secrets.randbits(63)
        self._pending: dict[int, int] = {}

    def open(self, selector: selectors.BaseSelector, protocol: Protocol) -> None:
        """Begins to speak `protocol` and to be watched for answers; ends what it spoke before."""
        self.close()
        self._selector, self.protocol = selector, protocol
        kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
        family = socket.getaddrinfo(*self.address, type=kind)[0][0]
        self._socket = socket.socket(family, kind)
        self._socket.setblocking(False)
        if protocol == "tcp":
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # TCP connects while we go on; who is out of reach stays silent
            self._socket.connect(self.address)
        selector.register(self._socket, selectors.EVENT_READ, self)

    def close(self) -> None:
        """Forgets what is under way. May be called twice."""
        if self._socket is not None and self._selector is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
        self._socket, self._received = None, b""
        self._pending.clear()

    def send(self) -> None:
        """One probe. One that cannot leave is lost; a TCP connection that broke is begun anew."""
        if self._socket is None:
            assert self._selector is not None, "open comes first"
            with contextlib.suppress(OSError):  # no file or no address left: the next probe tries again
                self.open(self._selector, self.protocol)
            return
        self._number = (self._number + 1) % 2**63
        message = probe_message(self._token, self._number)
        if len(self._pending) >= _MOST_PENDING:
            del self._pending[next(iter(self._pending))]
        self._pending[self._number] = self._clock.monotonic_ns()
        try:
            self._socket.send(message)
        except BlockingIOError:
            return
        except OSError:
            self._broken()

    def receive(self) -> bool:
        """Takes what came in; True if an answer to one of our probes was in it."""
        if self._socket is None:
            return False
        try:
            data = self._socket.recv(16 * MESSAGE_BYTES)
            back_ns = self._clock.monotonic_ns()
        except BlockingIOError:
            return False
        except OSError:
            self._broken()
            return False
        if self.protocol == "udp":
            return self._take(data, back_ns)
        if not data:
            self._broken()
            return False
        self._received += data
        is_answered = False
        while len(self._received) >= MESSAGE_BYTES:
            message, self._received = self._received[:MESSAGE_BYTES], self._received[MESSAGE_BYTES:]
            is_answered |= self._take(message, back_ns)
        return is_answered

    def _take(self, message: bytes, back_ns: int) -> bool:
        answer = read_answer(message)
        sent_ns = self._pending.pop(answer[0], None) if answer is not None else None
        if answer is None or sent_ns is None:
            return False
        self.log.add(sent_ns, answer[1], answer[2], back_ns)
        self.last_back_ns = back_ns
        return True

    def _broken(self) -> None:
        """UDP reports a closed port of the peer and goes on; a TCP connection is gone."""
        if self.protocol == "tcp":
            self.close()
