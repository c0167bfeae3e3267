"""A folder of this host as a `Place`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa


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
        incoming = self._incoming(name)
        incoming.write_bytes(content)
        incoming.replace(self.path / name)

    def send(self, name: str, path: Path) -> None:
        incoming = self._incoming(name)
        shutil.copyfile(path, incoming)
        incoming.replace(self.path / name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def _incoming(self, name: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(path.name + ".incoming")
