"""squall on a real terminal: bars that move, Ctrl-C from the keyboard, and a terminal that is closed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from tests.integration.live_runs import GONE_TIMEOUT_S, RUN_TIMEOUT_S, Bench, scenario_mapping

pytestmark = pytest.mark.beside


class Terminal:
    """A squall whose terminal is a pseudo-terminal that we hold; `text` is what it has shown."""

    def __init__(self, bench: Bench) -> None:
        mapping = scenario_mapping(profile={"nsys": "auto", "nvml": "off"})
        mapping["phases"][1] |= {"duration": "30s", "arrivals": {"kind": "poisson", "rate": "100/s"}}
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "squall.cluster.entry", "run", str(bench.write(mapping)), "--out", str(bench.out)],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm", "TMPDIR": str(bench.tmp)},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.text = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while text not in self.text:
            assert time.monotonic() < deadline, self.text[-2000:]
            if select.select([self._master], [], [], 1.0)[0]:
                self.text += os.read(self._master, 65536).decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def close(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def end(self) -> int:
        """The exit code; what is shown meanwhile is read, so that nobody waits for us."""
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text[-2000:]
            if self._master >= 0 and select.select([self._master], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # its last process has closed it
                    self.process.wait(GONE_TIMEOUT_S)
        return self.process.wait()


@pytest.fixture
def terminal(alone: Bench) -> Iterator[Terminal]:
    found = Terminal(alone)
    yield found
    found.close()
    if found.process.poll() is None:
        found.process.kill()
        found.process.wait()


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_typed_at_moving_bars_seals_the_run_and_leaves_nothing(
    alone: Bench, terminal: Terminal
) -> None:
    terminal.wait_for("burst")
    terminal.wait_for("in flight")
    terminal.type(b"\x03")
    assert terminal.end() == 1
    assert "squall: interrupted by SIGINT" in terminal.text
    assert "Traceback" not in terminal.text
    assert alone.aborted().has("requests")
    alone.wait_until_gone()


@pytest.mark.slow
def test_a_terminal_that_is_closed_ends_and_seals_the_run_and_leaves_nothing(
    alone: Bench, terminal: Terminal
) -> None:
    terminal.wait_for("burst")
    terminal.wait_for("in flight")
    terminal.close()
    assert terminal.end() == 1
    assert alone.aborted().has("requests")
    alone.wait_until_gone()
