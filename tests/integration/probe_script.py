"""A probe on the CPU that nobody waits for: `python -m tests.integration.probe_script OUT`."""

from __future__ import annotations

import sys
from pathlib import Path

from squall.cluster.commands.decisions.probe_run import probe_run
from squall.cluster.interrupts import Interrupts
from squall.scenarios.published.experiment import probe_from_mapping

LONG = {"kind": "operator", "device": "cpu", "dtype": "fp32", "sizes": [64], "repeats": 1_000_000}


def main() -> None:
    with Interrupts() as interrupts:
        try:
            probe_run(probe_from_mapping(LONG), Path(sys.argv[1]), "long", 1, interrupts)
        except KeyboardInterrupt:
            sys.exit(f"interrupted by {interrupts.name}")


if __name__ == "__main__":
    main()
