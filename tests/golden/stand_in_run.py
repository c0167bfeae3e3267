"""Stands in for `squall.cluster.run_process`: does at once, by the name of the scenario, what a run may come to."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time

from squall.cluster.apart import Ended, Job
from squall.scenarios.errors import TargetError


def answer(value: object) -> None:
    sys.stdout.buffer.write(pickle.dumps(value))
    sys.stdout.buffer.flush()


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)
    name, made = job.scenario.name, job.out / "run"
    assert job.owner_pid == os.getppid()
    if name != "refuse":
        answer(made)
    say("squall begins")
    if name in ("refuse", "fail"):
        answer(Ended(TargetError("the server is not there")))
    elif name == "die":
        say("squall: no answer from Ray")
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "die-silently":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "signalled":
        answer(Ended(KeyboardInterrupt("SIGTERM")))
    elif name == "leave-a-child":
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.DEVNULL
        )
        say(f"child {child.pid}")
        answer(Ended(None))
    elif name == "wait":
        wait_for_signals(job)
    else:
        say("squall ends")
        answer(Ended(None))


def wait_for_signals(job: Job) -> None:
    """Ends in order at the second one."""
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    n_told = -1
    while len(heard) < 2:
        if len(heard) != n_told:
            n_told = len(heard)
            say(f"squall ready {n_told}")
        time.sleep(0.01)
    (job.out / "sealed").touch()
    answer(Ended(KeyboardInterrupt("SIGINT")))


if __name__ == "__main__":
    main()
