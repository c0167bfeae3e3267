"""Every check can fail: a fault planted into the recording path of a real run is found by the checks that it must fail.

`tests/planted_faults` says what is planted where. A run without a fault meets them all, but for those that a busy
machine changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.live_runs import RUN_TIMEOUT_S, Bench, hosted_ray, scenario_mapping
from tests.planted_faults.derived import told
from tests.planted_faults.faults import DERIVED, FAULTS, Fault

PLANTED = Path(__file__).parent.parent / "planted_faults"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that names the fault."""
    return tmp_path_factory.mktemp("planted") / "fault"


@pytest.fixture(scope="module")
def planting(planted: Path) -> dict[str, str]:
    paths = [str(PLANTED), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"SQUALL_PLANTED_FAULT": str(planted), "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="module")
def ray(planting: dict[str, str]) -> Iterator[tuple[str, Path]]:
    with (
        tempfile.TemporaryDirectory(prefix="sqf", dir="/tmp") as tmp,
        hosted_ray(Path(tmp), planting) as address,
    ):
        yield address, Path(tmp)


@pytest.fixture
def bench(tmp_path: Path, short_tmp: Path, ray: tuple[str, Path]) -> Bench:
    return Bench(tmp_path, short_tmp, *ray)


def _mapping(run: str, seconds: int) -> dict[str, Any]:
    mapping = scenario_mapping()
    measured = mapping["phases"][1]
    measured |= {"duration": f"{seconds}s"}
    measured["arrivals"]["bin"] = "100ms"
    match run:
        case "closed":
            users = {"kind": "closed", "users": 8, "think": {"kind": "constant", "value": "20ms"}}
            mapping["phases"][0]["arrivals"] = measured["arrivals"] = users
        case "python":
            mapping["clients"] |= {"max_in_flight": 10_000, "workers_per_node": 1}
        case "nsys":
            mapping["profile"]["nsys"] = "required"
    return mapping


def unmet(summary: dict[str, Any]) -> set[str]:
    """Names of the checks of verdict, counts and self-checks that are not met."""
    return {
        *(one["name"] for one in summary["verdict"]["checks"] if not one["is_met"]),
        *(one["name"] for one in summary["identities"] if not one["is_met"]),
        *(one["name"] for one in summary["self_checks"] if one["status"] == "unmet"),
    }


LONGEST_S = int(os.environ.get("SQUALL_LONGEST_FAULT_S", "60"))
"""Faults that take a longer run than this are left out: two minutes for the dispersion over 10 s, a quarter of an hour
for that over 100 s."""


def _named(*kinds: str) -> list[str]:
    return [name for name, fault in FAULTS.items() if fault.run in kinds and fault.seconds <= LONGEST_S]


ONE_OF_EACH_MODULE = ("launches late", "kernel time", "shares")
"""Of the faults planted into ingest and analysis; the others are slow."""


@pytest.mark.beside
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ONE_OF_EACH_MODULE else pytest.mark.slow)
        for name in _named(*DERIVED)
    ],
)
def test_a_fault_planted_into_ingest_or_analysis_fails_its_checks(
    tmp_path: Path, planted: Path, planting: dict[str, str], name: str
) -> None:
    fault: Fault = FAULTS[name]
    planted.write_text(name)
    done = subprocess.run(
        [sys.executable, "-m", "tests.planted_faults.derived", fault.run, str(tmp_path)], check=True, timeout=120,
        env={**os.environ, **planting}, stdout=subprocess.PIPE, text=True, cwd=PLANTED.parent.parent,
    )  # fmt: skip
    assert set(fault.checks) <= set(json.loads(done.stdout)["unmet"])


@pytest.mark.beside
@pytest.mark.parametrize("kind", DERIVED)
def test_without_a_fault_ingest_and_analysis_meet_every_check(tmp_path: Path, kind: str) -> None:
    found = told(kind, tmp_path)
    assert found["unmet"] == []
    assert {check for name in _named(kind) for check in FAULTS[name].checks} <= set(found["assessed"])


ONE_OF_EACH_PLACE = ("records dropped", "stall", "busy loop", "ids lost", "in flight")
"""Of the faults planted into a run; the others are long."""


def _marks(name: str) -> list[pytest.MarkDecorator]:
    """Among them what its run may go beside: only a worker that gets a core for itself can fill it."""
    fault = FAULTS[name]
    longer = [] if name in ONE_OF_EACH_PLACE else [pytest.mark.long]
    if "worker saturation" in fault.checks:
        return [pytest.mark.serial, *longer]
    return [pytest.mark.single if fault.run == "nsys" else pytest.mark.beside, *longer]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=_marks(name)) for name in _named("open", "closed", "python", "nsys")],
)
def test_a_planted_fault_fails_its_checks(
    bench: Bench, planted: Path, planting: dict[str, str], name: str
) -> None:
    fault: Fault = FAULTS[name]
    planted.write_text(name)
    live = bench.start_run(_mapping(fault.run, fault.seconds), "--json", env=planting)
    code = live.end(fault.seconds + RUN_TIMEOUT_S)
    assert code in (0, 3), live.lines
    summary = json.loads(bench.stdout())
    print(name, summary["verdict"]["status"], sorted(unmet(summary)))
    assert set(fault.checks) <= unmet(summary), (sorted(unmet(summary)), live.lines[-5:])
