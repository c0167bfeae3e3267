"""A fault at a row of a file, raised inside the readers; `faults_of` gives it its file."""

from __future__ import annotations

import difflib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from squall.scenarios.errors import ScenarioError


class RowFault(Exception):
    """What is wrong at `row` (the first line of the file is row 1; None: the file as a whole), and what to do."""

    def __init__(self, row: int | None, what: str) -> None:
        super().__init__(what if row is None else f"row {row}: {what}")


@contextmanager
def faults_of(path: Path, kind: str) -> Iterator[None]:
    """Maps what readers and the libraries below them raise to ScenarioError with the file's name."""
    import pyarrow as pa

    try:
        yield
    except RowFault as error:
        raise ScenarioError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise ScenarioError(f"{path}: no such {kind}") from error
    except IsADirectoryError as error:
        raise ScenarioError(f"{path}: is a directory; name one {kind} in it") from error
    except PermissionError as error:
        raise ScenarioError(f"{path}: no permission to read it") from error
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, pa.ArrowException) as error:
        said = " ".join(str(error).split())[:200]
        raise ScenarioError(
            f"{path}: cannot be read, is it whole? {said}; fetch it again or name its format"
        ) from error


def shown(text: str) -> str:
    """`text` as it is quoted in an error: at most 40 characters, on one line."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def no_column(names: Sequence[str], wanted: str, row: int | None = 1) -> RowFault:
    """The file has no column `wanted`: the nearest names, or all of them where none is near."""
    lowered = {name.strip().lower(): name for name in names}
    near = difflib.get_close_matches(wanted.strip().lower(), lowered, n=3, cutoff=0.5)
    listed = ", ".join(map(shown, [lowered[key] for key in near] or list(names)[:8])) or "none"
    which = "the nearest are" if near else "there are"
    return RowFault(row, f"no column {wanted!r}: {which} {listed}; name the column")
