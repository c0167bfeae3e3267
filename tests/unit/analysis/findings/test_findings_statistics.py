"""What Triton's statistics tell of a server of which no batch is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.findings.confidence import RunState
from squall.analysis.findings.finding import Scope
from squall.analysis.findings.statistics import statistics_finding
from squall.analysis.metrics.model_statistics import ModelStatistics
from squall.analysis.storage.deployed import ModelFacts, ServingFacts
from tests.cpu_runs import make_ensemble
from tests.regime_runs import diagnose
from tests.synthetic_runs import MS, S, synthesise
from tests.unit.analysis.findings.said import said

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "statistics.yaml").read_text())


def statistics_of(
    name: str, queue: float = 0, compute: float = 0, n: int = 100, n_executions: int = 50, n_cached: int = 0
) -> ModelStatistics:
    """A tenth of the compute is input and a tenth output."""
    queue_ns, compute_ns = round(n * queue * MS), round(n * compute * MS)
    tenth = compute_ns // 10
    return ModelStatistics(
        phase="burst", server="server-0", model=name, n_requests=n, n_failed=0, n_rows=2 * n,
        n_executions=n_executions, queue_ns=queue_ns, input_ns=tenth, infer_ns=compute_ns - 2 * tenth,
        output_ns=tenth, success_ns=queue_ns + compute_ns, n_cached=n_cached,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_largest_part_of_a_request_in_the_server_is_named(case: dict[str, Any]) -> None:
    asked = ModelFacts(model=case["asks"], steps=("tokenize", "classify") if case["asks"] == "pipe" else ())
    found = statistics_finding(
        Scope("burst", "server-0", "pipe"),
        [statistics_of(name, **stated) for name, stated in case["models"].items()],
        asked,
        10 * S,
        RunState(),
        {"cpu_taken_ratio": case.get("cpu_taken")},
        {"own": ServingFacts(queue_delay_ns=round(case.get("delay_ms", 0) * MS))},
    )
    if case["told"] is None:
        assert found is None
        return
    assert found is not None
    assert said(found, case["told"]) == case["told"]
    assert sum(filter(None, found.shares.values())) == pytest.approx(1.0)
    is_cached = any(stated.get("n_cached") for stated in case["models"].values())
    assert ("The response cache answered" in found.claim) == is_cached


def test_of_a_run_without_batches_statistics_are_the_finding_and_nothing_unjoined_is_one(
    tmp_path: Path,
) -> None:
    run = synthesise()
    run.derived = False
    run.omit = {"batches"}
    make_ensemble(run, "tokenize", "classify")
    findings, _ = diagnose(run.write(tmp_path))
    by_level = {one.level: one for one in findings}
    window, tail = by_level["window"], by_level["tail"]
    assert window.rule in ("queue-bound", "compute-bound")
    assert window.details[0].startswith("step tokenize of ensemble ")
    assert (tail.rule, tail.confidence) == ("not assessed", "low")
    assert not [one for one in findings if "unjoined" in one.rule]
