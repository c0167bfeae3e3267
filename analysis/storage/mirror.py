"""A run directory's copy in object storage, made while the run goes on."""

from __future__ import annotations

from pathlib import Path
from queue import Queue
from threading import Thread

from squall.analysis.storage.object_folder import ObjectFolder

_UNFINISHED = (".open", ".new")
_OF_RUNS = {
    "manifest.json", "summary.json", "run.parquet", "report.html", "probe.json", "tables", "nsys", "logs", "locust",
    "trace",
}  # fmt: skip


def is_of_run(name: str) -> bool:
    """Whether a file of this name, from the run directory, is one that squall writes and sends; all else stays."""
    return name.partition("/")[0] in _OF_RUNS and not name.endswith(_UNFINISHED)


class Mirror:
    """Sends files of `folder` to `place` in the order told, in its own thread, so that nothing waits for a network.
    Files that squall does not write into runs stay, here and there.

    The first failure ends that: what came later is not sent, so that the copy never states more than it has. `finish`
    begins again. One process mirrors a folder; `put` is for one thread.
    """

    def __init__(self, folder: Path, place: ObjectFolder) -> None:
        self.place = place
        self._folder = folder
        self._waiting: Queue[tuple[str, bytes | None]] = Queue()
        self._sent: dict[str, tuple[int, int]] = {}
        self._has_failed = False
        self._thread = Thread(target=self._work, name="mirror", daemon=True)

    def put(self, name: str, content: bytes | None = None) -> None:
        """Has the file `name` sent after those before it: as it is then, or this `content`."""
        self._waiting.put((name, content))
        if self._thread.ident is None:
            self._thread.start()

    def finish(self, last: str) -> None:
        """Makes the copy whole: sends what it has not, removes what is no more, then sends the file `last`.

        Raises OSError; the copy has a file `last` of before then, or none, and `finish` may be called again.
        """
        self._waiting.join()
        self._has_failed = False
        found = self.place.sizes()
        paths = [path for path in self._folder.rglob("*") if path.is_file()]
        names = {path.relative_to(self._folder).as_posix() for path in paths}
        for name in sorted(filter(is_of_run, names - {last})):
            state = _state(self._folder / name)
            if (self._sent.get(name), found.get(name)) != (state, state[0]):
                self._send(name)
        self._send(last)
        for name in found:
            if name not in names and is_of_run(name):
                self.place.remove(name)

    def _send(self, name: str) -> None:
        path = self._folder / name
        state = _state(path)
        self.place.send(name, path)
        self._sent[name] = state

    def _work(self) -> None:
        while True:
            name, content = self._waiting.get()
            try:
                if self._has_failed:
                    continue
                if content is None:
                    self._send(name)
                else:
                    self.place.write(name, content)
            except FileNotFoundError:
                pass  # dropped since: `finish` looks again
            except OSError:
                self._has_failed = True
            finally:
                self._waiting.task_done()


def _state(path: Path) -> tuple[int, int]:
    """Size and instant of the last change."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns
