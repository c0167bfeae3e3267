"""The event loop of one worker: sockets that are ready, an instant to wake at, a call from another thread.

Not asyncio's: between two replies the engine must be able to look at the clock and send what is due, and the stamp
of a send must be the instant of its write, not of its place in a queue.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from squall.actors.clock import Alarm, Clock

READABLE, WRITABLE = select.EPOLLIN, select.EPOLLOUT
Handler = Callable[[int], None]
"""Called with the epoll events of its descriptor."""

_MOST_EVENTS = 256
_FOREVER_MS = -1


class Loop:
    """epoll with a timer of ns. Use it from one thread; only `wake` is for others.

    `spin_ns`: how long before an instant it stops sleeping and polls busily instead, which the wake-up of a sleeping
    thread (some 50 us) does not delay; `spun_ns` counts what that cost. 0: it always sleeps.
    """

    def __init__(self, clock: Clock, spin_ns: int = 0) -> None:
        self.handlers: dict[int, Handler] = {}
        self.spun_ns = 0
        self._now = clock.monotonic_ns
        self.spin_ns = spin_ns
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._alarm = Alarm()
        self._armed_ns = -1
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waking = threading.Lock()
        self._soon: list[Callable[[], None]] = []
        # edge-triggered: a new `arm` takes an expiry back, so that it need not be read
        self._epoll.register(self._alarm.fd, select.EPOLLIN | select.EPOLLET)
        self.handlers[self._alarm.fd] = self._ignore
        self.watch(self._wake_fd, self._on_wake)

    @property
    def epoll_fd(self) -> int:
        """For who waits in our stead; handles what we would."""
        return self._epoll.fileno()

    @property
    def has_callbacks(self) -> bool:
        """Whether `soon` or `retire` has left something for the next wait."""
        return bool(self._soon)

    def watch(self, fd: int, handler: Handler, events: int = READABLE) -> None:
        """Calls `handler` while `fd` is ready for one of `events`, or in error."""
        self.handlers[fd] = handler
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Other events for a watched descriptor."""
        self._epoll.modify(fd, events)

    def retire(self, fd: int, close: Callable[[], None]) -> None:
        """Watches `fd` no more and calls `close` before the next wait: until then its number must not be given anew."""
        self.handlers[fd] = self._ignore
        self._epoll.unregister(fd)
        self._soon.append(close)

    def soon(self, callback: Callable[[], None]) -> None:
        """Calls `callback` at the next wait, when nothing of ours is on the stack."""
        self._soon.append(callback)

    def wait(self, until_ns: int) -> list[tuple[int, int]]:
        """What is ready, as (fd, events), at the latest at `until_ns`; call `handlers[fd](events)` for each.

        May return early with nothing: look at the clock and wait again.
        """
        if self._soon:
            self._call_soon()
            return []
        now_ns = self._now()
        left_ns = until_ns - now_ns
        if left_ns <= 0:
            return self._poll(0, _MOST_EVENTS)
        if left_ns <= self.spin_ns:
            ready = self._poll(0, _MOST_EVENTS)
            if not ready:
                self.spun_ns += self._now() - now_ns
            return ready
        wake_ns = until_ns - self.spin_ns
        if wake_ns != self._armed_ns:
            self._alarm.arm(wake_ns)
            self._armed_ns = wake_ns
        return self._poll(_FOREVER_MS, _MOST_EVENTS)

    def run_until(self, is_done: Callable[[], bool], until_ns: int) -> bool:
        """Handles events until `is_done()`; False if `until_ns` comes first."""
        while not is_done():
            if self._now() >= until_ns:
                return False
            for fd, events in self.wait(until_ns):
                self.handlers[fd](events)
        return True

    def wake(self) -> None:
        """Makes a `wait` under way return. From any thread; after `close` it does nothing."""
        with self._waking:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Frees what the loop itself holds, and what was retired."""
        self._call_soon()
        self._epoll.close()
        self._alarm.close()
        with self._waking:  # whoever wakes it now writes to no file that another has opened since
            wake_fd, self._wake_fd = self._wake_fd, -1
            os.close(wake_fd)
        self.handlers.clear()

    def _call_soon(self) -> None:
        callbacks, self._soon = self._soon, []
        for callback in callbacks:
            callback()

    def _on_wake(self, _: int) -> None:
        os.eventfd_read(self._wake_fd)

    def _ignore(self, _: int) -> None:
        return
