"""The margin of a run: how far its promises are from being broken; and which figures do not follow the load."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.compare.figures import BROKEN, KEPT, PromiseFigures
from squall.analysis.studies.capacity_answer import notes_of
from squall.analysis.studies.capacity_probe import margin_of
from squall.analysis.studies.capacity_rows import Row
from squall.analysis.studies.capacity_search import Found
from squall.scenarios.promises import parse_promises
from tests.unit.analysis.compare.test_over_seeds import run_of

CASES: dict[str, list[dict[str, Any]]] = yaml.safe_load((Path(__file__).parent / "margins.yaml").read_text())
MS = 1_000_000


def figures(
    late: int = 0, allowed: int | None = None, value: float | None = 1.0, **changes: Any
) -> PromiseFigures:
    verdict = KEPT if allowed is not None and late <= allowed else BROKEN
    found: PromiseFigures = run_of(1_000, late, verdict=verdict, n_allowed=allowed, is_infinite=value is None)
    return replace(found, **{"value": None if value is None else value * MS, **changes})


@pytest.mark.parametrize("case", CASES["margins"], ids=str)
def test_the_margin_is_that_of_the_worst_promise_with_the_sign_of_its_verdict(case: dict[str, Any]) -> None:
    promises = parse_promises({name: condition for name, condition, _ in case["promises"]}) or ()
    own = [figures(**one) for *_, one in case["promises"]]
    found = margin_of(promises, own)
    assert (found.verdict, found.reason) == (case["verdict"], own[0].reason)
    assert found.binding == case.get("binding", promises[0].text)
    assert found.margin == (case["ratio"] and pytest.approx(math.log(case["ratio"]), abs=1e-12))
    assert found.margin is None or (found.margin < 0.0) == (found.verdict == KEPT)


@pytest.mark.parametrize("case", CASES["noise"], ids=str)
def test_a_figure_that_is_higher_at_less_load_is_noise_of_the_host(case: dict[str, Any]) -> None:
    empty: dict[str, Any] = dict.fromkeys(Row.__match_args__)
    rows = [
        replace(Row(**empty), seed=seed, rate_hz=rate_hz, margin=margin, purpose=(*purpose, "bracket")[0])
        for seed, rate_hz, margin, *purpose in case["levels"]
    ]
    notes = notes_of(Found("found", ()), case.get("scale", "time"), "", rows, None)
    noise = [one for one in notes if one.startswith("noise")]
    assert len(noise) == ("said" in case)
    assert case.get("said", "") in "".join(noise)
