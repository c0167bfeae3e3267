"""The checks of the nodes' clocks can fail: a fault in how the far node's clock answers is found in a real run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.live_runs import Bench, scenario_mapping
from tests.integration.test_checks_can_fail import PLANTED, unmet
from tests.integration.two_nodes import Pair, two_nodes
from tests.planted_faults.faults import FAULTS

pytestmark = [pytest.mark.slow, pytest.mark.beside]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that names the fault."""
    return tmp_path_factory.mktemp("planted") / "fault"


@pytest.fixture(scope="module")
def pair(planted: Path) -> Iterator[Pair]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SQUALL_PLANTED_FAULT", str(planted))
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(PLANTED), *filter(None, [os.environ.get("PYTHONPATH")])])
        )
        with two_nodes(128 + os.getpid() % 100) as made:
            yield made


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name == "late answers" else [])
        for name, fault in FAULTS.items()
        if fault.run == "two nodes"
    ],
)
def test_a_fault_planted_into_a_clock_fails_its_checks(
    alone: Bench, pair: Pair, planted: Path, name: str
) -> None:
    fault = FAULTS[name]
    planted.write_text(name)
    mapping = scenario_mapping(server={"url": pair.url})
    mapping["phases"][1] |= {
        "duration": f"{fault.seconds}s",
        "arrivals": {"kind": "poisson", "rate": "150/s"},
    }
    bench = Bench(alone.folder, alone.tmp, pair.ray, pair.near_tmp)
    live = bench.start_run(mapping, "--json")
    assert live.end() in (0, 3), live.lines
    summary = json.loads(bench.stdout())
    assert set(fault.checks) <= unmet(summary), (sorted(unmet(summary)), live.lines[-5:])
