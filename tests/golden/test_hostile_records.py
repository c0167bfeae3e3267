"""No bytes of a spill file, a ring or a record end the process that reads them, or fail it otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile_records import KINDS


@pytest.mark.parametrize(
    ("n", "kinds"), [(100, [*KINDS]), *(pytest.param(2_000, [one], marks=pytest.mark.slow) for one in KINDS)]
)
def test_no_bytes_end_the_process_that_reads_them(n: int, kinds: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.hostile_records", str(n), str(tmp_path), *kinds]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", kinds)
