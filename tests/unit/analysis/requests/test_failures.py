"""What failed is the server's, in its own words; the first cause explains the next; no latency stands without it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.render.report import render_html
from squall.analysis.requests.failures import ABSENT, CLIENT, REFUSES, SLOW, WRONG, failures_of
from squall.analysis.requests.requests import Requests
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.analysis.summary.summary_file import Summary
from squall.analysis.tables.sealed import Bottleneck, Failures
from squall.analysis.verdict.measured import outcome_figures
from squall.scenarios.units import NS_PER_S
from tests.synthetic_runs import (
    OTHER,
    START_NS,
    S,
    SyntheticRun,
    as_table,
    synthesise_two_models,
    synthesise_two_servers,
    verdict_of,
)
from tests.unit.analysis.render.test_screen import screen_lines

MakeRun = Callable[..., RunStore]
KINDS = {
    "transport_error": ABSENT,
    "rejected": REFUSES,
    "server_error": REFUSES,
    "bad_reply": WRONG,
    "timeout": SLOW,
    "cancelled": SLOW,
}


def fail(run: SyntheticRun, share: float, outcome: str, detail: str, sent: bool = True) -> None:
    """That share of all requests ends so, evenly; the others end ok."""
    requests = run.tables["requests"]
    for i in range(len(requests["phase"])):
        fails = int((i + 1) * share) > int(i * share)
        requests["outcome"][i], requests["detail"][i] = (outcome, detail) if fails else ("ok", "")
        if fails and not sent:
            requests["sent_ns"][i] = requests["first_byte_ns"][i] = None


@pytest.mark.parametrize("outcome", KINDS)
def test_a_server_that_fails_most_of_a_delivered_load_is_valid_and_says_so_first(
    outcome: str, synthetic: SyntheticRun
) -> None:
    fail(synthetic, 0.73, outcome, "503 why" if outcome == "rejected" else "why")
    verdict = verdict_of(synthetic)
    assert verdict.status == "VALID"
    (first,) = verdict.reasons
    assert verdict.failures is not None
    assert first == verdict.causes[0].sentence == verdict.failures.sentence
    n, n_failed = verdict.failures.n, verdict.failures.n_failed
    assert first.startswith(f"73.0 % of {n:,} requests failed, ")
    assert first.endswith(f": {n_failed:,} x {'HTTP 503 why' if outcome == 'rejected' else 'why'}.")
    assert verdict.causes[0].kind == KINDS[outcome]


@pytest.mark.parametrize(("allowed", "leads"), [(0.5, True), (0.74, False), (1.0, False), (0.0, True)])
def test_how_many_may_fail_is_what_the_user_expects(
    allowed: float, leads: bool, synthetic: SyntheticRun
) -> None:
    fail(synthetic, 0.73, "server_error", "500 why")
    synthetic.manifest["scenario"]["expect"] = {"failures": allowed}
    verdict = verdict_of(synthetic)
    assert (verdict.status, bool(verdict.reasons)) == ("VALID", leads)


@pytest.mark.parametrize(
    ("outcome", "detail", "words"),
    [
        ("bad_reply", "wrong shape", "the server answered wrongly"),
        ("server_error", "501 no such method", "the server refused: 2,974 x HTTP 501 no such method"),
        ("server_error", "400 bad shape", "the server refused: 2,974 x HTTP 400 bad shape"),
        ("timeout", "no whole reply", "the server was not there"),  # nobody ever said anything
        ("transport_error", "Connection reset by peer", "the server was not there"),
    ],
)
def test_where_nothing_ended_ok_the_run_is_invalid_by_the_server_and_not_by_its_client(
    outcome: str, detail: str, words: str, synthetic: SyntheticRun
) -> None:
    fail(synthetic, 1.0, outcome, detail)
    for i in range(0, len(synthetic.tables["requests"]["phase"]), 3):  # the host is noisy too
        synthetic.tables["requests"]["sent_ns"][i] += 2_000_000
    verdict = verdict_of(synthetic)
    assert verdict.status == "INVALID"
    assert verdict.reasons[0].startswith("100 % of ")
    assert words in verdict.reasons[0]
    assert "ok share" in {check.name for check in verdict.checks if check.is_unmet}
    for name in ("lag in p50", "lag in p95", "lag in p99", "clock bound"):
        check = next(one for one in verdict.checks if one.name == name)
        assert not check.is_unmet  # of a latency that does not exist no part is the client's


def test_connections_that_are_refused_are_no_load_and_no_lateness_of_the_client(
    synthetic: SyntheticRun,
) -> None:
    fail(synthetic, 579 / 583, "transport_error", "connect: Connection refused", sent=False)
    verdict = verdict_of(synthetic)
    assert verdict.status == "INVALID"
    assert "the server was not there: " in verdict.reasons[0]
    assert "x Connection refused." in verdict.reasons[0]
    assert verdict.client_bottleneck is None
    assert {check.name for check in verdict.checks if check.is_unmet} == {"server reached"}


def test_a_server_that_was_away_for_a_moment_is_valid(synthetic: SyntheticRun) -> None:
    requests = synthetic.tables["requests"]
    for i in range(1000, 1020):  # 0.7 % of the measured ones
        requests["outcome"][i], requests["detail"][i] = "transport_error", "connect: Connection refused"
        requests["sent_ns"][i] = requests["first_byte_ns"][i] = None
    verdict = verdict_of(synthetic)
    assert verdict.status == "VALID"
    stimulus = summarise_stimulus(synthetic)
    assert (stimulus.n_unreached, stimulus.n_planned - stimulus.n_within) == (20, 0)


def summarise_stimulus(run: SyntheticRun) -> Any:
    from squall.analysis.clocks.timeline import measure_spans
    from squall.analysis.limits import LIMITS
    from squall.analysis.requests.stimulus import sends_of, verify

    table = as_table(
        "requests", {**run.tables["requests"], "run": ["r"] * len(run.tables["requests"]["phase"])}
    )
    (sends,) = sends_of(Requests.from_table(table), measure_spans(run.stated))
    return verify(sends, LIMITS)


@pytest.mark.parametrize("outcome", ["timeout", "cancelled"])
def test_a_connection_that_never_came_about_is_a_server_that_was_not_reached(
    outcome: str, synthetic: SyntheticRun
) -> None:
    fail(synthetic, 0.5, outcome, "no connection", sent=False)
    verdict = verdict_of(synthetic)
    assert {check.name for check in verdict.checks if check.is_unmet} == {"server reached"}
    assert verdict.client_bottleneck is None


def test_a_record_that_is_gone_is_neither_a_failure_nor_unsent_nor_late(synthetic: SyntheticRun) -> None:
    fail(synthetic, 0.5, "lost", "", sent=False)
    verdict = verdict_of(synthetic)
    assert verdict.failures is not None
    assert verdict.failures.n_failed == 0
    assert {check.name for check in verdict.checks if check.is_unmet} == {"lost records"}
    assert verdict.client_bottleneck is None


def test_of_a_load_that_ended_early_failures_are_of_those_sent_and_its_length_is_told(
    make_run: MakeRun, plain: SyntheticRun
) -> None:
    fail(plain, 1.0, "rejected", "503 full")
    requests = plain.tables["requests"]
    is_over = [
        at_ns >= START_NS + 6 * S for at_ns in requests["scheduled_ns"]
    ]  # 4 s after the warm-up of 2 s
    for i in [i for i, over in enumerate(is_over) if over]:
        requests["outcome"][i], requests["detail"][i] = "unsent", ""
        requests["sent_ns"][i] = requests["first_byte_ns"][i] = requests["done_ns"][i] = None
    summary = summarise(make_run(plain))
    n_sent, n = (
        sum(
            phase == "burst" and not (over and is_sent)
            for phase, over in zip(requests["phase"], is_over, strict=True)
        )
        for is_sent in (True, False)
    )
    assert (summary.measure.failures.n_never, summary.measure.failures.failed_ratio) == (n - n_sent, 1.0)
    assert summary.verdict.reasons[0].startswith(f"100 % of {n_sent} requests failed, the server refused")
    assert f"{n - n_sent:,} more never sent, or without a record." in summary.verdict.reasons[0]
    head = " ".join(" ".join(screen_lines(summary)[:2]).split())
    assert "burst, 3.9" in head
    assert " of 12.0 s, seed 1 INVALID, 100 % failed, " in head
    assert f"{n - n_sent:,} never sent" in head
    assert max(map(len, screen_lines(summary))) <= 80


def test_a_connection_that_the_clients_own_node_cannot_make_is_the_clients(synthetic: SyntheticRun) -> None:
    fail(synthetic, 0.5, "transport_error", "connect: Too many open files", sent=False)
    verdict = verdict_of(synthetic)
    assert verdict.causes[0].kind == CLIENT
    assert "the client's node had no room for a connection" in verdict.reasons[0]


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
    found = failures_of(
        ended([("transport_error", "connect: closed")] * 50 + [("ok", "")] * n_ok, is_sent=sent)
    )
    assert words in found.sentence


def test_of_failures_of_several_kinds_the_most_frequent_names_the_cause() -> None:
    refused = ("transport_error", "connect: Connection refused")
    several = [("rejected", "503 full")] * 50 + [refused] * 30 + [("bad_reply", "no id")] * 2
    found = failures_of(
        ended([*several, ("timeout", "late"), *[("ok", "")] * 17]), {"clients": {"protocol": "grpc"}}
    )
    assert found.sentence == (
        "83.0 % of 100 requests failed, the server refused: 50 x gRPC status 503 full, 30 x Connection refused, "
        "3 x other."
    )


def ended(ends: list[tuple[str, str]], is_sent: bool = True) -> Requests:
    """Requests with these outcomes and details; what is unsent, or failed where not `is_sent`, was not sent."""
    n = len(ends)
    instants = [START_NS + i * S for i in range(n)]
    columns: dict[str, list[Any]] = {
        "phase": ["m"] * n, "run": ["r"] * n, "request_id": list(range(n)), "worker": [0] * n, "node": ["a"] * n,
        "target": ["s"] * n, "request_kind": ["k"] * n, "scheduled_ns": instants, "rows": [1] * n,
        "sent_ns": [
            None if outcome == "unsent" or not (is_sent or outcome == "ok") else t
            for (outcome, _), t in zip(ends, instants, strict=True)
        ],
        "done_ns": [t + NS_PER_S for t in instants], "first_byte_ns": instants, "request_bytes": [1] * n,
        "response_bytes": [1] * n, "outcome": [one[0] for one in ends], "detail": [one[1] for one in ends],
    }  # fmt: skip
    return Requests.from_table(as_table("requests", columns))


@given(
    st.lists(
        st.tuples(st.sampled_from([*KINDS, "ok", "unsent"]), st.sampled_from(["", "503 full", "why"])),
        min_size=1, max_size=60,
    ),
    st.floats(0, 1),
)  # fmt: skip
def test_failures_are_counted_once_each_and_unsent_is_none_of_the_servers(
    ends: list[tuple[str, str]], allowed: float
) -> None:
    n = len(ends)
    found = failures_of(ended(ends), {"expect": {"failures": allowed}})
    failed = [one for one in ends if one[0] in KINDS]
    assert found.n_failed == len(failed) == sum(one.n for one in found.groups)
    assert {(one.outcome, one.detail): one.n for one in found.groups} == {
        one: failed.count(one) for one in failed
    }
    assert [one.n for one in found.groups] == sorted((one.n for one in found.groups), reverse=True)
    n_tried = n - [one[0] for one in ends].count("unsent")
    assert found.failed_ratio == (len(failed) / n_tried if n_tried else 0.0)
    n_ok = [one[0] for one in ends].count("ok")
    assert found.is_beyond == (found.failed_ratio > allowed or bool(failed and not n_ok))
    assert bool(found.sentence) == bool(failed)


@pytest.mark.parametrize(
    ("outcome", "detail", "sent", "kind", "words"),
    [
        ("transport_error", "connect: Connection refused", False, ABSENT, "server-1 was not there"),
        ("transport_error", "closed", True, ABSENT, "server-1's connections broke"),
        ("rejected", "503 full", True, REFUSES, "server-1 refused"),
        ("timeout", "no reply within 5s", True, ABSENT, "server-1 was not there"),  # it never said anything
    ],
)
def test_of_two_servers_the_one_that_failed_alone_is_named(
    outcome: str, detail: str, sent: bool, kind: str, words: str
) -> None:
    run = synthesise_two_servers()
    fail(run, 0.5, outcome, detail, sent)  # every other one, as the servers alternate
    requests = run.tables["requests"]
    requests["outcome"][4000], requests["detail"][4000] = "rejected", "503 full"  # a stray one of the other
    failures = verdict_of(run).failures
    assert failures is not None
    assert f"requests failed, {words}: " in failures.sentence
    assert failures.groups[0].kind == kind


def of_mixed(fails: Callable[[str, str], bool]) -> Failures:
    """Requests of the mixed run where `fails` says of server and model that they are refused."""
    run = synthesise_two_models()
    requests = run.tables["requests"]
    for at, place in enumerate(zip(requests["target"], requests["request_kind"], strict=True)):
        if fails(*place):
            requests["outcome"][at], requests["detail"][at] = "server_error", "400 no such model"
        else:
            requests["outcome"][at], requests["detail"][at] = "ok", ""
    found = verdict_of(run).failures
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("server", "model", "told", "named"),
    [
        ("", OTHER, "failed, nearly all that did ask linear_head, the server refused: ", OTHER),
        (
            "server-0",
            OTHER,
            "failed, nearly all that did ask linear_head, server-0 refused: ",
            OTHER,
        ),
        ("server-1", OTHER, "failed, server-1 refused: ", ""),  # it serves no other
        ("server-0", "", "failed, server-0 refused: ", ""),
    ],
)
def test_of_two_models_the_one_that_failed_alone_is_named(
    server: str, model: str, told: str, named: str
) -> None:
    found = of_mixed(lambda at, kind: server in ("", at) and model in ("", kind))
    assert found.model == named
    assert told in found.sentence


def test_where_all_models_fail_none_is_named() -> None:
    found = of_mixed(lambda *_: True)
    assert (found.model, found.n) == ("", found.n_failed)
    assert "failed, the server refused: " in found.sentence


def test_of_two_servers_that_both_fail_none_is_named() -> None:
    run = synthesise_two_servers()
    fail(run, 0.25, "rejected", "503 full")
    requests = run.tables["requests"]
    requests["outcome"][0::8] = ["rejected"] * len(requests["outcome"][0::8])
    found = verdict_of(run).failures
    assert found is not None
    assert "requests failed, the server refused: " in found.sentence


def test_the_client_comes_last(synthetic: SyntheticRun) -> None:
    """Full workers that were late beside a server that refuses half."""
    fail(synthetic, 0.5, "rejected", "503 full")
    requests, samples = synthetic.tables["requests"], synthetic.tables["worker_samples"]
    for name in ("sent_ns", "first_byte_ns", "done_ns"):
        requests[name] = [t + 30_000_000 for t in requests[name]]
    samples["cpu_ns"] = [int(0.97 * S)] * len(samples["phase"])
    verdict = verdict_of(synthetic)
    assert [cause.kind for cause in verdict.causes] == ["server refuses", "client"]
    assert isinstance(verdict.client_bottleneck, Bottleneck)
    assert verdict.reasons[:2] == tuple(cause.sentence for cause in verdict.causes)


def test_no_latency_of_such_a_run_stands_without_its_failures(make_run: MakeRun, plain: SyntheticRun) -> None:
    fail(plain, 0.73, "rejected", "503 Exceeds maximum queue size")
    store = make_run(plain)
    summary = summarise(store)
    lines = screen_lines(summary)
    assert lines[0].rstrip().endswith("VALID, 73.0 % failed")
    table = next(i for i, line in enumerate(lines) if line.startswith("Latency"))
    assert any("73.0 % of these 2,974 requests failed" in line for line in lines[table : table + 8])
    first = [line for line in lines if line.startswith("VALID")][-1]
    assert first.startswith("VALID   73.0 % of 2,974 requests failed, the server refused: 2,171 x HTTP 503")
    assert max(map(len, lines)) <= 80
    page = render_html(summary, store.manifest, [])
    assert page.count("73.0 % of these requests failed") >= 4  # three cards and the table
    assert "the client kept up: these numbers are about the server" not in page
    for block in (summary.measure, *summary.by_phase.values()):
        assert block.failures.failed_ratio == pytest.approx(0.73, abs=0.001)


def test_a_run_with_few_failures_looks_as_before(whole_summary: Summary) -> None:
    assert not whole_summary.measure.failures.is_beyond
    text = "\n".join(screen_lines(whole_summary))
    assert not re.search("of these .* requests failed", text)
    assert "% failed" not in text


def test_a_detail_of_a_run_of_others_is_kept_in_its_beginning_alone(synthetic: SyntheticRun) -> None:
    fail(synthetic, 0.5, "server_error", "x" * 100_000)
    columns = synthetic.tables["requests"]
    measured = Requests.from_table(as_table("requests", {**columns, "run": ["r"] * len(columns["phase"])}))
    (group,) = failures_of(measured).groups
    (words,) = outcome_figures(measured).details
    assert (group.detail, words.detail) == ("x" * 500, "x" * 500)
