"""How fast one core of this machine computes a head: to scale a load before anything is served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping

import numpy as np

from squall.models.heads import forward, make_weights
from squall.models.spec import head_of
from squall.scenarios.errors import ClusterError

_MEASURE_S = 0.3
_TIMEOUT_S = 60
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measure_pace(head: str, settings: Mapping[str, int], batch_rows: int) -> float:
    """Rows per second of the head in batches of `batch_rows` on one core, without Triton around it.

    In a process of its own, since numpy fixes its threads when it is loaded. The median batch of 0.3 s counts.
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
    durations_s: list[float] = []
    end_s = time.perf_counter() + _MEASURE_S
    while time.perf_counter() < end_s or not durations_s:
        start_s = time.perf_counter()
        forward(head, weights, x)
        durations_s.append(time.perf_counter() - start_s)
    return batch_rows / float(np.median(durations_s))


if __name__ == "__main__":
    print(_rows_hz(*json.loads(sys.argv[1])))
