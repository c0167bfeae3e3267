"""One load worker in a process of its own, without Ray, its CPU counted: `python -m
squall.actors.load.worker_process`, for programs.

stdin:  pickle of (WorkerSettings, Plan), then a line with start_ns (CLOCK_MONOTONIC); when it closes, the run ends
stdout: {"is_ready": true}, then {"user_ns": …, "system_ns": …, "wall_ns": …, "waited_ns": …}; or {"error": …} in place
of either

The rows are in the spill folder of the settings.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import sys
import threading
from typing import Any

from squall.actors.clock import SystemClock
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.actors.process.ending import end_without_destructors, leave
from squall.actors.process.proc_files import waited_ns
from squall.scenarios.errors import SquallError
from squall.scenarios.plan.plan import Plan
from squall.scenarios.units import NS_PER_S

_FAILED = 1


def _say(**fact: Any) -> None:
    print(json.dumps(fact), flush=True)


def _stop_at_end_of_stdin(worker: LoadWorker) -> None:
    while os.read(0, 4_096):
        pass
    worker.stop()


def run_worker_here(settings: WorkerSettings, plan: Plan) -> None:
    """Prepares, waits for the start instant, runs, and says what it took. Raises SquallError."""
    clock = SystemClock()
    worker = LoadWorker(settings, clock)
    worker.prepare(plan)
    _say(is_ready=True)
    line = sys.stdin.buffer.readline()
    if not line:
        worker.stop()
    threading.Thread(target=_stop_at_end_of_stdin, args=(worker,), daemon=True).start()
    waited_before_ns = waited_ns(os.getpid())
    before, begun_ns = resource.getrusage(resource.RUSAGE_SELF), clock.monotonic_ns()
    worker.run(int(line or begun_ns))
    after, wall_ns = resource.getrusage(resource.RUSAGE_SELF), clock.monotonic_ns() - begun_ns
    waited_after_ns = waited_ns(os.getpid())
    if worker.spill_error():
        raise SquallError(f"worker {settings.worker}: cannot write its records: {worker.spill_error()}")
    _say(
        user_ns=round((after.ru_utime - before.ru_utime) * NS_PER_S),
        system_ns=round((after.ru_stime - before.ru_stime) * NS_PER_S),
        wall_ns=wall_ns,
        waited_ns=None
        if waited_before_ns is None or waited_after_ns is None
        else waited_after_ns - waited_before_ns,
    )


def main() -> int:
    """Exit code 0, or 1 with the error said."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of a terminal: who started us decides
    try:
        settings, plan = pickle.load(sys.stdin.buffer)
        run_worker_here(settings, plan)
    except EOFError:  # it ended before it had sent a job
        return _FAILED
    except SquallError as error:
        _say(error=str(error))
        return _FAILED
    return 0


if __name__ == "__main__":
    end_without_destructors()
    leave(main())
