"""Capacity searches on a simulated clock: how often the interval holds the planted truth, its width, and the safe load.

    python -m tests.bench.capacity [N_SEARCHES]

The planted servers are those of tests/unit/analysis/studies/test_planted_truths.py: first come first served, 10 ms
each, 6,000 requests a run, five seeds a search; and a batcher that waits 20 ms. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import numpy as np

from squall.analysis.studies.capacity_search import Options, search
from tests.capacity_searches import SERVICE_S, Simulated, delayed_batches, searched

TRUTH_HZ = 80.0
CASES = {"Poisson": (1.0, 7.61), "gamma gaps of cv 3": (3.0, 63.0)}
"""Coefficient of variation of the gaps, and p95 over D at 0.8 of the load."""


def main(arguments: Sequence[str]) -> int:
    """0; the figures have their bounds in the tests."""
    n_searches = int(arguments[0]) if arguments else 100
    found: dict[str, object] = {name: _case(*case, n_searches) for name, case in CASES.items()}
    found["batches of 8 that wait 20 ms, p95 below 15 ms"] = _batches()
    print(json.dumps(found, indent=1))
    return 0


def _case(cv: float, limit: float, n_searches: int) -> dict[str, object]:
    begun = time.monotonic()
    done = [searched(cv, limit * SERVICE_S, family) for family in range(n_searches)]
    kept = np.array([one.kept_ratio for one in done])
    safe = [one.found.safe for one in done if one.found.safe is not None]
    return {
        "searches": n_searches,
        "interval holds the truth": sum(one.holds(TRUTH_HZ) for one in done),
        "width_mean_ratio": round(float(np.mean([one.width_ratio for one in done])), 4),
        "runs_mean": round(float(np.mean([one.n_runs for one in done])), 1),
        "safe load kept by nine of ten of 50 fresh seeds": int((kept >= 0.9).sum()),
        "fresh seeds that keep the safe load, mean ratio": round(float(kept.mean()), 4),
        "safe load over the truth, mean ratio": round(
            float(np.mean([one.rate_hz for one in safe])) / TRUTH_HZ, 3
        ),
        "steps down": int(sum(one.n_steps_down for one in safe)),
        "seconds": round(time.monotonic() - begun, 1),
    }


def _batches() -> dict[str, object]:
    levels = Simulated(delayed_batches, 0.015)
    found = search(levels, Options(5, 1, 300.0, 30_000.0))
    assert found.interval is not None
    assert found.low is not None
    return {
        "kind": found.kind,
        "feasible_hz": [round(found.low.rate_hz or 0.0, 1), round(found.interval.rate_hz, 1)],
        "upper_edge_interval_hz": [round(found.interval.low_hz, 1), round(found.interval.high_hz, 1)],
        "runs": len(levels.asked),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
