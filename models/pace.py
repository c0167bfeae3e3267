"""How fast one core of this machine computes a head: to scale a load before anything is served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from timeit import Timer

import numpy as np

from squall.models.heads import forward, make_weights
from squall.models.spec import head_of
from squall.scenarios.errors import ClusterError

_TIMEOUT_S = 60
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measure_pace(head: str, settings: Mapping[str, int], batch_rows: int) -> float:
    """Rows per second of the head in batches of `batch_rows` on one core, without Triton around it.

    In a process of its own, since numpy fixes its threads when it is loaded. So many batches count as take 0.2 s.
    Raises ScenarioError for an unknown head or size, ClusterError where the process fails.
    """
    sizes = head_of(head).sizes(settings)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "squall.models.pace", json.dumps([head, sizes, batch_rows])],
        env={**os.environ, **_ONE_THREAD}, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ClusterError(f"cannot measure the pace of {head}: {words[-1]}")
    return float(done.stdout)


def _rows_hz(head: str, sizes: Mapping[str, int], batch_rows: int) -> float:
    weights = make_weights(head, sizes)
    x = np.ones((batch_rows, sizes["width"]), np.float32)
    n_batches, duration_s = Timer(lambda: forward(weights, x)).autorange()
    return batch_rows * n_batches / duration_s


if __name__ == "__main__":
    print(_rows_hz(*json.loads(sys.argv[1])))
