"""A run in a process of its own: `python -P -m squall.cluster.run_process`, for `squall.cluster.apart`.

stdin   a pickled `Job`
stdout  pickles: the path of the run directory as soon as there is one; last `Ended`
stderr  what `squall run` shows

SIGINT, SIGTERM and the end of the owner's thread seal the run as aborted.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO

from squall.actors.process.ending import end_without_destructors, leave
from squall.actors.process.own_python import leave_out_pandas

if TYPE_CHECKING:
    from squall.cluster.apart import Job

_PR_SET_PDEATHSIG = 1
_STDOUT, _STDERR = 1, 2


def main() -> None:
    """The whole life of the process. What is printed meanwhile goes to stderr: stdout is for answers alone."""
    signal.signal(signal.SIGINT, _end_now)
    end_without_destructors()
    leave_out_pandas()
    signal.signal(signal.SIGTERM, _end_now)
    from squall.cluster.apart import Ended  # imports take half a second: the signals come first

    job: Job = pickle.load(sys.stdin.buffer)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != job.owner_pid:  # it died before that
        return
    with os.fdopen(os.dup(_STDOUT), "wb", buffering=0) as answers:
        os.dup2(_STDERR, _STDOUT)
        problem = _run(job, answers)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # all is done; exit handlers would end in a traceback
        _answer(answers, Ended(problem))
    leave(0)


def _run(job: Job, answers: BinaryIO) -> BaseException | None:
    """What ended the run before its end; None for a run with a verdict."""
    from squall.cluster.driver.run import run_scenario
    from squall.cluster.interrupts import Interrupts
    from squall.scenarios.errors import SquallError

    interrupts = Interrupts()
    try:
        with interrupts:
            run_scenario(job.scenario, job.out, job.ray, interrupts, lambda made: _answer(answers, made))
    except SquallError as error:
        return error
    except KeyboardInterrupt:
        return KeyboardInterrupt(interrupts.name)
    except Exception as error:  # the process's edge: a fault of ours
        problem = RuntimeError(f"internal error: {type(error).__name__}: {error}")
        problem.add_note(traceback.format_exc())
        return problem
    return None


def _answer(answers: BinaryIO, value: object) -> None:
    with suppress(OSError):  # the owner has gone: its death comes as a signal
        answers.write(pickle.dumps(value))


def _end_now(_number: int, _frame: FrameType | None) -> None:
    """Nothing has been begun, or all is done: an exception would be taken for an import's failure."""
    os._exit(1)


if __name__ == "__main__":
    main()
