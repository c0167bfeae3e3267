"""How a comparison runs its pairs, what is left of one that ends early, and how the command ends."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from squall.analysis.compare.compared import Comparison
from squall.analysis.compare.run_row import read_row
from squall.analysis.compare.settings import gpus_are_swapped
from squall.analysis.record import to_json
from squall.cluster.commands.decisions import compared_folders
from squall.cluster.commands.decisions.compare import compare, parse_margin
from squall.cluster.commands.decisions.compared_folders import compare_folders
from squall.cluster.commands.decisions.compared_runs import (
    PairPlan,
    refuse_other_load,
    run_pairs,
    without_profilers,
)
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError, TargetError
from tests.overhead_runs import ON, write_run

MODEL = {"name": "linear_head", "settings": {"width": 8}}
PHASES: list[dict[str, Any]] = [
    {"name": "burst", "kind": "measure", "duration": "2s", "arrivals": {"kind": "poisson", "rate": "10/s"}},
    {"name": "drain", "kind": "drain", "duration": "1s"},
]


def scenario(**changes: Any) -> Scenario:
    return scenario_from_mapping(
        {"name": "try", "seed": 7, "model": MODEL, "phases": PHASES, **changes}, "test"
    )


def plan_of(a: Scenario, b: Scenario, n_pairs: int = 4, **options: Any) -> PairPlan:
    return PairPlan(a, b, "a.yaml", "b.yaml", n_pairs, 7, 0.03, **options)


A, B = scenario(), scenario(model={**MODEL, "instances": 2})


class Runs:
    """Stands for `run_scenario`: runs whose latencies are 1 % apart from run to run, and `slower` with two instances.
    `endings` by position: a status, or an error that is raised."""

    def __init__(self, slower: float = 1.0, endings: dict[int, str | BaseException] | None = None) -> None:
        self.scenarios: list[Scenario] = []
        self._slower, self._endings = slower, endings or {}

    def __call__(self, one: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
        del ray, interrupts
        at = len(self.scenarios)
        self.scenarios.append(one)
        ending = self._endings.get(at, "VALID")
        if isinstance(ending, BaseException):
            raise ending
        factor = (self._slower if one.models[0].model.instances == 2 else 1.0) * (1.0 + 0.01 * ((7 * at) % 3))
        entries = one.servers if isinstance(one.servers, tuple) else ()
        gpus = {
            f"server-{place}": {"node": "node-0", "gpus": [f"GPU-{entry.gpus}"]}
            for place, entry in enumerate(entries)
        }
        store = write_run(
            out, factor, status=ending,
            manifest={
                "seed": one.seed, "scenario": one.to_mapping(), "started_ns": 1 + at, "servers": gpus,
                "plan": {"load": "open", "sha256": f"plan {one.seed}"},
                "collectors": {"triton": ON, "host": ON, **({"nsys": ON} if one.profile.nsys != "off" else {})},
            },
        )  # fmt: skip
        return RunResult(store.run_dir, None, ending)

    @property
    def sides(self) -> str:
        return "".join("b" if one.models[0].model.instances == 2 else "a" for one in self.scenarios)


def run(tmp_path: Path, runs: Runs, plan: PairPlan) -> tuple[Path, Comparison]:
    return run_pairs(plan, tmp_path, None, Interrupts(), "squall compare a.yaml b.yaml", runs)


def test_blocks_hold_one_of_each_side_in_an_order_of_the_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs()
    folder, found = run(tmp_path, runs, plan_of(A, B, 6))
    told = [line for line in capsys.readouterr().err.splitlines() if "minutes are left" in line]
    assert [line.split(", ")[0] for line in told] == [
        f"squall {12 - at} runs to come" for at in range(0, 12, 2)
    ]
    assert ["at least" in line for line in told] == [True] + [False] * 5
    assert [one.seed for one in runs.scenarios] == [7 + place // 2 for place in range(12)]
    blocks = [runs.sides[place : place + 2] for place in range(0, 12, 2)]
    assert [one[::-1] for one in blocks[::2]] == blocks[1::2]
    assert runs.sides == "".join(side for _, side in plan_of(A, B, 6).order())
    assert {path.name for path in folder.iterdir()} == {
        "a",
        "b",
        "compare.json",
        "compare.md",
        "compare.html",
    }
    assert (found.n_pairs, [one.text for one in found.differs]) == (6, ["model.instances: 1 → 2"])
    assert json.loads((folder / "compare.json").read_text()) == to_json(found)
    assert "squall compare a.yaml b.yaml" in (folder / "compare.html").read_text()


def test_runs_of_a_comparison_promise_nothing_so_that_none_ends_early() -> None:
    promised = scenario(promises={"response": "p(95)<50ms"}, stop_when="decided")
    assert plan_of(promised, promised).scenario("b", 1).to_mapping() == scenario(seed=8).to_mapping()


def test_a_scenario_without_profilers_differs_in_these_alone() -> None:
    wanted = scenario(
        profile={"triton_interval": "50ms", "host_interval": "250ms", "nsys": "required", "nvml": "required"}
    )
    plain = without_profilers(wanted)
    own = plain.profile
    assert (own.nsys, own.nvml, own.gpm, own.triton_trace) == ("off", "off", "off", "off")
    assert own.triton_interval_ns == wanted.profile.triton_interval_ns
    assert own.host_interval_ns == wanted.profile.host_interval_ns
    assert own.thread_interval_ns > 10**9 * 86_400 * 300
    assert plain.model_copy(update={"profile": wanted.profile}) == wanted


def test_runs_under_nsys_and_without_are_compared_where_that_is_all_that_differs(tmp_path: Path) -> None:
    profiled, runs = scenario(profile={"nsys": "auto"}), Runs()
    folder, found = run(tmp_path, runs, plan_of(without_profilers(profiled), profiled, 3, has_one_seed=True))
    assert {one.seed for one in runs.scenarios} == {7}
    assert sorted(one.profile.nsys for one in runs.scenarios) == ["auto"] * 3 + ["off"] * 3
    assert found.n_pairs == 3
    assert "profile.nsys: off → auto" in [one.text for one in found.differs]
    again = compare_folders(folder / "a", folder / "b", 0.03)
    assert again.changes == found.changes
    other = scenario(profile={"nsys": "auto"}, model={**MODEL, "instances": 2})
    with pytest.raises(ScenarioError, match="was profiled by nsys and its partner was not"):
        run(tmp_path / "more", Runs(), plan_of(without_profilers(profiled), other))


def test_what_it_ran_is_read_again_to_the_same_end(tmp_path: Path) -> None:
    folder, found = run(tmp_path, Runs(slower=1.2), plan_of(A, B))
    again = compare_folders(folder / "a", folder / "b", 0.03)
    assert (again.verdict, again.changes, again.every) == (found.verdict, found.changes, found.every)
    assert found.verdict == "worse"


@pytest.mark.parametrize(
    "ending", [TargetError("the server is gone"), KeyboardInterrupt()], ids=["fails", "killed"]
)
def test_a_comparison_that_ends_early_keeps_its_runs_and_what_they_show(
    tmp_path: Path, ending: BaseException
) -> None:
    with pytest.raises(type(ending)):
        run(tmp_path, Runs(slower=1.2, endings={5: ending}), plan_of(A, B))
    (folder,) = tmp_path.iterdir()
    assert len([*folder.glob("?/*/manifest.json")]) == 5
    told = json.loads((folder / "compare.json").read_text())
    assert (told["verdict"], told["n_pairs"], told["n_pairs_planned"]) == ("unfinished", 2, 4)
    assert "Unfinished: 2 of 4 pairs have run" in (folder / "compare.md").read_text()
    again = compare_folders(folder / "a", folder / "b", 0.03)
    assert (again.n_pairs, len(again.unpaired)) == (2, 1)


def test_an_invalid_run_is_run_once_more_and_twice_invalid_ends_invalid(tmp_path: Path) -> None:
    runs = Runs(endings={2: "INVALID"})
    _, found = run(tmp_path / "once", runs, plan_of(A, B))
    assert len(runs.scenarios) == 9
    assert (found.n_pairs, len(found.replaced)) == (4, 1)
    assert found.verdict != "invalid"
    _, found = run(tmp_path / "twice", Runs(endings={2: "INVALID", 3: "INVALID"}), plan_of(A, B))
    assert (found.verdict, found.n_pairs) == ("invalid", 3)
    assert any("it was made so" in one.left_out for one in found.pairs)


def test_pairs_of_one_seed_are_its_blocks_whatever_is_invalid(tmp_path: Path) -> None:
    profiled = scenario(profile={"nsys": "auto"})
    plan = plan_of(without_profilers(profiled), profiled, 3, has_one_seed=True)
    _, found = run(tmp_path / "all", Runs(endings=dict.fromkeys(range(12), "INVALID")), plan)
    assert (found.verdict, len(found.pairs), found.n_pairs) == ("invalid", 3, 0)
    runs = Runs(endings={0: "INVALID", 1: "INVALID"})
    _, found = run(tmp_path / "first", runs, plan)
    assert (len(runs.scenarios), len(found.pairs), found.n_pairs) == (7, 3, 2)


def test_looks_end_it_once_it_is_decided(tmp_path: Path) -> None:
    runs = Runs(slower=2.0)
    _, found = run(tmp_path, runs, plan_of(A, B, 8, n_looks=4))
    assert (found.verdict, found.level) == ("worse", 0.0182)
    assert len(runs.scenarios) < 16
    assert len(runs.scenarios) % 4 == 0


def test_a_look_at_too_many_bad_pairs_decides_nothing(tmp_path: Path) -> None:
    runs = Runs(endings={0: "INVALID", 1: "INVALID"})
    _, found = run(tmp_path, runs, plan_of(A, B, 8, n_looks=4))
    assert len(runs.scenarios) > 5
    assert (found.verdict != "invalid", len(found.pairs) > 2) == (True, True)


def test_gpus_change_sides_half_way(tmp_path: Path) -> None:
    runs = Runs()
    sides = [
        scenario(model=one, servers=[{"gpus": [gpu]}])
        for gpu, one in enumerate((MODEL, {**MODEL, "instances": 2}))
    ]
    _, found = run(tmp_path, runs, plan_of(sides[0], sides[1], swaps_gpus=True))
    used = [(one.models[0].model.instances, one.servers[0].gpus) for one in runs.scenarios]  # type: ignore[index]
    assert [sorted(used[place : place + 2]) for place in range(0, 8, 2)] == [
        [(1, (0,)), (2, (1,))], [(1, (0,)), (2, (1,))], [(1, (1,)), (2, (0,))], [(1, (1,)), (2, (0,))],
    ]  # fmt: skip
    assert [one.key for one in found.differs] == ["model.instances"]
    assert not any("GPU" in one for one in found.marks)
    assert not gpus_are_swapped([])


def test_gpus_cannot_change_sides_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="--swap-gpus"):
        run(tmp_path, Runs(), plan_of(A, B, swaps_gpus=True))
    assert not [*tmp_path.iterdir()]


def test_another_load_and_another_shape_are_refused_before_anything_runs() -> None:
    refuse_other_load(A, B)
    longer = {**dict(PHASES[0]), "duration": "3s"}
    others = {
        "phases": scenario(phases=[longer, PHASES[1]]),
        "clients.rows": scenario(clients={"rows": {"kind": "constant", "value": 2}}),
        "different shapes": scenario(model={"name": "linear_head", "settings": {"width": 9}}),
    }
    for text, other in others.items():
        with pytest.raises(ScenarioError, match=text):
            refuse_other_load(A, other)


def test_other_data_of_one_of_several_models_is_refused_by_name() -> None:
    def loaded(path: str | None) -> Scenario:
        mapping = {key: value for key, value in A.to_mapping().items() if key != "model"}
        data = {} if path is None else {"data": {"path": path}}
        return scenario_from_mapping(
            {**mapping, "models": [{"name": "linear_head", **data}, {"name": "text"}]}, "t"
        )

    refuse_other_load(loaded("/a.npy"), loaded("/a.npy"))
    for other in ("/b.npy", None):
        with pytest.raises(
            ScenarioError, match=r"A and B differ in models\.linear_head\.data: a pair is of one"
        ):
            refuse_other_load(loaded("/a.npy"), loaded(other))


def ended(*arguments: str) -> tuple[int, str]:
    """Exit code of the command, and what it printed, or the one line of what it refused."""
    app = typer.Typer()
    app.command()(compare)
    result = CliRunner().invoke(app, [*arguments])
    if isinstance(result.exception, ScenarioError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.output


def folder_of(parent: Path, slower: float, spread: float = 0.002, status: str = "VALID") -> str:
    for place in range(5):
        ratio = slower * (1 + spread * (place % 3))
        manifest = {"seed": place, "plan": {"load": "open", "sha256": f"plan {place}"}}
        write_run(parent, ratio, status=status if place in (2, 3) else "VALID", manifest=manifest)
    return str(parent)


@pytest.fixture
def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stays as it is need not be reduced again by each command of a test."""
    monkeypatch.setattr(compared_folders, "read_row", cache(read_row))


