"""Which runs make pairs, what is refused, marked and left out, and what all of it is called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from squall.analysis.compare.compared import evaluate
from squall.analysis.compare.pairing import pair_runs, refuse_incomparable
from squall.analysis.compare.run_row import Answers, RunRow, load_digest
from squall.analysis.compare.shift import shift
from squall.analysis.record import to_json
from squall.analysis.report.compare_page import compare_page
from squall.analysis.report.compare_words import lines, markdown
from squall.analysis.report.decision_page import page_html
from squall.analysis.storage.manifest import DataFacts, Manifest
from squall.analysis.verdict.run_figures import Reading
from squall.scenarios.errors import ScenarioError
from tests.compared_runs import Shape, pairs_of, side_run
from tests.fields import field

CASES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "comparisons.yaml").read_text())
Runs = tuple[list[RunRow], list[RunRow]]


@cache
def planted(name: str) -> Runs:
    if name == "slower":
        return pairs_of(Shape(0.5), 1, slower=1.10, n=1_000)
    if name == "few":
        return pairs_of(Shape(0.8), 3, n_pairs=3, n=500)
    a, _ = pairs_of(Shape(0.5), 2, n=1_000)
    return a, [replace(run, name=run.name.replace("a", "b"), started_ns=17 - run.started_ns) for run in a]


def stated(value: Any, place: int) -> Any:
    """What a case states of the run at that place."""
    if isinstance(value, str):
        return value.format(place=place)
    if isinstance(value, list):
        return tuple(stated(one, place) for one in value)
    if isinstance(value, dict):
        if "step" in value:
            return value["from"] + value["step"] * place
        return {key: stated(one, place) for key, one in value.items()}
    return value


def changed(runs: Sequence[RunRow], changes: Sequence[dict[str, Any]]) -> list[RunRow]:
    found = list(runs)
    for change in changes:
        fields = {key: value for key, value in change.items() if key not in ("runs", "like")}
        if "like" in change:
            found.append(found[change["like"]])
        first, last = change.get("runs", (len(found) - 1 if "like" in change else 0, len(found) - 1))
        for place in range(first, last + 1):
            own = stated(fields, place)
            readings = {name: Reading(**one) for name, one in own.get("figures", {}).items()}
            own["figures"] = {**found[place].figures, **readings}
            own["answers"] = Answers(**own.get("answers", {}))
            found[place] = replace(found[place], **own)
    return found


@pytest.mark.parametrize("name", CASES)
def test_two_sides_are_compared_as_stated(name: str) -> None:
    case = CASES[name]
    a, b = (
        changed(runs[: case.get("first", 8)], case.get(side, ()))
        for side, runs in zip("ab", planted(case["of"]), strict=True)
    )
    a, b = (b, a) if case.get("swap") else (a, b)
    paired = pair_runs(a, b)
    if "refused" in case:
        with pytest.raises(ScenarioError, match=rf"\A[^\n]*{case['refused']}[^\n]*\Z") as caught:
            refuse_incomparable(paired, a, b)
        assert caught.value.exit_code == 2
        return
    refuse_incomparable(paired, a, b)
    found = evaluate("A", "B", paired, **case.get("options", {}))
    held = json.loads(json.dumps(to_json(found), allow_nan=False))
    held["changes"] = {one["metric"]: one for one in held["changes"]}
    assert {path: field(held, path) for path in case.get("finds", {})} == case.get("finds", {})
    screen = "\n".join(lines(found))
    assert [text for text in case.get("says", ()) if text not in screen] == []
    assert [text for text in case.get("says_not", ()) if text in screen] == []


def test_other_shares_and_other_data_of_a_model_are_another_load_wherever_a_file_lies() -> None:
    def load(path: str = "a", sha256: str = "1", share: float = 1, **data: Any) -> str:
        own = {"path": path, "order": {"kind": "random"}, **data}
        scenario = {
            "models": [{"name": "encoder", "share": share, "data": own}, {"name": "text", "share": 1}]
        }
        facts = DataFacts(path=path, format="npy", sha256=sha256, n_entries=9)
        return load_digest(Manifest(scenario=scenario, data_by_model={"encoder": facts}))

    assert load() == load("b")
    assert len({load(), load(sha256="2"), load(limit=3), load(share=0.5)}) == 4


def test_page_and_markdown_hold_what_was_found_and_what_was_not() -> None:
    found = evaluate("A", "B", pair_runs(*planted("slower")))
    html = page_html(compare_page(found, ["squall compare <a> b"]))
    for text in (
        "B is worse than A", "The whole distribution", "Where the change comes from: all", "squall compare &lt;a&gt; b",
    ):  # fmt: skip
        assert text in html
    assert markdown(found).startswith("## B is worse than A")
    nothing = evaluate("A", "B", pair_runs([], []))
    assert nothing.verdict == "undecided"
    assert "no pair is whole" in page_html(compare_page(nothing, []))
    with pytest.raises(ScenarioError, match="B has no run"):
        refuse_incomparable(pair_runs(planted("slower")[0], []), planted("slower")[0], [])


@pytest.mark.parametrize(
    ("n_comparisons", "n_pairs", "least"),
    [
        (20, 8, 16),  # at 95 % each, fewer than 16 of 20 have a chance of 0.3 %
        *(
            pytest.param(100, *one, marks=[pytest.mark.slow, pytest.mark.long])
            for one in ((4, 88), (8, 90), (16, 90))
        ),
    ],
)
def test_the_band_holds_the_true_shift_of_the_whole_curve(
    n_comparisons: int, n_pairs: int, least: int
) -> None:
    """B takes 10 % longer throughout: of so many comparisons at least so many bands hold all of that curve."""
    n_held = 0
    for number in range(n_comparisons):
        rng = np.random.default_rng(number)
        sides = tuple[list[RunRow], list[RunRow]](([], []))
        for seed in range(n_pairs):
            arrivals = np.arange(400.0)
            for side, factor in zip(sides, (1.0, 1.1), strict=True):
                own = {"compute": rng.exponential(0.1, 400) * factor * (1 + 0.01 * rng.standard_normal())}
                side.append(side_run(f"{factor}{seed}", arrivals, own, seed, np.ones(400, np.int64)))
        found = shift(pair_runs(*sides).whole, 0.05)
        ends = [(low, high) for low, high in zip(found.low, found.high, strict=True) if low is not None]
        n_held += all(low <= 0.1 <= (high or 0.0) for low, high in ends)
    assert n_held >= least
