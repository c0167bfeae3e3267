"""A run that kept up meets every check, each fault fails its own, and the causes come in their order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.record import to_json
from squall.analysis.requests.failures import ABSENT, REFUSES, SLOW, WRONG
from squall.analysis.storage.query import over
from squall.analysis.storage.sealed import Bottleneck, FailureGroup, Failures, Starvation
from squall.analysis.storage.store import RunStore
from squall.analysis.verdict.causes import causes_of
from squall.analysis.verdict.checks import CHECKS
from squall.analysis.verdict.validity import judge_run
from tests.cpu_runs import cpu_of_the_node
from tests.synthetic_runs import (
    MS,
    START_NS,
    S,
    SyntheticRun,
    as_table,
    check_of,
    synthesise,
    synthesise_closed,
    verdict_of,
)

Case = dict[str, Any]
CASES: list[Case] = yaml.safe_load((Path(__file__).parent / "verdicts.yaml").read_text())
MACROS = f"""
CREATE MACRO instant(s) AS {START_NS} + (s * 1e9)::BIGINT;
CREATE MACRO ms(t) AS (t * 1e6)::BIGINT;
"""


def run_of(case: Case) -> SyntheticRun:
    """The run of a case of verdicts.yaml."""
    run = (synthesise_closed if case.get("run") == "closed" else synthesise)(**case.get("made", {}))
    run.omit |= set(case.get("without", ()))
    for path, value in case.get("manifest", {}).items():
        place: Any = run.manifest
        *above, name = path.split("/")
        for step in above:
            place = place[int(step) if step.isdigit() else step]
        place[name] = value
    if "cpu" in case:
        cpu_of_the_node(run, **case["cpu"])
    for statement in case.get("change", ()):
        _change(run, statement)
    return run


def _change(run: SyntheticRun, statement: str) -> None:
    (table,) = re.findall(r"^(?:UPDATE|DELETE FROM|INSERT INTO) (\w+)", statement)
    with over({"made": as_table(table, run.tables[table])}) as connection:
        connection.execute(f"{MACROS} CREATE TABLE {table} AS SELECT * FROM made")
        connection.execute(statement)
        changed = connection.sql(f"SELECT * FROM {table}").to_arrow_table().to_pydict()
    run.tables[table] = {name: changed[name] for name in run.tables[table]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_run_that_differs_in_this_is_judged_so(case: Case) -> None:
    verdict = verdict_of(run_of(case))
    assert verdict.status == case.get("status", "INVALID"), verdict.reasons
    assert (verdict.status == "VALID") == (verdict.reasons == ())
    checks = {check.name: check for check in verdict.checks}
    for name, words in case.get("unmet", {}).items():
        reason = checks[name].reason
        assert checks[name].is_unmet
        assert reason in verdict.reasons
        assert words in reason
        assert reason.endswith(".")
        assert reason[0].isupper()
    assert [name for name in case.get("met", ()) if not checks[name].is_met] == []
    for figure in ("value", "limit"):
        expected = case.get(f"{figure}s", {})
        assert {name: getattr(checks[name], figure) for name in expected} == pytest.approx(expected, rel=0.05)
    expected = case.get("not_assessed", {})
    assert {name: checks[name].not_assessed for name in expected} == expected
    client = verdict.client_bottleneck
    if "cause" in case or verdict.status == "VALID":
        assert (client.cause if client else None) == case.get("cause")
    if client is not None:
        assert client.sentence.startswith("The client was the bottleneck")
        assert client.sentence.endswith(f"{client.evidence}; {client.advice}.")
        assert [word for word in case.get("words", ()) if word not in client.sentence] == []
    if "causes" in case or case.get("cause"):
        assert [cause.kind for cause in verdict.causes] == case.get("causes", ["client"])
    sentences = [cause.sentence for cause in verdict.causes]
    assert list(verdict.reasons[: len(sentences)]) == sentences
    assert len(set(verdict.reasons)) == len(verdict.reasons)
    assert "".join(verdict.reasons).startswith(case.get("first", ""))
    if "starved_by" in case:
        assert verdict.starvation is not None
        assert verdict.starvation.starved_by == case["starved_by"]


@pytest.mark.parametrize("make", [synthesise, synthesise_closed])
def test_a_run_that_kept_up_is_valid_with_every_check_met(make: Any) -> None:
    verdict = verdict_of(make())
    assert (verdict.status, verdict.client_bottleneck, verdict.reasons) == ("VALID", None, ())
    assert all(check.is_met and not check.reason for check in verdict.checks)
    if make is synthesise:
        of_others = {
            "CPU of the server",
            "GPU of the server",
            "users present",
            "late users",
            "Locust's counts",
        }
        too_long = {"dispersion 10 s", "dispersion 100 s", "users accounted for"}
        names = {check.name for check in CHECKS} - of_others - too_long
        assert {check.name for check in verdict.checks} == names


def test_the_difference_per_second_is_what_no_stall_explains(synthetic: SyntheticRun) -> None:
    requests = synthetic.tables["requests"]
    second = range(START_NS + 5 * S, START_NS + 6 * S)
    planned = [i for i, t in enumerate(requests["scheduled_ns"]) if t in second]
    for i in planned[:100]:
        requests["sent_ns"][i] = START_NS + 6 * S
    n_more = 100 + sum(requests["sent_ns"][i] >= second.stop for i in planned[100:])
    n_near = sum(requests["scheduled_ns"][i] >= second.stop - 10 * MS for i in planned)
    # late from the second before
    n_in = sum(t in second for t in requests["sent_ns"]) + n_more - len(planned)
    found = check_of(verdict_of(synthetic), "delivered load per second").value
    assert found == pytest.approx((n_more - n_in - max(2, n_near)) / len(planned))


def test_the_verdict_of_a_store_is_that_of_its_tables(whole_run: RunStore) -> None:
    judged = judge_run(whole_run)
    assert judged == whole_run.manifest.verdict
    figures = to_json(judged, is_whole=True)
    for name in ("model", "n_never"):
        assert not figures["failures"].pop(name)
    assert figures == to_json(whole_run.manifest)["verdict"], "what is not set is left out of the manifest"


@pytest.mark.parametrize(
    ("kind", "outcome", "order"),
    [
        (ABSENT, "transport_error", [ABSENT, "others took the CPU", "others took the GPU"]),
        (ABSENT, "timeout", ["others took the CPU", "others took the GPU", ABSENT]),
        (REFUSES, "rejected", [REFUSES, "others took the CPU", "others took the GPU"]),
        (WRONG, "bad_reply", [WRONG, "others took the CPU", "others took the GPU"]),
        (SLOW, "timeout", ["others took the CPU", "others took the GPU", SLOW]),
        ("client", "transport_error", ["others took the CPU", "others took the GPU", "client"]),
    ],
)
def test_the_first_cause_explains_the_next(kind: str, outcome: str, order: list[str]) -> None:
    group = FailureGroup(kind=kind, outcome=outcome, detail="", n=9)
    failures = Failures(is_beyond=True, kind=kind, sentence=kind, groups=(group,))
    client = Bottleneck(sentence="It was late.", advice="more")
    for by_others, clients in (
        (Starvation(starved_by="others", sentence="They did."), ""),
        (None, "They did."),
    ):
        found = causes_of(failures, by_others, clients, client, "It was killed.", "They used it.")
        assert [one.kind for one in found] == ["driver killed", *order, "client"]
    by_clients = Starvation(starved_by="clients", sentence="They did.")
    assert [one.kind for one in causes_of(Failures(), by_clients, "", None)] == ["client"]
    assert causes_of(Failures(), Starvation(starved_by="quota", sentence="It is."), "", None) == ()
