"""Loading: the bundled scenario loads, and every fault is one line with file, key path and way out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from squall.scenarios.arrivals.replay import TraceArrivals
from squall.scenarios.arrivals.stationary import PoissonArrivals
from squall.scenarios.arrivals.varying import EnvelopeArrivals
from squall.scenarios.config.loader import load_scenario, scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.drafting import plan_scenario

S = 1_000_000_000
ROOT = Path(__file__).resolve().parents[4]
DEMO = ROOT / "scenarios" / "config" / "demo.yaml"


def test_every_scenario_file_of_the_repository_loads() -> None:
    published = ROOT / "scenarios" / "published"  # files of another kind, with tests of their own
    files = [path for path in sorted(ROOT.glob("scenarios/**/*.yaml")) if path.parent != published]
    assert DEMO in files
    for file in files:
        scenario = load_scenario(file)
        assert scenario_from_mapping(scenario.to_mapping(), "again") == scenario


def test_the_demo_sends_a_burst_of_200_requests_a_second() -> None:
    scenario = load_scenario(DEMO)
    assert [(phase.name, phase.kind, phase.duration_ns // S) for phase in scenario.phases] == [
        ("warmup", "warmup", 2),
        ("burst", "measure", 30),
        ("drain", "drain", 5),
    ]
    burst = scenario.phases[1].arrivals
    assert isinstance(burst, EnvelopeArrivals)
    assert (burst.preset, burst.bin_ns, burst.rate_hz) == ("nasa-flash-crowd", S // 2, 200.0)
    plan = plan_scenario(scenario)
    # 6000 expected; IDC(infinity) of the residual is 1/(1-0.25)^2
    assert abs(int((plan.phase == 1).sum()) - 6000) < 4 * (6000 / 0.75**2) ** 0.5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty"),
        ("- a\n", "a scenario is a mapping of keys, not a list"),
        ("name: a\nseed: 1\nname: b\n", "line 3, column 1: the key 'name' is given twice"),
        ("model:\n  name: a\n  name: b\n", "line 3, column 3: the key 'name' is given twice"),
        ("name: [a\nseed: 1\n", "line 2, column 5: expected ',' or ']', but got ':'"),
        ("name: a\n\tseed: 1\n", "line 2, column 1: found character '\\t' that cannot start any token"),
        ("? [a]\n: 1\n", "line 1, column 3: a key must be a text"),
        (
            "name: !!python/name:os.system\n",
            "line 1, column 7: could not determine a constructor for the tag"
            " 'tag:yaml.org,2002:python/name:os.system'",
        ),
        ("a: &a\n  b: *a\n", "an alias (*name) refers to a part that holds it"),
        ('name: "\x07"\n', "unacceptable character"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused_with_line_and_column(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("nested", ["[" * 100_000, "{a: " * 50_000])
def test_deep_nesting_is_one_line_in_a_file_and_in_an_override(tmp_path: Path, nested: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"name: {nested}")
    with pytest.raises(ScenarioError, match=r"s\.yaml: lists and mappings are nested too deep$"):
        load_scenario(path)
    with pytest.raises(ScenarioError, match=r"lists and mappings are nested too deep$"):
        load_scenario(DEMO, [f"name={nested}"])


def test_a_pipe_is_not_waited_for_and_of_a_large_file_little_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ScenarioError, match=r"pipe\.yaml: is a pipe or a device, write it to a file$"):
        load_scenario(tmp_path / "pipe.yaml")
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(
        ScenarioError, match=r"large\.yaml: has more than 2 MiB: keep what is long in a trace"
    ):
        load_scenario(tmp_path / "large.yaml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.yaml: no such scenario file$"):
        load_scenario(tmp_path / "none.yaml")
    with pytest.raises(ScenarioError, match=r": cannot be read: Is a directory$"):
        load_scenario(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(ScenarioError, match=r"latin\.yaml: is not UTF-8 text$"):
        load_scenario(tmp_path / "latin.yaml")


SMALL = """
name: small
seed: 010
model: {name: head}
phases:
  - {name: main, kind: measure, duration: 3s, arrivals: {kind: trace, file: trace.csv}}
  - {name: end, kind: drain, duration: 1s}
