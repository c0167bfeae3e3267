"""A run apart from the process that asks for it, which may be a notebook: with threads, an event loop, a Ray.

squall.run ── Job ──► squall.cluster.run_process, where `squall run` has its driver: signals, Ray, clean-up
           ◄── the run directory, Ended
"""

from __future__ import annotations

import io
import os
import pickle
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from squall.actors.process.own_python import own_command, own_environment
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError
from squall.scenarios.records import Frozen

_MODULE = "squall.cluster.run_process"
_OWN_LINE = "squall: "
_CHUNK_BYTES = 65_536


class Job(Frozen):
    """What to run, and who waits for it. `out` is absolute."""

    scenario: Scenario
    out: Path
    ray: str | None
    owner_pid: int


class Ended(Frozen):
    """How the run ended: with a verdict, or by SquallError, RuntimeError (a fault of ours) or KeyboardInterrupt, whose
    text is the signal's name."""

    problem: BaseException | None


def run_apart(
    scenario: Scenario, out: Path, ray: str | None, tell: Callable[[str], None], module: str = _MODULE
) -> Path:
    """Runs `scenario` and returns the sealed run directory, made under `out`. May be called from any thread.

    `tell` gets each line of progress, in the calling thread. Raises SquallError for what stopped the run; the exception
    then has a note with the run directory, if one was made. An exception that breaks in meanwhile, KeyboardInterrupt
    above all, ends the run in order and is raised once nothing runs any more. `module` is what the process runs.
    """
    heard = _Heard(tell)
    with subprocess.Popen(
        own_command(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C comes to us alone
        env=own_environment(),
    ) as process:  # fmt: skip
        try:
            _hand_over(process, Job(scenario, out.absolute(), ray, os.getpid()))
            _follow(process, heard)
        except BaseException as error:
            _end(process, heard)
            heard.note(error)
            raise
    return heard.result(process.returncode)


@dataclass
class _Heard:
    """What the process has said so far."""

    tell: Callable[[str], None]
    answers: bytearray = field(default_factory=bytearray)
    rest: bytes = b""
    why: str = ""

    def hear(self, data: bytes) -> None:
        """Data of its stderr."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if text.startswith(_OWN_LINE):
                self.why = text.removeprefix(_OWN_LINE)
            with suppress(OSError, ValueError):  # whoever is told went away: that must not end a run
                self.tell(text)

    def result(self, code: int) -> Path:
        """The run directory of a run that ended by itself. Raises what it ended with, where that is no verdict."""
        made, ended = self._made(), self._ended()
        if ended is None:
            by = signal.Signals(-code).name if code < 0 else f"code {code}"
            problem: BaseException = ClusterError(self.why or f"the process of the run ended with {by}")
        elif isinstance(ended.problem, KeyboardInterrupt):  # nobody interrupted us
            problem = ClusterError(f"the run was interrupted by {ended.problem}")
        elif ended.problem is not None:
            problem = ended.problem
        else:
            assert made is not None
            return made
        self.note(problem)
        raise problem

    def note(self, error: BaseException) -> None:
        """Says with `error` where the run is that it ended."""
        made = self._made()
        if made is not None:
            error.add_note(f"the run: {made}")

    def _made(self) -> Path | None:
        return next((value for value in self._answers() if isinstance(value, Path)), None)

    def _ended(self) -> Ended | None:
        return next((value for value in self._answers() if isinstance(value, Ended)), None)

    def _answers(self) -> Iterator[object]:
        """As far as they are whole."""
        stream = io.BytesIO(self.answers)
        with suppress(EOFError, pickle.UnpicklingError):
            while True:
                yield pickle.load(stream)


def _hand_over(process: subprocess.Popen[bytes], job: Job) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # it has ended already: its code says why
        process.stdin.write(pickle.dumps(job))


def _follow(process: subprocess.Popen[bytes], heard: _Heard) -> None:
    """Hears the process until it has ended. Of its stderr others may hold an end: nobody waits for those."""
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        waiting.register(process.stderr, selectors.EVENT_READ)
        is_open = True
        while is_open:
            for key, _ in waiting.select():
                data = os.read(key.fd, _CHUNK_BYTES)
                if key.fileobj is process.stderr:
                    heard.hear(data)
                else:
                    heard.answers += data
                if not data:
                    waiting.unregister(key.fileobj)
                    is_open = is_open and key.fileobj is process.stderr
    process.wait()
    _drain(process.stderr, heard)


def _drain(stream: IO[bytes], heard: _Heard) -> None:
    """Hears what lies in the pipe already."""
    os.set_blocking(stream.fileno(), False)
    with suppress(BlockingIOError):
        while data := os.read(stream.fileno(), _CHUNK_BYTES):
            heard.hear(data)


def _end(process: subprocess.Popen[bytes], heard: _Heard) -> None:
    """Ends the process in order, however often Ctrl-C comes meanwhile: each is passed on."""
    is_over = False
    while not is_over:
        with suppress(KeyboardInterrupt):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                _follow(process, heard)
            is_over = True
