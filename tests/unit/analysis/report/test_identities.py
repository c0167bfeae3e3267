"""Counts that must agree: which of them each lost or moved row breaks, of one server, of two, of two models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from tests.synthetic_runs import MIXED, MODEL, OTHER, SyntheticRun
from tests.synthetic_runs import synthesise as one
from tests.synthetic_runs import synthesise_two_models as mixed
from tests.synthetic_runs import synthesise_two_servers as two

Change = Callable[[SyntheticRun], None]
OF_EACH = ("triton success", "batch rows", "executions", "joined")
SERVERS = [f"at server-{n}" for n in (0, 1)]
PLACES = [f"of {model} at {server}" for server, model in MIXED]


def named(names: tuple[str, ...], places: list[str]) -> set[str]:
    return {f"{name} {place}" for name in names for place in places}


def lose(table: str, row: int | None = None) -> Change:
    """That row; without one that of most rows: more than those of the three timeouts, which may be missing."""

    def change(run: SyntheticRun) -> None:
        columns = run.tables[table]
        at = columns["rows"].index(max(columns["rows"])) if row is None else row
        for values in columns.values():
            values.pop(at)

    return change


def add(table: str, column: str, *changes: tuple[int, int]) -> Change:
    """So much to those rows. Nothing is derived: counts of what is joined would know nothing of it."""

    def change(run: SyntheticRun) -> None:
        run.derived = False
        for row, n in changes:
            run.tables[table][column][row] += n

    return change


def lose_record(run: SyntheticRun) -> None:
    """Of a request that was served: the server's counts may exceed the client's by it."""
    requests = run.tables["requests"]
    requests["outcome"][100] = "lost"
    for name in ("sent_ns", "first_byte_ns", "done_ns"):
        requests[name][100] = None


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("make", "change", "broken"),
    [
        pytest.param(one, lose_record, set(), marks=SLOW),
        (one, lose("batches"), {"batch rows", "executions", "joined"}),
        (one, lose("requests", 100), {"rows", "triton success", "batch rows"}),
        (one, add("triton_samples", "request_count", (5, -10)), {"triton success"}),
        (one, add("triton_samples", "execution_count", (5, -10)), {"executions"}),
        # what is counted of one server, or model, too much makes up for no loss of the other: rows alternate
        (two, add("triton_samples", "request_count", (10, -5), (11, 5)), named(("triton success",), SERVERS)),
        pytest.param(
            two, add("triton_samples", "execution_count", (10, -5), (11, 5)), named(("executions",), SERVERS),
            marks=SLOW,
        ),
        (mixed, add("triton_samples", "request_count", (9, -5), (10, 5)), named(("triton success",), PLACES[:2])),
        pytest.param(
            mixed, add("triton_samples", "execution_count", (9, -5), (10, 5)), named(("executions",), PLACES[:2]),
            marks=SLOW,
        ),
        # the second batch had one row, and none is no execution
        (mixed, add("batches", "rows", (9, 1), (10, -1)), {f"batch rows {PLACES[0]}", f"executions {PLACES[1]}"}),
    ],
)  # fmt: skip
def test_each_lost_or_moved_row_breaks_the_counts_that_it_is_in(
    make: Callable[[], SyntheticRun], change: Change, broken: set[str], tmp_path: Path
) -> None:
    run = make()
    change(run)
    assert {each.name for each in summarise(run.write(tmp_path)).identities if not each.is_met} == broken


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("whole", set(OF_EACH)),
        ("two_servers", named(OF_EACH, SERVERS)),
        ("mixed", named(OF_EACH, PLACES)),
    ],
)
def test_every_count_of_independent_sources_agrees(
    kind: str, names: set[str], request: pytest.FixtureRequest
) -> None:
    summary: Summary = request.getfixturevalue(f"{kind}_summary")
    assert summary.verdict.status == "VALID", summary.verdict.reasons
    assert {each.name for each in summary.identities} == {"rows", "batch costs", *names}
    assert all(each.is_met for each in summary.identities)
    unmet = [each.name for each in summary.self_checks if each.status == "unmet"]
    assert unmet == ["in flight"], "made up"


def test_requests_given_up_by_the_client_may_or_may_not_have_been_served(whole_summary: Summary) -> None:
    """Three timeouts: they may be executed after the last sample."""
    success, executions = (
        next(each for each in whole_summary.identities if each.name == name)
        for name in ("triton success", "executions")
    )
    assert (success.least, success.found) == (success.most - 3, success.most)
    assert (executions.most, executions.found) == (executions.least + 3, executions.least)


def test_a_server_without_a_record_of_its_batches_breaks_no_count(tmp_path: Path) -> None:
    run = two(rate_hz=60.0)
    run.keep("batches", lambda row: row["server"] == "server-0")
    identities = summarise(run.write(tmp_path)).identities
    assert all(each.is_met for each in identities)
    assert {each.name for each in identities} == {
        "rows", "batch costs", "triton success at server-1", *named(OF_EACH, SERVERS[:1])
    }  # fmt: skip


def test_requests_of_an_ensemble_count_for_the_step_that_others_ask_too(tmp_path: Path) -> None:
    """`OTHER` becomes an ensemble on server 0, with `MODEL` as its one step: its batches are those of the step."""
    run = mixed()
    run.derived = False
    run.set("batches", "model", lambda row: MODEL if row["server"] == "server-0" else row["model"])
    samples = run.tables["triton_samples"]
    for at in range(0, len(samples["phase"]), 3):
        for column in ("request_count", "inference_count", "execution_count"):
            samples[column][at] += samples[column][at + 1]
        samples["execution_count"][at + 1] = 0
    run.manifest["servers"]["server-0"]["others"][0]["steps"] = [MODEL]
    store = run.write(tmp_path)
    found = {each.name: each for each in summarise(store).identities}
    assert all(each.is_met for each in found.values())
    n_ok = Counter(
        row["request_kind"]
        for row in store.read("requests").to_pylist()
        if (row["outcome"], row["target"]) == ("ok", "server-0")
    )
    assert found[f"triton success of {MODEL} at server-0"].least == n_ok.total()
    assert found[f"triton success of {OTHER} at server-0"].least == n_ok[OTHER]
