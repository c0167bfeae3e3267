"""A folder of this host as a `Place`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from squall.analysis.storage.beneath import new_file, passing_name


@dataclass(frozen=True)
class LocalFolder:
    """The files under `path`, which need not be there yet."""

    path: Path

    @property
    def address(self) -> str:
        return str(self.path)

    def sizes(self, under: str = "") -> dict[str, int]:
        found = (one for one in (self.path / under).rglob("*") if one.is_file() and one.suffix != ".incoming")
        return {one.relative_to(self.path).as_posix(): one.stat().st_size for one in sorted(found)}

    def open(self, name: str) -> pa.NativeFile:
        (self.path / name).stat()  # whose errors say why
        return pa.OSFile(str(self.path / name), "rb")

    def write(self, name: str, content: bytes) -> None:
        self._put(name, lambda file: file.write(content))

    def send(self, name: str, path: Path) -> None:
        with open(path, "rb") as source:
            self._put(name, lambda file: shutil.copyfileobj(source, file))

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def _put(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        incoming = passing_name(path, ".incoming")
        try:
            with new_file(incoming) as file:
                write(file)
            incoming.replace(path)
        except BaseException:
            incoming.unlink(missing_ok=True)
            raise
