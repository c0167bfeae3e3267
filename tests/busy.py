"""Foreign work that takes the CPU of this host: loops that belong to nobody of ours and end by themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

_PER_CORE = 12
"""Each in a session of its own: a scheduler that is fair to sessions then leaves a server a thirteenth of a core."""
_LOOP = """
import os, sys, time
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
os.setsid()
os.close(1)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
"""


@contextlib.contextmanager
def busy_host(at_most_s: float = 60.0) -> Iterator[None]:
    """Loops on every core for the time of the block, `at_most_s` at most. They are nobody's children."""
    pids = []
    try:
        for _ in range(_PER_CORE * (os.cpu_count() or 1)):
            command = [sys.executable, "-S", "-c", _LOOP, str(at_most_s)]
            pids.append(int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
