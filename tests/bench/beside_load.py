"""What a run takes beside its load: a command of its own, and further runs within one `squall check`.

    python -m tests.bench.beside_load [--runs 5] [--seconds 6] [--tree FOLDER …]

One real Triton with a small model is kept up; each run is `squall run SCENARIO --server URL`, then one `squall check`
makes as many. Prints one JSON object a tree: seconds beside the phases of each, in order, and the median of each kind;
of the check those after its first run. `--tree`: folders that hold another `squall` each, whose commands take turns
with this one's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.bench.idle_host import scenario_of
from tests.integration.serving import serving

_RATE_HZ = 50.0


def _squall(tree: str, *words: str | Path) -> float:
    """Seconds that a command of the squall in `tree` took, its Python's start included."""
    begun_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "squall.cluster.entry", *map(str, words)], capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [tree, *sys.path]))},
    )  # fmt: skip
    if done.returncode not in (0, 3, 4, 99):
        raise SystemExit(done.stderr)
    return time.monotonic() - begun_s


def measured(n_runs: int, seconds: float, trees: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The figures, by tree and name."""
    phases_s = seconds + 1.5
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sqb")))
        _, endpoint = stack.enter_context(serving(folder / "server"))
        mapping = scenario_of(
            endpoint.url, {"name": endpoint.models[0].spec.name, "max_batch_size": 8}, _RATE_HZ, seconds, 1
        )
        path = folder / "scenario.yaml"
        path.write_text(yaml.safe_dump({**mapping, "promises": {"response": ["p(50)<1s"]}}))
        runs: dict[str, list[float]] = {tree: [] for tree in trees}
        for _ in range(n_runs):
            for tree in trees:
                runs[tree].append(_squall(tree, "run", path, "--out", folder / "runs") - phases_s)
        found = {}
        for number, tree in enumerate(trees):
            out = folder / f"checks-{number}"
            _squall(tree, "check", path, "--seeds", str(n_runs), "--out", out)
            (checked,) = out.glob("*/check.json")
            further = [one["seconds"] - phases_s for one in json.loads(checked.read_text())["runs"]]
            found[tree or "this one"] = {
                "run_s": [round(one, 2) for one in runs[tree]],
                "within_a_check_s": [round(one, 2) for one in further],
                "median_run_s": round(statistics.median(runs[tree]), 2),
                "median_further_s": round(statistics.median(further[1:]), 2),
            }
    return found


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--tree", action="append", default=[""])
    options = parser.parse_args()
    print(json.dumps(measured(options.runs, options.seconds, options.tree), indent=2))


if __name__ == "__main__":
    main()