profile: {nsys: off}
"""


def test_scalars_follow_yaml_1_2(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SMALL)
    scenario = load_scenario(path)
    assert scenario.profile.nsys == "off"
    assert scenario.seed == 10


def test_relative_paths_are_taken_from_the_folder_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SMALL.replace("{name: head}", "{name: head, repository: ./models}"))
    scenario = load_scenario(path)
    arrivals = scenario.phases[0].arrivals
    assert isinstance(arrivals, TraceArrivals)
    assert arrivals.file == str(tmp_path / "trace.csv")
    assert scenario.model.repository == str(tmp_path / "models")


def test_a_relative_path_of_an_override_is_taken_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SMALL)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    scenario = load_scenario(path, ["phases.main.arrivals.file=other.csv"])
    arrivals = scenario.phases[0].arrivals
    assert isinstance(arrivals, TraceArrivals)
    assert arrivals.file == str(tmp_path / "here" / "other.csv")
    assert load_scenario(path, ["seed=1"]).phases[0].arrivals != arrivals


def test_parts_that_an_alias_shares_are_changed_apart(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: a\nseed: 1\nmodel: {name: head}\nphases:\n"
        "- {name: one, kind: measure, duration: 1s, arrivals: &load {kind: poisson, rate: 1/s}}\n"
        "- {name: two, kind: measure, duration: 1s, arrivals: *load}\n"
        "- {name: end, kind: drain, duration: 1s}\n"
    )
    one, two = load_scenario(path, ["phases.two.arrivals.rate=9/s"]).phases[:2]
    assert isinstance(one.arrivals, PoissonArrivals)
    assert isinstance(two.arrivals, PoissonArrivals)
    assert (one.arrivals.rate_hz, two.arrivals.rate_hz) == (1.0, 9.0)


NESTED = """
name: nested
seed: 1
model: {name: head}
clients: {rows: {kind: empirical, file: rows.csv, size: tokens, max: 8}}
phases:
  - name: burst
    kind: measure
    duration: 9s
    arrivals:
      kind: superpose
      parts:
        - {kind: poisson, rate: 1/s}
        - {kind: clients, rate: 2/s, clients: 5, zipf: 1, cv: 2}
        - {kind: trace, file: trace.csv}
        - kind: concatenate
          parts:
            - {duration: 2s, arrivals: {kind: envelope, rate: 1/s, shape: {kind: trace, file: shape.csv}}}
            - {duration: 1s, arrivals: {kind: gamma, rate: 1/s, cv: 2}}
  - {name: end, kind: drain, duration: 1s}
"""


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(NESTED)
    return path


def value_at(scenario: Scenario, path: tuple[str | int, ...]) -> Any:
    here: Any = scenario.to_mapping()["phases"][0]["arrivals"]
    for part in path:
        here = here[part]
    return here


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("parts.0.rate=7/s", ("parts", 0, "rate"), "7/s"),
        ("parts[0].rate=7/s", ("parts", 0, "rate"), "7/s"),
        ("parts.1.clients=7", ("parts", 1, "clients"), 7),
        ("parts.1.zipf=0.5", ("parts", 1, "zipf"), 0.5),
        ("parts.2.rate_scale={kind: thin, keep: 0.5}", ("parts", 2, "rate_scale", "keep"), 0.5),
        ("parts.2.time_scale=1/60", ("parts", 2, "time_scale"), "1/60"),
        ("parts.3.parts.0.duration=7s", ("parts", 3, "parts", 0, "duration"), "7s"),
        ("parts.3.parts.0.arrivals.rate=7/s", ("parts", 3, "parts", 0, "arrivals", "rate"), "7/s"),
        ("parts.3.parts.0.arrivals.shape.bin=7s", ("parts", 3, "parts", 0, "arrivals", "shape", "bin"), "7s"),
        ("parts[3].parts[1].arrivals.cv=1.5", ("parts", 3, "parts", 1, "arrivals", "cv"), 1.5),
        ("parts.0={kind: constant, rate: 7/s}", ("parts", 0, "kind"), "constant"),
    ],
)
def test_an_override_reaches_a_part_however_deep(
    nested: Path, override: str, path: tuple[str | int, ...], value: object
) -> None:
    before, after = (
        load_scenario(nested, changes) for changes in ([], [f"phases.burst.arrivals.{override}"])
    )
    assert value_at(after, path) == value
    assert before != after


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("parts.0.rat=7/s", "phases[0].arrivals.parts[0].rat: unknown key, did you mean 'rate'?"),
        ("parts.0.cv=7", "phases[0].arrivals.parts[0].cv: unknown key, allowed are kind, rate"),
        ("parts.1.client=7", "phases[0].arrivals.parts[1].client: unknown key, did you mean 'clients'?"),
        (
            "parts.3.parts.0.arrivals.shape.bim=7s",
            "phases[0].arrivals.parts[3].parts[0].arrivals.shape.bim: unknown key, did you mean 'bin'?",
        ),
        ("parts.3.parts.0.rate=7/s", "phases[0].arrivals.parts[3].parts[0].rate: unknown key"),
        ("parts.9.rate=7/s", "phases[0].arrivals.parts has no item '9', there are 0 to 3"),
        ("parts.x.rate=7/s", "phases[0].arrivals.parts has no item 'x', there are 0 to 3"),
    ],
)
def test_a_part_or_key_that_is_not_there_is_refused_with_its_place(
    nested: Path, override: str, problem: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(nested, [f"phases.burst.arrivals.{override}"])
    assert str(caught.value).startswith(f"--set phases.burst.arrivals.{override}: {problem}")
    assert "\n" not in str(caught.value)


def test_files_in_parts_shapes_and_rows_are_taken_from_the_folder_of_the_file(nested: Path) -> None:
    scenario, folder = load_scenario(nested), nested.parent
    assert value_at(scenario, ("parts", 2, "file")) == str(folder / "trace.csv")
    shape = ("parts", 3, "parts", 0, "arrivals", "shape", "file")
    assert value_at(scenario, shape) == str(folder / "shape.csv")
    assert scenario.to_mapping()["clients"]["rows"]["file"] == str(folder / "rows.csv")


def test_a_fault_in_a_part_is_one_line_with_its_place(nested: Path) -> None:
    nested.write_text(NESTED.replace("cv: 2}}", "cv: 9}}"))
    with pytest.raises(ScenarioError) as caught:
        load_scenario(nested)
    place = "phases[0].arrivals.parts[3].parts[1].arrivals"
    assert str(caught.value).startswith(f"{nested}: {place}: gaps with cv² 81 are above 10")
    assert "\n" not in str(caught.value)
