"""Servers that die, hang or are late to begin: what is said of the requests that no batch took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from squall.analysis.findings.finding import Finding
from squall.analysis.storage.store import RunStore
from tests.regime_runs import Op, Phase, diagnose, keys_of, write_regime_run

BUSY = Phase("first", (Op(50.0),) * 12, wait_us=300.0)
BATCH_US = 645.0
"""Length of a batch of it, to the µs."""
SILENT = replace(BUSY, silent_us=40_000.0, n_unserved=60)
NOT_SERVED = ("server_error", "501 this endpoint does not infer")
PHASES = (
    BUSY,
    replace(SILENT, name="it dies"),
    replace(SILENT, name="it hangs", silent_before=20),
    replace(SILENT, name="it's dead at first", silent_before=0),
    replace(BUSY, name="late", wait_us=60_000.0),
    replace(BUSY, name="full", n_batches=120, wait_us=3_000.0, silent_us=2_000.0, n_unserved=20),
    replace(SILENT, name="dead", n_batches=0),
    replace(BUSY, name="idle", n_batches=0, silent_us=1_000.0),
    replace(BUSY, name="unknown", lost=("batches", "nvtx", "kernels", "cuda_api", "triton_traces")),
    replace(SILENT, name="answered", unserved_end=NOT_SERVED),
    replace(SILENT, name="some answered", n_unserved=20, unserved_end=NOT_SERVED),
)
Diagnosed = tuple[dict[str, Finding], RunStore]


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    """Findings of the window level by phase of a run of PHASES."""
    store = write_regime_run(tmp_path_factory.mktemp("silent"), PHASES)
    findings, _ = diagnose(store)
    return {one.scope.phase: one for one in findings if one.level == "window"}, store


@pytest.mark.parametrize("phase", ["it dies", "it hangs", "it's dead at first"])
def test_the_time_in_which_a_server_is_silent_is_waiting_wherever_it_lies(
    phase: str, diagnosed: Diagnosed
) -> None:
    found = diagnosed[0][phase]
    assert (found.rule, found.confidence_reasons) == ("unserved", ("self-checks not met: unjoined",))
    assert found.claim.startswith("Requests go unserved: 60.0 % of the 100 that were sent to the server")
    wall_us = 300.0 + 40 * BATCH_US + 40_000.0
    assert found.shares["between_waiting"] == pytest.approx(40_000.0 / wall_us, abs=0.01)
    assert found.shares["edges"] == pytest.approx(0.0, abs=0.01)
    assert sum(value for value in found.shares.values() if value is not None) == pytest.approx(1.0)
    assert {"under-offered", "scheduler/IPC-bound", "queue-bound"}.isdisjoint(found.also)
    assert found.give_back.wall_ratio is None


def test_its_rows_are_the_requests_that_no_batch_took(diagnosed: Diagnosed) -> None:
    findings, store = diagnosed
    rows = findings["it's dead at first"].rows
    assert rows is not None
    found = keys_of(store, rows, "request_id")
    assert len(found) == 60
    assert [row["request_id"] for row in rows.worst] == found[:5]
    assert {row["outcome"] for row in rows.worst} == {"timeout"}


def test_requests_that_wait_for_the_first_batch_wait(diagnosed: Diagnosed) -> None:
    found = diagnosed[0]["late"]
    assert found.rule == "scheduler/IPC-bound"
    assert found.shares["between_waiting"] == pytest.approx(60_000.0 / (60_000.0 + 40 * BATCH_US), abs=0.01)
    assert found.shares["edges"] == pytest.approx(0.0, abs=0.001)


def test_a_full_instance_that_leaves_requests_behind_is_queue_bound(diagnosed: Diagnosed) -> None:
    assert diagnosed[0]["full"].rule == "queue-bound"


def test_a_phase_in_which_nothing_was_served_has_a_finding_that_says_so(diagnosed: Diagnosed) -> None:
    found = diagnosed[0]["dead"]
    assert (found.rule, found.scope.server, found.scope.instance) == ("unserved", "server-0", "m_0")
    assert found.claim == (
        "No batch of it is known to have begun in this phase; 60 requests were sent to its server, 0 of them ended ok, "
        "60 were left unserved."
    )
    assert found.rows is not None
    assert len(found.rows.worst) == 5
    assert "idle" not in diagnosed[0]  # nothing was asked of it


def test_a_phase_whose_batches_are_not_recorded_is_not_assessed(diagnosed: Diagnosed) -> None:
    found = diagnosed[0]["unknown"]
    assert (found.rule, found.confidence) == ("not assessed", "low")
    assert "40 requests were sent to its server, 40 of them ended ok" in found.claim


@pytest.fixture(scope="module")
def without_batches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    """The findings of a run without any batch, by phase: one that leaves its requests, and one that answers them."""
    dead = replace(SILENT, name="dead", n_batches=0)
    phases = [dead, replace(dead, name="answered", unserved_end=NOT_SERVED)]
    findings, checks = diagnose(write_regime_run(tmp_path_factory.mktemp("dead"), phases))
    assert {one.name for one in checks.values() if one.status == "unmet"} == set()
    assert len(findings) == len(phases)
    return {one.scope.phase: one for one in findings}


def test_a_run_without_any_batch_says_so_of_its_server(without_batches: dict[str, Finding]) -> None:
    found = without_batches["dead"]
    assert (found.level, found.rule, found.confidence) == ("window", "unserved", "high")
    assert (found.scope.server, found.scope.instance) == ("server-0", "")
    assert found.claim.startswith("No batch is known to have begun in this phase; 60 requests were sent")


def test_a_server_that_answered_each_request_is_said_to_have_refused_them_in_its_own_words(
    without_batches: dict[str, Finding], diagnosed: Diagnosed
) -> None:
    """Without any batch, and beside batches: what is answered is not unserved."""
    found = without_batches["answered"]
    assert (found.level, found.rule, found.confidence) == ("window", "refused", "high")
    assert found.claim == (
        "No batch is known to have begun in this phase; 60 requests were sent to its server, 0 of them ended ok, "
        "60 were answered without being served. It said 60 x server_error: 501 this endpoint does not infer."
    )
    assert found.rows is not None
    assert {row["outcome"] for row in found.rows.worst} == {"server_error"}
    window = diagnosed[0]["answered"]
    assert window.rule == "refused"
    assert window.claim.startswith("The server answers without serving: 60.0 % of the 100 requests")
    assert "unserved" not in window.also


def test_a_server_that_answers_some_and_leaves_most_is_unserved(diagnosed: Diagnosed) -> None:
    findings = diagnosed[0]
    assert findings["dead"].rule == "unserved"
    assert "It said" not in findings["dead"].claim
    assert findings["some answered"].rule == "refused"
