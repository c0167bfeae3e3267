"""Runs of two servers: what is said of each is of its own requests, batches and counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from squall.analysis.render.report import render_html
from squall.analysis.render.screen import render
from squall.analysis.statistics.latency import INFINITE_NS
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.analysis.summary.summary_file import Summary
from tests.known import known
from tests.made_once import run_once, value_once
from tests.synthetic_runs import SLOWER_NS, SyntheticRun, synthesise_two_servers

OF_EACH = ("triton success", "batch rows", "executions", "joined")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    return run_once(tmp_path_factory, "two_servers_run", synthesise_two_servers().write)


@pytest.fixture(scope="session")
def summary(run: RunStore, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return value_once(tmp_path_factory, "two_servers_summary", lambda: summarise(run))


@pytest.fixture
def two() -> SyntheticRun:
    """To be broken."""
    return synthesise_two_servers(rate_hz=60.0)


def unmet(store: RunStore) -> set[str]:
    return {one.name for one in summarise(store).identities if not one.is_met}


def test_a_run_of_two_servers_agrees_with_itself(summary: Summary) -> None:
    assert summary.verdict.status == "VALID", summary.verdict.reasons
    of_each = {f"{name} at server-{n}" for name in OF_EACH for n in (0, 1)}
    assert {one.name for one in summary.identities} == {"rows", "batch costs", *of_each}
    assert [one.name for one in summary.identities if not one.is_met] == []
    assert [one.name for one in summary.self_checks if one.status == "unmet"] == ["in flight"], "made up"


def moved(column: str) -> Callable[[SyntheticRun], None]:
    """Triton counts of one server what is the other's."""

    def change(run: SyntheticRun) -> None:
        run.derived = False
        run.tables["triton_samples"][column][10] -= 5  # rows alternate between the servers
        run.tables["triton_samples"][column][11] += 5

    return change


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("request_count", "triton success"),
        pytest.param("execution_count", "executions", marks=pytest.mark.slow),
    ],
)
def test_what_one_server_counts_too_much_makes_up_for_no_loss_of_the_other(
    tmp_path: Path, two: SyntheticRun, column: str, name: str
) -> None:
    moved(column)(two)
    assert unmet(two.write(tmp_path)) == {f"{name} at server-0", f"{name} at server-1"}


def test_a_server_without_a_record_of_its_batches_breaks_no_count(tmp_path: Path, two: SyntheticRun) -> None:
    batches = two.tables["batches"]
    kept = [place for place, server in enumerate(batches["server"]) if server == "server-0"]
    two.tables["batches"] = {name: [values[at] for at in kept] for name, values in batches.items()}
    identities = summarise(two.write(tmp_path)).identities
    assert {one.name for one in identities if not one.is_met} == set()
    assert {one.name for one in identities} == {
        "rows", "batch costs", *(f"{name} at server-0" for name in OF_EACH), "triton success at server-1"
    }  # fmt: skip


def test_each_server_has_the_figures_of_its_own_requests(run: RunStore, summary: Summary) -> None:
    rows = [row for row in run.read("requests").to_pylist() if row["phase"] == "burst"]
    figures = known(summary.measure.servers)
    assert list(figures.servers) == ["server-0", "server-1"]
    for name, one in figures.servers.items():
        own = [row for row in rows if row["target"] == name]
        late_ns = sorted(
            row["done_ns"] - row["scheduled_ns"] if row["outcome"] == "ok" else INFINITE_NS for row in own
        )
        assert one.counts == Counter(row["outcome"] for row in own)
        assert (one.n, one.n_sent, one.n_failed) == (len(own), len(own), len(own) - one.counts["ok"])
        assert (one.planned_ratio, one.sent_ratio, one.asked_ratio) == (0.5, 0.5, 0.5)
        assert (one.work_ratio, one.work_of_asked_ratio) == (0.5, 1.0)
        for quantile in one.quantiles:
            assert quantile.value_ns == late_ns[-(-round(100 * quantile.q) * len(own) // 100) - 1]
    first, second = (one.quantiles[1] for one in figures.servers.values())
    assert known(second.value_ns) - known(first.value_ns) == SLOWER_NS
    assert figures.p95_ratio == known(second.value_ns) / known(first.value_ns) > 1
    assert "autocorrelation times" in first.interval_reason, "an interval takes as much as anywhere"
    assert summary.by_phase["burst"].servers == figures


def test_screen_and_report_have_a_line_for_each_server(run: RunStore, summary: Summary) -> None:
    console = Console(width=80, file=StringIO(), force_terminal=False)
    console.print(render(summary, "runs/x", is_verbose=True))
    assert isinstance(console.file, StringIO)
    screen = " ".join(console.file.getvalue().split())
    assert re.search(
        r"Servers largest p95 over smallest: 1\..* server-0: 50\.0 % of requests, [\d,]+ of [\d,]+ sent, \d+ not ok",
        screen,
    )
    for name in ("server-0", "server-1"):
        assert f"burst, {name}, p99: " in screen
    assert "work over asked 1.00" in screen
    page = render_html(summary, run.manifest, [])
    assert page.count("<h2>Servers</h2>") == 1
    for name in ("server-0", "server-1"):
        assert f"<tr><td>{name}</td>" in page


def test_a_run_of_one_server_says_nothing_of_servers(whole_run: RunStore, whole_summary: Summary) -> None:
    assert whole_summary.measure.servers is None
    assert "<h2>Servers</h2>" not in render_html(whole_summary, whole_run.manifest, [])


def test_work_is_held_to_what_the_routing_asked(tmp_path: Path, two: SyntheticRun) -> None:
    """Server 1 was to have a quarter, has half of the requests, and answers none of them."""
    two.derived = False
    weights = [{"weight": 3.0}, {"weight": 1.0}]
    two.manifest["scenario"] |= {"servers": weights, "clients": {"routing": {"kind": "weighted"}}}
    requests = two.tables["requests"]
    requests["outcome"] = [
        "timeout" if target == "server-1" else outcome
        for target, outcome in zip(requests["target"], requests["outcome"], strict=True)
    ]
    figures = known(summarise(two.write(tmp_path)).measure.servers)
    first, second = figures.servers.values()
    assert (first.asked_ratio, second.asked_ratio) == (0.75, 0.25)
    assert (first.work_ratio, second.work_ratio) == (1.0, 0.0)
    assert (first.work_of_asked_ratio, second.work_of_asked_ratio) == (1 / 0.75, 0.0)
    assert second.quantiles[0].is_infinite
    assert figures.p95_ratio is None


def test_a_server_that_got_nothing_stands_beside_the_others(tmp_path: Path, plain: SyntheticRun) -> None:
    plain.manifest["servers"]["server-1"] = plain.manifest["servers"]["server-0"]
    figures = known(summarise(plain.write(tmp_path)).measure.servers)
    idle = figures.servers["server-1"]
    assert (idle.n, idle.planned_ratio, idle.sent_ratio, idle.work_ratio) == (0, 0.0, 0.0, 0.0)
    assert all(one.is_refused for one in idle.quantiles)
    assert figures.servers["server-0"].planned_ratio == 1.0
    assert figures.p95_ratio is None
