"""One object in a process of its own, whose methods its owner calls over a `Channel`; `squall.cluster.remote.forker`
starts it.

The owner's first message is (0, `Making`, number of threads), then come (number, method, arguments, named arguments);
the answers are (number, kind, value). When the connection ends, for whatever reason, `abandoned()` of the object is
called, if it has one, and the process ends. It knows no Ray: what becomes of Ray's processes, that one who started it
among them, is nothing to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from squall.actors.process.priority import settle_process
from squall.cluster.remote.channel import Channel, listen, network
from squall.scenarios.errors import SquallError
from squall.scenarios.records import RayPriority

DONE, OUR_ERROR, ERROR = "done", "our error", "error"
"""Kinds of answers; the value of an ERROR is a text."""
LIVES = "lives"
"""A method of every process, answered at once, whatever its calls are doing."""
PID, SETTLED = "process.pid", "process.settled"
"""Methods of every process, answered as a call is: see `Handle.pid` and `Handle.settled`."""
Making = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""The object's class, and what it is made with: arguments and named arguments."""

_OWNER_COMES_WITHIN_S = 60.0
_ABANDON_WITHIN_S = 60.0


def serve(their_network: str, host: str, token: bytes, answer: Callable[[str], None]) -> int:
    """For a process that has just begun. `their_network`: the owner's `network()`; `host`: where another one's owner
    reaches this machine; `answer`: is given where this process listens, and its pid, as a line of JSON.

    Exit code 0 once the owner has gone, 1 where none came.
    """
    settled = settle_process()  # before any thread is there: a niceness is a thread's
    listener, address = listen(None if their_network == network() else host)
    answer(json.dumps({"address": address, "pid": os.getpid()}))
    channel = _owner(listener, token)
    if channel is None:
        return 1
    _Service(channel, settled).serve()
    return 0


def _owner(listener: socket.socket, token: bytes) -> Channel | None:
    """The first who knows the token, behind no stranger that says nothing; None where nobody comes in time."""
    proven: queue.SimpleQueue[Channel] = queue.SimpleQueue()
    with listener:
        threading.Thread(
            target=_admit, args=(listener, token, proven), name="squall-admit", daemon=True
        ).start()
        try:
            return proven.get(timeout=_OWNER_COMES_WITHIN_S)
        except queue.Empty:
            return None
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in `accept`


def _admit(listener: socket.socket, token: bytes, proven: queue.SimpleQueue[Channel]) -> None:
    """Asks each who comes for the token, in a thread of its own, until `listener` is shut."""
    with contextlib.suppress(OSError):
        while True:
            link, _ = listener.accept()
            threading.Thread(target=_ask, args=(link, token, proven), name="squall-ask", daemon=True).start()


def _ask(link: socket.socket, token: bytes, proven: queue.SimpleQueue[Channel]) -> None:
    with contextlib.suppress(Exception):  # a stranger: whatever it says, the owner may still come
        proven.put(Channel(link, token, is_server=True))


class _Service:
    def __init__(self, channel: Channel, settled: RayPriority) -> None:
        self._channel = channel
        self._of_the_process: dict[str, Callable[[], Any]] = {PID: os.getpid, SETTLED: lambda: settled}
        self._object: Any = None
        self._calls: queue.SimpleQueue[tuple[int, partial[Any]]] = queue.SimpleQueue()
        self._sending = threading.Lock()

    def serve(self) -> None:
        """Until the connection ends. Never returns where the object's own threads go on: the process ends."""
        with contextlib.suppress(EOFError, OSError):
            number, (cls, arguments, named), n_threads = self._channel.receive()
            if self._try(number, partial(self._create, cls, arguments, named)):
                for _ in range(n_threads):
                    threading.Thread(target=self._work, name="squall-calls", daemon=True).start()
                while True:
                    self._take(*self._channel.receive())
        self._end()

    def _take(self, number: int, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if method == LIVES:
            self._try(number, os.getpid)
        else:
            self._calls.put((number, partial(self._call, method, arguments, named)))

    def _work(self) -> None:
        while True:
            number, call = self._calls.get()
            self._try(number, call)
            del call  # its arguments may be large

    def _call(self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        call = self._of_the_process.get(method) or getattr(self._object, method)
        return call(*arguments, **named)

    def _create(self, cls: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._object = cls(*arguments, **named)

    def _try(self, number: int, call: Callable[[], Any]) -> bool:
        """Answers with what `call` gives or raises; whether it gave something."""
        try:
            answer: tuple[int, str, Any] = (number, DONE, call())
        except SquallError as error:
            answer = (number, OUR_ERROR, error)
        except Exception as error:  # the process's edge: the owner is told
            answer = (number, ERROR, f"{type(error).__name__}: {error}")
        try:
            with self._sending:
                self._channel.send(answer)
        except OSError:  # the owner has gone: `serve` finds out
            return False
        except Exception as error:  # what cannot be pickled
            with self._sending, contextlib.suppress(OSError):
                self._channel.send((number, ERROR, f"{type(error).__name__}: {error}"))
        return answer[1] == DONE

    def _end(self) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _ABANDON_WITHIN_S)  # whatever hangs, nothing is left running
        try:
            if hasattr(self._object, "abandoned"):
                self._object.abandoned()
        finally:
            os._exit(0)
