"""Figures of a run go to JSON and come back as the same, and what is not theirs is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

from squall.analysis.metrics.measures import NAMES
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.record import from_json, to_json
from squall.analysis.summary.keys import records
from squall.analysis.summary.summary_file import Summary
from squall.scenarios.errors import AnalysisError
from tests.known import known

PHASE, INSTANCE = "linear_head", "server-0/m_575"


def stored(found: object) -> Any:
    """What a file would hold of it."""
    return json.loads(json.dumps(to_json(found), allow_nan=False))


def test_figures_of_a_real_report_are_read_back_as_they_were_written(two_heads_metrics: RunMetrics) -> None:
    phase = two_heads_metrics.phases[PHASE]
    instance = phase.instances[INSTANCE]
    assert instance.copies
    assert known(instance.kernels).top
    assert known(instance.calls).classes
    assert [one.profiled_ns for one in phase.gpus.values()] != [None]
    content = stored(two_heads_metrics)
    assert from_json(RunMetrics, content) == two_heads_metrics
    assert json.dumps(stored(from_json(RunMetrics, content))) == json.dumps(content)


def test_a_summary_with_a_profile_is_read_back_with_its_figures(
    whole_summary: Summary, two_heads_metrics: RunMetrics
) -> None:
    made = replace(whole_summary, metrics=two_heads_metrics)
    assert Summary.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert list(stored(two_heads_metrics.phases[PHASE])) == [
        "start_ns", "end_ns", "covered_ns", "servers", "instances", "gpus",
    ]  # fmt: skip


def test_measures_are_those_of_the_instances(two_heads_metrics: RunMetrics) -> None:
    assert set(two_heads_metrics.measures) == {(PHASE, INSTANCE), ("seqlen_head", "server-0/m_576")}
    assert tuple(two_heads_metrics.measures[PHASE, INSTANCE]) == NAMES


def test_every_key_must_be_there() -> None:
    optional = [
        f"{record.__name__}.{one.name}"
        for record in records(RunMetrics)
        for one in fields(record)
        if one.default is not MISSING or one.default_factory is not MISSING
    ]
    assert optional == []


def without_key(content: Any) -> None:
    del content["phases"][PHASE]["instances"][INSTANCE]["launches"]["launch_depth"]["mean"]


def of_another_type(content: Any) -> None:
    content["phases"][PHASE]["instances"][INSTANCE]["copies"][0]["is_pageable"] = "perhaps"


def of_another_length(content: Any) -> None:
    content["phases"][PHASE]["covered_ns"][0].append(1)


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (without_key, rf"phases\.{PHASE}\.instances\.{INSTANCE}\.launches\.launch_depth\.mean: "),
        (of_another_type, rf"phases\.{PHASE}\.instances\.{INSTANCE}\.copies\.0\.is_pageable: "),
        (of_another_length, rf"phases\.{PHASE}\.covered_ns\.0: "),
    ],
)
def test_what_is_not_theirs_is_refused_with_its_place(
    two_heads_metrics: RunMetrics, spoil: Callable[[Any], None], where: str
) -> None:
    content = stored(two_heads_metrics)
    spoil(content)
    with pytest.raises(AnalysisError, match=f"^{where}"):
        from_json(RunMetrics, content)


def test_a_key_that_is_not_known_is_passed_over(two_heads_metrics: RunMetrics) -> None:
    content = stored(two_heads_metrics)
    content["phases"][PHASE]["later"] = 1
    assert from_json(RunMetrics, content) == two_heads_metrics
