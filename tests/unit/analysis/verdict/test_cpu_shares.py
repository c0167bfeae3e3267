from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.limits import LIMITS
from squall.analysis.schema import arrow_schema
from squall.analysis.verdict.cpu_shares import CpuShares, InFlight, cpu_line, cpu_shares
from squall.analysis.verdict.server_checks import (
    CPU_CHECK,
    cpu_figure,
    judge_starvation,
    makes_invalid,
    starved_clients,
    worst,
)

S = 1_000_000_000


def samples(*seconds: dict[str, Any], phase: str = "burst", n_cores: int = 2) -> pa.Table:
    """Seconds of a node, CPU in cores; what is left of its cores is idle. `wait`: of the server's threads."""
    rows = []
    for index, given_ in enumerate(seconds):
        second = {"server": 0.0, "clients": 0.0, "squall": 0.0, "others": 0.0, "steal": 0.0, **given_}
        used = sum(second[name] for name in ("server", "clients", "squall", "others", "steal"))
        rows.append({
            "run": "r", "phase": phase, "node": "node-0", "t_ns": (index + 1) * S, "interval_ns": S,
            "n_cores": n_cores, "idle_ns": round((n_cores - used) * S), "server_cores": n_cores,
            **{f"{name}_ns": round(second[name] * S) for name in ("server", "clients", "squall", "others", "steal")},
            "server_wait_ns": round(second.get("wait", 0.0) * S),
            "clients_wait_ns": round(second.get("clients_wait", 0.0) * S),
            "server_runs": second.get("runs", 0), "clients_runs": 0,
            **{name: second[name] for name in second.keys() & set(arrow_schema("cpu_samples").names)},
        })  # fmt: skip
    return pa.Table.from_pylist(rows, schema=arrow_schema("cpu_samples"))


def shares(*seconds: dict[str, Any], **more: Any) -> CpuShares:
    (found,) = cpu_shares(samples(*seconds, **more), ["burst"], in_flight(len(seconds)))
    return found


def is_met(found: CpuShares) -> bool:
    figure = cpu_figure([found])
    return figure is not None and CPU_CHECK.held(figure).is_met


def in_flight(n_seconds: int) -> dict[str, InFlight]:
    """One request, there all the time."""
    return {"node-0": InFlight.of(np.array([0]), np.array([n_seconds * S]))}


def test_a_server_beside_spinners_is_starved_by_others() -> None:
    found = shares({"server": 0.18, "clients": 0.05, "squall": 0.09, "others": 1.68, "wait": 0.51})
    assert found.server_wait_ratio == pytest.approx(0.51 / 0.69)
    assert found.taken_ratio == pytest.approx(0.51 / 0.69)
    starved = judge_starvation(found)
    assert (starved.starved_by, makes_invalid(starved)) == ("others", True)
    assert starved.sentence.startswith("Others took the CPU: of the 200 % of node-0 others 168 %")
    assert cpu_line(found) == (
        "CPU of node-0: server 18.0 %, clients 5.00 %, squall 9.00 %, others 168 % of 200 %; "
        "server threads waited to run 73.9 % of their time, with no core of its free in up to 100 % of it; "
        "of the 69.0 % of a core that the server could have used others had 68.2 %, squall 3.66 %, clients 2.03 %: "
        "that made 51.0 % of the response times"
    )


@pytest.mark.parametrize(
    "second",
    [
        {"server": 1.95, "others": 0.03, "wait": 14.0},  # sixteen threads of its own wait for two cores
        {"server": 0.4, "others": 1.5, "wait": 0.02},  # the others leave the core alone that it needs
        {"server": 0.99, "others": 1.0, "wait": 3.0, "server_cores": 1},  # pinned to one core, which it fills
        {"server": 0.5, "others": 1.4, "wait": 2.0, "server_quota_cores": 0.5},  # at the end of its quota
        {"server": 0.2, "others": 1.0, "wait": 0.2, "runs": 5_000},  # small waits: wake-ups
        # its threads hand a request on to one another on the one core that it has, and nobody else is there
        {
            "server": 0.2,
            "others": 1.0,
            "wait": 0.18,
            "server_cores": 1,
            "server_cores_busy_ns": S * 21 // 100,
        },
        {},
    ],
    ids=[
        "its own threads",
        "cores enough",
        "its own core",
        "its own quota",
        "wake-ups",
        "alone on its core",
        "idle",
    ],
)
def test_a_server_that_nobody_takes_cpu_from_is_not_starved(second: dict[str, Any]) -> None:
    found = shares(second)
    assert judge_starvation(found).starved_by == "none"
    assert is_met(found)


