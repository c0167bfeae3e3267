from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from squall.analysis.findings.finding import Bound, Finding, Scope
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.report.page import render_html
from squall.analysis.report.screen import render
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.report.templates import sentences
from squall.analysis.storage.store import RunStore
from squall.analysis.wording import count_text, duration_text, figure_text, names_text, rate_text, share_text
from squall.cluster.commands.printed import screen_text
from tests.known import known
from tests.synthetic_runs import SyntheticRun

MakeRun = Callable[..., RunStore]


def screen_lines(summary: Summary, width: int = 80, is_verbose: bool = True) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    return screen_text(console, lambda given: render(summary, "runs/x", given, is_verbose)).splitlines()


@pytest.mark.parametrize("kind", ["whole", "two_nodes", "telling", "closed", "mixed", "phaseless"])
@pytest.mark.parametrize("is_verbose", [False, True])
def test_the_screen_fits_in_80_columns(kind: str, is_verbose: bool, request: pytest.FixtureRequest) -> None:
    lines = screen_lines(request.getfixturevalue(f"{kind}_summary"), is_verbose=is_verbose)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= (80 if is_verbose else 36)
    assert not any(line.endswith(" ") for line in lines)
    figures = lines[: next(at for at, line in enumerate(lines) if "95 % interval" in line)]
    assert not any("…" in line for line in figures)  # every figure has room


def test_the_short_screen_says_what_decides_and_the_long_one_the_rest(whole_summary: Summary) -> None:
    short, whole = ("\n".join(screen_lines(whole_summary, is_verbose=is_long)) for is_long in (False, True))
    both = (
        "VALID", "response p95", "95 % interval", "few n", "rejected 14", "Exceeds maximum queue size", "queue",
        "Diagnosis", "nsys, nvml: why, and the mend, stand in report.html", "runs/x/ report.html",
        "20 of 20 checks met",
    )  # fmt: skip
    assert len(short.splitlines()) <= 26
    rest = (
        "IDC 0.1 s",
        "sent within it; worst second 0 % off",
        "100 % joined by id",
        " agree; self-checks: ",
    )
    for words in both:
        assert words in short, words
        assert words in whole, words
    for words in rest:
        assert words not in short, words
        assert words in whole, words
    assert not [
        line for line in whole.splitlines() if line.startswith(("lag's part", "!")) or "no nsys on" in line
    ]


def test_text_takes_the_width_that_it_is_given_and_no_more(telling_summary: Summary) -> None:
    wide = screen_lines(telling_summary, width=200)
    assert " ".join(" ".join(wide).split()).count("a note") == 40
    assert 120 < max(map(len, wide)) <= 140
    assert len(wide) < len(screen_lines(telling_summary))


def test_an_invalid_run_says_so_with_its_reasons_and_its_broken_counts(
    make_run: MakeRun, plain: SyntheticRun
) -> None:
    for values in plain.tables["requests"].values():
        values.pop(1000)
    text = "\n".join(screen_lines(summarise(make_run(plain)), is_verbose=False))
    assert "INVALID   Number of planned arrivals without exactly one row is 1" in text
    assert "  19 of 20 checks met" in text
    assert "rows: found 3,370, expected 3,371" in text


def test_what_was_not_recorded_and_what_fell_on_failures_reads_so(
    make_run: MakeRun, synthetic: SyntheticRun
) -> None:
    synthetic.omit = {"batches", "triton_samples", "host_samples", "worker_samples"}
    synthetic.derived = False
    outcome = synthetic.tables["requests"]["outcome"]
    outcome[::10] = ["timeout"] * len(outcome[::10])
    text = "\n".join(screen_lines(summarise(make_run(synthetic))))
    assert text.count("not recorded") >= 2
    assert "no request could be joined to its batch" in text
    assert "response p95 failed" in text


def test_latencies_under_nsys_say_so_in_their_own_lines(
    whole_summary: Summary, telling_summary: Summary
) -> None:
    assert "under nsys" not in "\n".join(screen_lines(whole_summary))
    lines = screen_lines(telling_summary)
    (head,) = (number for number, line in enumerate(lines) if line.startswith("Latency"))
    assert lines[head + 1].startswith("under nsys ")
    (headline,) = (line for line in lines if line.startswith("response p95"))
    assert " ms under nsys " in headline


