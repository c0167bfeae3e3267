"""Loading: the bundled scenario loads, and every fault is one line with file, key path and way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from squall.scenarios.arrivals.replay import TraceArrivals
from squall.scenarios.arrivals.stationary import PoissonArrivals
from squall.scenarios.arrivals.varying import EnvelopeArrivals
from squall.scenarios.config.loader import load_scenario, scenario_from_mapping
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
    assert scenario.models[0].model.repository == str(tmp_path / "models")


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
