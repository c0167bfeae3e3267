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


def test_text_takes_the_width_that_it_is_given_and_no_more(telling_summary: Summary) -> None:
    wide = screen_lines(telling_summary, width=200)
    assert " ".join(" ".join(wide).split()).count("a note") == 40
    assert 120 < max(map(len, wide)) <= 140
    assert len(wide) < len(screen_lines(telling_summary))


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
