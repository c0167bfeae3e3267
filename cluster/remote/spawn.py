"""Processes of ours on nodes: plain classes in, handles that return values or raise our errors.

A call names the method itself, `handle.call(NodeAgent.files)`: mypy holds its arguments and its answer to it, and that
it is a method of the process's own class.

A forker of its node starts a process, asked by Ray on other machines (`squall.cluster.remote.launch`); from then on the
driver speaks to it over a `Channel`. What becomes of Ray meanwhile matters to neither.
"""

from __future__ import annotations

import itertools
import queue
import secrets
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from multiprocessing import AuthenticationError
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import psutil

from squall.actors.process.own_source import OwnCode, own_code
from squall.actors.process.state import wait_until_gone
from squall.cluster.placement import Node
from squall.cluster.remote.channel import Channel, connect, packed
from squall.cluster.remote.forker import Contact
from squall.cluster.remote.launch import Launchers
from squall.cluster.remote.patience import LOOK_EVERY_S, PATIENCE
from squall.cluster.remote.served import DONE, LIVES, OUR_ERROR, PID, SETTLED, Making
from squall.scenarios.errors import ClusterError, LostActor
from squall.scenarios.records import RayPriority
from squall.scenarios.units import digits_text

CALL_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 15.0
_LAST_ANSWER_S = 5.0
_ASK_AFTER_S = 5.0
"""A process that has said nothing for so long is asked whether it lives; it says so whatever its calls are doing."""
_SILENT_S = 15.0
"""What it has for that, also where others take the CPU: who is stopped or hangs is not waited for any longer."""
_MOMENT_S = 0.5
_KILLED_WITHIN_S = 2.0
_LAUNCHERS = Launchers()

Actor = TypeVar("Actor")
Actor_co = TypeVar("Actor_co", covariant=True)
"""Of a handle: its methods may be those of a parent class too."""
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)