WRITTEN = {
    "duration": duration_text, "share": share_text, "count": count_text, "rate": rate_text, "names": names_text,
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITTEN)
def test_figures_have_few_digits_a_unit_and_no_exponent(kind: str) -> None:
    figures = yaml.safe_load((Path(__file__).parent / "words.yaml").read_text())["figures"][kind]
    write: Callable[[Any], str] = WRITTEN[kind]  # type: ignore[assignment]
    assert [(value, write(value)) for value, _ in figures] == [(value, text) for value, text in figures]
    assert (figure_text(None, "ns"), figure_text(0.5, "ratio")) == ("-", "50.0 %")


def finding(level: str, rule: str, confidence: str = "high", margin: float | None = None) -> Finding:
    scope = Scope("steady", "server-0", "m_0" if level != "tail" else "")
    bound = Bound(response_ratio=0.174)
    return Finding(rule, level, scope, "a claim", "a step", confidence, margin=margin, give_back=bound)


def test_a_finding_is_a_line_with_its_confidence_and_what_it_saves_at_most() -> None:
    found = [
        finding("window", "scheduler/IPC-bound"), finding("body", "launch-bound", confidence="medium"),
        finding("tail", "queue grows", margin=0.789),
    ]  # fmt: skip
    assert sentences("findings", found) == [
        "steady, m_0: scheduler/IPC-bound (high, saves ≤ 17.4 % of latency); "
        "batches launch-bound (medium, saves ≤ 17.4 % of latency)",
        "steady, p99: queue grows most, 78.9 % of the gap to the faster half",
    ]
    assert sentences("findings", [finding("tail", "none")]) == ["steady, p99: no tail: it is the median"]


def test_an_instance_is_named_with_what_tells_it_from_another() -> None:
    places = [("server-0", "m_0", 0), ("server-0", "m_0", 1), ("server-1", "m_1", 0), ("server-1", "m_2", -1),
              ("server-2", "m_2", -1), ("server-3", "m_3", 0), ("server-3", "m_3", -1)]  # fmt: skip
    found = [
        replace(finding("window", "none"), scope=Scope("steady", server, instance, instance_device=device))
        for server, instance, device in places
    ]
    assert [line.partition(": ")[0] for line in sentences("findings", found)] == [
        "steady, m_0 on GPU 0", "steady, m_0 on GPU 1", "steady, m_1", "steady, server-1/m_2",
        "steady, server-2/m_2", "steady, m_3 on GPU 0", "steady, m_3 on the CPU",
    ]  # fmt: skip


def test_a_check_that_is_not_met_is_named_with_its_value_first() -> None:
    check = SelfCheck("wall", 44_320, 0, "ns", "unmet", "what is off", "burst")
    assert sentences("checks", [check, replace(check, status="met", where="")]) == [
        "1 of 2 met",
        "wall: 44.3 µs, limit 0 ns (burst): what is off",
    ]


def test_a_quantile_that_is_mostly_lag_is_marked_wherever_it_is_printed(
    make_run: MakeRun, plain: SyntheticRun
) -> None:
    """Six requests in ten leave 6 ms late: the median is bent; the 1 % slowest take 4 s, whoever sent them."""
    requests = plain.tables["requests"]
    for i in range(len(requests["phase"])):
        late, slow = 6_000_000 * (i % 10 < 6), 4_000_000_000 * (i % 50 == 49)
        requests["outcome"][i], requests["detail"][i] = "ok", ""
        requests["sent_ns"][i] += late
        requests["done_ns"][i] += late + slow
    store = make_run(plain)
    summary = summarise(store)
    latency = summary.measure.latency
    parts = {one.q: one for one in latency.lag_parts if one}
    of_response = known(latency.response).quantiles
    for response, service in zip(of_response, latency.service.quantiles, strict=True):
        if response.value_ns is not None:
            part = parts[response.q]
            assert service.value_ns is not None
            assert (part.response_ns, part.excess_ns) == (
                response.value_ns, response.value_ns - service.value_ns,
            )  # fmt: skip
    assert parts[0.5].is_above
    assert not parts[0.99].is_above
    lines = screen_lines(summary, is_verbose=False)
    (row,) = [line for line in lines if line.startswith("lag's part")]
    assert row.split("!")[1].split()[0] == share_text(parts[0.5].ratio).split()[0]
    assert any(line.startswith("! more of this quantile than allowed is send lag") for line in lines)
    assert f"! {share_text(parts[0.5].ratio)}</td>" in render_html(summary, store.manifest, [])
    assert store.manifest.status == "INVALID"
    assert any(check.name == "lag in p50" and check.reason for check in summary.verdict.checks)
