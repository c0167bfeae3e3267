"""Faults on hosts of a cluster, each tried several times, as `test_cluster` and `test_cluster_servers` make them.

    python -m tests.bench.cluster_faults N [--only WORD] [--again M]

Each try is the test of that fault, alone, over hosts made anew. Prints a table for docs/reliability.md; a fault that
failed once is tried `M` times in all. Exit code 1 where a try failed, with the end of what it said on stderr.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.faults import machine

_FOLDER = Path(__file__).parents[1] / "integration"
_MOST_S = 300.0
_MOST_NOT_MADE = 5
_TOLD_CHARACTERS = 3_000
_GONE = "test_of_two_tritons_one_that_is_gone_or_hangs_costs_its_own_requests"
_OF_SERVERS = {
    "one of two Tritons killed": f"{_GONE}[killed]",
    "one of two Tritons stopped for good": f"{_GONE}[hung]",
    "nsys stopped for good": "test_an_nsys_that_hangs_costs_the_profile_and_no_request",
    "GCS killed and started again": "test_a_gcs_that_is_killed_and_started_again_on_its_port_costs_nothing",
}
_OF_HOSTS = {
    "a client's link down, another's worker stopped, for seconds": "test_a_link_that_is_down_for_seconds_and_a_worker_"
    "that_stands_still_cost_no_row",
    "a client's link down for good": "test_what_a_client_kept_whose_link_stays_down_is_brought_by_resume_there",
    "driver killed": "test_a_killed_driver_leaves_rows_on_each_host_which_resume_brings_host_by_host",
    "a client's raylet killed, then the GCS": "test_a_raylet_of_a_client_and_the_gcs_killed_under_load_cost_nothing",
    "a client's disk full": "test_a_full_disk_of_a_client_ends_the_load_and_keeps_what_was_recorded",
    "the server node's agent and a client's worker killed": "test_killed_a_clients_worker_and_the_agent_of_the_servers_"
    "node_cost_what_they_had_not_written",
}
FAULTS = {
    **{fault: f"test_cluster_servers.py::{test}" for fault, test in _OF_SERVERS.items()},
    **{fault: f"test_cluster.py::{test}" for fault, test in _OF_HOSTS.items()},
}
"""The fault, and the test that makes it, by its file."""


@dataclass
class Tried:
    """The tries of one fault; seconds of each, the making of the hosts included. `n_not_made`: tries besides for which
    the hosts, or a Ray on them, could not be had."""

    n_met: int = 0
    seconds: list[float] = field(default_factory=list)
    n_hung: int = 0
    n_not_made: int = 0

    def told(self) -> str:
        """As cells of the table."""
        longest = f"{max(self.seconds):.0f} s" if self.seconds else ""
        return f"{self.n_met}/{len(self.seconds)} | {self.n_hung} | {longest}"


def try_once(test: str, tried: Tried) -> None:
    """One try more; what a failed one said goes to stderr."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(_FOLDER / test)]
    begun = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_MOST_S, check=False)
    except subprocess.TimeoutExpired:
        tried.n_hung += 1
    else:
        tried.n_met += done.returncode == 0 and "1 passed" in done.stdout
        if done.returncode or "1 passed" not in done.stdout:
            print(done.stdout[-_TOLD_CHARACTERS:], file=sys.stderr, flush=True)
        if "1 failed" not in done.stdout and "1 error" in done.stdout:
            tried.n_not_made += 1
            return
    tried.seconds.append(time.monotonic() - begun)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.cluster_faults", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("n", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--again", type=int, default=20)
    asked = parser.parse_args()
    all_tried: dict[str, Tried] = {}
    for fault, test in FAULTS.items():
        if asked.only not in fault and asked.only not in test:
            continue
        all_tried[fault] = tried = Tried()
        while len(tried.seconds) < (asked.n if tried.n_met == len(tried.seconds) else asked.again):
            if tried.n_not_made > _MOST_NOT_MADE:
                break
            try_once(test, tried)
            print(f"{fault}: {tried.told()}", file=sys.stderr, flush=True)
    if not all_tried:
        parser.error(f"--only {asked.only}: no such fault")
    print(f"{machine()}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}\n")
    print("| fault | every check met | hung | longest try |\n|---|---|---|---|")
    for fault, tried in all_tried.items():
        print(f"| {fault} | {tried.told()} |")
    return int(any(tried.n_met < len(tried.seconds) for tried in all_tried.values()))


if __name__ == "__main__":
    sys.exit(main())
