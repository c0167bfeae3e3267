"""What Triton's statistics tell of a server of which no batch is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.findings.finding import Finding, Scope
from squall.analysis.findings.rules.confidence import RunState
from squall.analysis.findings.statistics import statistics_finding
from squall.analysis.metrics.model_statistics import ModelStatistics
from squall.analysis.tables.deployed import ModelFacts, ServingFacts
from tests.cpu_runs import make_ensemble
from tests.regime_runs import diagnose
from tests.synthetic_runs import MS, S, synthesise

SCOPE = Scope("burst", "server-0", "pipe")
PIPE = ModelFacts(model="pipe", steps=("tokenize", "classify"))


def model(
    name: str, queue_ms: float = 0.0, compute_ms: float = 0.0, n: int = 100, n_executions: int = 50
) -> Any:
    """A model whose `n` requests took these times each, of which a tenth input and a tenth output."""
    compute_ns = round(n * compute_ms * MS)
    tenth = compute_ns // 10
    return ModelStatistics(
        "burst", "server-0", name, n, 0, 2 * n, n_executions, round(n * queue_ms * MS), tenth, compute_ns - 2 * tenth,
        tenth, round(n * queue_ms * MS) + compute_ns,
    )  # fmt: skip


def found(*models: ModelStatistics, server: ModelFacts = PIPE, state: RunState = RunState()) -> Finding:  # noqa: B008
    finding = statistics_finding(SCOPE, models, server, 10 * S, state)
    assert finding is not None
    return finding


OWN = replace(PIPE, model="own", steps=())
SCRIPT = replace(PIPE, model="script", steps=())
TOKENIZE, CLASSIFY, CALLED = (
    "step tokenize of ensemble pipe", "step classify of ensemble pipe", "model called, which script calls,",
)  # fmt: skip


def cached(one: ModelStatistics, n: int) -> ModelStatistics:
    return replace(one, n_cached=n)


@pytest.mark.parametrize(
    ("models", "server", "rule", "details", "margin", "confidence"),
    [
        # however little the ensemble itself queues
        ((model("pipe", 0.002), model("tokenize", 9_280, 51), model("classify", 0.01, 9)), PIPE,
         "queue-bound", (TOKENIZE,), 9_280 / 9_340.01, "medium"),
        ((model("pipe"), model("tokenize", 1, 2), model("classify", 3, 40)), PIPE,
         "compute-bound", (CLASSIFY,), 40 / 46, "medium"),
        ((model("own", 30, 10),), OWN, "queue-bound", (), 0.75, "medium"),
        # what a model calls is no compute of its own
        ((model("script", 1, 50), model("called", 40, 8)), SCRIPT, "queue-bound", (CALLED,), 40 / 51, "medium"),
        # no part has half, and few requests
        ((model("pipe"), model("tokenize", 10, 10), model("classify", 9, 8)), PIPE,
         "queue-bound", (TOKENIZE,), 10 / 37, "low"),
        ((model("pipe", n=5), model("tokenize", 90, 10, n=5)), PIPE, "queue-bound", (TOKENIZE,), 0.9, "low"),
        # what the cache answers neither queues nor computes
        ((cached(model("own", 0.006, 0.002, n_executions=2), 98),), OWN, "answered from the cache", (), 0.98, "medium"),
        ((cached(model("own", 30, 10), 20),), OWN, "queue-bound", (), 0.75, "medium"),
        ((model("pipe"), cached(model("tokenize", 1, 0.5), 90), model("classify", 0.1, 0.2)), PIPE,
         "answered from the cache", (TOKENIZE,), 0.9, "medium"),
    ],
)  # fmt: skip
def test_the_largest_part_of_a_request_in_the_server_is_named(
    models: tuple[ModelStatistics, ...], server: ModelFacts, rule: str, details: tuple[str, ...], margin: float,
    confidence: str,
) -> None:  # fmt: skip
    one = found(*models, server=server)
    assert (one.rule, one.details, one.confidence) == (rule, details, confidence)
    assert one.margin == pytest.approx(margin)
    assert sum(value or 0.0 for value in one.shares.values()) == pytest.approx(1.0)
    n_cached = max(own.n_cached for own in models)
    assert (f"The response cache answered {n_cached} of 100 requests" in one.claim) == (n_cached > 0)


def test_a_server_whose_cpu_was_taken_is_told_with_low_confidence() -> None:
    models = [model("pipe"), model("tokenize", 90, 10), model("classify", 1, 1)]
    levels = {}
    for taken in (0.05, 0.15, 0.5):
        one = statistics_finding(SCOPE, models, PIPE, S, RunState(), {"cpu_taken_ratio": taken})
        assert one is not None
        levels[taken] = (one.confidence, len(one.confidence_reasons))
    assert levels == {0.05: ("medium", 1), 0.15: ("medium", 2), 0.5: ("low", 2)}


def test_a_phase_in_which_nothing_succeeded_is_not_told_by_statistics() -> None:
    failed = replace(model("pipe"), n_requests=0, n_failed=9)
    assert statistics_finding(SCOPE, [failed], PIPE, S, RunState()) is None
    assert statistics_finding(SCOPE, [model("tokenize", 5, 5)], PIPE, S, RunState()) is None


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


def test_a_delay_of_the_batcher_that_is_a_tenth_of_the_time_is_told_and_a_shorter_one_is_not() -> None:
    served = model("own", 2.2, 5)

    def of(delay_ms: float) -> Finding:
        serving = {"own": ServingFacts(queue_delay_ns=round(delay_ms * MS))}
        one = statistics_finding(SCOPE, [served], OWN, 10 * S, RunState(), serving=serving)
        assert one is not None
        return one

    told = of(2.0)
    assert (told.rule, told.details) == ("compute-bound", ("queue delay",))
    assert "for up to 2.00 ms to fill its batch, which explains up to 27.8 %" in told.claim
    assert told.next_step.startswith("Lower the max_queue_delay of own.")
    assert (of(0.7).details, of(0.0).details) == ((), ())
