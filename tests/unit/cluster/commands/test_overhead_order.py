"""How the runs of `--measure-overhead` follow each other, and what is kept when one of them fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from squall.analysis.storage.store import RunStore
from squall.cluster.commands.overhead import bare, measure_overhead, order
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, ScenarioError, StoreError, TargetError
from tests.overhead_runs import write_run


def scenario(**profile: Any) -> Scenario:
    return scenario_from_mapping(
        {
            "name": "try", "seed": 7, "model": {"name": "seqlen_head"},
            "phases": [
                {"name": "burst", "kind": "measure", "duration": "2s",
                 "arrivals": {"kind": "poisson", "rate": "10/s"}},
                {"name": "drain", "kind": "drain", "duration": "1s"},
            ],
            "profile": profile,
        },
        "test",
    )  # fmt: skip


class Runs:
    """Stands for `run_scenario`: writes known runs; `failures` by position are raised, some after a run was made."""

    def __init__(self, failures: dict[int, BaseException] | None = None, **changes: Any) -> None:
        self.scenarios: list[Scenario] = []
        self._failures = failures or {}
        self._changes = changes

    def __call__(self, one: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
        del ray, interrupts
        position = len(self.scenarios)
        self.scenarios.append(one)
        failure = self._failures.get(position)
        if isinstance(failure, ScenarioError):
            raise failure
        store = write_run(
            out, 1.0 + 0.01 * position, status="ABORTED" if failure else "VALID", **self._changes
        )
        if failure is not None:
            raise failure
        return RunResult(store.run_dir, None, "VALID")


def the_folder(out: Path) -> Path:
    (found,) = out.iterdir()
    return found


def written(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((the_folder(out) / "overhead.json").read_text())
    return content


def test_bare_and_profiled_alternate_so_that_a_drift_cancels() -> None:
    plans = order(4)
    assert [one.is_profiled for one in plans] == [False, True, True, False, False, True, True, False]
    assert [one.pair for one in plans] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [one.position for one in plans] == list(range(8))


def test_a_bare_scenario_differs_in_its_profilers_alone() -> None:
    wanted = scenario(triton_interval="50ms", host_interval="250ms", nsys="required", nvml="required")
    plain = bare(wanted)
    assert (plain.profile.nsys, plain.profile.nvml, plain.profile.gpm, plain.profile.triton_trace) == (
        "off", "off", "off", "off",
    )  # fmt: skip
    assert plain.profile.triton_interval_ns == wanted.profile.triton_interval_ns
    assert plain.profile.host_interval_ns == wanted.profile.host_interval_ns
    assert plain.profile.thread_interval_ns > 10**9 * 86_400 * 300
    assert plain.model_copy(update={"profile": wanted.profile}) == wanted


def test_every_run_is_made_and_the_evaluation_is_written(tmp_path: Path) -> None:
    runs = Runs()
    result = measure_overhead(scenario(nsys="auto"), tmp_path, None, Interrupts(), 2, runs)
    assert result.is_valid
    assert [one.profile.nsys for one in runs.scenarios] == ["off", "auto", "auto", "off"]
    assert {one.seed for one in runs.scenarios} == {7}
    folder = the_folder(tmp_path)
    assert result.folder == folder
    assert folder.name.startswith("try-overhead-20")
    assert written(tmp_path) == result.evaluation.to_json()
    assert [one.run for one in result.evaluation.runs] == [
        store.run
        for store in sorted(
            (RunStore.open(path.parent) for path in folder.glob("*/manifest.json")),
            key=lambda one: [entry.run for entry in result.evaluation.runs].index(one.run),
        )
    ]
    assert (folder / "overhead.md").read_text().startswith(f"# {folder.name}\n")


@pytest.mark.parametrize(("nsys", "is_said"), [("off", True), ("auto", False)])
def test_pairs_without_nsys_say_that_its_cost_is_not_in_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], nsys: str, is_said: bool
) -> None:
    measure_overhead(scenario(nsys=nsys), tmp_path, None, Interrupts(), 1, Runs())
    assert ("add --set profile.nsys=auto" in " ".join(capfd.readouterr().err.split())) == is_said


def test_a_failed_run_costs_its_pair_and_the_next_goes_on(tmp_path: Path) -> None:
    result = measure_overhead(
        scenario(), tmp_path, None, Interrupts(), 3, Runs({2: ClusterError("it broke")})
    )
    assert not result.is_valid
    assert (result.evaluation.n_pairs, len(result.evaluation.runs)) == (2, 6)
    assert result.evaluation.runs[2].error == "it broke"
    assert "is ABORTED" in result.evaluation.left_out[0]


def test_two_failures_in_the_first_pair_end_it(tmp_path: Path) -> None:
    runs = Runs({0: TargetError("no server"), 1: TargetError("no server")})
    with pytest.raises(TargetError, match="no server"):
        measure_overhead(scenario(), tmp_path, None, Interrupts(), 3, runs)
    assert len(runs.scenarios) == 2
    assert written(tmp_path)["n_pairs"] == 0


@pytest.mark.parametrize("error", [ScenarioError("no trace"), StoreError("disk is full")])
def test_a_scenario_or_disk_of_no_use_ends_it_at_once(tmp_path: Path, error: Exception) -> None:
    runs = Runs({0: error})
    with pytest.raises(type(error), match=str(error)):
        measure_overhead(scenario(), tmp_path, None, Interrupts(), 3, runs)
    assert len(runs.scenarios) == 1


def test_after_ctrl_c_what_is_there_is_kept_and_evaluated(tmp_path: Path) -> None:
    runs = Runs({5: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        measure_overhead(scenario(), tmp_path, None, Interrupts(), 3, runs)
    found = written(tmp_path)
    assert found["n_pairs"] == 2
    assert found["pooled"]["p99_ns"]["low_ratio"] is not None
    assert found["runs"][5]["error"] == "interrupted by Ctrl-C"
    assert "the profiled run" in found["left_out"][0]


def test_each_run_is_on_disk_before_the_next_begins(tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(inner: Callable[..., RunResult]) -> Callable[..., RunResult]:
        def one(*arguments: Any) -> RunResult:
            files = list(tmp_path.glob("*/overhead.json"))
            seen.append(len(json.loads(files[0].read_text())["runs"]) if files else 0)
            return inner(*arguments)

        return one

    measure_overhead(scenario(), tmp_path, None, Interrupts(), 2, watch(Runs()))
    assert seen == [0, 1, 2, 3]


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def never(*_: Any) -> NoReturn:
        raise AssertionError("nothing runs")

    with pytest.raises(StoreError, match="cannot create a folder in"):
        measure_overhead(scenario(), tmp_path / "file", None, Interrupts(), 2, never)
