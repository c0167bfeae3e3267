"""Figures of a run with a profile go to summary.json and come back as the same."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from squall.analysis.metrics.records import RunMetrics
from squall.analysis.report.summary_file import Summary
from squall.scenarios.errors import AnalysisError

PHASE = "linear_head"


def test_a_summary_with_a_profile_is_read_back_or_refused_with_its_place(
    whole_summary: Summary, two_heads_metrics: RunMetrics
) -> None:
    made = replace(whole_summary, metrics=two_heads_metrics)
    content = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert Summary.from_json(content) == made
    phase = content["metrics"]["phases"][PHASE]
    phase["later"] = 1
    assert Summary.from_json(content) == made, "a key that is not known is passed over"
    instance = phase["instances"]["server-0/m_575"]
    instance["copies"][0]["is_pageable"] = "perhaps"
    place = rf"phases\.{PHASE}\.instances\.server-0/m_575\.copies\.0\.is_pageable"
    with pytest.raises(AnalysisError, match=place):
        Summary.from_json(content)
