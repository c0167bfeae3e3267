"""The plan of a run whose load is Locust's: when its phases are, and which files say what its users do.

What a user sends and when is for the locustfile to say, with a random state of its own: two runs of one plan are not
one schedule. The locustfile and what lies beside it are brought to the nodes.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from squall.scenarios.config.locust import LocustConfig
from squall.scenarios.errors import ScenarioError
from squall.scenarios.fields import Keys
from squall.scenarios.foreign_file import read_within
from squall.scenarios.plan.plan import PhaseSpan
from squall.scenarios.records import Frozen

MOST_BYTES = 64 * 2**20
"""Of all of them: they travel to every worker."""
MOST_SOURCE_BYTES = 2 * 2**20
"""Of the locustfile itself, which is compiled: that may take 600 bytes of memory for each."""
_NEVER = {"__pycache__", ".git", ".venv"}
"""Folders that are left out."""
MOST_SHOWN = 80
"""Characters of a line that is no Python."""
NO_LOAD = {"file", "include", "run_time_ns", "web", "html"}
"""Keys that change nothing of what is sent: where files lie, what the phases say too, what is shown."""


class LocustFiles(Frozen):
    """The locustfile, and all files by their path below its folder, it among them."""

    locustfile: str
    contents: dict[str, bytes]

    def sha256(self) -> str:
        """Hex digest of all names and contents."""
        digest = hashlib.sha256(os.fsencode(self.locustfile))
        for name, content in sorted(self.contents.items()):
            digest.update(os.fsencode(f"\n{name}\n{len(content)}\n"))
            digest.update(content)
        return digest.hexdigest()

    def write(self, folder: Path) -> Path:
        """Puts them below `folder`; where the locustfile is. Raises OSError."""
        for name, content in self.contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder / self.locustfile


class LocustPlan(Frozen, eq=False):
    """Users begin at the start instant, `config.spawn_rate` a second, or as the file's shape says; they are told to end
    at `load_end_ns`, and have `stop_timeout_ns` to end the task that they are in."""

    config: LocustConfig
    files: LocustFiles
    spans: tuple[PhaseSpan, ...]

    @property
    def load_end_ns(self) -> int:
        """End of the last phase that is no drain, from the start instant."""
        return max(span.end_ns for span in self.spans if span.kind != "drain")

    @property
    def stop_timeout_ns(self) -> int:
        """What users have to end the task that they are in: as stated, else what is left of the run."""
        stated = self.config.stop_timeout_ns
        return self.spans[-1].end_ns - self.load_end_ns if stated is None else stated

    def sha256(self) -> str:
        """Hex digest of settings, phases and files: the same wherever these lie."""
        spans = [(span.name, span.kind, span.start_ns, span.end_ns) for span in self.spans]
        stated = stated_load(self.config), spans, self.files.sha256()
        return hashlib.sha256(repr(stated).encode()).hexdigest()


def stated_load(config: LocustConfig) -> Keys:
    """What `load.locust` says of the load but for its files, in plain types."""
    return config.model_dump(mode="json", by_alias=True, exclude=NO_LOAD)


def read_locust_files(config: LocustConfig) -> LocustFiles:
    """Raises ScenarioError for a file that is not there or cannot be read, a locustfile that is no Python, in Python's
    own words, one of more than `MOST_SOURCE_BYTES`, and more than `MOST_BYTES` in all, of which no more is read."""
    path = Path(config.file)
    contents = {path.name: _read(path, "load.locust.file", MOST_SOURCE_BYTES, MOST_SOURCE_BYTES)}
    for included in config.include:
        for file in _files_of(Path(included)):
            name = file.relative_to(path.parent).as_posix()
            if name not in contents:
                left = MOST_BYTES - sum(map(len, contents.values()))
                contents[name] = _read(file, "load.locust.include", left, MOST_BYTES)
    _refuse_no_python(path.name, contents[path.name])
    return LocustFiles(path.name, contents)


def _refuse_no_python(name: str, source: bytes) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):  # they are for whoever runs it
            compile(source, name, "exec", dont_inherit=True)
    except (RecursionError, MemoryError) as error:
        raise ScenarioError(f"load.locust.file: {name}: nested too deep") from error
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, before Python 3.11.4
        line = " ".join((getattr(error, "text", None) or "").split())
        where = f" ({line[:MOST_SHOWN]})" if line else ""
        raise ScenarioError(f"load.locust.file: {name}: {type(error).__name__}: {error}{where}") from error


def _files_of(path: Path) -> Iterator[Path]:
    """A file, or all files of a folder, sorted; links are followed, each folder once."""
    if not path.is_dir():
        yield path
        return
    seen = {os.path.realpath(path)}
    for above, folders, files in os.walk(path, followlinks=True):
        folders[:] = sorted(set(folders) - _NEVER)
        for name in list(folders):
            real = os.path.realpath(os.path.join(above, name))
            if real in seen:
                folders.remove(name)
            seen.add(real)
        yield from (file for name in sorted(files) if (file := Path(above, name)).is_file())


def _read(path: Path, key: str, left: int, most: int) -> bytes:
    """The file, of at most `left` of `most` bytes; one byte more is read. Raises ScenarioError."""
    try:
        content = read_within(path, left)
    except OSError as error:
        raise ScenarioError(f"{key}: {path}: {error.strerror}") from error
    if content is None:
        raise ScenarioError(
            f"{key}: {path}: more than {most // 2**20} MiB, which every worker would be sent; put data where all nodes"
            " see it, and modules beside the locustfile into load.locust.include"
        )
    return content
