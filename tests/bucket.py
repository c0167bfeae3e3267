"""Object storage in memory."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from squall.analysis.storage import object_folder


class Bucket(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Contents by key, `bucket/prefix/name`, whatever the keys are."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, folder: Path, under: str) -> None:
        """Puts a copy of each file of `folder` under a prefix."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.objects[f"{under}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()

    def files(self, under: str) -> dict[str, bytes]:
        """The contents under a prefix, by name."""
        begin = f"{under}/"
        return {key.removeprefix(begin): of for key, of in self.objects.items() if key.startswith(begin)}

    def get_type_name(self) -> str:
        return "bucket"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info_selector(self, selector: Any) -> list[pafs.FileInfo]:
        return [
            pafs.FileInfo(f"{selector.base_dir}/{name}", pafs.FileType.File, size=len(content))
            for name, content in self.files(selector.base_dir).items()
        ]

    def open_input_file(self, path: str) -> pa.PythonFile:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return pa.PythonFile(pa.BufferReader(self.objects[path]), mode="r")

    def open_output_stream(self, path: str, _metadata: Any) -> pa.PythonFile:
        objects = self.objects

        class Upload(BytesIO):
            def close(self) -> None:
                if not self.closed:
                    objects[path] = self.getvalue()
                super().close()

        return pa.PythonFile(Upload(), mode="w")


for _name in pafs.FileSystemHandler.__abstractmethods__ - {*vars(Bucket)}:
    setattr(Bucket, _name, None)
Bucket.__abstractmethods__ = frozenset()


def bucket(patch: pytest.MonkeyPatch) -> Bucket:
    """What every address of object storage names from now on."""
    made = Bucket()
    files = pafs.PyFileSystem(made)
    patch.setattr(object_folder, "_file_system", lambda: files)
    return made