@pytest.mark.usefixtures("_read_once")
def test_the_command_ends_by_its_verdict(tmp_path: Path) -> None:
    a = folder_of(tmp_path / "a", 1.0)
    others = {
        0: folder_of(tmp_path / "same", 1.0), 99: folder_of(tmp_path / "worse", 1.2),
        3: folder_of(tmp_path / "invalid", 1.0, status="INVALID"), 4: folder_of(tmp_path / "open", 1.0, spread=0.1),
    }  # fmt: skip
    told = {code: ended(a, b) for code, b in others.items()}
    assert {code: one[0] for code, one in told.items()} == {code: code for code in others}
    assert ended(others[99], a)[0] == 0
    found = json.loads(ended(a, others[99], "--json")[1])
    assert (found["verdict"], found["schema_version"]) == ("worse", 1)
    first = told[99][1].splitlines()[0]
    assert first.startswith("B is worse than A: p50 of the response time +20")
    assert ended(a, others[99], "--margin", "50%", "--out", str(tmp_path / "out"))[0] == 0
    assert {one.name for one in (tmp_path / "out").iterdir()} == {
        "compare.json",
        "compare.md",
        "compare.html",
    }


@pytest.mark.usefixtures("_read_once")
def test_a_folder_is_read_again_with_its_own_margin_and_looks(tmp_path: Path) -> None:
    plan = PairPlan(A, B, "a.yaml", "b.yaml", 4, 7, 0.5, n_looks=2)
    folder, found = run(tmp_path, Runs(slower=1.2), plan)
    again = json.loads(ended(str(folder), "--json")[1])
    assert (again["margin_ratio"], again["n_looks"], again["verdict"]) == (0.5, 2, found.verdict)
    stated = json.loads(ended(str(folder), "--margin", "3%", "--json")[1])
    assert (stated["margin_ratio"], stated["n_looks"], stated["verdict"]) == (0.03, 2, "undecided")
    other = json.loads(ended(str(folder / "a"), str(folder / "b"), "--json")[1])
    assert (other["margin_ratio"], other["n_looks"]) == (0.03, 1)
    (folder / "compare.json").write_text("{}")
    code, said = ended(str(folder))
    assert (code, "state --margin and --looks" in said) == (2, True)
    assert ended(str(folder), "--margin", "3%", "--looks", "2")[0] == 4
    (folder / "compare.json").unlink()
    assert json.loads(ended(str(folder), "--json")[1])["margin_ratio"] == 0.03


