"""Files of published experiments: those that squall brings along, and what a file of one's own may say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.errors import ScenarioError
from squall.scenarios.published.experiment import bundled_names, load_published
from squall.scenarios.units import NS_PER_S
from tests.sweep_runs import SCENARIO

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


def test_e1_is_the_articles_seven_rows_with_three_seeds_and_its_length() -> None:
    e1 = load_published("e1")
    latency, length, depth = (e1.parts[name] for name in ("latency", "length", "depth"))
    assert [len(part.cells) for part in (latency, length, depth)] == [7, 1, 7]
    assert [part.file.repeats for part in (latency, length, depth)] == [3, 1, 1]
    assert [row.published["throughput_hz"] for row in e1.file.rows] == [941, 958, 803, 994, 970, 1028, 973]
    for part, seconds in ((latency, 20), (length, 120), (depth, 5)):
        for cell in part.cells:
            (measured,) = (phase for phase in cell.scenario.phases if phase.kind == "measure")
            assert measured.duration_ns == seconds * NS_PER_S
            assert cell.scenario.profile.kernels == "off"
            assert (cell.scenario.profile.nsys == "required") == (part is depth)
    models = [cell.scenario.models[0].model for cell in latency.cells]
    assert [model.instances for model in models] == [4, 4, 4, 8, 6, 6, 1]
    assert [model.cuda_graphs for model in models] == [False] * 5 + [True] * 2
    assert [model.queue_delay_ns for model in models] == [500_000] * 4 + [1_000_000] * 3


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
    rows = load_published(write(tmp_path)).file.rows
    assert rows[0].published == {"throughput_hz": 10, "p50_ns": 630_000_000}
    assert rows[1].published == {"sm_util_ratio": (0.1, 0.2)}


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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"scenario": None}, "give either scenario or probe"),
        ({"parts": {}}, "a scenario needs rows and parts"),
        ({"parts": {"latency": {**PARTS["latency"], "gives": ["p51_ns"]}}}, "unknown figure 'p51_ns'"),
        ({"parts": {"latency": {**PARTS["latency"], "rows": ["two"]}}}, "there is no row 'two'"),
        (
            {"parts": {"latency": {**PARTS["latency"], "set": {"phases.bust.duration": "1s"}}}},
            "parts.latency: ",
        ),
        ({"rows": [ROWS[0], ROWS[0]]}, "the name 'one' is used twice"),
        ({"rows": [{"name": "one", "published": {"p51": 1}}]}, "p51: unknown figure"),
        ({"rows": [{"name": "one"}, {"name": "two"}]}, "are the same scenario, leave one out"),
        (
            {"claims": [{"says": "x", "figure": "p50_ns", "of": "two", "at_least": 1}]},
            "there is no row 'two'",
        ),
        ({"claims": [{"says": "x", "figure": "p50_ns", "of": "one"}]}, "says no bound"),
        ({"claims": [{"says": "x", "figure": "p", "of": "one", "at_least": 1}]}, "unknown figure 'p'"),
    ],
)
def test_what_does_not_fit_is_one_line_that_names_the_key(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ScenarioError, match=r"own\.yaml") as caught:
        load_published(write(tmp_path, **changes))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_experiment_is_named_with_the_nearest() -> None:
    with pytest.raises(ScenarioError, match=r"^e1l: there is no such experiment, did you mean 'e1(-l)?'\?$"):
        load_published("e1l")
    with pytest.raises(ScenarioError, match=r"^nosuch\.yaml: no such published experiment file$"):
        load_published("nosuch.yaml")


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ({"throughput_hz": "fast"}, "throughput_hz: 'fast' is no number"),
        ({"throughput_hz": True}, "throughput_hz: True is no number"),
        ({"regime": 7}, "regime: 7 is no text"),
        ({"p50_ns": ["2ms", "1ms"]}, "p50_ns: the least of a range comes first, 2ms is above 1ms"),
        ({"regime": ["a", "b"]}, "regime: a range has two numbers"),
        ({"first_call_ns": -5}, "first_call_ns: -5 cannot be"),
        ({"execution_count": 10**400}, "execution_count"),
    ],
)
def test_a_figure_that_cannot_be_is_refused(published: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=re.escape(expected)):
        load_published(write(tmp_path, rows=[{"name": "one", "published": published}]))


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({"figure": "p99_ns", "at_least": 1}, "claims[0]: no part gives p99_ns of 'one'"),
        ({"figure": "p50_ns", "at_least": 2, "at_most": 1}, "at_least: 2 is above at_most, 1"),
        ({"figure": "p50_ns", "at_least": 2, "equals": "3"}, "equals: stands alone"),
        ({"figure": "p50_ns", "equals": "fast"}, "equals: 'fast' is no number"),
        ({"figure": "regime", "at_least": 1}, "figure: regime is a text"),
        ({"figure": "p50_ns", "to": "one", "at_least": 1}, "to: 'one' is the row itself"),
        ({"figure": "p50_ns", "at_least": 10**400}, "at_least"),
    ],
)
def test_a_claim_that_nothing_could_hold_is_refused(
    claim: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError, match=re.escape(expected)):
        load_published(write(tmp_path, claims=[{"says": "s", "of": "one", **claim}]))


def test_a_name_of_two_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="must be one line"):
        load_published(write(tmp_path, rows=[{"name": "one\ntwo"}]))


def test_more_repeats_than_a_sweep_takes_are_refused_in_one_line(tmp_path: Path) -> None:
    parts = {"latency": {**PARTS["latency"], "repeats": 10**6}}
    with pytest.raises(ScenarioError, match=r"parts\.latency: repeats: .*1000"):
        load_published(write(tmp_path, parts=parts))


def test_long_names_of_an_experiment_and_its_part_are_cut_in_the_name_of_the_sweep(tmp_path: Path) -> None:
    loaded = load_published(write(tmp_path, name="a" * 64, parts={"b" * 64: PARTS["latency"]}))
    assert loaded.parts["b" * 64].file.name == "a" * 64
