"""The files of a check: JUnit by three readers, with names that need escapes; its page."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from junit2htmlreport.parser import Junit
from junitparser import Error, Failure, JUnitXml, Skipped

from squall.analysis.compare.checked import CheckedRun, decision_text, evaluate, junit, lines, markdown
from squall.analysis.compare.figures import (
    BROKEN,
    INVALID,
    KEPT,
    UNDECIDED,
    Certainty,
    LateParts,
    PlaceInRun,
    PromiseFigures,
)
from squall.analysis.report.check_page import check_page
from squall.analysis.report.decision_page import page_html
from tests.unit.analysis.compare.test_over_seeds import run_of

NAME = "response{phase:a&b} p(95)<50ms"


def runs(*figures: PromiseFigures) -> list[CheckedRun]:
    return [CheckedRun(seed, f"run-{seed}", "VALID", 1.5, (one,)) for seed, one in enumerate(figures)]


@pytest.mark.parametrize(
    ("n_late", "changes", "verdict", "kind"),
    [
        (0, {}, KEPT, None),
        (900, {}, BROKEN, Failure),
        (0, {"verdict": UNDECIDED, "reason": "none <was> sent\x00"}, UNDECIDED, Skipped),
        (0, {"verdict": INVALID, "reason": "the run is INVALID"}, INVALID, Error),
    ],
)
def test_three_readers_find_the_verdict_in_the_junit_file(
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
    (other,) = Junit(xmlstring=text).suites[0].all()
    assert other.name == read.name == NAME
    assert other.failed() == (kind in (Failure, Error))
    if kind is not None:
        told = decision_text(checked.promises[0]).replace("\x00", "\\x00")
        assert [one.message for one in read.result] == [told]
        assert other.skipped_msg == told if kind is Skipped else other.failure_msg == told
    assert [type(one) for one in read.result] == ([] if kind is None else [kind])
    assert (suite.failures, suite.errors) == (int(kind is Failure), int(kind is Error))
    assert suite.skipped == int(kind is Skipped)
    assert "a&amp;b} p(95)&lt;50ms" in markdown(checked)
    assert lines(checked)[-1] == f"{verdict}: s, 2 seeds"
    assert check_page(checked).is_good is {KEPT: True, UNDECIDED: None}.get(verdict, False)


def test_runs_that_leave_a_promise_open_are_told_beside_those_that_kept_it() -> None:
    left_open = run_of(1_000, 0, promise=NAME, verdict=UNDECIDED, reason="ten requests are too few")
    text = decision_text(evaluate("s", "d" * 64, runs(*[left_open] * 3)).promises[0])
    assert text.startswith("0 of 3 runs kept it, 3 undecided")
    assert "0 % … 0 %" not in text


def test_a_run_without_requests_is_invalid() -> None:
    checked = evaluate("s", "d" * 64, [CheckedRun(1, "r", "INVALID", 1.0, ())])
    assert checked.verdict == INVALID
    assert 'errors="1"' in junit(checked)


def test_a_run_that_was_run_again_does_not_count() -> None:
    invalid = CheckedRun(0, "first", "INVALID", 1.0, (run_of(9, 9, verdict=INVALID),), is_replaced=True)
    checked = evaluate("s", "d" * 64, [invalid, *runs(run_of(1_000, 0), run_of(1_000, 1))])
    assert (checked.verdict, checked.promises[0].n_seeds) == (KEPT, 2)
    assert "first" in markdown(checked)


def test_the_page_answers_in_its_first_line_and_shows_each_seed() -> None:
    late = replace(
        run_of(1_000, 90, promise=NAME), certain=Certainty("a", 3 * 10**9, 41), n_failed=2,
        worst=PlaceInRun("a", 10**9, 10**9, 50, 9), failure="2 x HTTP 503 <full>",
        late=LateParts(90, 910, "queue", 0.7, {"queue": 9.0}, {"queue": 1.0}),
    )  # fmt: skip
    checked = evaluate("s", "d" * 64, runs(*[late] * 3))
    page = check_page(checked, ["squall check s.yaml"], "my runs/check")
    assert page.answer == f"No: s broke {NAME}, over 3 seeds."
    assert page.is_good is False
    html = page_html(page)
    for text in (
        "response{phase:a&amp;b} p(95)&lt;50ms", "3.00 s into a, at request 41", "9 of 50 late", "queue grows most",
        "2 x HTTP 503 &lt;full&gt;", "squall check s.yaml", "squall report &#39;my runs/check/run-2&#39;", "9.00 %",
    ):  # fmt: skip
        assert text in html, text
    (plot,) = page.plots
    assert [one["name"] for one in plot.traces] == [
        "a seed's run",
        "allowed",
        "mean",
        "lower bound",
        "upper bound",
    ]
    assert plot.traces[0]["y"] == [9.0] * 3


def test_a_page_without_any_request_says_so() -> None:
    page = check_page(evaluate("s", "d" * 64, [CheckedRun(1, "r", "INVALID", 1.0, ())]))
    assert "seed 1, r: INVALID" in page_html(page)


def test_a_run_that_failed_by_itself_is_told_in_its_own_words() -> None:
    told = "load.py ended its test with exit code 1."
    kept = [replace(one, failed=told) for one in runs(run_of(1_000, 0, promise=NAME))]
    checked = evaluate("s", "d" * 64, kept)
    assert checked.verdict == BROKEN
    page = page_html(check_page(checked, "squall check s.yaml"))
    assert told in page
    assert "expect.failures" not in page + junit(checked) + markdown(checked)
    cases = ElementTree.fromstring(junit(checked)).iter("testcase")
    (failed,) = (case for case in cases if case.find("failure") is not None)
    assert failed.get("name") == "run"
