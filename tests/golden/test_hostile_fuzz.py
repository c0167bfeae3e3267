"""Mutated manifests and object keys lead no command away from the run directory: see `tests.hostile_fuzz`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest


def is_refused() -> bool:
    """Whether this machine lets us have no mount namespace."""
    if shutil.which("unshare") is None:
        return True
    tried = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode != 0


LONG = [pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize(
    ("n", "seed"),
    [
        pytest.param(100, 7, marks=pytest.mark.slow),
        *(pytest.param(2_000, seed, marks=LONG) for seed in range(8, 13)),  # 10,000 in all
    ],
)
def test_hostile_runs_lead_nowhere(n: int, seed: int) -> None:
    if is_refused():
        pytest.skip("no mount namespace can be had here (unshare --mount)")
    command = [sys.executable, "-m", "tests.hostile_fuzz", str(n), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert found["refused"] > n
    assert found["went on"] > n // 10, "else it shows nothing of what is not refused"
