"""Files of published experiments: those that squall brings along, and what a file of one's own may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.errors import ScenarioError
from squall.scenarios.published.experiment import bundled_names, load_published, probe_from_mapping
from squall.scenarios.published.file import PublishedFile
from squall.scenarios.published.probe import OperatorProbe
from squall.scenarios.units import NS_PER_S
from tests.sweep_runs import SCENARIO
from tests.unit.scenarios.refused import assert_says, refused

E4 = Path(__file__).parents[3] / "scenarios" / "published" / "e4.yaml"
ARTICLE = {"title": "t", "hardware": "h", "software": "s", "load": "l"}
ROWS = [
    {"name": "one", "published": {"throughput_hz": 10, "p50_ns": "630ms"}},
    {"name": "eight", "set": {"model.max_batch_size": 8}, "published": {"sm_util_ratio": [0.1, 0.2]}},
]
PARTS = {"latency": {"about": "a", "gives": ["p50_ns"], "repeats": 3}}


def write(folder: Path, **changes: Any) -> str:
    path = folder / "own.yaml"
    said = {
        "name": "own", "title": "t", "article": ARTICLE, "scenario": SCENARIO, "rows": ROWS, "parts": PARTS, **changes,
    }  # fmt: skip
    path.write_text(yaml.safe_dump({key: value for key, value in said.items() if value is not None}))
    return str(path)


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("name", bundled_names())
def test_every_bundled_experiment_loads_at_full_size_and_small(name: str, is_small: bool) -> None:
    loaded = load_published(name, is_small)
    assert loaded.file.name == name
    assert (loaded.file.probe is None) == bool(loaded.parts)
    for part_name, part in loaded.parts.items():
        stated = loaded.file.parts[part_name]
        rows = stated.rows or [row.name for row in loaded.file.rows]
        assert [cell.label for cell in part.cells] == list(rows)
        assert part.file.repeats == (loaded.file.small.repeats if is_small else stated.repeats)


def test_settings_of_the_rehearsal_win_over_those_of_the_part_and_these_over_the_rows(tmp_path: Path) -> None:
    key, other = "model.max_batch_size", "phases.burst.duration"
    small = {"set": {other: "1s"}, "repeats": 2}
    rows = [{"name": "one", "set": {key: 2, other: "7s"}, "small": {key: 3}}, ROWS[1]]
    parts = {"latency": {**PARTS["latency"], "set": {other: "5s"}}}
    asked = write(tmp_path, rows=rows, parts=parts, small=small)
    found = {}
    for is_small in (False, True):
        part = load_published(asked, is_small).parts["latency"]
        scenario = part.cells[0].scenario
        assert scenario.models[0].model is not None
        found[is_small] = (
            scenario.models[0].model.max_batch_size,
            scenario.phases[1].duration_ns // NS_PER_S,
            part.file.repeats,
        )
    assert found == {False: (2, 5, 3), True: (3, 1, 2)}


def test_published_durations_are_ns_and_ranges_stay_ranges(tmp_path: Path) -> None:
    published = [row.published for row in load_published(write(tmp_path)).file.rows]
    assert published == [{"throughput_hz": 10, "p50_ns": 630_000_000}, {"sm_util_ratio": (0.1, 0.2)}]


def test_the_digest_is_of_what_is_run_and_of_what_was_published(tmp_path: Path) -> None:
    first = load_published(write(tmp_path)).digest()
    assert load_published(write(tmp_path)).digest() == first
    assert load_published(write(tmp_path), is_small=True).digest() != first
    faster = [{**ROWS[0], "published": {"throughput_hz": 11}}, ROWS[1]]
    assert load_published(write(tmp_path, rows=faster)).digest() != first
    longer = {"latency": {**PARTS["latency"], "set": {"phases.burst.duration": "3s"}}}
    assert load_published(write(tmp_path, parts=longer)).digest() != first


def test_seeds_may_be_asked_for_apart(tmp_path: Path) -> None:
    asked = write(tmp_path)
    plans = [
        [run.seed for run in load_published(asked, seed=seed, repeats=repeats).parts["latency"].cell_runs()]
        for seed, repeats in ((None, None), (None, 2), (3, 1), (5, 9))
    ]
    assert [sorted(set(seeds)) for seeds in plans] == [[1, 2, 3], [1, 2], [3], [5, 6, 7]]


def refusal(path: str) -> str:
    """What is said of the file, after its path."""
    with pytest.raises(ScenarioError) as caught:
        load_published(path)
    place, _, said = str(caught.value).partition(f"{path}: ")
    assert place == ""
    return said


@pytest.mark.parametrize("case", refused("published"))
def test_what_does_not_fit_is_one_line_that_names_the_key(tmp_path: Path, case: dict[str, Any]) -> None:
    changes = dict(case.get("changes", {}))
    if "part" in case:
        changes["parts"] = {"latency": {**PARTS["latency"], **case["part"]}}
    if "figures" in case:
        changes["rows"] = [{"name": "one", "published": case["figures"]}]
    if "claim" in case:
        changes["claims"] = [{"says": "s", "of": "one", **case["claim"]}]
    assert_says(refusal(write(tmp_path, **changes)), case)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": [{"name": "one", "published": {"execution_count": 10**400}}]},
        {"claims": [{"says": "s", "of": "one", "figure": "p50_ns", "at_least": 10**400}]},
    ],
)
def test_a_number_beyond_floats_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert refusal(write(tmp_path, **changes)).startswith(tuple(changes))


def test_an_unknown_experiment_is_named_with_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"^e1l: there is no such experiment, did you mean 'e1(-l)?'\?$"):
        load_published("e1l")
    with pytest.raises(ScenarioError, match=r"^nosuch\.yaml: no such published experiment file$"):
        load_published("nosuch.yaml")


def test_long_names_of_an_experiment_and_its_part_are_cut_in_the_name_of_the_sweep(tmp_path: Path) -> None:
    loaded = load_published(write(tmp_path, name="a" * 64, parts={"b" * 64: PARTS["latency"]}))
    assert loaded.parts["b" * 64].file.name == "a" * 64


def test_a_probe_has_a_row_a_size_or_variant() -> None:
    assert probe_from_mapping({"kind": "operator", "sizes": [64, 128]}).rows == ("64", "128", "all sizes")
    assert probe_from_mapping({"kind": "pipeline"}).rows == (
        "pageable, separate kernels",
        "pinned, separate kernels",
        "pinned, one CUDA graph",
        "pinned, one compiled stage",
    )


@pytest.mark.parametrize("case", refused("probe"))
def test_a_file_of_a_probe_that_does_not_fit_is_one_line(tmp_path: Path, case: dict[str, Any]) -> None:
    changes = {key: case[key] for key in case.keys() - {"place", "says"}}
    if case.get("probe"):
        changes |= {"rows": [], "claims": []}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(E4.read_text(encoding="utf-8")), **changes}))
    assert_says(refusal(str(path)), case)


def test_the_rehearsal_changes_a_probe_by_key_paths(tmp_path: Path) -> None:
    stated = yaml.safe_load(E4.read_text(encoding="utf-8"))
    path = tmp_path / "own.yaml"
    for settings in ({"schedule.active": 4, "device": "cpu"}, {"device.name": 1}):
        path.write_text(yaml.safe_dump({**stated, "small": {"set": settings}}))
        assert load_published(str(path)).probe == PublishedFile(**stated).probe
        if "device" in settings:
            probe = load_published(str(path), is_small=True).probe
            assert isinstance(probe, OperatorProbe)
            assert (probe.schedule.wait, probe.schedule.active, probe.device) == (1, 4, "cpu")
    with pytest.raises(ScenarioError, match=r"^small\.set: .*probe\.device is a value, it has no key 'name'"):
        load_published(str(path), is_small=True)
