"""Rejections as the clients counted them, and what the server's metric says of them."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from squall.actors.messages.template import REJECTIONS
from squall.analysis.requests.rejections import FULL_QUEUE, QUEUE_TIMEOUT, rejection_figures
from tests.unit.analysis.requests.made_requests import requests_of

CASES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("rejections.yaml").read_text())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rejections_are_counted_by_their_words_and_held_to_the_servers_count(case: dict[str, Any]) -> None:
    flat = [end[:3] for end in case["ends"] for _ in range(end[3])]
    columns: dict[str, Any] = {
        name: [end[k] for end in flat] for k, name in enumerate(("phase", "outcome", "detail"))
    }
    sampled = case.get("sampled")
    samples = sampled if sampled is None else pa.table(
        {
            "phase": pa.array([row[0] for row in sampled], pa.string()).dictionary_encode(),
            "failure_rejected_count": pa.array([row[1] for row in sampled], pa.int64()),
        }
    )  # fmt: skip
    found = rejection_figures(requests_of(list(range(len(flat))), **columns), samples, ["a", "b"])
    assert (found is None) == ("total" not in case)
    if found is not None:
        assert list(astuple(found.total))[:5] == case["total"]
        assert case["says"] in found.total.explanation
        by_phase = {phase: list(astuple(one)) for phase, one in found.by_phase.items()}
        assert by_phase == case.get("by_phase", by_phase)


def test_a_version_of_the_server_without_the_metric_has_no_count() -> None:
    own = requests_of([0], phase="a", outcome="rejected", detail=QUEUE_TIMEOUT)
    found = rejection_figures(own, pa.table({"phase": ["a"]}), ["a"])
    assert found is not None
    assert found.total.server_rejected_count is None


def test_the_words_are_those_that_the_client_knows() -> None:
    assert tuple(words.decode() for words in REJECTIONS) == (FULL_QUEUE, QUEUE_TIMEOUT)
