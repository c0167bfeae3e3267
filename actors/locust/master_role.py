"""A Locust master in its process: Locust's own runner, started and stopped on the run's timeline.

connected ─ start instant: users spawn ─ end of the load: users end their tasks ─ last reports ─ outputs
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import gevent.event
import locust
import locust.log
import locust.runners
from locust.exception import RPCError
from locust.rpc import Message, zmqrpc

from squall.actors.locust.locustfile import Loaded, fire_init
from squall.actors.locust.messages import is_sound
from squall.actors.locust.outputs import Outputs
from squall.actors.locust.settings import LocustSettings
from squall.actors.locust.worker_role import ENDED, NOTED, Say, exit_code_of
from squall.scenarios.units import NS_PER_S

_LOOK_S = 0.05
_KEEP_S = 5.0
_REPORTS_WITHIN_S = 15.0
_STOPPED_WITHIN_S = 4.0
_REPLY_S = 0.5
_SILENT_COUNT = 10
"""Heartbeats, one a second, that a worker may miss: Locust's own 3 end a load where a busy host starves one for 4 s.
That one has ended its process tells."""
_SILENT_AT_END_COUNT = 1
"""Where the load is to end at once: a worker that is gone would be waited for longer than its end may take."""
_LOOPBACK = "127.0.0.1"
_WORKER = re.compile(r"locust-worker-([0-9]{1,6})_")
_ENVIRONMENT = re.compile(r'(?<=File ")/[^"]*?(?=/lib/python3)')
_OURS = re.compile(r'(?<=File ")/[^"]*/(?=actors/locust/)')
"""The folders of a node's Python and of squall there, in a traceback."""
_FAULT_CHARACTERS = 2_000
_NO_MESSAGE = "a message to the master was left out, as no worker sends it"