class Handle(Generic[Actor_co]):
    """A process on a node. `call` waits for the answer; `begin` does not, `wait` and `is_done` finish it."""

    def __init__(self, name: str, peer: Peer) -> None:
        self.name = name
        self._peer = peer

    def begin_pid(self) -> Future[int]:
        """As `begin`, of `pid`."""
        return self._peer.begin(PID)

    def pid(self) -> int:
        """Of the process, on its node. Raises what `wait` raises."""
        return self.wait(self.begin_pid())

    def begin_settled(self) -> Future[RayPriority]:
        """As `begin`, of what the process was given at its start, and what it made of that."""
        return self._peer.begin(SETTLED)

    def settled(self) -> RayPriority:
        """As `begin_settled`, waited for. Raises what `wait` raises."""
        return self.wait(self.begin_settled())

    @property
    def ended_ns(self) -> int | None:
        """See `Peer.ended_ns`."""
        return self._peer.ended_ns

    def take_over(self, heir: Handle[Actor_co]) -> None:
        """From now on this handle speaks to the process of `heir`: the one it had has ended."""
        self._peer = heir._peer

    def begin(
        self,
        method: Callable[Concatenate[Actor_co, Arguments], Answer],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Future[Answer]:
        """Starts a call and returns a reference to its answer. Raises LostActor where the process has ended."""
        return self._peer.begin(method.__name__, arguments, named)

    def call(
        self,
        method: Callable[Concatenate[Actor_co, Arguments], Answer],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Answer:
        """The answer of a call, within `CALL_TIMEOUT_S`: `begin` and `wait` give it another time. Raises what `wait`
        raises."""
        return self.wait(self.begin(method, *arguments, **named))

    def wait(self, reference: Future[Answer], timeout_s: float = CALL_TIMEOUT_S) -> Answer:
        """The answer of a call begun before.

        Raises the SquallError that the object raised, LostActor if the process ended, ClusterError for any other
        failure and when the answer takes longer than `timeout_s`, or than `PATIENCE` has, or nothing at all has come
        from the process for some time.
        """
        begun = time.monotonic()
        if not self.is_done(reference, timeout_s):
            if (silent_s := self._peer.silent_s()) is not None:
                raise ClusterError(f"{self.name} does not answer any more, for {silent_s:.0f} s now")
            waited_s = min(timeout_s, time.monotonic() - begun)
            raise ClusterError(f"{self.name} did not answer within {digits_text(waited_s)} s")
        return reference.result()

    def is_done(self, reference: Future[Answer], timeout_s: float = 0.0) -> bool:
        """True once the call has an answer or has failed, waiting at most `timeout_s` for it, while its process lives.

        One that was silent has a moment: it may have gone on.
        """
        begun = time.monotonic()
        while not reference.done():
            now = time.monotonic()
            left_s = PATIENCE.deadline(begun, timeout_s) - now
            if left_s <= 0 or (now - begun >= _MOMENT_S and self._peer.silent_s() is not None):
                return False
            with suppress(FutureTimeout):
                reference.exception(min(left_s, LOOK_EVERY_S))
        return True

    def end(self) -> None:
        """Ends the connection, and with it the process, in its own time; what is under way is lost."""
        self._peer.lose("was told to end")

    def kill(self) -> None:
        """SIGKILL to a process of the driver's own machine that does not answer; elsewhere only its connection ends."""
        self._peer.kill()


class Peer:
    """The driver's side of one process: begins to start it at once, and sends and hears in threads of its own."""

    def __init__(self, name: str, node: Node, n_threads: int, making: Making) -> None:
        self._name = name
        self._node = node
        self._numbers = itertools.count(1)
        self._answers: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._outbox: queue.SimpleQueue[tuple[bytes, list[memoryview]] | None] = queue.SimpleQueue()
        self._channel: Channel | None = None
        self._contact: Contact | None = None
        self._why_lost = ""
        self._heard_s: float | None = None
        self._asked_s = float("-inf")
        self.ended_ns: int | None = None
        """When its side was found to have ended the connection (driver's monotonic clock): from then on it did nothing.
        None while it lives, and where nothing proves it: a node that does not answer any more."""
        self._outbox.put(packed((0, making, n_threads)))
        threading.Thread(
            target=self._open, args=(making[0].__name__,), name="squall-open", daemon=True
        ).start()

    def begin(
        self, method: str, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Future[Any]:
        """See `Handle.begin`."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        message = packed((number, method, arguments, named or {}))
        with self._lock:
            if self._why_lost:
                raise LostActor(self._why_lost)
            self._answers[number] = future
            self._outbox.put(message)
        return future

    def silent_s(self) -> float | None:
        """For how long nothing came from it, where it was asked whether it lives and did not say so in time; else None.
        Asks, where it is time."""
        now_s, heard_s = time.monotonic(), self._heard_s
        if heard_s is None:  # the first answer comes when its object is made
            return None
        if now_s - heard_s < _ASK_AFTER_S:
            return None
        if self._asked_s < heard_s:
            self._asked_s = now_s
            with suppress(LostActor):
                self.begin(LIVES)
        return now_s - heard_s if now_s - self._asked_s >= _SILENT_S else None

    def kill(self) -> None:
        """See `Handle.kill`."""
        self.lose("did not answer any more, and was killed")
        if self._contact is not None and isinstance(self._contact.address, str):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(self._contact.pid)
                process.kill()
                wait_until_gone([process], _KILLED_WITHIN_S)

    def lose(self, why: str) -> None:
        """No call is answered any more, and the connection ends. Only the first reason counts."""
        with self._lock:
            if not self._why_lost:
                self._why_lost = f"{self._name} is lost: {why}"
            waiting, self._answers = list(self._answers.values()), {}
            channel = self._channel
        if channel is not None:
            channel.close()
        self._outbox.put(None)
        for future in waiting:
            future.set_exception(LostActor(self._why_lost))

    def _open(self, title: str) -> None:
        """Starts the process, then sends what is begun, in order; another thread hears the answers."""
        token = secrets.token_bytes(32)
        try:
            self._contact = _LAUNCHERS.start(title, self._node, token)
            channel = connect(self._contact.address, token, _CONNECT_TIMEOUT_S)
        except (OSError, EOFError, AuthenticationError) as error:
            self.lose(f"no connection to it: {getattr(error, 'strerror', None) or error}")
            return
        except ClusterError as error:
            self.lose(str(error))
            return
        except Exception as error:  # a thread's edge: whoever waits must be told
            self.lose(f"it could not be started: {type(error).__name__}: {error}")
            return
        with self._lock:
            self._channel = channel
        if self._why_lost:  # given up meanwhile
            channel.close()
        hearing = threading.Thread(target=self._hear, args=(channel,), name="squall-hear", daemon=True)
        hearing.start()
        with suppress(OSError):
            while (message := self._outbox.get()) is not None:
                channel.send_packed(*message)
                del message
        hearing.join()
        channel.forget()

    def _hear(self, channel: Channel) -> None:
        try:
            while True:
                number, kind, value = channel.receive()
                self._heard_s = time.monotonic()
                if number == 0 and kind != DONE:
                    self.lose(" ".join(str(value).split()))
                    return
                with self._lock:
                    future = self._answers.pop(number, None)
                if future is None:
                    continue
                if kind == DONE:
                    future.set_result(value)
                else:
                    told = value if kind == OUR_ERROR else ClusterError(f"{self._name}: {value}")
                    future.set_exception(told)
        except (EOFError, ConnectionResetError):
            if not self._why_lost:
                self.ended_ns = time.monotonic_ns()
            self.lose("its process has ended")
        except OSError as error:
            self.lose(f"its process cannot be reached any more: {error.strerror or error}")
        except Exception as error:  # what cannot be read: the stream cannot be trusted any more
            self.lose(f"it answered what cannot be read: {type(error).__name__}: {error}")


def spawn(
    name: str,
    node: Node,
    n_threads: int,
    cls: Callable[Arguments, Actor],
    *arguments: Arguments.args,
    **named: Arguments.kwargs,
) -> Handle[Actor]:
    """A process with `cls(*arguments, **named)` on `node`, its calls served by `n_threads` threads.

    It reserves no CPU of Ray's: who runs where is decided by `squall.cluster.placement`, one worker a core.
    """
    label = f"{name} on {node.label}"
    return Handle(label, Peer(label, node, n_threads, (cls, arguments, named)))


def ask_all(
    handles: Mapping[Key, Handle[Actor]],
    method: Callable[Concatenate[Actor, Arguments], Answer],
    *arguments: Arguments.args,
    **named: Arguments.kwargs,
) -> dict[Key, Answer]:
    """The answers of all, asked at once, so that the slowest alone is waited for. Raises what `Handle.wait` raises."""
    return wait_all(
        handles, {key: handle.begin(method, *arguments, **named) for key, handle in handles.items()}
    )


def wait_all(handles: Mapping[Key, Handle[object]], begun: Mapping[Key, Future[Answer]]) -> dict[Key, Answer]:
    """The answers of calls that were begun, of each by its handle. Raises what `Handle.wait` raises."""
    return {key: handles[key].wait(one) for key, one in begun.items()}


def end_all(handles: Iterable[Handle[object]]) -> None:
    """Ends the processes, in their own time; one that does not answer any more at once, where it is on this machine."""
    asked = []
    for handle in handles:
        with suppress(LostActor):
            asked.append((handle, handle.begin_pid()))
    until = time.monotonic() + _LAST_ANSWER_S
    for handle, reference in asked:
        if handle.is_done(reference, max(0.0, until - time.monotonic())):
            handle.end()
        else:
            handle.kill()


def same_code(nodes: Iterable[Node]) -> dict[str, str]:
    """Sees to it that each node runs this process's squall: where there is none, or another, ours is brought to it for
    this session. What such nodes had, by label.

    Raises ClusterError naming each node that cannot run it, with the mend. A node on which Ray starts nothing is left
    to who starts a process there: the driver's own can do without Ray.
    """
    others = [node for node in nodes if not node.is_driver]
    own = own_code()
    had = {label: code for label, code in _LAUNCHERS.codes(others).items() if code != own}
    unlike = [node for node in others if _is_mended_by_shipping(had.get(node.label, ""), own)]
    if unlike:
        _LAUNCHERS.ship(unlike)
    now = {**had, **_LAUNCHERS.codes(unlike)}
    troubles = [
        f"{label} cannot run squall ({code})" if isinstance(code, str) else f"{label} has {code}"
        for label, code in now.items()
        if code != own
    ]
    if troubles:
        raise ClusterError(
            f"{'; '.join(troubles)}; the driver has {own}: every node needs the driver's Python and libraries, in the"
            " environment that runs Ray there"
        )
    return {label: "no squall" if isinstance(code, str) else str(code) for label, code in had.items()}


def _is_mended_by_shipping(code: OwnCode | str, own: OwnCode) -> bool:
    """Not another Python, nor what is missing beside squall."""
    return "No module named 'squall" in code if isinstance(code, str) else code.python == own.python


def forget_launchers() -> None:
    """At the end of a Ray session."""
    _LAUNCHERS.forget()
