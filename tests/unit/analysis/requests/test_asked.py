"""Users asked for: a line from change to change, at the rate that was stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from squall.analysis.requests.asked import asked_mean, asked_users
from squall.analysis.storage.locust import AskedUsers, LocustFacts
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.units import NS_PER_S
from tests.synthetic_runs import START_NS

CASES = yaml.safe_load((Path(__file__).parent / "asked.yaml").read_text())


def ns(at_s: float) -> int:
    return START_NS + round(at_s * NS_PER_S)


def facts(case: dict[str, Any]) -> LocustFacts:
    changes = tuple(
        AskedUsers(t_ns=ns(at_s), n_users=n, spawn_rate_hz=float(hz)) for at_s, n, hz in case["asked"]
    )
    ended_ns = ns(case["ended_s"]) if "ended_s" in case else None
    return LocustFacts(
        version="2", file="f.py", file_sha256="", node="node-0", asked=changes, ended_ns=ended_ns
    )


@pytest.mark.parametrize("case", CASES["users"])
def test_users_come_at_their_rate_and_stay(case: dict[str, Any]) -> None:
    found = asked_users(facts(case), np.array([*map(ns, case["users"])]))
    assert found.tolist() == pytest.approx([*case["users"].values()], abs=1e-3)


@pytest.mark.parametrize("case", CASES["means"])
def test_the_mean_is_that_of_the_line(case: dict[str, Any]) -> None:
    span = RunPhase("burst", "measure", *map(ns, case["span"]))
    assert asked_mean(facts(case), [span], case.get("grace_s", 0) * NS_PER_S) == pytest.approx(case["mean"])
