"""A Locust worker in its process: Locust's own runner, with our account of its users and our rows of its requests."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gevent
import gevent.event
from gevent import GreenletExit
from locust.stats import StatsError
from locust.user.task import TaskSet
from locust.user.users import User

from squall.actors.locust.locustfile import Loaded, fire_init
from squall.actors.locust.request_rows import RequestRows
from squall.actors.locust.row_ring import RowWriter
from squall.actors.locust.settings import LocustSettings
from squall.actors.locust.user_watch import UserCounts, UserWatch
from squall.actors.triton_user.handed import Handed
from squall.actors.worker_usage import GcWatch, Usage, cpu_ns, gc_count
from squall.scenarios.units import NS_PER_S

ENDED, NOTED = "squall_ended", "squall_noted"
"""Messages of ours between worker and master: its last report is made; and it has come."""
_NOTED_WITHIN_S = 10.0
_SENT_WITHIN_S = 1.0
_STOPPED_WITHIN_S = 3.0
_RETRY_S = 0.05


Say = Callable[..., None]
"""Takes what is to be known of a process, by name."""


class WorkerRole:
    """Connected when it is made; `play` returns when its users have ended and all is said."""

    def __init__(
        self, settings: LocustSettings, loaded: Loaded, say: Say, ring_fd: int, master: tuple[str, int]
    ) -> None:
        """Raises ConnectionError where there is no master."""
        self._settings = settings
        self._say = say
        self._environment = environment = loaded.environment
        self._writer = RowWriter(ring_fd)
        self._watch = UserWatch(settings.late_ns, gevent.getcurrent)
        self._rows = RequestRows(
            self._writer,
            settings.worker,
            settings.n_workers,
            [one.end_ns for one in settings.spans],
            {one.url: number for number, one in enumerate(settings.targets)},
            StatsError.parse_error,
        )
        environment.squall = Handed(
            settings.targets, settings.models, settings.seed, self._rows.next_id, settings.headers,
            settings.timeout_ns, settings.worker, settings.largest_reply_bytes,
        )  # fmt: skip
        _account_for(self._watch)
        self._gc_watch = GcWatch()
        self._noted = gevent.event.Event()
        self._over = gevent.event.Event()
        self._has_reported = False
        self._previous: _Seen | None = None
        self._runner = runner = environment.create_worker_runner(*master)
        runner.register_message(NOTED, lambda **_: self._noted.set())
        events = environment.events
        events.request.add_listener(self._rows.on_request)
        events.test_start._handlers.insert(0, lambda **_: self._rows.begin())
        events.test_stop.add_listener(lambda **_: self._report())
        events.user_error.add_listener(self._note_error)
        events.report_to_master.add_listener(_sendable)
        fire_init(settings, environment, None)
        say(ready={"user_classes": loaded.user_classes, "shape": loaded.shape, "pid": os.getpid()})

    def start(self, start_ns: int) -> None:
        """The start instant: from then on there is a sample a second."""
        self._rows.place_phases(start_ns)
        self._previous = self._seen()
        gc.callbacks.append(self._gc_watch)
        gevent.spawn(self._sample, start_ns)

    def stop(self) -> None:
        """Ends the users at once."""
        self._environment.stop_timeout = 0.0
        gevent.spawn(self._end_runner)

    def _end_runner(self) -> None:
        self._runner.stop()
        if self._has_reported:  # a process that ends at once may take its last report with it
            self._noted.wait(_STOPPED_WITHIN_S)
        self._over.set()  # where no test ever ran

    def play(self) -> None:
        """Until the test is over."""
        self._over.wait()
        while self._writer.n_waiting:
            gevent.sleep(_RETRY_S)
            self._writer.retry()
        if self._previous is not None:
            self._say_sample(self._previous, 0)
        counts = {"n_requests": self._writer.n_recorded, "n_failures": self._rows.n_failures}
        self._say(ended={**counts, "exit_code": exit_code_of(self._environment)})
        self._environment.events.quitting.fire(environment=self._environment, reverse=True)
        self._environment.events.quit.fire(exit_code=self._environment.process_exit_code or 0)

    def _report(self) -> None:
        """Locust's users have ended: its last report, and that it is the last. What comes later counts nowhere."""
        self._rows.end()
        self._has_reported = True
        self._environment.stop_timeout = 0.0  # the runner sleeps so long, and hears nothing meanwhile
        try:
            self._runner._send_stats()
            self._runner.send_message(ENDED, {"worker": self._settings.worker})
        except Exception:  # the master is gone: the rows stand without its statistics
            logging.exception("the last report did not reach the master")
        gevent.spawn(self._wait_for_note)

    def _wait_for_note(self) -> None:
        """Until the master has it, or cannot say so: user code that quits ends the greenlets that would hear it."""
        until_s = time.monotonic() + _NOTED_WITHIN_S
        while not self._noted.wait(_RETRY_S) and time.monotonic() < until_s:
            if not len(self._runner.greenlet):
                until_s = min(until_s, time.monotonic() + _SENT_WITHIN_S)
        self._over.set()

    def _note_error(self, **_: Any) -> None:
        self._watch.n_errors += 1

    def _seen(self) -> _Seen:
        now_ns, n_done, paused_ns = time.monotonic_ns(), self._writer.n_recorded, self._gc_watch.paused_ns
        process = Usage(now_ns, n_done=n_done, cpu_ns=cpu_ns(), gc_count=gc_count(), gc_pause_ns=paused_ns)
        return _Seen(process, self._watch.counts(now_ns), self._rows.n_failures)

    def _sample(self, start_ns: int) -> None:
        """On each second of the run."""
        due_ns = start_ns + NS_PER_S
        while not self._over.is_set():
            gevent.sleep(max(0, due_ns - time.monotonic_ns()) / NS_PER_S)
            if self._over.is_set():
                return
            now_ns = time.monotonic_ns()
            self._writer.retry()
            assert self._previous is not None
            self._say_sample(self._previous, now_ns - due_ns)
            due_ns += max(1, (now_ns - due_ns) // NS_PER_S + 1) * NS_PER_S

    def _say_sample(self, before: _Seen, loop_lag_ns: int) -> None:
        self._previous = after = self._seen()
        (a, b), (old, new) = (before.process, after.process), (before.users, after.users)
        if a.at_ns == b.at_ns:
            return
        late_max_ns = self._watch.take_late_max()
        self._say(
            sample={
                "t_ns": b.at_ns,
                "interval_ns": b.at_ns - a.at_ns,
                "n_users": new.n_users,
                "n_thinking": new.n_thinking,
                **{
                    name: getattr(new, name) - getattr(old, name)
                    for name in (
                        "present_ns", "think_ns", "overslept_ns", "n_wakes", "n_late_wakes", "n_errors", "n_died",
                        "n_cut",
                    )
                },
                "late_max_ns": late_max_ns,
                "n_requests": b.n_done - a.n_done,
                "n_failures": after.n_failures - before.n_failures,
            },
            process={
                "loop_lag_ns": loop_lag_ns,
                "lag_max_ns": late_max_ns,
                **{name: getattr(b, name) - getattr(a, name) for name in ("cpu_ns", "gc_count", "gc_pause_ns")},
            },
            n_started=new.n_started,
            n_died=new.n_died,
            first_death=self._watch.first_death,
        )  # fmt: skip


def exit_code_of(environment: Any) -> int:
    """What the locustfile says of the test (`process_exit_code`), 0 for nothing; 1 for what is no number."""
    try:
        return int(environment.process_exit_code or 0)
    except (TypeError, ValueError):
        return 1


def _sendable(client_id: str, data: dict[str, Any]) -> None:
    """What user code gave is made what Locust can send and sort: names and methods text, as in the rows, and numpy's
    numbers Python's. A report with others stays where it is."""
    del client_id
    for one in (*data["stats"], data["stats_total"], *data["errors"].values()):
        for key, value in one.items():
            if key in ("name", "method"):
                one[key] = str(value).encode(errors="replace").decode()
            elif isinstance(value, dict):
                one[key] = {_plain(word): _plain(count) for word, count in value.items()}
            else:
                one[key] = _plain(value)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


@dataclass(frozen=True)
class _Seen:
    """Cumulative counts at an instant; of `process` those that Locust has."""

    process: Usage
    users: UserCounts
    n_failures: int


def _account_for(watch: UserWatch) -> None:
    """Every user of this process, by Locust's own methods: their length, their sleeps, and the tasks cut short."""
    run, task = User.run, TaskSet.execute_next_task

    def watched_run(self: Any) -> None:
        with watch.present():
            run(self)

    def watched_task(self: Any) -> None:
        try:
            task(self)
        except GreenletExit:
            watch.note_cut()
            raise

    User.run = watched_run
    TaskSet.execute_next_task = watched_task
    gevent.sleep = time.sleep = watch.sleeping(gevent.sleep)