def _next_message(receive: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`receive` of a server, which passes over what is no message: Locust would hear no more after some."""

    def received(server: Any) -> Any:
        while True:
            try:
                return receive(server)
            except RPCError:  # of the socket, not of what came
                raise
            except Exception:
                logging.error("%s: it cannot be read", _NO_MESSAGE)

    return received


def _of_workers(handle: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    """`handle` of a runner, for what workers of a run send: in their own name, and not to ask for the source of the
    locustfile, which they have and Locust would tell anybody. What raises there ends no greenlet."""

    def handled(client_id: str, msg: Any) -> None:
        if msg.type == "locustfile" or msg.node_id != client_id or not is_sound(msg.type, msg.data):
            logging.error("%s: %.100r", _NO_MESSAGE, msg.type)
            return
        try:
            handle(client_id, msg)
        except Exception:
            logging.error("%s: %s", _NO_MESSAGE, traceback.format_exc()[-_FAULT_CHARACTERS:])

    return handled


class MasterRole:
    """Listens when it is made; `play` returns when all is written and said."""

    def __init__(self, settings: LocustSettings, loaded: Loaded, say: Say) -> None:
        """Raises OSError where it cannot listen or write, BadLocustfile for a listener of the file that fails."""
        self._settings = settings
        self._loaded = loaded
        self._say = say
        self._environment = environment = loaded.environment
        self._reported: set[int] = set()
        self._missing: set[int] = set()
        self._over = gevent.event.Event()
        self._stops = False
        self._asked: tuple[int, float] | None = None
        self._start_ns = 0
        locust.runners.HEARTBEAT_LIVENESS = _SILENT_COUNT
        zmqrpc.Server.recv_from_client = _next_message(zmqrpc.Server.recv_from_client)
        self._runner = runner = environment.create_master_runner(settings.address, 0)
        runner.handle_message = _of_workers(runner.handle_message)
        runner.register_message(ENDED, self._take_last_report)
        note = runner.log_exception
        runner.log_exception = lambda node, words, trace: note(
            node, words, _OURS.sub("squall/", _ENVIRONMENT.sub("<python>", trace))
        )
        self._outputs = Outputs(environment, Path(settings.spill_dir) / settings.name, settings.config.html)
        events = environment.events
        events.test_stop.add_listener(lambda **_: self._over.set())
        web_ui = self._web_ui()
        fire_init(settings, environment, web_ui)
        if web_ui is not None:
            web_ui.start()
        say(
            ready={
                "version": locust.__version__,
                "user_classes": loaded.user_classes,
                "shape": loaded.shape,
                "pid": os.getpid(),
                "address": [settings.address, runner.server.port],
            }
        )
        gevent.spawn(self._tell_connected)

    def _web_ui(self) -> Any:
        """On loopback alone, where it is asked for."""
        web = self._settings.config.web
        if web is None:
            return None
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_LOOPBACK, web.port))
            except OSError as error:
                raise OSError(f"load.locust.web: port {web.port} of loopback: {error.strerror}") from error
        return self._environment.create_web_ui(
            host=_LOOPBACK, port=web.port, stats_csv_writer=self._outputs.csv, delayed_start=True
        )

    def _tell_connected(self) -> None:
        told = -1
        while not self._over.is_set():
            n = len(self._runner.clients.ready)
            if n != told:
                self._say(connected=n)
                told = n
            if n == self._settings.n_workers:
                return
            gevent.sleep(_LOOK_S)

    def start(self, start_ns: int) -> None:
        """Users from that instant on, on this node's clock."""
        self._start_ns = start_ns
        gevent.spawn(self._run, start_ns)

    def stop(self) -> None:
        """Ends the load at once."""
        self._environment.stop_timeout = 0.0
        self._stops = True
        for client in self._runner.clients.all:
            client.heartbeat = min(client.heartbeat, _SILENT_AT_END_COUNT)
        gevent.spawn(self._end)

    def _run(self, start_ns: int) -> None:
        gevent.sleep(max(0, start_ns - time.monotonic_ns()) / NS_PER_S)
        if self._stops:
            return
        config, runner = self._settings.config, self._runner
        self._outputs.begin()
        gevent.spawn(self._look)
        if self._loaded.shape:
            runner.start_shape()
        else:
            spawning = gevent.spawn(runner.start, config.users, config.spawn_rate)
            spawning.link_exception(locust.log.greenlet_exception_logger(logging.getLogger(__name__)))
        left_ns = start_ns + self._settings.load_end_ns - time.monotonic_ns()
        if self._over.wait(max(0, left_ns) / NS_PER_S):
            if not self._stops:
                self._say(ended_ns=time.monotonic_ns())
            return
        self._end()

    def _end(self) -> None:
        """Users end the task that they are in, within the timeout; then each worker reports for the last time."""
        self._runner.stop()  # tells of the end where it was running, and nothing where somebody else stops it
        if self._runner.state == "ready":
            within_s = 0.0
        else:
            within_s = _STOPPED_WITHIN_S + (self._environment.stop_timeout if self._awaits_reports() else 0.0)
        if not self._over.wait(within_s):
            self._over.set()

    def _look(self) -> None:
        """Tells what Locust was asked for as it changes, its own page and shapes included; keeps the account."""
        kept_s = time.monotonic()
        while not self._over.is_set():
            asked = (self._runner.target_user_count, float(self._runner.spawn_rate))
            if asked != self._asked and (asked[0] or self._asked):
                self._asked = asked
                self._say(asked=[time.monotonic_ns(), *asked])
            self._note_missing()
            if time.monotonic() - kept_s > _KEEP_S:
                kept_s = time.monotonic()
                self._outputs.keep_account()
            gevent.sleep(_LOOK_S)

    def _take_last_report(self, environment: Any, msg: Any) -> None:
        del environment
        worker = msg.data["worker"]
        if worker not in range(self._settings.n_workers):  # whoever reaches the port may say anything
            return
        self._reported.add(int(worker))
        self._runner.server.send_to_client(Message(NOTED, None, msg.node_id))
        if not self._awaits_reports():
            gevent.spawn(self._end)  # user code has ended the load

    def play(self) -> None:
        """Until the test is over and its outputs are written."""
        self._over.wait()
        until_s = time.monotonic() + (_STOPPED_WITHIN_S if self._stops else _REPORTS_WITHIN_S)
        while self._start_ns and self._awaits_reports() and time.monotonic() < until_s:
            gevent.sleep(_LOOK_S)
        self._outputs.finish()
        self._environment.events.quitting.fire(environment=self._environment, reverse=True)
        if self._settings.config.web is not None:
            gevent.sleep(_REPLY_S)  # who stopped it on the page has an answer
        self._say(ended=True, reported=sorted(self._reported), exit_code=exit_code_of(self._environment))
        self._environment.events.quit.fire(exit_code=self._environment.process_exit_code or 0)

    def _note_missing(self) -> None:
        """Workers that have gone silent; Locust's ids are the names of their processes, and something behind `_`. A
        stranger who connects may have any."""
        found = [_WORKER.match(str(client.id)) for client in self._runner.clients.missing]
        numbers = {int(one[1]) for one in found if one is not None}
        self._missing |= {number for number in numbers if number < self._settings.n_workers}

    def _awaits_reports(self) -> bool:
        """Of a worker that has neither made its last nor gone silent."""
        self._note_missing()
        return len(self._reported | self._missing) < self._settings.n_workers
