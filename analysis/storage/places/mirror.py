"""A run directory's copy in another place, made while the run goes on."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from threading import Condition, Thread

from squall.analysis.storage.places.place import Place

_UNFINISHED = (".open", ".new", ".incoming")
_OF_RUNS = {
    "manifest.json", "summary.json", "report.html", "probe.json", "tables", "nsys", "logs", "locust", "trace",
}  # fmt: skip


def is_of_run(name: str) -> bool:
    """Whether a file of this name, from the run directory, is one that squall writes and sends; all else stays."""
    return name.partition("/")[0] in _OF_RUNS and not name.endswith(_UNFINISHED)


class Mirror:
    """Sends files of `folder` to `place` in the order told, in a thread of its own, so that nobody waits for a network.
    Files that squall does not write into runs stay, here and there.

    The first failure ends that: what came later is not sent, so that the copy never states more than it has. `finish`
    begins again. One process mirrors a folder; `put` is for one thread.
    """

    def __init__(self, folder: Path, place: Place) -> None:
        self.place = place
        self._folder = folder
        self._waiting: deque[tuple[str, bytes | None]] = deque()
        self._sent: dict[str, tuple[int, int]] = {}
        self._change = Condition()
        self._is_busy = False
        self._error: OSError | None = None
        self._thread: Thread | None = None

    def put(self, name: str, content: bytes | None = None) -> None:
        """Has the file `name` sent after those before it: as it is then, or this `content`."""
        with self._change:
            if self._error is not None:
                return
            if content is not None:  # a later state of a file that still waits: only that matters
                self._waiting = deque(one for one in self._waiting if one[0] != name)
            self._waiting.append((name, content))
            self._change.notify_all()
            if self._thread is None:
                self._thread = Thread(target=self._work, name="mirror", daemon=True)
                self._thread.start()

    def finish(self, last: str) -> None:
        """Makes the copy whole: sends what it has not, removes what is no more, then sends the file `last`.

        Raises OSError; the copy has a file `last` of before then, or none, and `finish` may be called again.
        """
        self._wait()
        found = self.place.sizes()
        files = {path.relative_to(self._folder).as_posix(): path for path in self._files()}
        for name, path in files.items():
            if name != last and (
                self._sent.get(name) != _state(path) or found.get(name) != path.stat().st_size
            ):
                self._send(name)
        self._send(last)
        for name in found:
            if name not in files and is_of_run(name):
                self.place.remove(name)

    def _files(self) -> list[Path]:
        """What is neither passing, as a spill or the reserve, nor a user's."""
        everything = sorted(path for path in self._folder.rglob("*") if path.is_file())
        return [path for path in everything if is_of_run(path.relative_to(self._folder).as_posix())]

    def _send(self, name: str) -> None:
        path = self._folder / name
        state = _state(path)
        self.place.send(name, path)
        self._sent[name] = state

    def _wait(self) -> None:
        """Until nothing is under way."""
        with self._change:
            self._change.wait_for(lambda: self._error is not None or not (self._waiting or self._is_busy))
            self._waiting.clear()
            self._change.wait_for(lambda: not self._is_busy)
            self._error = None

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._waiting))
                name, content = self._waiting.popleft()
                self._is_busy = True
            error: OSError | None = None
            try:
                if content is None:
                    self._send(name)
                else:
                    self.place.write(name, content)
            except FileNotFoundError:
                pass  # dropped since: `finish` looks again
            except OSError as problem:
                error = problem
            with self._change:
                self._is_busy = False
                if error is not None:
                    self._error = error
                    self._waiting.clear()
                self._change.notify_all()


def _state(path: Path) -> tuple[int, int]:
    """Size and instant of the last change."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns
