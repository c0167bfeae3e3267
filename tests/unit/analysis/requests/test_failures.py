"""What failed is the server's, in its own words; the first cause explains the next; no latency stands without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.limits import LIMITS
from squall.analysis.report.page import render_html
from squall.analysis.report.summary import summarise
from squall.analysis.requests.failures import failures_of
from squall.analysis.requests.requests import Requests
from squall.analysis.requests.stimulus import sends_of, verify
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from squall.analysis.verdict.measured import outcome_figures
from tests.synthetic_runs import (
    START_NS,
    S,
    SyntheticRun,
    as_table,
    synthesise,
    synthesise_two_models,
    synthesise_two_servers,
    verdict_of,
)
from tests.unit.analysis.report.test_screen import screen_lines
from tests.unit.analysis.requests.made_requests import requests_of

CASES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("failures.yaml").read_text())
FAILED = ("transport_error", "rejected", "server_error", "bad_reply", "timeout", "cancelled")
REFUSED = ("transport_error", "connect: Connection refused")


def end(run: SyntheticRun, rows: list[int], ends: tuple[str, str], sent: bool = True) -> None:
    """Those requests end so, the others as they did; what is not sent has no instants."""
    requests = run.tables["requests"]
    for i in rows:
        requests["outcome"][i], requests["detail"][i] = ends
        if not sent:
            requests["sent_ns"][i] = requests["first_byte_ns"][i] = None


def fail(
    run: SyntheticRun, share: float, *ends: str, sent: bool = True, at: Mapping[str, str] | None = None
) -> None:
    """That share of the requests `at` these places, evenly, ends so; all others end ok."""
    requests = run.tables["requests"]
    own = list(range(len(requests["phase"])))
    end(run, own, ("ok", ""))
    for column, places in (at or {}).items():
        own = [i for i in own if requests[column][i] in places.split()]
    end(
        run, [i for n, i in enumerate(own) if int((n + 1) * share) > int(n * share)], (ends[0], ends[1]), sent
    )


def measured_of(run: SyntheticRun) -> Requests:
    columns = run.tables["requests"]
    return Requests.from_table(as_table("requests", {**columns, "run": ["r"] * len(columns["phase"])}))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_verdict_says_whose_failures_they_are_and_whether_any_figure_stands(case: dict[str, Any]) -> None:
    at = case.get("at", {})
    run = (
        synthesise_two_models() if "request_kind" in at else synthesise_two_servers() if at else synthesise()
    )
    fail(run, case.get("share", 1.0), *case["ends"], sent=case.get("sent", True), at=at)
    if at == {"target": "server-1"}:  # and a stray one of the other
        end(run, [run.tables["requests"]["target"].index("server-0", 4_000)], ("rejected", "503 full"))
    is_noisy = "ok share" in case.get("unmet", [])
    if is_noisy:
        sent_ns = run.tables["requests"]["sent_ns"]
        sent_ns[::3] = [one + 2_000_000 for one in sent_ns[::3]]
    if "allowed" in case:
        run.manifest["scenario"]["expect"] = {"failures": case["allowed"]}
    verdict = verdict_of(run)
    assert verdict.status == case.get("status", "VALID")
    assert [check.name for check in verdict.checks if check.is_unmet] == case.get("unmet", [])
    assert (verdict.client_bottleneck is not None) == is_noisy
    assert [one.kind for one in verdict.causes[:1]] == ([case["kind"]] if "kind" in case else [])
    if "kind" in case:
        assert verdict.failures is not None
        assert verdict.reasons[0] == verdict.causes[0].sentence == verdict.failures.sentence
        assert case["says"] in verdict.reasons[0]
        assert verdict.failures.model == case.get("model", "")


def test_a_server_that_was_away_for_a_moment_is_valid_and_what_did_not_reach_it_is_no_load(
    synthetic: SyntheticRun,
) -> None:
    end(synthetic, list(range(1000, 1020)), REFUSED, sent=False)  # 0.7 % of the measured ones
    assert verdict_of(synthetic).status == "VALID"
    (sends,) = sends_of(measured_of(synthetic), measure_spans(synthetic.stated))
    stimulus = verify(sends, LIMITS)
    assert (stimulus.n_unreached, stimulus.n_planned - stimulus.n_within) == (20, 0)


def test_the_client_comes_last(synthetic: SyntheticRun) -> None:
    """Full workers that were late beside a server that refuses half."""
    fail(synthetic, 0.5, "rejected", "503 full")
    requests, samples = synthetic.tables["requests"], synthetic.tables["worker_samples"]
    for name in ("sent_ns", "first_byte_ns", "done_ns"):
        requests[name] = [t + 30_000_000 for t in requests[name]]
    samples["cpu_ns"] = [int(0.97 * S)] * len(samples["phase"])
    verdict = verdict_of(synthetic)
    assert [cause.kind for cause in verdict.causes] == ["server refuses", "client"]
    assert verdict.client_bottleneck is not None
    assert verdict.reasons[:2] == tuple(cause.sentence for cause in verdict.causes)


def test_no_latency_of_a_run_that_failed_and_ended_early_stands_without_its_failures(
    make_run: Callable[..., RunStore], plain: SyntheticRun
) -> None:
    fail(plain, 0.73, "rejected", "503 full")
    requests = plain.tables["requests"]
    over = [i for i, at_ns in enumerate(requests["scheduled_ns"]) if at_ns >= START_NS + 6 * S]
    end(plain, over, ("unsent", ""), sent=False)
    requests["done_ns"] = [None if i in set(over) else t for i, t in enumerate(requests["done_ns"])]
    n_never = sum(requests["phase"][i] == "burst" for i in over)
    store = make_run(plain)
    summary = summarise(store)
    failures = summary.measure.failures
    n_tried = requests["phase"].count("burst") - n_never
    assert failures.n_never == n_never
    assert failures.failed_ratio == pytest.approx(0.73, abs=1 / n_tried)
    assert [one.failures for one in summary.by_phase.values()] == [failures]
    for words in (f" of {n_tried} requests failed, the server refused", f"{n_never:,} more never sent"):
        assert words in summary.verdict.reasons[0]
    lines = screen_lines(summary)
    assert max(map(len, lines)) <= 80
    assert " % failed" in " ".join(lines[:2])
    table = next(i for i, line in enumerate(lines) if line.startswith("Latency"))
    assert any(f" % of these {n_tried} requests failed" in line for line in lines[table : table + 8])
    page = render_html(summary, store.manifest, [])
    assert page.count(" % of these requests failed") >= 4  # three cards and the table
    assert "the client kept up: these numbers are about the server" not in page


def ended(ends: list[tuple[str, str]], is_sent: bool = True) -> Requests:
    """Requests with these outcomes and details; what is unsent or lost, or failed where not `is_sent`, was not sent."""
    outcome, detail = (list(column) for column in zip(*ends, strict=True))
    sent_ns = [0 if one == "ok" or (is_sent and one not in ("unsent", "lost")) else None for one in outcome]
    return requests_of([0] * len(ends), sent_ns=sent_ns, outcome=outcome, detail=detail)


@pytest.mark.parametrize(
    ("n_ok", "sent", "words"),
    [
        (50, True, ", the server's connections broke: 50 x closed."),
        (0, True, ", the server was not there: 50 x closed."),
        (50, False, ", the server was not there: 50 x closed."),
    ],
)
def test_a_server_that_drops_connections_while_it_answers_others_is_there(
    n_ok: int, sent: bool, words: str
) -> None:
    ends = [("transport_error", "connect: closed")] * 50 + [("ok", "")] * n_ok
    assert words in failures_of(ended(ends, sent)).sentence


def test_of_failures_of_several_kinds_the_most_frequent_names_the_cause() -> None:
    several = [("rejected", "503 full")] * 50 + [REFUSED] * 30 + [("bad_reply", "no id")] * 2
    ends = [*several, ("timeout", "late"), *[("ok", "")] * 17]
    assert failures_of(ended(ends), {"clients": {"protocol": "grpc"}}).sentence == (
        "83.0 % of 100 requests failed, the server refused: 50 x gRPC status 503 full, 30 x Connection refused, "
        "3 x other."
    )


@given(
    st.lists(
        st.tuples(st.sampled_from([*FAILED, "ok", "unsent", "lost"]), st.sampled_from(["", "503 full", "why"])),
        min_size=1, max_size=60,
    ),
    st.floats(0, 1) | st.just(1.0),
)  # fmt: skip
def test_failures_are_counted_once_each_and_what_was_never_sent_is_none_of_the_servers(
    ends: list[tuple[str, str]], allowed: float
) -> None:
    found = failures_of(ended(ends), {"expect": {"failures": allowed}})
    failed = [one for one in ends if one[0] in FAILED]
    outcomes = [one[0] for one in ends]
    assert found.n_failed == len(failed)
    counts = [((one.outcome, one.detail), one.n) for one in found.groups]
    assert counts == sorted(
        ((one, failed.count(one)) for one in set(failed)), key=lambda item: (-item[1], item[0])
    )
    n_tried = len(ends) - outcomes.count("unsent") - outcomes.count("lost")
    assert found.n_never == len(ends) - n_tried
    assert found.failed_ratio == (len(failed) / n_tried if n_tried else 0.0)
    assert found.is_beyond == (found.failed_ratio > allowed or bool(failed and "ok" not in outcomes))
    assert bool(found.sentence) == bool(failed)


def test_a_detail_of_a_run_of_others_is_kept_in_its_beginning_alone(synthetic: SyntheticRun) -> None:
    fail(synthetic, 0.5, "server_error", "x" * 100_000)
    measured = measured_of(synthetic)
    (group,) = failures_of(measured).groups
    (words,) = outcome_figures(measured).details
    assert (group.detail, words.detail) == ("x" * 500, "x" * 500)
