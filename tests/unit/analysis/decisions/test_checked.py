"""The files of a check: read by two readers of JUnit, with names that need escapes."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from junitparser import Error, Failure, JUnitXml

from squall.analysis.decisions.checked import CheckedRun, evaluate, junit, lines, markdown
from squall.analysis.decisions.figures import BROKEN, INVALID, KEPT, UNDECIDED, PromiseFigures
from tests.unit.analysis.decisions.test_over_seeds import run_of

NAME = "response{phase:a&b} p(95)<50ms"


def runs(*figures: PromiseFigures) -> list[CheckedRun]:
    return [CheckedRun(seed, f"run-{seed}", "VALID", 1.5, (one,)) for seed, one in enumerate(figures)]


@pytest.mark.parametrize(
    ("n_late", "changes", "verdict", "kind"),
    [
        (0, {}, KEPT, None),
        (900, {}, BROKEN, Failure),
        (0, {"verdict": UNDECIDED, "reason": "none <was> sent\x00"}, UNDECIDED, Failure),
        (0, {"verdict": INVALID, "reason": "the run is INVALID"}, INVALID, Error),
    ],
)
def test_two_readers_find_the_verdict_in_the_junit_file(
    n_late: int, changes: dict[str, object], verdict: str, kind: type | None
) -> None:
    checked = evaluate("s", "d" * 64, runs(*[run_of(1_000, n_late, promise=NAME, **changes)] * 2))
    assert checked.verdict == verdict
    text = junit(checked)
    (case,) = ElementTree.fromstring(text).iter("testcase")
    assert case.get("name") == NAME
    assert [child.get("type") for child in case] == ([] if kind is None else [verdict])
    (suite,) = JUnitXml.fromstring(text.encode())
    (read,) = suite
    assert [type(one) for one in read.result] == ([] if kind is None else [kind])
    assert (suite.failures, suite.errors) == (int(kind is Failure), int(kind is Error))
    assert "a&amp;b} p(95)&lt;50ms" in markdown(checked)
    assert lines(checked)[-1] == f"{verdict}: s, 2 seeds"


def test_a_run_without_requests_is_invalid() -> None:
    checked = evaluate("s", "d" * 64, [CheckedRun(1, "r", "INVALID", 1.0, ())])
    assert checked.verdict == INVALID
    assert 'errors="1"' in junit(checked)


def test_a_run_that_was_run_again_does_not_count() -> None:
    invalid = CheckedRun(0, "first", "INVALID", 1.0, (run_of(9, 9, verdict=INVALID),), is_replaced=True)
    checked = evaluate("s", "d" * 64, [invalid, *runs(run_of(1_000, 0), run_of(1_000, 1))])
    assert (checked.verdict, checked.promises[0].n_seeds) == (KEPT, 2)
    assert "first" in markdown(checked)