def test_a_server_tied_to_a_core_lacks_what_others_had_of_that_core() -> None:
    second = {"server": 0.2, "others": 1.5, "wait": 0.6, "server_cores": 1}
    found = shares({**second, "server_cores_busy_ns": S * 7 // 10})
    assert found.taken_ratio == pytest.approx(0.5 / 0.7)
    assert judge_starvation(found).starved_by == "others"


def test_a_full_server_that_shares_its_cores_lacks_what_the_others_had() -> None:
    found = shares({"server": 1.0, "others": 1.0, "wait": 9.0})
    assert found.taken_ratio == pytest.approx(0.5)


def test_a_client_that_takes_the_cores_of_its_server_is_named() -> None:
    starved = judge_starvation(shares({"server": 1.0, "clients": 0.8, "others": 0.1, "wait": 4.0}))
    assert (starved.starved_by, makes_invalid(starved)) == ("clients", True)
    assert starved.sentence.startswith("The load generator itself took the server's CPU")


QUOTA = {
    "server_quota_cores": 0.5,
    "server_periods": 10,
    "server_throttled_periods": 8,
    "is_quota_shared": False,
}


def test_a_quota_of_the_deployment_is_a_finding_and_no_fault_of_the_run() -> None:
    # the kernel counts what a quota holds back as waiting, too
    found = shares({"server": 0.49, "clients": 0.3, "others": 0.8, "wait": 1.2, **QUOTA})
    starved = judge_starvation(found)
    assert (starved.starved_by, makes_invalid(starved)) == ("quota", False)
    assert starved.ratio == pytest.approx(0.8)
    assert "quota of 0.50 cores" in starved.sentence
    assert is_met(found)


@pytest.mark.parametrize(
    "second",
    [
        # full periods and free ones in one second: it had less than its quota, and waited for nothing but it
        {"server": 0.3, "clients": 0.6, "others": 0.5, "wait": 0.5, "server_throttled_ns": 500_000_000},
        # several threads wait for one quota, whose time is counted once a CPU: half of the node was idle
        {"server": 0.3, "clients": 0.4, "wait": 1.5, "server_throttled_ns": 400_000_000},
    ],
    ids=["held back", "room beside"],
)
def test_what_its_own_quota_made_the_server_wait_is_taken_by_nobody(second: dict[str, Any]) -> None:
    found = shares({**QUOTA, **second})
    assert (found.taken_ratio, judge_starvation(found).starved_by) == (0.0, "quota")


def test_what_a_server_waited_beyond_its_quota_is_still_taken_by_others() -> None:
    second = {"server": 0.3, "others": 1.6, "wait": 0.9, "server_throttled_ns": 100_000_000}
    starved = judge_starvation(shares({**QUOTA, **second, "server_quota_cores": 1.0}))
    assert (starved.starved_by, makes_invalid(starved)) == ("others", True)


def test_clients_in_the_servers_quota_take_from_it_and_others_outside_do_not() -> None:
    second = {"server": 0.3, "clients": 0.2, "others": 1.0, "wait": 1.0, **QUOTA, "is_quota_shared": True}
    found = shares(second)
    assert found.taken is not None
    assert found.taken["others"] == 0.0
    assert found.taken["clients"] == pytest.approx(0.2 / 0.5)
    assert judge_starvation(found).starved_by == "clients"


def test_what_the_hypervisor_took_counts_as_the_others() -> None:
    starved = judge_starvation(shares({"server": 0.6, "steal": 1.0}))
    assert starved.starved_by == "others"
    assert starved.ratio == pytest.approx(1.0 / 1.6)  # nobody else ran, so that all that was stolen was its
    assert starved.sentence.startswith("The hypervisor")


def test_a_virtual_core_that_wakes_slowly_was_not_taken_by_other_guests() -> None:
    """Seconds of an idle virtual machine with 16 cores whose server woke 2,561 and 3,026 times (an H200 host,
    2026-11-28): what the hypervisor calls stolen is for the most part idle, too."""
    first = {"server": 0.675, "clients": 0.056, "squall": 0.099, "others": 0.070, "steal": 0.44}
    second = {"server": 0.786, "clients": 0.060, "squall": 0.093, "others": 0.051, "steal": 0.32}
    woken = shares({**first, "idle_ns": 15_100_000_000}, {**second, "idle_ns": 14_930_000_000}, n_cores=16)
    taken = shares({**first, "idle_ns": 14_660_000_000}, {**second, "idle_ns": 14_690_000_000}, n_cores=16)
    assert woken.cores["steal"] == pytest.approx((0.0 + 0.08) / 2)
    assert (woken.taken_ratio or 0.0) < 0.05
    assert not makes_invalid(judge_starvation(woken))
    assert taken.cores["steal"] == pytest.approx((0.44 + 0.32) / 2)
    assert makes_invalid(judge_starvation(taken))


def test_a_run_of_before_does_not_tell_who_had_the_servers_cores() -> None:
    table = samples({"server": 0.2, "others": 1.5, "wait": 0.6}).drop_columns("server_cores_busy_ns")
    (found,) = cpu_shares(table, ["burst"])
    assert found.taken_ratio == pytest.approx(0.6 / 0.8)


@pytest.mark.parametrize("column", ["server_ns", "server_wait_ns"])
def test_what_is_not_told_is_not_assessed_and_no_check(column: str) -> None:
    table = samples({"server": 0.1, "others": 1.8, "wait": 0.8})
    nulls = pa.nulls(1, pa.int64())
    table = table.set_column(table.column_names.index(column), table.schema.field(column), nulls)
    (found,) = cpu_shares(table, ["burst"])
    assert judge_starvation(found).starved_by == "not assessed"
    assert cpu_figure([found]) is None
    assert "not assessed" in cpu_line(found)
    assert "not assessed" not in cpu_line(found, has_server=False)


def test_seconds_are_weighed_by_the_cpu_that_was_wanted_in_them() -> None:
    idle = {"server": 0.01, "others": 1.9, "wait": 0.03}
    full = {"server": 1.5, "others": 0.05, "wait": 0.05}
    found = shares(idle, full)
    assert found.taken_ratio == pytest.approx(0.08 / 1.59)
    assert found.worst_second_ratio == pytest.approx(0.75)


def test_the_worst_phase_is_named_and_a_quota_after_what_makes_a_run_invalid() -> None:
    quota = judge_starvation(shares({"server": 0.49, "wait": 1.2, **QUOTA}))
    others = judge_starvation(shares({"server": 0.5, "others": 1.4, "wait": 0.3}))
    none = judge_starvation(shares({"server": 0.5}))
    assert worst([none, quota, others]) is others
    assert worst([none, quota]) is quota
    assert worst([none]) is None


def test_load_workers_that_starve_are_told_from_a_client_that_is_too_small() -> None:
    starved = shares({"clients": 0.1, "others": 1.8, "clients_wait": 0.9})
    claim = "Others took the CPU from the load generator: of the 200 % of node-0 others had 180 % (3 x loop 90.0 % "
    assert starved_clients([replace(starved, programs={"3 x loop": 0.9})]).startswith(claim)
    assert starved_clients([shares({"clients": 1.9, "others": 0.05, "clients_wait": 3.0})]) == ""


def test_a_wait_that_ends_after_its_phase_counts_in_the_seconds_in_which_it_passed() -> None:
    """Three seconds without a core, told by the kernel in the fourth, which is of another phase."""
    silent = {"others": 2.0}
    told = {"clients": 0.2, "others": 1.7, "clients_wait": 3.4, "clients_runs": 2, "phase": "drain"}
    table = samples({"clients": 0.5, "clients_wait": 0.01, "clients_runs": 40}, silent, silent, told)
    (burst,) = cpu_shares(table, ["burst"])
    assert burst.taken_from_clients is not None
    assert burst.taken_from_clients["others"] == pytest.approx(1.4 / 1.9, abs=0.01)
    (drain,) = cpu_shares(table, ["drain"])
    assert drain.clients_wait_ratio == pytest.approx(2.0 / 2.2)


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
    found = shares(*seconds, n_cores=3)
    assert found.taken is not None
    wanted = sum(one["server"] + one["wait"] + one["steal"] for one in seconds)
    had = sum(one["server"] for one in seconds)
    assert all(0 <= share <= 1 for share in found.taken.values())
    ratio = found.taken_ratio or 0.0
    foreign = sum(one[name] for one in seconds for name in ("clients", "squall", "others", "steal"))
    lacked = ratio / (1 - ratio) * had if ratio < 1 else 0.0
    assert lacked <= foreign + 1e-6
    assert lacked <= wanted + 1e-6
    assert LIMITS.taken_ratio > 0