@pytest.mark.usefixtures("_read_once")
def test_bad_input_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    a, single = folder_of(tmp_path / "a", 1.0), str(write_run(tmp_path / "one").run_dir)
    (tmp_path / "empty").mkdir()
    yaml = tmp_path / "s.yaml"
    yaml.write_text(json.dumps(A.to_mapping()))
    tries = {
        (a,): "is one side",
        (a, str(tmp_path / "none")): "no such file or folder",
        (a, str(tmp_path / "empty")): "has no run in it",
        (a, a): "is on both sides",
        (a, single, "--out", "s3://bucket/x"): "--out: name a place on this disk",
        (a, single): "no run of A has the schedule and seed",
        (a, str(yaml)): "both scenario files, or both runs",
        (a, a, "--pairs", "3"): "are for scenario files",
        (a, a, "--margin", "3"): "--margin: 3 is not between",
        (a, a, "--margin", "wide"): "no share",
        (str(yaml),): "is one side",
        (str(yaml), "--set-b", "model.nonsense=1"): "nonsense",
        (str(yaml), "--set-b", "model.settings.width=9"): "different shapes",
        (str(yaml), "--set-b", "phases.burst.duration=3s"): "differ in phases",
        (str(yaml), "--set-b", "model.instances=2", "--looks", "9"): "--looks",
        (str(yaml), "--set-b", "model.instances=2", "--pairs", "3", "--looks", "3"): "--looks",
        (str(yaml), "--set-b", "model.instances=2", "--swap-gpus"): "--swap-gpus",
    }
    for arguments, text in tries.items():
        code, said = ended(
            *arguments, *(["--out", str(tmp_path / "out")] if arguments[0] == str(yaml) else [])
        )
        assert (code, text in said, "\n" in said) == (2, True, False), (arguments, said)
    assert not (tmp_path / "out").exists()


def test_margins_are_shares_in_two_ways() -> None:
    assert [parse_margin(one) for one in ("3%", "0.03", "12.5%")] == pytest.approx([0.03, 0.03, 0.125])


def test_the_names_of_sides_have_no_value_of_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[PairPlan] = []

    def broken_off(plan: PairPlan, *_: object) -> Any:
        plans.append(plan)
        raise TargetError("not today")

    monkeypatch.setattr("squall.cluster.commands.decisions.compared_runs.run_pairs", broken_off)
    (tmp_path / "s.yaml").write_text(json.dumps(A.to_mapping()))
    ended(str(tmp_path / "s.yaml"), "--set-b", "clients.headers={X-Key: s3cret}")
    assert plans[0].b.clients.headers == {"X-Key": "s3cret"}
    assert plans[0].name_b.endswith('s.yaml clients.headers={"X-Key": "${X_KEY}"}')
