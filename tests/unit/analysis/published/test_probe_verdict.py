"""Each check of a probe's verdict, met and unmet."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from squall.analysis.probes import judge_probe
from squall.analysis.schema import arrow_schema
from squall.analysis.tables.sealed import Verdict

QUIET = {"queued_ns": 1, "cpu_ns": 99, "n_put_aside": 1}
FREE = {"util": 0.0, "n_processes": 0}


def rows(*medians: int) -> pa.Table:
    """Active calls of one size, a repeat each."""
    same = {
        "run": "r",
        "phase": "probe",
        "node": "node-0",
        "start_ns": 0,
        "size": 64,
        "under": "nothing",
        "step": 0,
    }
    found = [
        {**same, "part": part, "call": call, "repeat": repeat, "host_ns": host, "synced_ns": host}
        for repeat, median in enumerate(medians)
        for call, (part, host) in enumerate([("warmup", 9_999_999), ("active", median), ("active", median)])
    ]
    return pa.Table.from_pylist(found, schema=arrow_schema("probe_calls"))


def judged(**changes: Any) -> Verdict:
    facts = {"host_share": QUIET, "differing": {}} | changes.get("facts", {})
    return judge_probe(
        changes.get("kind", "operator"), changes.get("device", "gpu"), changes.get("rows", rows(100, 110, 105)),
        facts, changes.get("samples", [{"throttle_reasons": 0x04}]), changes.get("before", FREE),
    )  # fmt: skip


def test_a_quiet_probe_is_valid_and_states_what_it_was_held_to() -> None:
    verdict = judged()
    assert verdict.status == "VALID"
    assert {one.name: (one.value, one.is_met) for one in verdict.checks} == {
        "repeats alike": (pytest.approx(10 / 105), True),
        "CPU of the probe": (0.01, True),
        "GPU idle before": (0.0, True),
        "GPU without others": (0, True),
        "GPU clocks": (0, True),
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rows": rows(100, 140, 110)}, "the repeats differ: of '64'"),
        ({"facts": {"host_share": {**QUIET, "queued_ns": 30}}}, "other processes took the probe's CPU"),
        ({"before": {**FREE, "util": 0.5}}, "the GPU was busy before the probe began: utilisation 50%"),
        ({"before": {**FREE, "n_processes": 2}}, "2 other processes had the GPU"),
        ({"samples": [{"throttle_reasons": 0}, {"throttle_reasons": 0x40}]}, "by heat or by hardware in 1 of 2"),
        ({"kind": "pipeline", "rows": arrow_schema("probe_stages").empty_table(),
          "facts": {"differing": {"pinned, one CUDA graph": "batch 0: x"}}}, "pinned, one CUDA graph: batch 0: x"),
    ],
)  # fmt: skip
def test_what_spoils_a_probe_makes_it_invalid(changes: dict[str, Any], told: str) -> None:
    verdict = judged(**changes)
    assert verdict.status == "INVALID"
    (reason,) = verdict.reasons
    assert told in reason


def test_what_is_not_told_decides_nothing_and_says_so() -> None:
    verdict = judged(rows=rows(100), before={}, samples=[], facts={"host_share": {"wall_ns": 5}})
    assert verdict.status == "VALID"
    assert all(one.not_assessed for one in verdict.checks)


def test_a_probe_on_the_cpu_is_not_held_to_a_gpu() -> None:
    verdict = judged(device="cpu", before={"util": 1.0, "n_processes": 9})
    assert [one.name for one in verdict.checks] == ["repeats alike", "CPU of the probe"]
