"""Why requests do not go through the C lane: each reason in words, and none where they do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

import squall.actors.load.worker
from squall.actors.load.engine import Rules
from squall.actors.load.lane import BUILD_MEND, NOT_BUILT
from squall.actors.load.targets import TargetSettings
from squall.actors.load.worker import WorkerSettings, why_no_lane
from squall.actors.messages.template import Template
from squall.actors.net.stream import TlsSettings
from squall.cluster.commands.selftest_screen import _no_lane
from squall.cluster.node import checkup as doctor_node
from squall.models.spec import head_spec
from squall.scenarios.config.rows import ConstantRows
from squall.scenarios.sequences import SequenceRule
from tests.checkup_hosts import FakeProbes

S = 1_000_000_000
SPEC = head_spec("linear_head", "1", {"width": 8, "classes": 2}, 8)
SETTINGS = WorkerSettings(
    run="r", node="node-0", worker=0, seed=1,
    targets=(TargetSettings("server-0", "127.0.0.1", 1, (SPEC,)),),
    rules=Rules(S),
    n_connections=1, spill_dir="",
)  # fmt: skip
OVER_TLS = (*SETTINGS.targets, replace(SETTINGS.targets[0], tls=TlsSettings()))
SEQUENCES = SequenceRule(1, ConstantRows(), 1, "r")
PLAIN = [cast(Template, SimpleNamespace(check_every=0))]


@pytest.mark.parametrize(
    ("changes", "every", "reason"),
    [
        ({}, 0, ""),
        ({}, 8, ""),
        ({}, 7, "more than every eighth reply is compared in its values"),
        ({"targets": OVER_TLS}, 0, "it speaks no TLS"),
        ({"rules": Rules(S, 4)}, 0, "it knows no max_in_flight"),
        ({"lane": False}, 0, "the settings leave it out"),
        ({"sequences": SEQUENCES}, 0, ""),
        ({"sequences": replace(SEQUENCES, is_pinned=True)}, 0, "sequences keep their connections"),
    ],
)
def test_each_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], every: int, reason: str
) -> None:
    monkeypatch.setattr(squall.actors.load.worker, "IS_BUILT", True)
    checked = [*PLAIN, cast(Template, SimpleNamespace(check_every=every))]
    assert why_no_lane(replace(SETTINGS, **changes), checked) == reason


def test_a_lane_that_was_not_built_is_the_first_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squall.actors.load.worker, "IS_BUILT", False)
    assert why_no_lane(replace(SETTINGS, targets=OVER_TLS), PLAIN) == NOT_BUILT


@pytest.mark.parametrize(("is_built", "status"), [(True, "ok"), (False, "limited")])
def test_doctor_says_whether_it_was_built(
    monkeypatch: pytest.MonkeyPatch, is_built: bool, status: str
) -> None:
    monkeypatch.setattr(doctor_node, "IS_BUILT", is_built)
    found = doctor_node.lane(FakeProbes())
    assert (found.status, found.mend) == (status, "" if is_built else BUILD_MEND)
    assert ("2 to 5 times the CPU" in found.what) != is_built


def test_selftest_says_it_above_its_figures() -> None:
    assert _no_lane("") == []
    (line,) = _no_lane(NOT_BUILT)
    assert NOT_BUILT in line.plain
    assert BUILD_MEND in line.plain
