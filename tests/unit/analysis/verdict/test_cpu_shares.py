"""Who had the CPU of a node, and what the server or the client lacked of it: cases, and a bound that always holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.storage.schema import arrow_schema
from squall.analysis.storage.sealed import Starvation
from squall.analysis.verdict.checks import CPU_CHECK
from squall.analysis.verdict.cpu_shares import CpuShares, InFlight, cpu_line, cpu_shares
from squall.analysis.verdict.server_checks import (
    cpu_figure,
    judge_starvation,
    starved_clients,
    worst,
)

S = 1_000_000_000
CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "cpu_shares.yaml").read_text())
GROUPS = ("server", "clients", "squall", "others", "steal")
SCHEMA = arrow_schema("cpu_samples")


def shares(
    seconds: Sequence[dict[str, Any]], n_cores: int = 2, lacks: Sequence[str] = (), measured: str = "burst"
) -> CpuShares:
    """Of seconds as cpu_shares.yaml has them, in the phase that is `measured`."""
    rows = []
    for number, second in enumerate(seconds):
        had = {f"{name}_ns": round(second.get(name, 0.0) * S) for name in GROUPS}
        rows.append({
            "run": "r", "phase": "burst", "node": "node-0", "t_ns": (number + 1) * S, "interval_ns": S,
            "n_cores": n_cores, "server_cores": n_cores, "idle_ns": n_cores * S - sum(had.values()), **had,
            "server_wait_ns": round(second.get("wait", 0.0) * S), "server_runs": second.get("runs", 0),
            "clients_wait_ns": round(second.get("clients_wait", 0.0) * S), "clients_runs": 0,
            **{name: second[name] for name in second.keys() & set(SCHEMA.names)},
        })  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=SCHEMA).drop_columns(list(lacks))
    in_flight = InFlight.of(np.array([0]), np.array([len(seconds) * S]))
    (found,) = cpu_shares(table, [measured], {"node-0": in_flight})
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_is_told_of_a_node(case: dict[str, Any]) -> None:
    unknown = dict.fromkeys(case.get("unknown", ()))
    given_ = {name: case[name] for name in ("n_cores", "lacks", "measured") if name in case}
    found = shares([second | unknown for second in case["seconds"]], **given_)
    found = replace(found, programs=case.get("programs", {}))
    figure, starved = cpu_figure([found]), judge_starvation(found)
    told = vars(found) | {
        "taken_ratio": found.taken_ratio, "stolen_cores": found.cores.get("steal"), "starved_by": starved.starved_by,
        "ratio": starved.ratio, "is_met": figure and CPU_CHECK.held(figure).is_met,
    }  # fmt: skip
    expected = {name: case[name] for name in told.keys() & case.keys()}
    assert {name: told[name] for name in expected} == {
        name: value if isinstance(value, str | None) else pytest.approx(value, abs=1e-4)
        for name, value in expected.items()
    }
    assert case.get("sentence", "") in starved.sentence
    assert case.get("line", "") in cpu_line(found)
    assert "not assessed" not in cpu_line(found, has_server=False)
    assert starved_clients([found])[:100].startswith(case.get("of_client", "")[:100])
    assert "of_client" not in case or bool(case["of_client"]) == bool(starved_clients([found]))


def test_the_worst_phase_is_named_and_a_quota_after_what_makes_a_run_invalid() -> None:
    none, quota, others = (
        Starvation(starved_by=by, ratio=ratio, sentence="")
        for by, ratio in (("none", 0.0), ("quota", 0.8), ("others", 0.3))
    )
    more = replace(others, ratio=0.4)
    assert worst([none, quota, others, more]) is more
    assert worst([none, quota]) is quota
    assert worst([none]) is None


def _up_to(most: float) -> st.SearchStrategy[float]:
    """Whole microseconds: what is recorded in ns is just what is drawn, and a share can be turned back into it."""
    return st.integers(0, round(most * 1e6)).map(lambda us: us / 1e6)


@given(
    st.lists(
        st.fixed_dictionaries(
            {name: _up_to(0.5) for name in ("server", "clients", "squall", "others")}
            | {"wait": _up_to(20), "steal": _up_to(0.3)}
        ),
        min_size=1,
        max_size=5,
    )
)
def test_nothing_is_taken_that_somebody_else_did_not_have(seconds: list[dict[str, float]]) -> None:
    found = shares(seconds, n_cores=3)
    assert found.taken is not None
    wanted = sum(one["server"] + one["wait"] + one["steal"] for one in seconds)
    had = sum(one["server"] for one in seconds)
    assert all(0 <= share <= 1 for share in found.taken.values())
    ratio = found.taken_ratio or 0.0
    foreign = sum(one[name] for one in seconds for name in ("clients", "squall", "others", "steal"))
    lacked = ratio / (1 - ratio) * had if ratio < 1 else 0.0
    assert lacked <= foreign + 1e-6
    assert lacked <= wanted + 1e-6
