"""A process that acts where its owner is killed: it hears of that by the end of its stdin."""

from __future__ import annotations

import subprocess
from contextlib import suppress

from squall.actors.process.own_python import own_command, own_environment


class WatchProcess:
    """The owner's side. It is nobody's but the owner's: no signal of a terminal reaches it."""

    def __init__(self, module: str, *arguments: str) -> None:
        """What `module` is to do then. Raises OSError where it cannot start."""
        self._process = subprocess.Popen(
            own_command(module, *arguments),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=own_environment(),
        )  # fmt: skip

    def tell(self, data: bytes) -> None:
        """Raises OSError where it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def dismiss(self, word: bytes, within_s: float) -> None:
        """Nothing is left to be done: `word` tells it so, and it ends, killed where that takes longer."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self.tell(word)
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
