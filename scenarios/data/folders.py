"""Folders: images, an entry each; and perf_analyzer's, a file named as each input.

Source of the latter: perf_analyzer's docs/input_data.md (directory path).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from squall.scenarios.data.source import Entries, Picture, Raw, Source, Wanted
from squall.scenarios.traces.faults import RowFault

ONLY_COLUMN = "image"
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
LARGEST_FILE_BYTES = 2**30
"""Of one entry: a message holds no more."""


def files_in(folder: Path) -> list[Path]:
    """By name; hidden ones are left out."""
    found = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return sorted(found, key=lambda path: path.name)


class ImageSource(Source):
    """The image files of a folder in the order of their names."""

    names = (ONLY_COLUMN,)

    def __init__(self, folder: Path) -> None:
        self.files = [path for path in files_in(folder) if path.suffix.lower() in IMAGE_SUFFIXES]
        self.n_entries = len(self.files)

    def read(self, wanted: Wanted, names: Sequence[str]) -> Entries:
        """See `Source`."""
        del names
        for number in np.flatnonzero(wanted).tolist():
            yield number, {ONLY_COLUMN: Picture(_content(self.files[number]))}

    def place(self, number: int) -> str:
        """See `Source`."""
        return self.files[number].name


class FolderSource(Source):
    """A folder with a file for each input is one entry; one of such folders has an entry for each, by their names."""

    def __init__(self, folder: Path) -> None:
        within = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        if within and files_in(folder):
            raise RowFault(
                None, "holds files beside folders: it is one entry or a folder of entries, not both"
            )
        self._folders = within or [folder]
        self.names = tuple(path.name for path in files_in(self._folders[0]))
        self.n_entries = len(self._folders) if self.names or within else 0

    def read(self, wanted: Wanted, names: Sequence[str]) -> Entries:
        """See `Source`."""
        for number in np.flatnonzero(wanted).tolist():
            folder = self._folders[number]
            lacking = [name for name in names if not (folder / name).is_file()]
            if lacking:
                raise RowFault(number + 1, f"the folder {folder.name} has no file {lacking[0]!r}")
            yield number, {name: Raw(_content(folder / name), is_lines=True) for name in names}

    def place(self, number: int) -> str:
        """See `Source`."""
        return self._folders[number].name


def _content(path: Path) -> bytes:
    """Raises RowFault for a file that is larger than any request."""
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise RowFault(None, f"{path.name} is larger than {LARGEST_FILE_BYTES // 2**30} GiB")
    return path.read_bytes()
