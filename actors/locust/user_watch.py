"""What users of a Locust worker do with their time, and how late Locust wakes them. Under gevent, in its process.

    user: ── task ──┬─ asked to sleep ─┬ overslept ┬── task ──
                    think              late        its hub had others to run, or computed

What is neither think nor a request is Locust's own: the wait of a user for its turn, and what its code computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from squall.scenarios.units import NS_PER_S

_DEATH_CHARACTERS = 500


@dataclass
class _User:
    since_ns: int
    asleep_ns: int = 0
    """When it fell asleep; 0: it is awake."""
    due_ns: int = 0
    is_stopped_asleep: bool = False
    is_cut: bool = False


@dataclass(frozen=True)
class UserCounts:
    """Cumulative, up to an instant: see the columns of `locust_samples`."""

    n_users: int = 0
    n_thinking: int = 0
    present_ns: int = 0
    think_ns: int = 0
    overslept_ns: int = 0
    n_wakes: int = 0
    n_late_wakes: int = 0
    n_errors: int = 0
    n_died: int = 0
    n_cut: int = 0
    n_started: int = 0


class UserWatch:
    """Keeps account of the users of one process, by their greenlets."""

    def __init__(
        self, late_ns: int, current: Callable[[], object], now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`current`: the running greenlet; `now_ns`: the node's clock."""
        self._now_ns = now_ns
        self._late_ns = late_ns
        self._current = current
        self._users: dict[object, _User] = {}
        self._present_ns = 0
        self._think_ns = 0
        self._overslept_ns = 0
        self._n_wakes = 0
        self._n_late_wakes = 0
        self._late_max_ns = 0
        self._n_died = 0
        self._n_cut = 0
        self._n_started = 0
        self.n_errors = 0
        self.first_death = ""

    @contextmanager
    def present(self) -> Iterator[None]:
        """Around all that a user does, in its greenlet."""
        me = self._current()
        user = self._users[me] = _User(self._now_ns())
        self._n_started += 1
        try:
            yield
        except Exception as error:
            self._n_died += 1
            self.first_death = self.first_death or f"{type(error).__name__}: {error}"[:_DEATH_CHARACTERS]
            raise
        finally:
            del self._users[me]
            self._present_ns += self._now_ns() - user.since_ns
            self._n_cut += user.is_cut

    def note_cut(self) -> None:
        """The user that runs is stopped within a task, and not in its sleep: a request of its may be in flight."""
        user = self._users.get(self._current())
        if user is not None and not user.is_stopped_asleep:
            user.is_cut = True

    def sleeping(self, sleep: Callable[..., Any]) -> Callable[..., Any]:
        """`sleep`, gevent's, with the account of a user that calls it."""

        def asleep(seconds: float = 0, *arguments: Any, **named: Any) -> Any:
            user = self._users.get(self._current())
            if user is None or user.asleep_ns:
                return sleep(seconds, *arguments, **named)
            now_ns = self._now_ns()
            user.asleep_ns, user.due_ns = now_ns, now_ns + max(0, round(seconds * NS_PER_S))
            try:
                result = sleep(seconds, *arguments, **named)
            except BaseException:
                user.is_stopped_asleep = True
                raise
            finally:
                woken_ns = self._now_ns()
                self._think_ns += min(woken_ns, user.due_ns) - user.asleep_ns
                late_ns = max(0, woken_ns - user.due_ns)
                self._overslept_ns += late_ns
                user.asleep_ns = 0
            self._n_wakes += 1
            self._n_late_wakes += late_ns > self._late_ns
            self._late_max_ns = max(self._late_max_ns, late_ns)
            return result

        return asleep

    def counts(self, now_ns: int) -> UserCounts:
        """Up to `now_ns`, those asleep now included."""
        users = self._users.values()
        asleep = [one for one in users if one.asleep_ns]
        return UserCounts(
            n_users=len(users),
            n_thinking=len(asleep),
            present_ns=self._present_ns + sum(now_ns - one.since_ns for one in users),
            think_ns=self._think_ns + sum(min(now_ns, one.due_ns) - one.asleep_ns for one in asleep),
            overslept_ns=self._overslept_ns + sum(max(0, now_ns - one.due_ns) for one in asleep),
            n_wakes=self._n_wakes,
            n_late_wakes=self._n_late_wakes,
            n_errors=self.n_errors,
            n_died=self._n_died,
            n_cut=self._n_cut,
            n_started=self._n_started,
        )

    def take_late_max(self) -> int:
        """Largest lateness of a wake since the last time, in ns."""
        found, self._late_max_ns = self._late_max_ns, 0
        return found
