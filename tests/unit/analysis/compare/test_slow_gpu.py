"""Four GPUs behind a router, one of them 25 % slower, in bursts: promises of each GPU name it, and so does the run.

The load is 80 % of what four equal GPUs carry (gamma gaps of cv 3), so that in turn the slow one gets as much as it can
do. Servers of `tests.simulated_servers`, a server a GPU; the run's own code judges the tables.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.analysis.arrays import Floats
from squall.analysis.compare.figures import BROKEN, KEPT, PromiseFigures
from squall.analysis.compare.over_seeds import SeedPromise, decide
from squall.analysis.report.stragglers import stragglers
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.requests.by_server import by_server
from squall.analysis.requests.requests import Labels
from squall.analysis.storage.manifest import Manifest
from tests.known import known
from tests.plain_runs import START_NS, plain_run
from tests.simulated_servers import Routed, gamma_arrivals, routed_response
from tests.unit.analysis.compare.test_judged import evenly

S, D_NS = 1_000_000_000, 10_000_000
LOAD, N = 0.8, 4_000
EQUAL, SLOW = (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.25)
GPUS = tuple(f"GPU-{number}" for number in range(4))


def routed(seed: int, service: tuple[float, ...], policy: str) -> tuple[Floats, Routed]:
    """Arrivals and what became of them, in units of the service time D."""
    rng = np.random.default_rng(seed)
    arrival = gamma_arrivals(rng, N, 3.0) / (LOAD * len(service))
    return arrival, routed_response(arrival, service, policy, rng)


def run_of(
    folder: Path, seed: int, policy: str, promises: dict[str, Any], service: tuple[float, ...] = SLOW
) -> Summary:
    """The run of a seed, from its tables: requests, and the GPU that each batch ran on."""
    arrival, found = routed(seed, service, policy)
    at_ns = START_NS + (arrival * D_NS).astype(np.int64)
    response_ns = (found.response_s * D_NS).astype(np.int64)
    end_ns = int(at_ns[-1]) + 1
    rows = [
        {
            "request_id": row, "phase": "main", "target": f"server-{server}", "request_kind": "m", "outcome": "ok",
            "scheduled_ns": at, "sent_ns": at, "first_byte_ns": at + took, "done_ns": at + took, "rows": 1,
        }
        for row, (at, took, server) in enumerate(
            zip(at_ns.tolist(), response_ns.tolist(), found.server.tolist(), strict=True)
        )
    ]  # fmt: skip
    joined = [
        {
            "request_id": row["request_id"], "phase": "main", "server": row["target"], "outcome": "ok",
            "gpu_uuid": GPUS[int(row["target"][-1])], "response_ns": row["done_ns"] - row["scheduled_ns"],
        }
        for row in rows
    ]  # fmt: skip
    folder.mkdir()
    store = plain_run(
        folder,
        {"requests": rows, "joined": joined},
        plan={"load": "open", "n_arrivals": N},
        scenario={"name": "gpus", "seed": seed, "model": {"name": "m"}, "promises": promises},
        seed=seed,
        phases=[{"name": "main", "kind": "measure", "start_ns": START_NS, "end_ns": end_ns}],
        nodes={"node-0": {"clock_error_ns": 0}},
        servers={
            f"server-{number}": {"node": "node-0", "model": "m", "gpus": [uuid]}
            for number, uuid in enumerate(GPUS)
        },
    )
    return summarise(store)


def of_each_gpu(limit_d: float) -> dict[str, Any]:
    return {f"response{{gpu:{uuid}}}": f"p(95)<{limit_d * D_NS / 1e6:g}ms" for uuid in GPUS}


def judged(
    folder: Path, policy: str, n_seeds: int, service: tuple[float, ...] = SLOW
) -> tuple[list[Summary], list[str]]:
    """Runs of several seeds, and the verdict on the promise of each GPU: p95 below 25 D."""
    runs = [
        run_of(folder / f"{policy}-{seed}", seed, policy, of_each_gpu(25.0), service)
        for seed in range(n_seeds)
    ]
    by_promise: list[list[PromiseFigures]] = [
        list(one) for one in zip(*(known(run.promises) for run in runs), strict=True)
    ]
    verdicts = [
        decide([SeedPromise(seed, "r", one) for seed, one in enumerate(figures)], len(GPUS)).verdict
        for figures in by_promise
    ]
    return runs, verdicts


def test_the_slow_gpu_is_named_by_its_promise_and_by_the_run(tmp_path: Path) -> None:
    runs, verdicts = judged(tmp_path, "round-robin", 4)
    assert verdicts == [KEPT, KEPT, KEPT, BROKEN]
    for run in runs:
        slow = known(run.promises)[3]
        assert (slow.promise, slow.verdict) == ("response{gpu:GPU-3} p(95)<250ms", BROKEN)
        assert slow.n == N // 4
        assert [one.server for one in run.stragglers] in (["server-3"], []), "by chance it may not stand out"
    assert sum(bool(run.stragglers) for run in runs) >= 3


def named(seed: int, service: tuple[float, ...], policy: str) -> set[str]:
    """The servers that a run calls slower, by its requests alone."""
    arrival, found = routed(seed, service, policy)
    at_ns = (arrival * D_NS).astype(np.int64)
    whole = evenly(N)
    requests = replace(
        whole, phase=Labels(np.zeros(N, np.int64), ("main",)), scheduled_ns=at_ns, sent_ns=at_ns,
        done_ns=at_ns + (found.response_s * D_NS).astype(np.int64),
        target=Labels(found.server, tuple(f"server-{number}" for number in range(4))),
    )  # fmt: skip
    figures = by_server(requests, None, ["main"], Manifest())
    return {one.server for one in stragglers(figures, None, (), None, Manifest())}


@pytest.mark.slow
@pytest.mark.long
def test_how_often_a_server_is_called_slower() -> None:
    n_runs = 50
    for service in (EQUAL, SLOW):
        for policy in ("round-robin", "random", "least-in-flight"):
            found = [named(seed, service, policy) for seed in range(n_runs)]
            n_slow = sum("server-3" in one for one in found)
            n_false = sum(bool(one - {"server-3"}) for one in found)
            print(service, policy, "server-3 named in", n_slow, "another in", n_false, "of", n_runs)
            # At 1 % for each of three servers 3 % of runs name one by chance: of 50 a count above 5 is one in 400.
            assert n_false <= 5
            if service == EQUAL:
                assert n_slow <= 4
            elif policy == "round-robin":
                assert n_slow >= 0.8 * n_runs


@pytest.mark.slow
def test_least_in_flight_lets_all_four_keep_their_promises(tmp_path: Path) -> None:
    runs, verdicts = judged(tmp_path, "least-in-flight", 2)
    assert BROKEN not in verdicts
    slow = [known(run.promises)[3] for run in runs]
    assert all(one.n < 0.25 * N for one in slow), "it is sent less"


def test_equal_gpus_have_no_straggler(tmp_path: Path) -> None:
    runs, verdicts = judged(tmp_path, "round-robin", 2, EQUAL)
    assert BROKEN not in verdicts
    assert [run.stragglers for run in runs] == [(), ()]


def p95s(service: tuple[float, ...], policy: str, n_runs: int) -> tuple[Floats, Floats]:
    """p95 of each run in D, (n_runs,), and of each GPU in it, (n_runs, 4)."""
    whole, each = np.empty(n_runs), np.empty((n_runs, len(service)))
    for seed in range(n_runs):
        _, found = routed(seed, service, policy)
        whole[seed] = np.quantile(found.response_s, 0.95)
        each[seed] = [np.quantile(found.response_s[found.server == one], 0.95) for one in range(len(service))]
    return whole, each


def near(values: Floats, expected: float) -> bool:
    """Within a tenth, and four standard errors of the mean: the figures that are expected are of other draws."""
    error = float(values.std(ddof=1)) / np.sqrt(len(values))
    print(f"{values.mean():.1f} +- {error:.1f}, expected {expected}")
    return bool(abs(float(values.mean()) - expected) <= 0.1 * expected + 4 * error)


@pytest.mark.slow
@pytest.mark.long
def test_figures_of_routing_under_equal_and_unequal_gpus() -> None:
    n_runs = 100
    whole, _ = p95s(EQUAL, "round-robin", n_runs)
    assert near(whole, 14.2)
    least, _ = p95s(EQUAL, "least-in-flight", n_runs)
    assert near(least, 14.3)
    any_one, _ = p95s(EQUAL, "random", n_runs)
    assert near(any_one, 18.9)
    turn, each = p95s(SLOW, "round-robin", n_runs)
    assert near(turn, 39.9)
    assert near(each[:, 3], 58.0)
    assert near(each[:, :3].mean(axis=1), 15.0)
    best, of_best = p95s(SLOW, "least-in-flight", n_runs)
    assert near(best, 19.1)
    worst, _ = p95s(SLOW, "random", n_runs)
    assert near(worst, 43.8)
    assert of_best[:, 3].mean() < 0.5 * each[:, 3].mean()
